//! Deliberate bugs for special builds, which verify that the simulation finds them (`cargo xtask sim`).
//!
//! In all other builds, [`is`] is constant false and costs nothing.

/// Returns whether the bug with this name is active: the build has `--cfg ironwarp_broken`, and the environment
/// variable `IRONWARP_BROKEN` contains the name.
pub(crate) fn is(bug: &str) -> bool {
    cfg!(ironwarp_broken) && std::env::var("IRONWARP_BROKEN").is_ok_and(|active| active == bug)
}
