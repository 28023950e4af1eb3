//! Disables thread cancellation (`pthread_cancel`) while a thread is inside this library. A program may cancel one
//! of its threads at any time. The C library then unwinds the thread at the next cancellation point, such as a
//! function that joins a thread, or closes or reads a file. Verbs are not cancellation points, except those that
//! wait for an event (`wake.rs`, `rsocket/waiters.rs`). Unwinding a thread in the middle of any other call would
//! leave locks taken and objects half-made, and make Rust abort the process.
#![expect(unsafe_code, reason = "the C library's pthread_setcancelstate")]

use std::ffi::c_int;

/// PTHREAD_CANCEL_DISABLE of <pthread.h>.
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// Disables cancellation of this thread until the guard is dropped. A request to cancel the thread stays pending
/// meanwhile.
#[derive(Debug)]
pub(crate) struct CancelGuard {
    /// The cancel state to restore.
    old: c_int,
}

impl CancelGuard {
    /// Disables cancellation of this thread.
    pub(crate) fn new() -> Self {
        let mut old = 0;
        // SAFETY: `DISABLE` is a valid state, and `old` has room for the previous one.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut old) };
        Self { old }
    }
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        let mut ignored = 0;
        // SAFETY: `self.old` came from this function, so it is a valid state, and `ignored` has room for the previous
        // one. The function is not a cancellation point, so it does not unwind out of this `drop`.
        unsafe { pthread_setcancelstate(self.old, &raw mut ignored) };
    }
}

/// Runs `call` while this thread cannot be cancelled.
pub(crate) fn without_cancellation<T>(call: impl FnOnce() -> T) -> T {
    let _guard = CancelGuard::new();
    call()
}
