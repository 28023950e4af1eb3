//! Steering (requirement I7): the choice of the lane that serves a new connection. The addresses and ports of the
//! connection are hashed with a secret key. The low bits of the hash are an index into the redirection table, whose
//! entry is the number of the lane.

mod key;
mod toeplitz;

pub use key::{HashKey, KEY_LEN, NoHashKey};
pub use toeplitz::{Tuple, toeplitz};

/// Number of entries of the redirection table: a power of two, as with receive-side scaling.
pub const ENTRIES: usize = 128;
/// The bits of a hash that index the table.
const MASK: usize = ENTRIES - 1;

/// The redirection table. An entry is the number of a lane; a lane may have many entries or none.
///
/// ```
/// # use ironwarp_rnic::steering::RedirectionTable;
/// let mut table = RedirectionTable::spread(2);
/// assert_eq!((table.lane(0), table.lane(1), table.lane(2)), (0, 1, 0));
/// table.entries_mut().fill(1);
/// assert_eq!(table.lane(0), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectionTable([u16; ENTRIES]);

impl RedirectionTable {
    /// Creates a table whose entries are spread evenly over the lanes.
    ///
    /// ```
    /// # use ironwarp_rnic::steering::RedirectionTable;
    /// assert!(RedirectionTable::spread(1).entries().iter().all(|lane| *lane == 0));
    /// ```
    pub fn spread(lanes: usize) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "a place in the table")]
        Self(std::array::from_fn(|at| (at % lanes.max(1)) as u16))
    }

    /// Returns the entries.
    ///
    /// ```
    /// # use ironwarp_rnic::steering::RedirectionTable;
    /// assert_eq!(RedirectionTable::spread(4).entries()[..5], [0, 1, 2, 3, 0]);
    /// ```
    pub fn entries(&self) -> &[u16; ENTRIES] {
        &self.0
    }

    /// Returns the entries, to be changed.
    ///
    /// ```
    /// # use ironwarp_rnic::steering::RedirectionTable;
    /// let mut table = RedirectionTable::spread(2);
    /// table.entries_mut()[1] = 0;
    /// assert_eq!(table.entries()[..4], [0, 0, 0, 1]);
    /// ```
    pub fn entries_mut(&mut self) -> &mut [u16; ENTRIES] {
        &mut self.0
    }

    /// Returns the number of the lane for a hash.
    ///
    /// ```
    /// # use ironwarp_rnic::steering::RedirectionTable;
    /// assert_eq!(RedirectionTable::spread(2).lane(0x51cc_c177), 1);
    /// ```
    pub fn lane(&self, hash: u32) -> usize {
        usize::from(self.0[hash as usize & MASK])
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
        let from = hash as usize & MASK;
        let entries = self.0[from..].iter().chain(&self.0[..from]).map(|entry| usize::from(*entry));
        let mut named = entries.filter(|lane| lanes.contains(lane));
        named.next().unwrap_or_else(|| lanes[hash as usize % lanes.len()])
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
            assert_eq!(shares.iter().sum::<usize>(), ENTRIES, "{lanes} lanes");
            assert!(shares.iter().all(|share| *share >= ENTRIES / lanes), "{lanes} lanes: {shares:?}");
        }
    }
}
