//! Multicast groups and enhanced connection establishment. TCP and datagrams between two addresses carry neither: joining
//! fails with EOPNOTSUPP, and peers have no options to tell.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::id::Id;
use crate::abi::*;
use crate::errno::{Errno, minus_one};
use crate::object::{find, put};
use std::ffi::{c_int, c_void};

fn unsupported(id: *mut rdma_cm_id) -> c_int {
    minus_one!(find::<Id>(id).and(Err(Errno::UNSUPPORTED)))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    _addr: *mut libc::sockaddr,
    _context: *mut c_void,
) -> c_int {
    unsupported(id)
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    _attr: *mut rdma_cm_join_mc_attr_ex,
    _context: *mut c_void,
) -> c_int {
    unsupported(id)
}

/// Nobody can have joined.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, _addr: *mut libc::sockaddr) -> c_int {
    minus_one!(find::<Id>(id).and(Err(Errno(libc::EADDRNOTAVAIL))))
}

/// This end's options are accepted, and mean nothing to the peer.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    let given = if ece.is_null() { Err(Errno::INVALID) } else { Ok(()) };
    minus_one!(find::<Id>(id).and(given))
}

/// The peer has none: all zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    let given = if ece.is_null() { Err(Errno::INVALID) } else { Ok(()) };
    minus_one!(find::<Id>(id).and(given).map(|()| {
        // SAFETY: not NULL, and the caller's.
        unsafe { put(ece, ibv_ece::zeroed()) };
    }))
}
