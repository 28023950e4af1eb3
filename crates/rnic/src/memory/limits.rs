//! The limits of a memory table.

/// The maximum size and the access policy of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of entries in use at once, capped at 16,777,214. Storage grows as needed.
    pub entries: usize,
    /// Whether peers can access only windows, not regions (requirement M9).
    pub strict: bool,
    /// Number of indices that the table can use up (requirement M4), capped at 16,777,214. Fewer only in tests.
    pub indices: usize,
    /// Number of instances that an index has before it is retired, capped at 256. Fewer only in tests.
    pub instances: usize,
}

impl Limits {
    /// Returns the limits of a table with this maximum number of entries, all indices, and the default policy.
    pub const fn new(entries: usize) -> Self {
        Self { entries, strict: false, indices: usize::MAX, instances: usize::MAX }
    }
}
