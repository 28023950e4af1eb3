//! The library that tells the checker when the program frees or unmaps memory (`watch.c`).
#![expect(unsafe_code, reason = "a structure and callbacks of C")]

use ironwarp_rnic::host::Span;
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
    registrations: AtomicUsize,
    released: AtomicPtr<()>,
    allocated: AtomicPtr<()>,
}

/// Memory that was freed or unmapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Released {
    pub(super) memory: Span,
    pub(super) what: What,
    /// Number of registrations before the call of the program: those from this one on are of memory that was mapped there
    /// since.
    pub(super) before: usize,
}

/// What is called about the program's memory.
pub(super) struct Callbacks {
    /// Before memory is freed, or after it was unmapped or moved.
    pub(super) released: fn(Released),
    /// After memory was allocated.
    pub(super) allocated: fn(Span),
}

static CALLBACKS: std::sync::OnceLock<Callbacks> = std::sync::OnceLock::new();

/// Finds the structure. Returns `None` if the library is not loaded.
fn find() -> Option<&'static Watch> {
    // SAFETY: a C string. The symbol is the structure, which exists as long as the process.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"ironwarp_watch".as_ptr()).cast::<Watch>().as_ref() }
}

/// Makes the library call back. Returns false if it is not loaded.
pub(super) fn start(callbacks: Callbacks) -> bool {
    extern "C" fn released(address: usize, length: usize, what: c_int, before: usize) {
        let what = if what == 0 { What::Freed } else { What::Unmapped };
        let released = Released { memory: Span::new(address as u64, length), what, before };
        CALLBACKS.get().into_iter().for_each(|callbacks| (callbacks.released)(released));
    }
    extern "C" fn allocated(address: usize, length: usize) {
        let memory = Span::new(address as u64, length);
        CALLBACKS.get().into_iter().for_each(|callbacks| (callbacks.allocated)(memory));
    }
    let _ = CALLBACKS.set(callbacks);
    let Some(watch) = find() else { return false };
    watch.released.store(released as extern "C" fn(usize, usize, c_int, usize) as *mut (), Ordering::Release);
    watch.allocated.store(allocated as extern "C" fn(usize, usize) as *mut (), Ordering::Release);
    true
}

/// Watches this memory, too, and all memory between it and what is watched already. Returns the number of registrations
/// before this one.
pub(super) fn add(memory: Span) -> usize {
    let Some(watch) = find() else { return 0 };
    let address = usize::try_from(memory.addr).unwrap_or(usize::MAX);
    watch.low.fetch_min(address, Ordering::Relaxed);
    watch.high.fetch_max(address.saturating_add(memory.len), Ordering::Relaxed);
    watch.registrations.fetch_add(1, Ordering::Relaxed)
}
