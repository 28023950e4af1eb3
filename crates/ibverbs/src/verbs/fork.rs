//! Preparing for fork. With hardware, pages that the adapter accesses by DMA must not be copied on write.
//! This adapter accesses memory as any thread does, so there is nothing to prepare.
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

/// Excludes a range from children.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Includes a range in children again.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
