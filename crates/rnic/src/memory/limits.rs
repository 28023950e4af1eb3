//! The limits of a memory table.

use std::ops::Range;

/// The maximum size and the access policy of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of entries in use at once, capped at 16,777,214. Storage grows as needed.
    pub entries: usize,
    /// Whether peers can access only windows, not regions (requirement M9).
    pub strict: bool,
    /// The slots of the tag index that the table can use up (requirement M4): a slice of all 16,777,216, at which it is
    /// capped. No two functions of an adapter have a slot in common, so that a tag belongs to one of them (requirement X1).
    pub slots: Range<u32>,
    /// Number of instances that an index has before it is retired, capped at 256. Fewer only in tests.
    pub instances: usize,
}

impl Limits {
    /// Returns the limits of a table with this maximum number of entries, all slots, and the default policy.
    pub const fn new(entries: usize) -> Self {
        Self { entries, strict: false, slots: 0..u32::MAX, instances: usize::MAX }
    }
}
