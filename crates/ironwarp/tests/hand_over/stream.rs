//! The traffic of one connection, as a sequence of operations that both ends know: which request comes next, and which bytes
//! it moves.

use std::collections::VecDeque;

/// Number of operations that are not yet confirmed by the other end.
pub(crate) const WINDOW: u64 = 8;
/// Length of the longest message, which takes several segments and more than 64 KiB.
pub(crate) const SLOT: usize = 96 << 10;
/// Length of the header of a Send: number, tag, and whether the Send invalidates the tag.
pub(crate) const HEADER: usize = 24;
/// Number of bytes that are written to a window.
pub(crate) const WINDOWED: usize = 5000;

/// What an operation is. The number of the operation determines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    Send,
    /// Reads what the Write two operations before has written.
    ReadBack,
    FetchAdd,
    SendImmediate,
    CompareSwap,
    WriteImmediate,
    /// A Send that also invalidates a tag of the peer, if there is one.
    SendInvalidate,
}

/// Number of kinds, which take turns.
pub(crate) const KINDS: u64 = 8;

impl Kind {
    pub(crate) fn of(number: u64) -> Self {
        [
            Self::Write,
            Self::Send,
            Self::ReadBack,
            Self::FetchAdd,
            Self::SendImmediate,
            Self::CompareSwap,
            Self::WriteImmediate,
            Self::SendInvalidate,
        ][(number % KINDS) as usize]
    }
}

/// Returns the number of bytes that an operation moves.
pub(crate) fn len(connection: usize, number: u64) -> usize {
    let lens = [1, 100, 1448, 9000, 40_000, 70_001, SLOT, 8];
    let of = mix(number.wrapping_mul(31) + connection as u64) as usize % lens.len();
    lens[of].max(HEADER)
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
}

/// Returns the bytes of an operation of one end.
pub(crate) fn bytes(end: u64, connection: usize, number: u64, len: usize) -> Vec<u8> {
    let seed = mix(number ^ (end << 60) ^ ((connection as u64) << 56));
    let words =
        (0..len.div_ceil(8) as u64).flat_map(|at| (seed + at.wrapping_mul(0x9e37_79b9_7f4a)).to_le_bytes());
    let mut bytes: Vec<u8> = words.collect();
    bytes.truncate(len);
    bytes
}

/// The progress of one connection at one end. Moves with the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stream {
    /// Number of operations that were posted.
    pub(crate) posted: u64,
    /// Number of operations that are completed here.
    pub(crate) completed: u64,
    /// Number of requests that were posted, and that have completed.
    pub(crate) requests: u64,
    pub(crate) completions: u64,
    /// The operations that the outstanding requests belong to. None for requests that are not part of the sequence.
    pub(crate) outstanding: VecDeque<Option<u64>>,
    /// Number of operations of the other end that were seen, and of those that were confirmed.
    pub(crate) seen: u64,
    pub(crate) confirmed: u64,
    /// Number of receives that were posted, and that have completed.
    pub(crate) receives: u64,
    pub(crate) received: u64,
    /// The tag of memory of the peer that was announced, and is not invalidated yet.
    pub(crate) tag: Option<u32>,
    /// Number of tags that were invalidated here.
    pub(crate) invalidated: u64,
    /// Own windows and regions: how many bindings were announced, and whether the last is valid.
    pub(crate) bindings: u64,
    pub(crate) is_bound: bool,
}

impl Stream {
    /// Adds the state to bytes.
    pub(crate) fn write(&self, into: &mut Vec<u64>) {
        into.extend([
            self.posted,
            self.completed,
            self.requests,
            self.completions,
            self.seen,
            self.confirmed,
        ]);
        into.extend([self.receives, self.received, self.tag.map_or(u64::MAX, u64::from), self.invalidated]);
        into.extend([self.bindings, u64::from(self.is_bound), self.outstanding.len() as u64]);
        into.extend(self.outstanding.iter().map(|number| number.unwrap_or(u64::MAX)));
    }

    /// Reads the state.
    pub(crate) fn read(from: &mut impl Iterator<Item = u64>) -> Self {
        let mut next = || from.next().unwrap();
        let mut stream = Self {
            posted: next(),
            completed: next(),
            requests: next(),
            completions: next(),
            seen: next(),
            confirmed: next(),
            receives: next(),
            received: next(),
            tag: u32::try_from(next()).ok(),
            invalidated: next(),
            bindings: next(),
            is_bound: next() == 1,
            outstanding: VecDeque::new(),
        };
        let count = next();
        stream.outstanding = (0..count).map(|_| Some(next()).filter(|number| *number != u64::MAX)).collect();
        stream
    }
}
