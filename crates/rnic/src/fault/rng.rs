//! Numbers that look random and are the same for the same seed. For faults and simulations, not for secrets.

use super::plan::Chance;

/// What SplitMix64 adds from one number to the next: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64: 64 bits of state, every seed is as good as any other.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The sequence of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// One of many sequences of a seed, none of which tells of another: each of them may belong to another thread.
    pub const fn stream(seed: u64, number: u64) -> Self {
        Self(mix(mix(seed.wrapping_add(STEP)).wrapping_add(number)))
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// The next number, from 0 to below `bound`; 0 if that is 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        let wide = self.next() as u128 * bound as u128;
        (wide >> 64) as u64
    }

    /// Whether something of this chance happens now.
    pub const fn hits(&mut self, chance: Chance) -> bool {
        self.below(Chance::ALWAYS.millionths() as u64) < chance.millionths() as u64
    }

    /// A part of `whole` things, from one to all but one; all, if they are fewer than two. A part of a handful is as likely
    /// as one of thousands: what breaks at a split, breaks near the ends of something short.
    pub fn part_of(&mut self, whole: usize) -> usize {
        let most = whole.saturating_sub(1) as u64;
        let magnitude = self.below(u64::from(u64::BITS - most.leading_zeros()));
        let part = (1 << magnitude) + self.below(1 << magnitude);
        usize::try_from(part.min(most)).map_or(whole, |part| part.max(1)).min(whole)
    }
}

/// Spreads every bit over all of them.
const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests;
