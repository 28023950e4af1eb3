//! Functions for multicast groups and enhanced connection establishment (ECE), which TCP does not carry: joining
//! a group fails with EOPNOTSUPP, and the options of ECE are not sent.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::id::Id;
use crate::abi::*;
use crate::support::errno::{Errno, minus_one};
use crate::support::object::{find, put};
use std::ffi::{c_int, c_void};

#[unsafe(no_mangle)]
pub extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    _addr: *mut libc::sockaddr,
    _context: *mut c_void,
) -> c_int {
    minus_one!(find::<Id>(id).and(Err(Errno::UNSUPPORTED)))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    _attr: *mut rdma_cm_join_mc_attr_ex,
    _context: *mut c_void,
) -> c_int {
    minus_one!(find::<Id>(id).and(Err(Errno::UNSUPPORTED)))
}

/// Fails with EADDRNOTAVAIL: the id has joined no group.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, _addr: *mut libc::sockaddr) -> c_int {
    minus_one!(find::<Id>(id).and(Err(Errno(libc::EADDRNOTAVAIL))))
}

/// Does nothing but check its arguments: the options of this end are not sent.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    let argument = if ece.is_null() { Err(Errno::INVALID) } else { Ok(()) };
    minus_one!(find::<Id>(id).and(argument))
}

/// Sets the options of the peer to zeros, because the peer sends none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    let argument = if ece.is_null() { Err(Errno::INVALID) } else { Ok(()) };
    minus_one!(find::<Id>(id).and(argument).map(|()| {
        // SAFETY: not NULL, and valid for a write by the caller's contract.
        unsafe { put(ece, ibv_ece::zeroed()) };
    }))
}
