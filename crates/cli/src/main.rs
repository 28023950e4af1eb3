//! The entry point of the command `ironwarp`: a C `main`, instead of Rust's.
//!
//! Rust's runtime would ignore SIGPIPE before it calls `main`, but `ironwarp run` must pass signals on to the program
//! as they were. Rust's runtime would also read `/proc/self/maps` to detect stack overflows, which takes a tenth of the
//! time of a start.
#![no_main]
#![expect(unsafe_code, reason = "the function that the C library calls first")]

use std::ffi::{c_char, c_int};

/// Runs the command and exits. `std::env::args` works without Rust's runtime, because glibc passes the arguments to the
/// standard library before it calls `main`.
#[unsafe(no_mangle)]
extern "C" fn main(_: c_int, _: *const *const c_char) -> c_int {
    const PANICKED: i32 = 101;
    let code = std::panic::catch_unwind(ironwarp_cli::start).unwrap_or(PANICKED);
    std::process::exit(code) // flushes standard output
}
