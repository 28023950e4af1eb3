//! Calls by which programs prepare memory for fork, which do nothing. Pages that hardware accesses by DMA must not be
//! copied on write. This adapter accesses memory like any thread of the process, so there is nothing to prepare.
#![expect(unsafe_code, reason = "exports symbols")]

use crate::abi::{IBV_FORK_UNNEEDED, ibv_fork_status};
use std::ffi::{c_int, c_void};

#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}

/// Would exclude a range of memory from child processes. Does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Would include a range of memory in child processes again. Does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
