//! Tests of the target: stock initiators show that it is a correct one, an initiator of single PDUs that it can lie.

mod initiator;
mod scripts;
mod session;
mod stock;

use super::{Honest, Settings, Target};

/// Starts a target that does not lie, on a disk whose bytes all differ from their neighbours.
fn honest(settings: Settings) -> Target {
    let target = Target::start(settings, Honest);
    target.disk().bytes().iter_mut().zip(pattern(1)).for_each(|(byte, new)| *byte = new);
    target
}

/// Returns an endless sequence of bytes that repeats only after a prime number of them, different for each seed.
fn pattern(seed: usize) -> impl Iterator<Item = u8> {
    (0..65_521).map(move |at: usize| (at * 167 + at / 251 + seed * 31).to_le_bytes()[0]).cycle()
}
