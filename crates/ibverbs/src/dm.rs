//! Device memory.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::errno::{Errno, object};
use std::ffi::c_int;

pub(crate) unsafe extern "C" fn alloc_dm(_: *mut ibv_context, _: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    object(Err(Errno::UNSUPPORTED))
}

pub(crate) unsafe extern "C" fn free_dm(_: *mut ibv_dm) -> c_int {
    Errno::UNSUPPORTED.0
}

pub(crate) unsafe extern "C" fn reg_dm_mr(
    _: *mut ibv_pd,
    _: *mut ibv_dm,
    _: u64,
    _: usize,
    _: u32,
) -> *mut ibv_mr {
    object(Err(Errno::UNSUPPORTED))
}
