//! The library that tells the checker when the program frees or unmaps memory (`watch.c`).
#![expect(unsafe_code, reason = "a structure and callbacks of C")]

use std::ffi::c_int;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// What happened to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// It was freed, and is not allocated.
    Freed,
    /// It was unmapped. What is mapped there now is other memory.
    Unmapped,
}

/// `struct watch` of `watch.c`.
#[derive(Debug)]
#[repr(C)]
struct Watch {
    low: AtomicUsize,
    high: AtomicUsize,
    released: AtomicPtr<()>,
    allocated: AtomicPtr<()>,
}

/// What is called with the address and length of memory.
pub(super) struct Callbacks {
    /// Before it is freed or unmapped.
    pub(super) released: fn(usize, usize, What),
    /// After it was allocated.
    pub(super) allocated: fn(usize, usize),
}

static CALLBACKS: std::sync::OnceLock<Callbacks> = std::sync::OnceLock::new();

/// Finds the structure. Returns `None` if the library is not loaded.
fn find() -> Option<&'static Watch> {
    // SAFETY: a C string. The symbol is the structure, which exists as long as the process.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"ironwarp_watch".as_ptr()).cast::<Watch>().as_ref() }
}

/// Makes the library call back. Returns false if it is not loaded.
pub(super) fn start(callbacks: Callbacks) -> bool {
    extern "C" fn released(address: usize, length: usize, what: c_int) {
        let what = if what == 0 { What::Freed } else { What::Unmapped };
        CALLBACKS.get().into_iter().for_each(|callbacks| (callbacks.released)(address, length, what));
    }
    extern "C" fn allocated(address: usize, length: usize) {
        CALLBACKS.get().into_iter().for_each(|callbacks| (callbacks.allocated)(address, length));
    }
    let _ = CALLBACKS.set(callbacks);
    let Some(watch) = find() else { return false };
    watch.released.store(released as extern "C" fn(usize, usize, c_int) as *mut (), Ordering::Release);
    watch.allocated.store(allocated as extern "C" fn(usize, usize) as *mut (), Ordering::Release);
    true
}

/// Watches this memory, too, and all memory between it and what is watched already.
pub(super) fn add(address: usize, length: usize) {
    if let Some(watch) = find() {
        watch.low.fetch_min(address, Ordering::Relaxed);
        watch.high.fetch_max(address.saturating_add(length), Ordering::Relaxed);
    }
}
