//! Which form of a test runs: the short one of CI, or the long one of `cargo xtask nightly`.

/// Whether the long form of the test was requested, with `IRON_TEST_FULL=1`. `LONG_FORMS` in xtask/src/cargo.rs lists
/// the tests that have one.
pub fn is_requested() -> bool {
    std::env::var_os("IRON_TEST_FULL").is_some()
}
