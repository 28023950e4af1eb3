//! The errors of this crate. A [`Violation`] is an error of the peer, found when parsing. A [`Misuse`] is an error of the
//! caller, found when emitting.

use crate::cause::{Cause, MpaFault, Operation, TaggedBuffer, UntaggedBuffer};

/// A protocol violation by the peer. Each variant cites the rule.
///
/// This crate checks only rules that concern a single header. Rules that need the state of the stream (sequence
/// numbers, access rights, bounds) are checked by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// RFC 5044 §7.1.1: a connection must begin with the key of the expected startup frame.
    #[error("not an MPA {expected} frame: the peer speaks another protocol, or has the same role")]
    Key {
        /// "Request" or "Reply".
        expected: &'static str,
    },
    /// RFC 5044 §7.1.1, RFC 6581 §6: the revision must be 1 or 2.
    #[error("unsupported MPA revision {0}: only 1 and 2 are supported")]
    Revision(u8),
    /// RFC 5044 §7.1.1: private data must not exceed 512 bytes.
    #[error("{0} bytes of private data exceed the maximum of 512")]
    PrivateDataLength(u16),
    /// RFC 6581 §6: the private data of a frame with the S bit must begin with the IRD/ORD word.
    #[error("the S bit announces an IRD/ORD word of 4 bytes, but the private data has {0} bytes")]
    EnhancedWordMissing(u16),

    /// The FPDU must be long enough for the header of its opcode.
    #[error("ULPDU of {ulpdu} bytes is too short for its header of {header} bytes")]
    TooShort {
        /// Value of the ULPDU length field.
        ulpdu: u16,
        /// Length of the header.
        header: u16,
    },
    /// RFC 5044 §4.4: the CRC must be that of the FPDU.
    #[error("CRC mismatch: computed {computed:#010x}, received {received:#010x}")]
    Crc {
        /// The CRC computed from the bytes received.
        computed: u32,
        /// The CRC in the FPDU.
        received: u32,
    },
    /// RFC 5044 §4.3: a marker must point back to the start of its FPDU.
    #[error("marker points {found} bytes back, but its FPDU began {expected} bytes before it")]
    Marker {
        /// Distance from the marker to the start of the FPDU, in bytes.
        expected: u16,
        /// Distance that the marker contains, in bytes.
        found: u16,
    },

    /// RFC 5041 §4.1: the DDP version must be 1.
    #[error("unsupported DDP version {version} in {} segment: only version 1 is supported", if *.tagged { "a tagged" } else { "an untagged" })]
    DdpVersion {
        /// Whether the segment is tagged. Tagged and untagged segments have different error codes.
        tagged: bool,
        /// The version found.
        version: u8,
    },
    /// RFC 5040 §4.1: an untagged opcode must be on its queue.
    #[error("opcode {opcode:#x} on queue {queue:#x}, expected queue {expected:#x}")]
    Queue {
        /// The opcode.
        opcode: u8,
        /// The queue number found.
        queue: u32,
        /// The queue number expected.
        expected: u32,
    },
    /// The message offset must be 0 in a message that has only one segment.
    #[error("message offset {0} in a single-segment message, expected 0")]
    MessageOffset(u32),
    /// A message of fixed length must have that length, and be the last segment.
    #[error("message of at least {found} bytes, expected {expected}")]
    TooLong {
        /// The ULPDU length that the opcode requires.
        expected: u16,
        /// The ULPDU length found, or one more than expected if the segment is not the last.
        found: u16,
    },

    /// RFC 5040 §4.1: the RDMAP version must be 1.
    #[error("unsupported RDMAP version {0}: only version 1 is supported")]
    RdmapVersion(u8),
    /// The opcode must be valid for this kind of segment. Private opcodes must have been negotiated.
    #[error("unexpected opcode {opcode:#x} in {} segment", if *.tagged { "a tagged" } else { "an untagged" })]
    Opcode {
        /// The low four bits of the RDMAP control byte.
        opcode: u8,
        /// Whether the segment is tagged.
        tagged: bool,
    },
    /// RFC 7306 §5.2.1: an atomic operation must be FetchAdd (0) or CmpSwap (2).
    #[error("unknown atomic operation {0}")]
    AtomicOpcode(u8),
}

impl Violation {
    /// Returns the cause of the Terminate that reports this violation.
    ///
    /// An invalid startup frame has a cause, too (MPA code 4), but no Terminate can be sent yet: close the connection.
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

/// Why a value cannot be encoded: an error of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// The segment exceeds [`MAX_ULPDU`](crate::MAX_ULPDU).
    #[error("segment of {0} bytes exceeds the maximum of 64,768: split the message into more segments")]
    SegmentTooLong(usize),
    /// Payload was given for a message that cannot have any.
    #[error("{0} bytes of payload after a header that carries none")]
    PayloadNotAllowed(usize),
    /// An FPDU was closed before all of its payload was accounted for.
    #[error("FPDU closed with {0} bytes of payload missing")]
    PayloadMissing(usize),
    /// A whole FPDU was to be written at once, in a direction with markers.
    #[error("this direction uses markers: write the FPDU in pieces")]
    Markers,
    /// Payload was to be skipped, in a direction with CRCs.
    #[error("this direction uses CRCs: payload cannot be skipped")]
    PayloadSkipped,
    /// The private data does not fit the startup frame.
    #[error("{len} bytes of private data exceed the {room} bytes that this frame has room for")]
    PrivateDataTooLong {
        /// The length of the private data.
        len: usize,
        /// The maximum length.
        room: usize,
    },
    /// The IRD or ORD exceeds 14 bits.
    #[error("depth of {0} outstanding reads exceeds the maximum of 16,383")]
    DepthTooLarge(u16),
    /// The buffer is too short for the output.
    #[error("buffer too small: {have} bytes, need {need}")]
    BufferTooShort {
        /// The length of the buffer.
        have: usize,
        /// The required length.
        need: usize,
    },
    /// The queue pair number exceeds 24 bits.
    #[error("invalid queue pair number {0:#x}: QPNs are 24 bits wide")]
    QueuePairNumber(u32),
    /// The payload of a datagram exceeds what its length field can state.
    #[error("datagram of {0} bytes exceeds the maximum of 65,535")]
    DatagramTooLong(usize),
}
