//! The messages that use up a receive buffer: Send in its kinds, Immediate Data, and the private Send with Immediate.

use crate::Tag;
use core::fmt;

/// One segment of a Send (RFC 5040 §4.6 and §4.7: opcodes 3 to 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Send {
    /// Counts the messages of queue 0, from 1.
    pub msn: u32,
    /// This segment ends the message.
    pub last: bool,
    /// Where in the message the payload of this segment begins.
    pub offset: u32,
    /// The receiver's program shall be woken.
    pub solicited: bool,
    /// The word behind the control bytes.
    pub word: SendWord,
}

/// What the ULP word of a Send is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendWord {
    /// The number of the shared receive queue that an XRC Send is for. Between other queue pairs the word is reserved:
    /// zero when sent, ignored when received.
    Srq(u32),
    /// The tag that the receiver invalidates when it delivers the message.
    Invalidate(Tag),
}

impl SendWord {
    /// A Send with nothing to say here.
    pub const NONE: Self = Self::Srq(0);
}

/// Immediate Data (RFC 7306 §6: opcodes 8 and 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// Counts the messages of queue 0, from 1.
    pub msn: u32,
    /// The receiver's program shall be woken.
    pub solicited: bool,
    /// As in [`SendWord::Srq`].
    pub srq: u32,
    /// The data.
    pub data: ImmediateData,
}

/// Eight bytes of immediate data.
///
/// The verbs know 32 bits; these stand in the first four bytes, as the Chelsio cards send them, and the rest is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImmediateData(pub [u8; 8]);

impl ImmediateData {
    /// The verbs' 32-bit value.
    pub const fn new(value: u32) -> Self {
        let [a, b, c, d] = value.to_be_bytes();
        Self([a, b, c, d, 0, 0, 0, 0])
    }

    /// The verbs' 32-bit value.
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
pub struct SendImmediate {
    /// As in a plain Send; but the immediate data counts as the first eight bytes of the message, so that payload byte
    /// `k` has offset `8 + k`.
    pub send: Send,
    /// In the first segment (offset 0), and only there.
    pub immediate: Option<ImmediateData>,
}
