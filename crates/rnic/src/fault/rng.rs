//! Reproducible pseudo-random numbers, for faults and simulations, not for secrets.

use super::plan::Chance;

/// The increment of SplitMix64: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The generator SplitMix64, with 64 bits of state. All seeds are equally good.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates the generator of the sequence of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Creates the generator of one of many independent sequences of a seed, for example for a thread.
    pub const fn stream(seed: u64, number: u64) -> Self {
        Self(mix(mix(seed.wrapping_add(STEP)).wrapping_add(number)))
    }

    /// Returns the next number of the sequence.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Returns a random number below `bound`, or 0 if `bound` is 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        let wide = self.next() as u128 * bound as u128;
        (wide >> 64) as u64
    }

    /// Returns true with this probability.
    pub const fn hits(&mut self, chance: Chance) -> bool {
        self.below(Chance::ALWAYS.millionths() as u64) < chance.millionths() as u64
    }

    /// Returns a random number from 1 to `whole - 1`, or `whole` if that is 0 or 1. All orders of magnitude are equally
    /// likely, because bugs of splitting occur with few bytes.
    pub fn part_of(&mut self, whole: usize) -> usize {
        let most = whole.saturating_sub(1) as u64;
        let magnitude = self.below(u64::from(u64::BITS - most.leading_zeros()));
        let part = (1 << magnitude) + self.below(1 << magnitude);
        usize::try_from(part.min(most)).map_or(whole, |part| part.max(1)).min(whole)
    }
}

/// Mixes every bit into all others: the output function of SplitMix64. No two numbers have the same result.
const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests;
