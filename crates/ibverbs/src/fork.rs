//! What real adapters need before a program may fork: pages that they reach by DMA must not be copied on write. Ours
//! reaches memory as any thread does, so there is nothing to prepare.
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

/// Keeps a range from a child.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Gives a range back to children.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
