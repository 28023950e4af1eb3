//! The startup frames (RFC 5044 §7.1, RFC 6581): the Request and the Reply with which a connection begins.
//!
//! ```text
//!  0               16    17        18          20
//!  ┌───────────────┬─────┬─────────┬───────────┬──────────────┬──────────────────┐
//!  │ key           │flags│ revision│ PD length │ IRD/ORD word │ private data     │
//!  └───────────────┴─────┴─────────┴───────────┴──────────────┴──────────────────┘
//!                   M C R S                     only with S, counts as private data
//! ```

use crate::byte_count::ByteCount;
use crate::{Misuse, Parse, Violation};
use bitflags::bitflags;
use core::fmt;
use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Maximum length of private data in bytes, the IRD/ORD word included.
pub const MAX_PRIVATE_DATA: usize = 512;
/// Maximum length of a startup frame in bytes.
pub const MAX_STARTUP: usize = FIXED_LEN + MAX_PRIVATE_DATA;
/// Maximum IRD and ORD: 14 bits.
pub const MAX_DEPTH: u16 = 0x3fff;
/// The value of IRD or ORD that means "not negotiated" (RFC 6581 §9.1).
pub const NOT_NEGOTIATED: u16 = MAX_DEPTH;

const FIXED_LEN: usize = size_of::<Fixed>();
const ENHANCED_LEN: usize = size_of::<EnhancedWord>();
const _: () = assert!(FIXED_LEN == 20 && ENHANCED_LEN == 4);

/// The bits of the flags byte.
mod flag {
    pub(super) const MARKERS: u8 = 0x80;
    pub(super) const CRC: u8 = 0x40;
    pub(super) const REJECTED: u8 = 0x20;
    pub(super) const ENHANCED: u8 = 0x10;
}

/// RFC 6581 §9: the control bits beside IRD and ORD.
const PEER_TO_PEER: u16 = 0x8000; // A, beside IRD
const RTR_SEND: u16 = 0x4000; // B, beside IRD
const RTR_WRITE: u16 = 0x8000; // C, beside ORD
const RTR_READ: u16 = 0x4000; // D, beside ORD

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Fixed {
    key: [u8; 16],
    flags: u8,
    revision: u8,
    private_data_len: U16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct EnhancedWord {
    ird: U16,
    ord: U16,
}

/// An MPA Request or Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Startup<'a> {
    /// Whether the frame is a Request or a Reply.
    pub role: Role,
    /// Whether the sender requests markers in the bytes that it receives.
    pub markers: bool,
    /// Whether the sender requests CRCs. If either end does, both directions use CRCs.
    pub crc: bool,
    /// The revision, with the fields specific to it.
    pub revision: Revision,
    /// Data for the remote program.
    pub private_data: &'a [u8],
}

/// Whether a startup frame is a Request or a Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The initiator's Request.
    Request,
    /// The responder's Reply.
    Reply {
        /// Whether the connection is rejected.
        rejected: bool,
    },
}

/// The revision of a startup frame, with the fields that only this revision has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revision {
    /// RFC 5044.
    One,
    /// RFC 6581. The IRD/ORD word is `None` if the S bit is not set.
    Two(Option<Enhanced>),
}

/// The IRD/ORD word of revision 2 (RFC 6581 §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enhanced {
    /// Number of the receiver's Reads and atomic operations that the sender accepts at once; 14 bits.
    pub ird: u16,
    /// Number of Reads and atomic operations that the sender requests to have outstanding; 14 bits.
    pub ord: u16,
    /// In the peer-to-peer model, the messages that may serve as the RTR, the first message of the initiator. `None` in the
    /// client-server model, where the initiator's program sends first.
    pub rtr: Option<RtrSet>,
}

bitflags! {
    /// The kinds of empty message that can serve as the RTR (RFC 6581 §9.2), by which the initiator signals that it is
    /// ready to receive.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct RtrSet: u8 {
        /// A Send.
        const SEND = 1;
        /// An RDMA Write.
        const WRITE = 2;
        /// An RDMA Read.
        const READ = 4;
    }
}

