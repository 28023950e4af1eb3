//! Builds that are broken on purpose, for the simulation to find out (`cargo xtask sim`).
//!
//! In any other build [`is`] is false, and costs nothing.

/// Whether this build is broken, and in this way: `--cfg ironwarp_broken`, and the way in the variable `IRONWARP_BROKEN`.
pub(crate) fn is(way: &str) -> bool {
    cfg!(ironwarp_broken) && std::env::var("IRONWARP_BROKEN").is_ok_and(|wanted| wanted == way)
}
