//! Prints the summary when the process exits, and replaces an exit code of 0 if there are findings.
#![expect(unsafe_code, reason = "the C library calls back at exit")]

use std::ffi::{c_int, c_void};

/// Exit code of a program that would have exited with 0, if there are findings.
const EXIT_CODE: c_int = 99;

unsafe extern "C" {
    /// Registers a function that is called at exit, with the exit code (on_exit(3)).
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Registers `end_report`, which ends the report and returns whether there are findings. Called before the exit handler that
/// closes connections is registered: so it runs after that one.
pub(super) fn register(end_report: fn() -> bool) {
    // SAFETY: both functions exist until the process ends, because this library is linked so that it is never unloaded.
    unsafe { on_exit(finish, end_report as *mut c_void) };
}

/// Ends the report.
extern "C" fn finish(code: c_int, end_report: *mut c_void) {
    // SAFETY: a function pointer of `register`.
    let end_report = unsafe { std::mem::transmute::<*mut c_void, fn() -> bool>(end_report) };
    if end_report() && code == 0 {
        // SAFETY: called by `exit`. glibc then runs the handlers that are left and exits with the new code. Nothing on this
        // stack has to be dropped.
        unsafe { libc::exit(EXIT_CODE) };
    }
}
