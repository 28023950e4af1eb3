//! The function that the C library calls first.
//!
//! The standard library would ignore SIGPIPE before its own `main`, but `ironwarp run` must pass signals on to the program as they
//! were. This also skips what the standard library does for threads and deep stacks: it reads `/proc/self/maps`, which takes a
//! tenth of the time of a start.
#![expect(unsafe_code, reason = "the function that the C library calls first")]

use std::ffi::{c_char, c_int};

/// The entry point. The standard library has the arguments nevertheless, because glibc passes them to it earlier.
#[unsafe(no_mangle)]
extern "C" fn main(_: c_int, _: *const *const c_char) -> c_int {
    const PANICKED: i32 = 101;
    let code = std::panic::catch_unwind(crate::start).unwrap_or(PANICKED);
    std::process::exit(code) // flushes standard output
}
