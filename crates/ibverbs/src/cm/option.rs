//! Sets the options of ids (`rdma_set_option`).
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::id::Id;
use crate::abi::*;
use crate::support::errno::{Errno, minus_one};
use crate::support::object::find;
use std::ffi::{c_int, c_void};

/// Reads the value of an option. EINVAL if the length is not that of the type.
///
/// # Safety
/// `value` is NULL or has `len` bytes, of a type without invalid values.
unsafe fn read<T: Copy>(value: *const c_void, len: usize) -> Result<T, Errno> {
    if value.is_null() || len != size_of::<T>() {
        return Err(Errno::INVALID);
    }
    // SAFETY: not NULL, and as many bytes as the type has, by the caller's contract.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// Sets an option of an id. ENOSYS if the option is unknown, EOPNOTSUPP if it cannot be set here.
///
/// # Safety
/// `value` is NULL or has `len` bytes.
unsafe fn set_option(
    id: &Id,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> Result<(), Errno> {
    match (level, name) {
        (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => {
            // SAFETY: NULL or `len` bytes by the caller's contract, and every `u8` is valid.
            id.shared().lock().options.traffic_class = unsafe { read(value, len)? };
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
            // SAFETY: NULL or `len` bytes by the caller's contract, and every `c_int` is valid.
            id.shared().lock().options.share_port = unsafe { read::<c_int>(value, len)? } != 0;
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
            // SAFETY: NULL or `len` bytes by the caller's contract, and every `c_int` is valid.
            let only = unsafe { read::<c_int>(value, len)? } != 0;
            let mut state = id.shared().lock();
            if state.bound.is_some() || state.listening.is_some() {
                return Err(Errno::INVALID);
            }
            state.options.one_family = Some(only);
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
            // SAFETY: NULL or `len` bytes by the caller's contract, and every `u8` is valid.
            let timeout: u8 = unsafe { read(value, len)? };
            if timeout > 31 {
                return Err(Errno::INVALID); // a field of 5 bits
            }
            id.shared().lock().options.ack_timeout = Some(timeout);
        }
        // TCP chooses the path. EOPNOTSUPP, because setting one is not a mistake of the program.
        (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => return Err(Errno::UNSUPPORTED),
        _ => return Err(Errno(libc::ENOSYS)),
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    // SAFETY: `value` is NULL or has `len` bytes, by the caller's contract.
    minus_one!(find::<Id>(id).and_then(|id| unsafe { set_option(&id, level, name, value, len) }))
}
