//! Steering (requirement I7): the choice of the lane that serves a new connection. The addresses and ports of the
//! connection are hashed with a secret key. The bits of the hash that a mask selects, the low ones, are an index into the
//! redirection table, whose entry is the number of the lane. Key, mask and table can be changed at any time.

mod key;
mod toeplitz;

pub use key::{HashKey, KEY_LEN, NoHashKey};
pub use toeplitz::{Tuple, toeplitz};

/// The redirection table. An entry is the number of a lane; a lane may have many entries or none.
///
/// The number of entries is a power of two, up to [`MAX_ENTRIES`](Self::MAX_ENTRIES). The mask selects the bits of the
/// hash that index the table.
///
/// ```
/// # use ironwarp_rnic::steering::RedirectionTable;
/// let mut table = RedirectionTable::spread(2);
/// assert_eq!((table.lane(0), table.lane(1), table.lane(2)), (0, 1, 0));
/// table.entries_mut().fill(1);
/// assert_eq!(table.lane(0), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectionTable {
    /// A power of two of them.
    entries: Box<[u16]>,
    /// The bits of a hash that index the entries: less than their number.
    mask: u32,
}

/// Why a redirection table is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidTable {
    /// The number of entries is not a power of two, or too high.
    #[error(
        "invalid redirection table of {entries} entries: expected a power of two up to {}",
        RedirectionTable::MAX_ENTRIES
    )]
    Size {
        /// The number of entries.
        entries: usize,
    },
    /// The mask selects entries that the table does not have.
    #[error("hash mask {mask:#x} out of range: the table has {entries} entries")]
    Mask {
        /// The mask.
        mask: u32,
        /// The number of entries.
        entries: usize,
    },
}

impl RedirectionTable {
    /// Number of entries of a new adapter's table, as with receive-side scaling.
    pub const DEFAULT_ENTRIES: usize = 128;
    /// Maximum number of entries.
    pub const MAX_ENTRIES: usize = 4096;

    /// Creates a table with these entries. All bits that index them are used.
    ///
    /// ```
    /// # use ironwarp_rnic::steering::RedirectionTable;
    /// let table = RedirectionTable::new([0, 1, 1, 1])?; // a quarter of all connections to lane 0
    /// assert_eq!((table.mask(), table.lane(0x51cc_c174), table.lane(0x51cc_c175)), (3, 0, 1));
    /// assert!(RedirectionTable::new([0, 1, 1]).is_err());
    /// # Ok::<(), ironwarp_rnic::steering::InvalidTable>(())
    /// ```
    pub fn new(entries: impl Into<Box<[u16]>>) -> Result<Self, InvalidTable> {
        let entries = entries.into();
        if !entries.len().is_power_of_two() || entries.len() > Self::MAX_ENTRIES {
            return Err(InvalidTable::Size { entries: entries.len() });
        }
        Ok(Self::with_all_bits(entries))
    }

