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
mod tests {
    use super::*;

    /// The first numbers of SplitMix64 for seed 1234567, as its authors' reference code prints them.
    #[test]
    fn it_is_splitmix64() {
        let mut rng = Rng::new(1_234_567);
        let first = [rng.next(), rng.next(), rng.next()];
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn streams_of_a_seed_differ_and_so_do_streams_of_neighbours() {
        let first = |seed, number| Rng::stream(seed, number).next();
        let mut all: Vec<u64> = (0..100).flat_map(|seed| (0..100).map(move |n| first(seed, n))).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 10_000);
        assert_eq!(first(7, 8), first(7, 8));
    }

    #[test]
    fn below_reaches_both_ends_and_not_beyond() {
        let mut rng = Rng::new(3);
        let mut seen = [0; 5];
        (0..1000).for_each(|_| seen[usize::try_from(rng.below(5)).unwrap()] += 1);
        assert!(seen.iter().all(|&count| (150..250).contains(&count)), "{seen:?}");
        assert_eq!(rng.below(0), 0);
    }

    #[test]
    fn a_chance_is_met_as_often_as_it_says() {
        let mut rng = Rng::new(4);
        let mut hits = |millionths| {
            let chance = Chance::in_a_million(millionths);
            (0..100_000).filter(|_| rng.hits(chance)).count()
        };
        assert_eq!(hits(0), 0);
        assert_eq!((hits(1_000_000), hits(2_000_000)), (100_000, 100_000));
        assert!((19_500..20_500).contains(&hits(200_000)));
    }

    #[test]
    fn a_part_is_neither_nothing_nor_all() {
        let mut rng = Rng::new(5);
        for whole in [2, 3, 4, 5, 1460, 65_536] {
            let parts: Vec<usize> = (0..2000).map(|_| rng.part_of(whole)).collect();
            assert!(parts.iter().all(|&part| 0 < part && part < whole), "{whole}");
            let half = parts.iter().filter(|&&part| part > whole / 2).count();
            assert!(whole == 2 || half > 50, "large parts occur: {half} of {whole}");
        }
        let small = (0..2000).filter(|_| rng.part_of(65_536) < 256).count();
        assert!((850..1150).contains(&small), "half of the magnitudes are below half of the bits: {small}");
        assert_eq!((rng.part_of(0), rng.part_of(1)), (0, 1));
    }
}