impl Role {
    /// Returns the key with which the frame begins.
    const fn key(self) -> &'static [u8; 16] {
        match self {
            Self::Request => b"MPA ID Req Frame",
            Self::Reply { .. } => b"MPA ID Rep Frame",
        }
    }

    /// Returns the name for errors and logs.
    const fn name(self) -> &'static str {
        match self {
            Self::Request => "Request",
            Self::Reply { .. } => "Reply",
        }
    }
}

impl<'a> Startup<'a> {
    /// Parses the Request at the front of `bytes`. Returns the Request and its length.
    pub fn parse_request(bytes: &'a [u8]) -> Result<Parse<(Self, usize)>, Violation> {
        Self::parse(Role::Request, bytes)
    }

    /// Parses the Reply at the front of `bytes`. Returns the Reply and its length. FPDUs may follow directly.
    pub fn parse_reply(bytes: &'a [u8]) -> Result<Parse<(Self, usize)>, Violation> {
        Self::parse(Role::Reply { rejected: false }, bytes)
    }

    /// Parses a Request or a Reply, as `role` says.
    fn parse(role: Role, bytes: &'a [u8]) -> Result<Parse<(Self, usize)>, Violation> {
        // Compare the bytes that have arrived, so that another protocol is detected at the first wrong byte.
        if !bytes.iter().zip(role.key()).all(|(byte, key)| byte == key) {
            return Err(Violation::Key { expected: role.name() });
        }
        let Ok((fixed, rest)) = Fixed::ref_from_prefix(bytes) else { return Ok(Parse::Need(FIXED_LEN)) };
        let enhanced = match fixed.revision {
            1 => false, // the S bit is reserved in revision 1, and ignored
            2 => fixed.flags & flag::ENHANCED != 0,
            other => return Err(Violation::Revision(other)),
        };
        let len = fixed.private_data_len.get();
        if usize::from(len) > MAX_PRIVATE_DATA {
            return Err(Violation::PrivateDataLength(len));
        }
        if enhanced && usize::from(len) < ENHANCED_LEN {
            return Err(Violation::EnhancedWordMissing(len));
        }
        let total = FIXED_LEN + usize::from(len);
        let Some(mut private_data) = rest.get(..usize::from(len)) else { return Ok(Parse::Need(total)) };
        let revision = if fixed.revision == 1 {
            Revision::One
        } else if !enhanced {
            Revision::Two(None)
        } else {
            let Ok((word, after)) = EnhancedWord::ref_from_prefix(private_data) else {
                return Err(Violation::EnhancedWordMissing(len));
            };
            private_data = after;
            Revision::Two(Some(Enhanced::parse(word)))
        };
        let role = match role {
            Role::Request => role, // the R bit is ignored in a Request
            Role::Reply { .. } => Role::Reply { rejected: fixed.flags & flag::REJECTED != 0 },
        };
        let markers = fixed.flags & flag::MARKERS != 0;
        let crc = fixed.flags & flag::CRC != 0;
        Ok(Parse::Done((Self { role, markers, crc, revision, private_data }, total)))
    }

    /// Writes the frame to the front of `out` and returns its length, at most [`MAX_STARTUP`].
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Misuse> {
        let word = match self.revision {
            Revision::One | Revision::Two(None) => None,
            Revision::Two(Some(enhanced)) => Some(enhanced.to_word()?),
        };
        let word_len = word.as_ref().map_or(0, size_of_val);
        let (len, room) = (self.private_data.len(), MAX_PRIVATE_DATA - word_len);
        if len > room {
            return Err(Misuse::PrivateDataTooLong { len, room });
        }
        let (have, need) = (out.len(), FIXED_LEN + word_len + len);
        let Some(out) = out.get_mut(..need) else { return Err(Misuse::BufferTooShort { have, need }) };
        let (fixed, rest) = out.split_at_mut(FIXED_LEN);
        fixed.copy_from_slice(self.to_fixed(word_len + len).as_bytes());
        let (enhanced, private_data) = rest.split_at_mut(word_len);
        if let Some(word) = word {
            enhanced.copy_from_slice(word.as_bytes());
        }
        private_data.copy_from_slice(self.private_data);
        Ok(need)
    }

