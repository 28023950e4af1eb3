//! The clocks of the system, for the times that programs request.
#![expect(unsafe_code, reason = "calls the C library")]

/// Reads a clock of clock_gettime(2), which every kernel has. Calls the C library, because rustix finds the vDSO by
/// itself, and crashes under valgrind, which hides the vDSO.
pub(crate) fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for a write.
    let result = unsafe { libc::clock_gettime(clock, &raw mut now) };
    debug_assert_eq!(result, 0, "the clock exists");
    now
}
