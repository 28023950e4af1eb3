//! Forks this process, as C programs do.
#![expect(unsafe_code, reason = "calls fork(2)")]

use rustix::process::{Pid, WaitOptions, waitpid};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `act` in a forked child, waits for the child, and panics unless it succeeds. `act` fails by a panic, and must not
/// take locks that other threads of this process may hold.
#[track_caller]
pub fn in_forked_child(act: impl FnOnce()) {
    // SAFETY: the child has only this thread. It runs `act`, whose locks no other thread held, and ends without exit
    // handlers. The C library lets a child allocate memory.
    match unsafe { libc::fork() } {
        0 => {
            let failed = catch_unwind(AssertUnwindSafe(act)).is_err();
            // SAFETY: ends the process, and runs nothing else.
            unsafe { libc::_exit(i32::from(failed)) }
        }
        child => {
            let child = Pid::from_raw(child).expect("fork works");
            let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
            assert_eq!(status.exit_status(), Some(0), "the child failed: {status:?}");
        }
    }
}
