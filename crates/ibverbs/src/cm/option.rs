//! Options of ids.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::id::Id;
use crate::abi::*;
use crate::support::errno::{Errno, minus_one};
use crate::support::object::find;
use std::ffi::{c_int, c_void};

/// Reads the value of an option.
///
/// # Safety
/// `value` has `len` bytes.
unsafe fn read<T: Copy>(value: *const c_void, len: usize) -> Result<T, Errno> {
    if value.is_null() || len != size_of::<T>() {
        return Err(Errno::INVALID);
    }
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// # Safety
/// `value` has `len` bytes.
unsafe fn set(id: &Id, level: c_int, name: c_int, value: *const c_void, len: usize) -> Result<(), Errno> {
    match (level, name) {
        (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => {
            // SAFETY: guaranteed by the caller, here and below.
            id.shared().lock().options.traffic_class = unsafe { read(value, len)? };
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
            // SAFETY: as above.
            id.shared().lock().options.share_port = unsafe { read::<c_int>(value, len)? } != 0;
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
            // SAFETY: as above.
            let only = unsafe { read::<c_int>(value, len)? } != 0;
            let mut state = id.shared().lock();
            if state.bound.is_some() || state.listening.is_some() {
                return Err(Errno::INVALID);
            }
            state.options.one_family = Some(only);
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
            // SAFETY: as above.
            let timeout: u8 = unsafe { read(value, len)? };
            if timeout > 31 {
                return Err(Errno::INVALID); // a field of 5 bits
            }
            id.shared().lock().options.ack_timeout = Some(timeout);
        }
        // TCP chooses the path. To ask for one is not a mistake of the program.
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
    // SAFETY: it has that many bytes by the caller's contract.
    minus_one!(find::<Id>(id).and_then(|id| unsafe { set(&id, level, name, value, len) }))
}
