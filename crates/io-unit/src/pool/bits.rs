//! A set of elements of a pool.

/// A set of numbers below a fixed limit.
#[derive(Clone, Debug)]
pub(super) struct Bits {
    words: Vec<u64>,
    ones: u32,
}

impl Bits {
    pub(super) fn empty(limit: u32) -> Self {
        Self { words: vec![0; limit.div_ceil(64) as usize], ones: 0 }
    }

    pub(super) fn full(limit: u32) -> Self {
        let mut bits = Self::empty(limit);
        (0..limit).for_each(|bit| {
            bits.insert(bit);
        });
        bits
    }

    pub(super) fn contains(&self, bit: u32) -> bool {
        self.words[bit as usize / 64] & 1 << (bit % 64) != 0
    }

    /// Returns whether the number was absent.
    pub(super) fn insert(&mut self, bit: u32) -> bool {
        let added = !self.contains(bit);
        self.words[bit as usize / 64] |= 1 << (bit % 64);
        self.ones += u32::from(added);
        added
    }

    /// Returns whether the number was present.
    pub(super) fn remove(&mut self, bit: u32) -> bool {
        let removed = self.contains(bit);
        self.words[bit as usize / 64] &= !(1 << (bit % 64));
        self.ones -= u32::from(removed);
        removed
    }

    pub(super) fn len(&self) -> u32 {
        self.ones
    }

    /// Returns the smallest number.
    pub(super) fn first(&self) -> Option<u32> {
        let (index, word) = (0..).zip(&self.words).find(|(_, word)| **word != 0)?;
        Some(index * 64 + word.trailing_zeros())
    }

    /// Returns the numbers in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let words = (0..).zip(&self.words).filter(|(_, word)| **word != 0);
        words.flat_map(|(index, word)| {
            (0..64).filter(move |bit| word & 1 << bit != 0).map(move |bit| index * 64 + bit)
        })
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
        self.ones = 0;
    }
}
