//! Layout of a segment and of its records.
//!
//! ```text
//!  0            control page of ring 0, which the creator writes
//!                 +0    head: u64, room_wanted: u32    written by the writer of the ring
//!                 +128  tail: u64                      written by its reader
//!                 +256  sleeping: u32                  set by its reader, cleared by its writer
//!  PAGE         control page of ring 1, which the joiner writes
//!  2 * PAGE     data of ring 0
//!  … + RING_LEN data of ring 1
//! ```
//!
//! Positions are counts of bytes since the segment was created. They never wrap; their remainder modulo `RING_LEN`
//! is the place in the data.
//!
//! A record is a header of 8 bytes, the payload, and padding to a multiple of 8. It may wrap around the end of the
//! data, but its header does not. All words are in native byte order.

/// Length of the data of one ring.
pub const RING_LEN: usize = 256 << 10;
/// Maximum length of the payload of a record.
pub const MAX_RECORD: usize = 32 << 10;
/// A record with less room than this is only granted if no more was wanted.
pub const MIN_GRANT: usize = 256;
/// Length of the memory that two processes share.
pub const SEGMENT_LEN: usize = 2 * PAGE + 2 * RING_LEN;

/// Alignment of a segment, and length of a control page.
pub const PAGE: usize = 4096;
/// Length of a header, and alignment of records.
pub const HEADER: usize = 8;

// Words with different writers are two cache lines apart, because processors prefetch pairs of them.

/// Offset of `head` in a control page.
pub const HEAD: usize = 0;
/// Offset of `room_wanted` in a control page.
pub const ROOM_WANTED: usize = 8;
/// Offset of `tail` in a control page.
pub const TAIL: usize = 128;
/// Offset of `sleeping` in a control page.
pub const SLEEPING: usize = 256;

const LEN_BITS: u32 = 28;
/// Largest kind of a record: 4 bits.
pub(crate) const MAX_KIND: u8 = 0xf;

const _: () = assert!(RING_LEN.is_power_of_two() && MAX_RECORD < 1 << LEN_BITS && 2 * MAX_RECORD < RING_LEN);

/// Offset of the control page of a ring, 0 or 1.
pub const fn control_offset(ring: usize) -> usize {
    ring * PAGE
}

/// Offset of the data of a ring, 0 or 1.
pub const fn data_offset(ring: usize) -> usize {
    2 * PAGE + ring * RING_LEN
}

/// Place of a position in the data of its ring.
pub(crate) const fn place(position: u64) -> usize {
    small(position % RING_LEN as u64)
}

/// Converts a distance between two valid positions.
#[expect(clippy::cast_possible_truncation, reason = "at most RING_LEN")]
pub(crate) const fn small(distance: u64) -> usize {
    debug_assert!(distance <= RING_LEN as u64);
    distance as usize
}

/// Length of a record with a payload of `len` bytes, at most `MAX_RECORD`.
pub(crate) const fn record_len(len: usize) -> usize {
    HEADER + len.next_multiple_of(HEADER)
}

/// The header of a record. Any word is one; its length is checked by the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) channel: u32,
    pub(crate) kind: u8,
    pub(crate) len: u32,
}

impl Header {
    pub(crate) fn to_word(self) -> u64 {
        let shape = u32::from(self.kind) << LEN_BITS | self.len;
        u64::from(shape) << 32 | u64::from(self.channel)
    }

    #[expect(clippy::cast_possible_truncation, reason = "takes the word apart")]
    pub(crate) fn from_word(word: u64) -> Self {
        let (channel, shape) = (word as u32, (word >> 32) as u32);
        Self { channel, kind: (shape >> LEN_BITS) as u8, len: shape & ((1 << LEN_BITS) - 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_packing() {
        for channel in [0, 1, u32::MAX] {
            for kind in [0, 1, MAX_KIND] {
                for len in [0, 1, 32 << 10, (1 << LEN_BITS) - 1] {
                    let header = Header { channel, kind, len };
                    assert_eq!(Header::from_word(header.to_word()), header);
                }
            }
        }
        assert_eq!(Header { channel: 0x0102_0304, kind: 5, len: 6 }.to_word(), 0x5000_0006_0102_0304);
    }

    #[test]
    fn records_are_padded() {
        assert_eq!([0, 1, 8, 9].map(record_len), [8, 16, 16, 24]);
    }
}
