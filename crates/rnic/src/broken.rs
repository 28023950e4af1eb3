//! Builds with deliberate bugs, which the simulation must find (`cargo xtask sim`).
//!
//! In all other builds, [`is`] is constant false and costs nothing.

/// Whether this build has the named bug: `--cfg ironwarp_broken`, with the name in the variable
/// `IRONWARP_BROKEN`.
pub(crate) fn is(way: &str) -> bool {
    cfg!(ironwarp_broken) && std::env::var("IRONWARP_BROKEN").is_ok_and(|wanted| wanted == way)
}
