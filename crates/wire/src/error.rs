//! What can be wrong: a [`Violation`] is the peer's, a [`Misuse`] is the caller's.
//!
//! [`Violation::cause`] is the one table that says which Terminate answers which broken rule.

use crate::rdmap::{Cause, MpaFault, Operation, TaggedBuffer, UntaggedBuffer};

/// A rule of the protocol that the peer's bytes broke.
///
/// Only rules that a header shows by itself are checked here; those that need the stream's state (sequence numbers,
/// rights, ranges) belong to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// RFC 5044 §7.1.1: a connection begins with the key of the startup frame that is due.
    #[error(
        "these bytes do not begin an MPA {expected} frame: the peer speaks another protocol, or plays the same role"
    )]
    Key {
        /// "Request" or "Reply".
        expected: &'static str,
    },
    /// RFC 5044 §7.1.1, RFC 6581 §6: revisions 1 and 2 are spoken here.
    #[error("MPA revision {0} is not spoken here, only 1 and 2")]
    Revision(u8),
    /// RFC 5044 §7.1.1: private data is at most 512 bytes.
    #[error("{0} bytes of private data, 512 are allowed")]
    PrivateDataLength(u16),
    /// RFC 6581 §6: a frame with the S bit begins its private data with the IRD/ORD word.
    #[error("the S bit promises an IRD/ORD word of 4 bytes, the private data has {0}")]
    EnhancedWordMissing(u16),

    /// The FPDU is too short for the header that its opcode needs.
    #[error("ULPDU of {ulpdu} bytes, its header alone needs {header}")]
    TooShort {
        /// What the ULPDU length field says.
        ulpdu: u16,
        /// The length of the header.
        header: u16,
    },
    /// RFC 5044 §4.4: the CRC covers the whole FPDU.
    #[error("CRC mismatch: computed {computed:#010x}, received {received:#010x}")]
    Crc {
        /// Of the bytes that came.
        computed: u32,
        /// What the FPDU carries.
        received: u32,
    },
    /// RFC 5044 §4.3: a marker points back to the start of its FPDU.
    #[error("marker points {found} bytes back, its FPDU began {expected} bytes ago")]
    Marker {
        /// Where the FPDU began.
        expected: u16,
        /// Where the marker points.
        found: u16,
    },

    /// RFC 5041 §4.1: DDP version 1.
    #[error("DDP version {version} on {} segment, only version 1 is spoken here", if *.tagged { "a tagged" } else { "an untagged" })]
    DdpVersion {
        /// The two answers differ.
        tagged: bool,
        /// The version found.
        version: u8,
    },
    /// RFC 5040 §4.1: each opcode has its queue.
    #[error("opcode {opcode:#x} on queue {queue:#x}, it belongs on queue {expected:#x}")]
    Queue {
        /// The opcode, in the RDMAP control byte.
        opcode: u8,
        /// The queue number found.
        queue: u32,
        /// The queue number due.
        expected: u32,
    },
    /// A message that fits one segment begins at offset 0.
    #[error("message offset {0} in a message of one segment")]
    MessageOffset(u32),
    /// A message of fixed length has more bytes, or announces more segments.
    #[error("a message of {expected} bytes has at least {found}")]
    TooLong {
        /// The ULPDU length that the opcode fixes.
        expected: u16,
        /// The ULPDU length found, or one more than expected when another segment is announced.
        found: u16,
    },

    /// RFC 5040 §4.1: RDMAP version 1.
    #[error("RDMAP version {0}, only version 1 is spoken here")]
    RdmapVersion(u8),
    /// Not an opcode that this kind of segment may carry, or private and not agreed upon.
    #[error("unexpected opcode {opcode:#x} in {} segment", if *.tagged { "a tagged" } else { "an untagged" })]
    Opcode {
        /// The low four bits of the RDMAP control byte.
        opcode: u8,
        /// The kind of segment it came in.
        tagged: bool,
    },
    /// RFC 7306 §5.2.1: only FetchAdd (0) and CmpSwap (2) are assigned.
    #[error("unknown atomic operation {0}")]
    AtomicOpcode(u8),
}

impl Violation {
    /// The Terminate cause that answers it.
    ///
    /// A broken startup frame has one too (MPA code 4), but there is no stream yet to carry it: close the connection.
    pub const fn cause(&self) -> Cause {
        match self {
            Self::Key { .. }
            | Self::Revision(_)
            | Self::PrivateDataLength(_)
            | Self::EnhancedWordMissing(_) => Cause::Mpa(MpaFault::Startup),
            Self::TooShort { .. } | Self::Marker { .. } => Cause::Mpa(MpaFault::Length),
            Self::Crc { .. } => Cause::Mpa(MpaFault::Crc),
            Self::DdpVersion { tagged: true, .. } => Cause::TaggedBuffer(TaggedBuffer::Version),
            Self::DdpVersion { tagged: false, .. } => Cause::UntaggedBuffer(UntaggedBuffer::Version),
            Self::Queue { .. } => Cause::UntaggedBuffer(UntaggedBuffer::Queue),
            Self::MessageOffset(_) => Cause::UntaggedBuffer(UntaggedBuffer::Offset),
            Self::TooLong { .. } => Cause::UntaggedBuffer(UntaggedBuffer::TooLong),
            Self::RdmapVersion(_) => Cause::Operation(Operation::Version),
            Self::Opcode { .. } | Self::AtomicOpcode(_) => Cause::Operation(Operation::Opcode),
        }
    }
}

/// A request to emit something that cannot exist on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// The segment is larger than [`MAX_ULPDU`](crate::MAX_ULPDU).
    #[error("a segment of {0} bytes, RFC 5044 allows 64,768: cut the message into more segments")]
    SegmentTooLong(usize),
    /// The message has no payload.
    #[error("{0} bytes of payload behind a header that carries none")]
    PayloadNotAllowed(usize),
    /// An FPDU was closed too early.
    #[error("{0} bytes of payload were announced and not covered")]
    PayloadMissing(usize),
    /// A whole FPDU was to be written into a direction with markers.
    #[error("this direction has markers: write the FPDU piece by piece")]
    Markers,
    /// Payload was to pass unseen in a direction whose CRC covers it.
    #[error("this direction has CRCs: payload cannot pass unseen")]
    Unseen,
    /// More private data than fits the startup frame.
    #[error("{len} bytes of private data, this frame has room for {room}")]
    PrivateDataTooLong {
        /// What was given.
        len: usize,
        /// What fits.
        room: usize,
    },
    /// IRD and ORD have 14 bits.
    #[error("a depth of {0} outstanding reads, 14 bits hold up to 16,383")]
    DepthTooLarge(u16),
    /// The buffer is shorter than what is written.
    #[error("a buffer of {have} bytes, {need} are needed")]
    BufferTooShort {
        /// Its length.
        have: usize,
        /// The length it must have.
        need: usize,
    },
    /// A queue pair number has 24 bits.
    #[error("queue pair number {0:#x} does not fit 24 bits")]
    QueuePairNumber(u32),
}