    /// Creates a table of the default size whose entries are spread evenly over the lanes.
    ///
    /// ```
    /// # use ironwarp_rnic::steering::RedirectionTable;
    /// assert!(RedirectionTable::spread(1).entries().iter().all(|lane| *lane == 0));
    /// ```
    pub fn spread(lanes: usize) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "a place in the table")]
        Self::with_all_bits((0..Self::DEFAULT_ENTRIES).map(|at| (at % lanes.max(1)) as u16).collect())
    }

    /// Creates a table with a power of two of entries.
    fn with_all_bits(entries: Box<[u16]>) -> Self {
        let mask = u32::try_from(entries.len() - 1).expect("the size is limited");
        Self { entries, mask }
    }

    /// Returns the entries.
    ///
    /// ```
    /// # use ironwarp_rnic::steering::RedirectionTable;
    /// assert_eq!(RedirectionTable::spread(4).entries()[..5], [0, 1, 2, 3, 0]);
    /// ```
    pub fn entries(&self) -> &[u16] {
        &self.entries
    }

    /// Returns the entries, to be changed.
    ///
    /// ```
    /// # use ironwarp_rnic::steering::RedirectionTable;
    /// let mut table = RedirectionTable::spread(2);
    /// table.entries_mut()[1] = 0;
    /// assert_eq!(table.entries()[..4], [0, 0, 0, 1]);
    /// ```
    pub fn entries_mut(&mut self) -> &mut [u16] {
        &mut self.entries
    }

    /// Returns the bits of a hash that index the table.
    pub fn mask(&self) -> u32 {
        self.mask
    }

    /// Changes the bits of a hash that index the table. With fewer bits, hashes reach only some of the entries.
    ///
    /// ```
    /// # use ironwarp_rnic::steering::RedirectionTable;
    /// let mut table = RedirectionTable::spread(4);
    /// table.set_mask(0b10)?;
    /// assert_eq!([0, 1, 2, 3].map(|hash| table.lane(hash)), [0, 0, 2, 2]);
    /// assert!(table.set_mask(128).is_err(), "the table has 128 entries");
    /// # Ok::<(), ironwarp_rnic::steering::InvalidTable>(())
    /// ```
    pub fn set_mask(&mut self, mask: u32) -> Result<(), InvalidTable> {
        let entries = self.entries.len();
        if mask as usize >= entries {
            return Err(InvalidTable::Mask { mask, entries });
        }
        self.mask = mask;
        Ok(())
    }

    /// Returns the number of the lane for a hash.
    ///
    /// ```
    /// # use ironwarp_rnic::steering::RedirectionTable;
    /// assert_eq!(RedirectionTable::spread(2).lane(0x51cc_c177), 1);
    /// ```
    pub fn lane(&self, hash: u32) -> usize {
        usize::from(self.entries[self.index(hash)])
    }

    /// Returns the number of the lane for a hash, if only these lanes may be chosen: the first of them from the entry of
    /// the hash on. If the table names none of them, the hash selects one. `lanes` must not be empty.
    ///
    /// ```
    /// # use ironwarp_rnic::steering::RedirectionTable;
    /// let table = RedirectionTable::spread(4);
    /// assert_eq!((table.lane_among(1, &[1, 3]), table.lane_among(2, &[1, 3])), (1, 3));
    /// ```
    pub fn lane_among(&self, hash: u32, lanes: &[usize]) -> usize {
        let (before, from) = self.entries.split_at(self.index(hash));
        let entries = from.iter().chain(before).map(|entry| usize::from(*entry));
        let mut named = entries.filter(|lane| lanes.contains(lane));
        named.next().unwrap_or_else(|| lanes[hash as usize % lanes.len()])
    }

    /// Returns the index of the entry for a hash.
    fn index(&self, hash: u32) -> usize {
        (hash & self.mask) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_has_its_share_of_the_table() {
        for lanes in 1..=9 {
            let table = RedirectionTable::spread(lanes);
            let share = |lane| table.entries().iter().filter(|entry| usize::from(**entry) == lane).count();
            let shares: Vec<_> = (0..lanes).map(share).collect();
            let entries = RedirectionTable::DEFAULT_ENTRIES;
            assert_eq!(shares.iter().sum::<usize>(), entries, "{lanes} lanes");
            assert!(shares.iter().all(|share| *share >= entries / lanes), "{lanes} lanes: {shares:?}");
        }
    }

    #[test]
    fn the_size_of_a_table_is_a_power_of_two_within_bounds() {
        for bits in 0..=12 {
            let size = 1 << bits;
            let table = RedirectionTable::new(vec![7; size]).unwrap();
            assert_eq!((table.entries().len(), table.mask() as usize), (size, size - 1));
            assert_eq!((table.lane(u32::MAX), table.lane(0)), (7, 7));
        }
        for entries in [0, 3, 127, RedirectionTable::MAX_ENTRIES + 1, 2 * RedirectionTable::MAX_ENTRIES] {
            assert_eq!(RedirectionTable::new(vec![0; entries]), Err(InvalidTable::Size { entries }));
        }
    }

    #[test]
    fn a_mask_never_leaves_the_table() {
        let mut table = RedirectionTable::new([0, 1, 2, 3]).unwrap();
        table.set_mask(0b01).unwrap();
        assert_eq!([0, 1, 2, 3, u32::MAX].map(|hash| table.lane(hash)), [0, 1, 0, 1, 1]);
        assert_eq!(table.set_mask(4), Err(InvalidTable::Mask { mask: 4, entries: 4 }));
        assert_eq!(table.mask(), 0b01, "a refused mask changes nothing");
    }

    #[test]
    fn among_some_lanes_the_table_keeps_its_weights() {
        let table = RedirectionTable::new([0, 1, 1, 2]).unwrap();
        assert_eq!([0, 1, 2, 3].map(|hash| table.lane_among(hash, &[1, 2])), [1, 1, 1, 2]);
        assert_eq!(table.lane_among(3, &[1]), 1, "from the end to the beginning");
        assert_eq!([4, 5].map(|hash| table.lane_among(hash, &[8, 9])), [8, 9], "the table names neither");
    }
}
