//! Calls a function when the process exits.
#![expect(unsafe_code, reason = "the C library calls back at exit")]

use std::sync::Once;

/// Calls `function` when the process exits, or the library that contains this code is unloaded. Only the first call has an
/// effect, so all callers pass the same function.
pub(crate) fn call_at_exit(function: extern "C" fn()) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function exists for as long as the library that registers it.
        unsafe { libc::atexit(function) };
    });
}
