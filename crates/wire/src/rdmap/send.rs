//! Messages that consume a receive: Send in its four kinds, Immediate Data, and the private Send with Immediate.

use crate::Tag;
use core::fmt;

/// One segment of a Send (RFC 5040 §4.6 and §4.7: opcodes 3 to 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Send {
    /// Sequence number on queue 0, counting from 1.
    pub msn: u32,
    /// Whether this is the last segment of its message.
    pub last: bool,
    /// Position of this segment's payload in the message.
    pub offset: u32,
    /// Whether the message raises a solicited event at the receiver.
    pub solicited: bool,
    /// The ULP word, after the control bytes.
    pub word: SendWord,
}

/// The ULP word of a Send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum SendWord {
    /// The number of the shared receive queue that an XRC Send is for. Between other queue pairs, the word is reserved:
    /// sent as zero and ignored on receipt.
    Srq(u32),
    /// The tag that the receiver invalidates when it delivers the message.
    Invalidate(Tag),
}

impl SendWord {
    /// The word of a plain Send.
    pub const NONE: Self = Self::Srq(0);
}

/// An Immediate Data message (RFC 7306 §6: opcodes 8 and 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Immediate {
    /// Sequence number on queue 0, counting from 1.
    pub msn: u32,
    /// Whether the message raises a solicited event at the receiver.
    pub solicited: bool,
    /// The number of the shared receive queue, as in [`SendWord::Srq`].
    pub srq: u32,
    /// The immediate data.
    pub data: ImmediateData,
}

/// Eight bytes of immediate data.
///
/// The 32-bit value of the verbs is in the first four bytes, as with Chelsio adapters. The other bytes are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ImmediateData(pub [u8; 8]);

impl ImmediateData {
    /// Creates immediate data from the 32-bit value of the verbs.
    pub const fn new(value: u32) -> Self {
        let [a, b, c, d] = value.to_be_bytes();
        Self([a, b, c, d, 0, 0, 0, 0])
    }

    /// Returns the 32-bit value of the verbs.
    pub const fn value(self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_be_bytes([a, b, c, d])
    }
}

impl fmt::Display for ImmediateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", u64::from_be_bytes(self.0))
    }
}

/// Private: one segment of a Send with Immediate, in four kinds (requirement X8, `docs/wire.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SendImmediate {
    /// The fields of a plain Send. The immediate data counts as the first eight bytes of the message, so payload byte
    /// `k` has offset `8 + k`.
    pub send: Send,
    /// The immediate data, in the first segment (offset 0). `None` in other segments.
    pub immediate: Option<ImmediateData>,
}
