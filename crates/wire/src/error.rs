//! Errors: a [`Violation`] is the peer's fault, a [`Misuse`] is the caller's.
//!
//! [`Violation::cause`] is the table that maps each broken rule to the Terminate that reports it.

use crate::cause::{Cause, MpaFault, Operation, TaggedBuffer, UntaggedBuffer};

/// A protocol rule that the peer broke.
///
/// Only rules that can be checked from a header alone are checked here. Those that need the state of the stream
/// (sequence numbers, access rights, bounds) are checked by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// RFC 5044 §7.1.1: a connection begins with the key of the expected startup frame.
    #[error("not an MPA {expected} frame: the peer speaks another protocol, or has the same role")]
    Key {
        /// "Request" or "Reply".
        expected: &'static str,
    },
    /// RFC 5044 §7.1.1, RFC 6581 §6: revisions 1 and 2 are supported.
    #[error("unsupported MPA revision {0}: only 1 and 2 are supported")]
    Revision(u8),
    /// RFC 5044 §7.1.1: private data is at most 512 bytes.
    #[error("{0} bytes of private data exceed the maximum of 512")]
    PrivateDataLength(u16),
    /// RFC 6581 §6: a frame with the S bit begins its private data with the IRD/ORD word.
    #[error("the S bit announces an IRD/ORD word of 4 bytes, but the private data has {0} bytes")]
    EnhancedWordMissing(u16),

    /// The FPDU is too short for the header that its opcode needs.
    #[error("ULPDU of {ulpdu} bytes is too short for its header of {header} bytes")]
    TooShort {
        /// Value of the ULPDU length field.
        ulpdu: u16,
        /// Length of the header.
        header: u16,
    },
    /// RFC 5044 §4.4: the CRC covers the whole FPDU.
    #[error("CRC mismatch: computed {computed:#010x}, received {received:#010x}")]
    Crc {
        /// Computed from the bytes received.
        computed: u32,
        /// Carried by the FPDU.
        received: u32,
    },
    /// RFC 5044 §4.3: a marker points back to the start of its FPDU.
    #[error("marker points {found} bytes back, but its FPDU began {expected} bytes before it")]
    Marker {
        /// Distance to the start of the FPDU.
        expected: u16,
        /// Distance in the marker.
        found: u16,
    },

    /// RFC 5041 §4.1: DDP version 1.
    #[error("unsupported DDP version {version} in {} segment: only version 1 is supported", if *.tagged { "a tagged" } else { "an untagged" })]
    DdpVersion {
        /// The kind of segment, because each has its own error code.
        tagged: bool,
        /// The version found.
        version: u8,
    },
    /// RFC 5040 §4.1: each untagged opcode belongs to one queue.
    #[error("opcode {opcode:#x} on queue {queue:#x}, expected queue {expected:#x}")]
    Queue {
        /// The opcode, in the RDMAP control byte.
        opcode: u8,
        /// The queue number found.
        queue: u32,
        /// The queue number expected.
        expected: u32,
    },
    /// A message of one segment begins at offset 0.
    #[error("message offset {0} in a single-segment message, expected 0")]
    MessageOffset(u32),
    /// A message of fixed length is longer than that, or announces another segment.
    #[error("message of at least {found} bytes, expected {expected}")]
    TooLong {
        /// The ULPDU length that the opcode requires.
        expected: u16,
        /// The ULPDU length found, or one more than expected when another segment is announced.
        found: u16,
    },

    /// RFC 5040 §4.1: RDMAP version 1.
    #[error("unsupported RDMAP version {0}: only version 1 is supported")]
    RdmapVersion(u8),
    /// An opcode that this kind of segment cannot carry, or a private one that was not negotiated.
    #[error("unexpected opcode {opcode:#x} in {} segment", if *.tagged { "a tagged" } else { "an untagged" })]
    Opcode {
        /// The low four bits of the RDMAP control byte.
        opcode: u8,
        /// The kind of segment.
        tagged: bool,
    },
    /// RFC 7306 §5.2.1: only FetchAdd (0) and CmpSwap (2) are assigned.
    #[error("unknown atomic operation {0}")]
    AtomicOpcode(u8),
}

impl Violation {
    /// Returns the cause of the Terminate that reports it.
    ///
    /// An invalid startup frame has one too (MPA code 4), but there is no stream yet to carry it: close the connection.
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
    #[error("segment of {0} bytes exceeds the maximum of 64,768: split the message into more segments")]
    SegmentTooLong(usize),
    /// This kind of message has no payload.
    #[error("{0} bytes of payload after a header that carries none")]
    PayloadNotAllowed(usize),
    /// An FPDU was closed before all of its payload.
    #[error("FPDU closed with {0} bytes of payload missing")]
    PayloadMissing(usize),
    /// A whole FPDU cannot be written at once to a direction with markers.
    #[error("this direction uses markers: write the FPDU in pieces")]
    Markers,
    /// Payload cannot be skipped in a direction whose CRC covers it.
    #[error("this direction uses CRCs: payload cannot be skipped")]
    PayloadSkipped,
    /// More private data than fits the startup frame.
    #[error("{len} bytes of private data exceed the {room} bytes that this frame has room for")]
    PrivateDataTooLong {
        /// The length given.
        len: usize,
        /// The length that fits.
        room: usize,
    },
    /// IRD and ORD have 14 bits.
    #[error("depth of {0} outstanding reads exceeds the maximum of 16,383")]
    DepthTooLarge(u16),
    /// The buffer is too short for the output.
    #[error("buffer too small: {have} bytes, need {need}")]
    BufferTooShort {
        /// Its length.
        have: usize,
        /// The length it must have.
        need: usize,
    },
    /// A queue pair number has 24 bits.
    #[error("invalid queue pair number {0:#x}: QPNs are 24 bits wide")]
    QueuePairNumber(u32),
}
