//! Cancellation of threads (`pthread_cancel`). A program may cancel a thread of its own at any time, and the C library then
//! unwinds the thread at the next function that is a point of cancellation: joining a thread, closing or reading a file.
//! Calls of the verbs are no such points, except those that wait for an event (`wake.rs`, `rsocket/wait.rs`); a thread that
//! was unwound in the middle of another would leave locks and objects behind, and Rust aborts the process instead.
#![expect(unsafe_code, reason = "the C library's pthread_setcancelstate")]

use std::ffi::c_int;

/// PTHREAD_CANCEL_DISABLE of <pthread.h>.
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// This thread cannot be cancelled until this is dropped; a cancellation that comes meanwhile waits.
#[derive(Debug)]
pub(crate) struct Uncancelled(c_int);

impl Uncancelled {
    pub(crate) fn new() -> Self {
        let mut old = 0;
        // SAFETY: a state that there is, and room for the old one.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut old) };
        Self(old)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut old = 0;
        // SAFETY: as above. This function is not a cancellation point.
        unsafe { pthread_setcancelstate(self.0, &raw mut old) };
    }
}

/// Runs `call` on a thread that cannot be cancelled meanwhile.
pub(crate) fn uncancelled<T>(call: impl FnOnce() -> T) -> T {
    let _uncancelled = Uncancelled::new();
    call()
}