    /// Returns the fixed fields of a frame whose private data, IRD/ORD word included, has this length.
    fn to_fixed(self, private_data_len: usize) -> Fixed {
        let set = |on, flag| if on { flag } else { 0 };
        let flags = set(self.markers, flag::MARKERS)
            | set(self.crc, flag::CRC)
            | set(self.role == Role::Reply { rejected: true }, flag::REJECTED)
            | set(matches!(self.revision, Revision::Two(Some(_))), flag::ENHANCED);
        let revision = match self.revision {
            Revision::One => 1,
            Revision::Two(_) => 2,
        };
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_PRIVATE_DATA")]
        let private_data_len = (private_data_len as u16).into();
        Fixed { key: *self.role.key(), flags, revision, private_data_len }
    }
}

impl Enhanced {
    /// Decodes the IRD/ORD word.
    fn parse(word: &EnhancedWord) -> Self {
        let (ird, ord) = (word.ird.get(), word.ord.get());
        // RFC 6581 §9.2: without A, the bits B, C and D are ignored.
        let rtr = (ird & PEER_TO_PEER != 0).then(|| {
            let mut rtr = RtrSet::empty();
            rtr.set(RtrSet::SEND, ird & RTR_SEND != 0);
            rtr.set(RtrSet::WRITE, ord & RTR_WRITE != 0);
            rtr.set(RtrSet::READ, ord & RTR_READ != 0);
            rtr
        });
        Self { ird: ird & MAX_DEPTH, ord: ord & MAX_DEPTH, rtr }
    }

    /// Encodes the IRD/ORD word.
    fn to_word(self) -> Result<EnhancedWord, Misuse> {
        if let Some(depth) = [self.ird, self.ord].into_iter().find(|depth| *depth > MAX_DEPTH) {
            return Err(Misuse::DepthTooLarge(depth));
        }
        let rtr = self.rtr.unwrap_or(RtrSet::empty());
        let set = |on, bit| if on { bit } else { 0 };
        let ird =
            self.ird | set(self.rtr.is_some(), PEER_TO_PEER) | set(rtr.contains(RtrSet::SEND), RTR_SEND);
        let ord = self.ord
            | set(rtr.contains(RtrSet::WRITE), RTR_WRITE)
            | set(rtr.contains(RtrSet::READ), RTR_READ);
        Ok(EnhancedWord { ird: ird.into(), ord: ord.into() })
    }
}

impl fmt::Display for Startup<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MPA {}", self.role.name())?;
        if self.role == (Role::Reply { rejected: true }) {
            f.write_str(" REJECTED")?;
        }
        match self.revision {
            Revision::One => f.write_str(", revision 1")?,
            Revision::Two(None) => f.write_str(", revision 2")?,
            Revision::Two(Some(enhanced)) => write!(f, ", revision 2, {enhanced}")?,
        }
        for (on, text) in [(self.crc, ", CRC"), (self.markers, ", markers")] {
            f.write_str(if on { text } else { "" })?;
        }
        write!(f, ", {} of private data", ByteCount(self.private_data.len()))
    }
}

impl fmt::Display for Enhanced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IRD {}, ORD {}", self.ird, self.ord)?;
        let Some(rtr) = self.rtr else { return Ok(()) };
        f.write_str(", peer-to-peer, RTR")?;
        for (kind, name) in [(RtrSet::SEND, " Send"), (RtrSet::WRITE, " Write"), (RtrSet::READ, " Read")] {
            f.write_str(if rtr.contains(kind) { name } else { "" })?;
        }
        Ok(())
    }
}
