//! Thread cancellation (`pthread_cancel`). A program may cancel one of its threads at any time. The C library
//! then unwinds the thread at the next cancellation point, such as joining a thread or closing or reading a
//! file. Verbs are not cancellation points, except those that wait for an event (`wake.rs`,
//! `rsocket/waiters.rs`). A thread that was unwound in the middle of any other call would leave locks and
//! objects behind, and Rust would abort the process.
#![expect(unsafe_code, reason = "the C library's pthread_setcancelstate")]

use std::ffi::c_int;

/// PTHREAD_CANCEL_DISABLE of <pthread.h>.
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// Keeps this thread from being cancelled until it is dropped. A cancellation request stays pending
/// meanwhile.
#[derive(Debug)]
pub(crate) struct CancelGuard(c_int);

impl CancelGuard {
    pub(crate) fn new() -> Self {
        let mut old = 0;
        // SAFETY: a valid state, and a place for the old one.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut old) };
        Self(old)
    }
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        let mut old = 0;
        // SAFETY: as above. This function is not a cancellation point.
        unsafe { pthread_setcancelstate(self.0, &raw mut old) };
    }
}

/// Runs `call` while this thread cannot be cancelled.
pub(crate) fn without_cancellation<T>(call: impl FnOnce() -> T) -> T {
    let _guard = CancelGuard::new();
    call()
}
