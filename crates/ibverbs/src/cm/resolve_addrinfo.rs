//! Resolving names for an id.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::addrinfo::{AddrInfoList, rdma_getaddrinfo};
use super::id::Id;
use super::synchronous::complete;
use crate::abi::*;
use crate::support::cancel::without_cancellation;
use crate::support::errno::{Errno, minus_one};
use crate::support::object::{find, put};
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

/// Calls `rdma_getaddrinfo` for an id, and queues an event. This blocks in the resolver, as in librdmacm.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let resolved = unsafe { resolve_for(id, node, service, hints) };
    minus_one!(resolved)
}

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
        if id.shared().lock().found.is_some() {
            return Err(
                Errno::BUSY.because("the previous result was not taken yet: call rdma_query_addrinfo first")
            );
        }
        let mut result = ptr::null_mut();
        // SAFETY: guaranteed by the caller.
        match unsafe { rdma_getaddrinfo(node, service, hints, &raw mut result) } {
            0 => {}
            -1 => return Err(std::io::Error::last_os_error().into()),
            code => {
                // SAFETY: a static string of the C library.
                let text = unsafe { CStr::from_ptr(libc::gai_strerror(code)) };
                return Err(Errno(libc::EADDRNOTAVAIL).because(text.to_string_lossy()));
            }
        }
        id.shared().lock().found = Some(AddrInfoList::new(result));
        id.shared().push(RDMA_CM_EVENT_ADDRINFO_RESOLVED, 0);
        Ok(())
    })?;
    complete(c)
}

/// Returns the result of `rdma_resolve_addrinfo`, once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int {
    if info.is_null() {
        return minus_one!(Err(Errno::null("info")));
    }
    minus_one!(find::<Id>(id).and_then(|id| {
        let found = id.shared().lock().found.take();
        let found = found
            .ok_or_else(|| Errno(libc::ENOENT).because("no result of rdma_resolve_addrinfo for this id"))?;
        // SAFETY: not NULL, and valid by the caller's contract. The caller frees the list.
        unsafe { put(info, found.release()) };
        Ok(())
    }))
}
