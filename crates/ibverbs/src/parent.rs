//! Thread domains and parent domains.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::errno::{Errno, object};
use std::ffi::c_int;

pub(crate) unsafe extern "C" fn alloc_td(_: *mut ibv_context, _: *mut ibv_td_init_attr) -> *mut ibv_td {
    object(Err(Errno::UNSUPPORTED))
}

pub(crate) unsafe extern "C" fn dealloc_td(_: *mut ibv_td) -> c_int {
    Errno::UNSUPPORTED.0
}

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    _: *mut ibv_context,
    _: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    object(Err(Errno::UNSUPPORTED))
}
