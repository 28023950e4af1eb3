//! Random numbers from a seed, and frames.

use std::sync::OnceLock;

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// SplitMix64.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A frame of random bytes: a stretch of a table, which is quicker than new ones.
pub(crate) fn frame(seed: u64, len: u32) -> Vec<u8> {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut random = Random::new(0);
        (0..24_576).flat_map(|_| random.next().to_be_bytes()).collect()
    });
    let start = usize::try_from(seed % 65_536).expect("small");
    let mut bytes = table[start..start + len as usize].to_vec();
    bytes.iter_mut().zip(seed.to_be_bytes()).for_each(|(byte, stamp)| *byte ^= stamp);
    bytes
}
