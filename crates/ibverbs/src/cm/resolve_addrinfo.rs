//! Resolves names for an id (`rdma_resolve_addrinfo`, `rdma_query_addrinfo`): the result is kept in the id.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::addrinfo::{AddrInfoList, rdma_getaddrinfo};
use super::id::Id;
use super::synchronous::wait_if_synchronous;
use crate::abi::*;
use crate::support::cancel::without_cancellation;
use crate::support::errno::{Errno, minus_one};
use crate::support::object::{find, put};
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

/// Calls `rdma_getaddrinfo` for an id, and queues RDMA_CM_EVENT_ADDRINFO_RESOLVED. Blocks while the resolver of
/// the C library works, as in librdmacm.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    // SAFETY: the arguments of this call, whose contract is that of `rdma_getaddrinfo`.
    let resolved = unsafe { resolve_for(id, node, service, hints) };
    minus_one!(resolved)
}

/// Resolves a name, keeps the result in the id `c`, and queues the event. EBUSY if the id has a result that the
/// program has not taken. If the id is synchronous, takes the event from the queue again, because the return value
/// of the call reports the result.
///
/// # Safety
/// As for [`rdma_getaddrinfo`].
unsafe fn resolve_for(
    c: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<(), Errno> {
    without_cancellation(|| {
        let id = find::<Id>(c)?;
        if id.shared().lock().addrinfo.is_some() {
            return Err(
                Errno::BUSY.because("the previous result was not taken yet: call rdma_query_addrinfo first")
            );
        }
        let mut result = ptr::null_mut();
        // SAFETY: the contract of this function is that of `rdma_getaddrinfo`, and `result` is local.
        match unsafe { rdma_getaddrinfo(node, service, hints, &raw mut result) } {
            0 => {}
            // errno is set. Other codes are those of the resolver.
            -1 => return Err(std::io::Error::last_os_error().into()),
            code => {
                // SAFETY: gai_strerror returns a static C string for every code.
                let text = unsafe { CStr::from_ptr(libc::gai_strerror(code)) };
                return Err(Errno(libc::EADDRNOTAVAIL).because(text.to_string_lossy()));
            }
        }
        id.shared().lock().addrinfo = Some(AddrInfoList::new(result));
        id.shared().push(RDMA_CM_EVENT_ADDRINFO_RESOLVED, 0);
        Ok(())
    })?;
    wait_if_synchronous(c)
}

/// Gives the result of `rdma_resolve_addrinfo` to the program, which frees it. ENOENT if there is none, or the
/// program has taken it already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int {
    if info.is_null() {
        return minus_one!(Err(Errno::null("info")));
    }
    minus_one!(find::<Id>(id).and_then(|id| {
        let list = id.shared().lock().addrinfo.take();
        let list = list
            .ok_or_else(|| Errno(libc::ENOENT).because("no result of rdma_resolve_addrinfo for this id"))?;
        // SAFETY: not NULL, and valid for a write by the caller's contract.
        unsafe { put(info, list.release()) };
        Ok(())
    }))
}
