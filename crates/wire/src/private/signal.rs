//! The signal, by which two Ironwarp ends recognise each other, acknowledge messages and change the route of a stream.
//!
//! A signal is an RDMA Write without payload. A receiver must not check the tag and offset of such a message (RFC 5041
//! §5.2; Linux siw drops it), so these 96 bits are free: the tag of a signal is a magic number, and the offset is the
//! following word.
//!
//! ```text
//!  63    56 55    48 47          32 31    24 23   16 15             0
//!  ┌───────┬────────┬──────────────┬────────┬───────┬────────────────┐
//!  │ 1     │version │ may bits     │ must   │ timer │ check, "WP"    │   capabilities: once, the first message of its direction
//!  ├───────┼────────┴──────────────┴────────┴───────┴────────────────┤
//!  │ 2     │ count                                                   │   acknowledgement: cumulative
//!  │ 3     │ count                                                   │   not ready: the next message waits
//!  ├───────┼────────┬────────────────────────────────────────────────┤
//!  │ 4     │ part   │ six bytes of the offer                         │   offer: four parts, of shared memory
//!  ├───────┼────────┴────────────────────────────────────────────────┤
//!  │ 5     │ zero                                                    │   leave: this direction stays with TCP, follow it
//!  │ 6     │ zero                                                    │   left: the peer's leave was received
//!  ├───────┼───────────────────────────────────────────────────────┬─┤
//!  │ 0x85  │ zero                                                  │r│   switch: the rest of the direction takes route r
//!  └───────┴───────────────────────────────────────────────────────┴─┘
//! ```
//!
//! As in `extension.rs`, a kind with 0x80 set must be understood, and other unknown kinds are ignored.

use super::extension::{MUST_UNDERSTAND, Unreadable, VERSION};
use crate::{Header, RemoteAddr, Tag, Tagged};
use bitflags::bitflags;
use core::fmt;

/// The tag of a signal: "IRWP".
pub const SIGNAL_TAG: Tag = Tag(0x4952_5750);
/// Maximum count of an acknowledgement: 56 bits, enough for a billion messages per second for two years.
pub const MAX_ACKNOWLEDGED: u64 = (1 << 56) - 1;

/// Length of an offer in bytes.
pub const OFFER_LEN: usize = OFFER_PARTS as usize * OFFER_PART_LEN;
/// Number of parts of an offer.
pub const OFFER_PARTS: u8 = 4;
/// Length of a part of an offer in bytes.
const OFFER_PART_LEN: usize = 6;

const CAPABILITIES: u64 = 1;
const ACKNOWLEDGED: u64 = 2;
const NOT_READY: u64 = 3;
const OFFER: u64 = 4;
const LEAVE: u64 = 5;
const LEFT: u64 = 6;
const SWITCH: u64 = 0x85;
const KIND_SHIFT: u32 = 56;
const VERSION_SHIFT: u32 = 48;
const PART_SHIFT: u32 = 48;
const OFFERS_SHIFT: u32 = 32;
const TIMER_SHIFT: u32 = 19;
/// Position of the RNR timer in [`Capabilities`].
const RNR_SHIFT: u32 = 11;
/// "WP", at the end of a capability signal. With tag, kind and version, 64 bits must match for an empty Write to count
/// as a capability signal.
const CHECK: u64 = 0x5750;
/// "WARP", the low half of the word in version 1.
const CHECK_OF_VERSION_1: u64 = 0x5741_5250;

/// The meaning of an empty Write with the magic tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Identifies the sender as Ironwarp and lists the features it supports.
    Capabilities(Capabilities),
    /// Acknowledges this number of request messages (Write, Send, Immediate, Read and Atomic Request, but not signals or
    /// the RTR): all that were delivered on this stream so far. At most [`MAX_ACKNOWLEDGED`]; higher bits are not sent.
    Acknowledged(u64),
    /// Reports that a message waits for a receive (RNR): the next after this number of delivered request messages.
    NotReady(u64),
    /// Part of an offer to carry the stream in shared memory. An offer has [`OFFER_LEN`] bytes, which are sent as
    /// [`OFFER_PARTS`] parts, in order.
    Offer {
        /// The number of the part, from 0.
        part: u8,
        /// The bytes of the part.
        data: [u8; OFFER_PART_LEN],
    },
    /// The last FPDU of its direction on the current route: everything after it takes this one.
    Switch(Route),
    /// Asks the peer to leave shared memory (requirement X2). The direction of this signal is on TCP, and stays there. The
    /// peer sends the same signal once its direction is on TCP for good, and then [`Left`](Self::Left).
    Leave,
    /// Answers [`Leave`](Self::Leave): the sender has received everything that its peer had sent by shared memory.
    Left,
    /// A signal of a kind that a later release defines. It is ignored.
    Unknown(u8),
}

/// The way on which the bytes of one direction of a stream travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Route {
    /// The TCP connection. Every stream begins on it.
    #[default]
    Tcp,
    /// Memory that both ends share, because they are on one host. FPDUs have neither CRCs nor markers there.
    SharedMemory,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::SharedMemory => "shared memory",
        })
    }
}

bitflags! {
    /// The features that an end supports beyond the RFCs, and its RNR timer. Both share 16 bits, to keep queue pairs
    /// small: the features are the may-ignore bits of the signal, and the RNR timer is in the upper five bits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct Capabilities: u16 {
        /// Sends cumulative acknowledgements to a peer that requests them.
        const ACKNOWLEDGE = 1 << 0;
        /// Accepts FPDUs larger than the segment size of the path.
        const LARGE_FPDU = 1 << 1;
        /// Supports Send with Immediate (requirement X8).
        const SEND_IMMEDIATE = 1 << 2;
        /// Supports Read V2 (requirement X4).
        const READ_V2 = 1 << 3;
        /// Requests acknowledgements, because its queue pair completes requests when they are acknowledged.
        const WANTS_ACKNOWLEDGE = 1 << 4;
        /// Can carry the stream in shared memory if both ends are on one host.
        const SHARED_MEMORY = 1 << 5;
        /// Leaves shared memory when the peer asks for it (requirement X2).
        const LEAVE = 1 << 6;
        /// The five bits of [`rnr_timer`](Self::rnr_timer).
        const RNR_TIMER = 0x1f << RNR_SHIFT;
    }
}

impl Capabilities {
    /// Sets the RNR timer, as the five-bit code of the verbs (min_rnr_timer): the time that counts as one retry of a
    /// message for which no receive is posted.
    #[must_use]
    pub const fn with_rnr_timer(self, code: u8) -> Self {
        let timer = Self::RNR_TIMER.bits();
        Self::from_bits_truncate(self.bits() & !timer | (code as u16) << RNR_SHIFT & timer)
    }

    /// Returns the RNR timer, as the five-bit code of the verbs (min_rnr_timer).
    pub const fn rnr_timer(self) -> u8 {
        (self.bits() >> RNR_SHIFT) as u8
    }

    /// Returns the feature bits, without the RNR timer.
    pub const fn offers(self) -> u16 {
        self.bits() & !Self::RNR_TIMER.bits()
    }
}

impl Capabilities {
    /// Decodes the word of a capability signal with this version.
    fn parse(version: u8, word: u64) -> Result<Self, Unreadable> {
        let [_, _, offers_high, offers_low, must, timer, ..] = word.to_be_bytes();
        if version != VERSION {
            return Err(Unreadable::Version(version));
        }
        if must != 0 {
            return Err(Unreadable::Bits(must.into()));
        }
        let offers = Self::from_bits_truncate(u16::from_be_bytes([offers_high, offers_low]));
        Ok(offers.with_rnr_timer(timer >> 3))
    }
}

impl Signal {
    /// Parses the place of a Write without payload. Returns `None` for an ordinary Write, and an error for an unknown
    /// signal that must be understood.
    pub fn parse(addr: RemoteAddr) -> Option<Result<Self, Unreadable>> {
        if addr.tag != SIGNAL_TAG {
            return None;
        }
        let word = addr.offset;
        let [kind, version, data @ ..] = word.to_be_bytes();
        Some(match kind.into() {
            CAPABILITIES if version == 1 && word & 0xffff_ffff == CHECK_OF_VERSION_1 => {
                Err(Unreadable::Version(1))
            }
            CAPABILITIES if word & 0xffff == CHECK => {
                Capabilities::parse(version, word).map(Self::Capabilities)
            }
            CAPABILITIES => return None,
            ACKNOWLEDGED => Ok(Self::Acknowledged(word & MAX_ACKNOWLEDGED)),
            NOT_READY => Ok(Self::NotReady(word & MAX_ACKNOWLEDGED)),
            OFFER => Ok(Self::Offer { part: version, data }),
            LEAVE => Ok(Self::Leave),
            LEFT => Ok(Self::Left),
            SWITCH if word & 1 == 0 => Ok(Self::Switch(Route::Tcp)),
            SWITCH => Ok(Self::Switch(Route::SharedMemory)),
            _ if kind & MUST_UNDERSTAND != 0 => Err(Unreadable::Extension(kind)),
            _ => Ok(Self::Unknown(kind)),
        })
    }

    /// Returns the header of the Write to send, which has no payload.
    pub const fn to_header(self) -> Header {
        let offset = match self {
            Self::Capabilities(capabilities) => {
                CAPABILITIES << KIND_SHIFT
                    | (VERSION as u64) << VERSION_SHIFT
                    | (capabilities.offers() as u64) << OFFERS_SHIFT
                    | (capabilities.rnr_timer() as u64) << TIMER_SHIFT
                    | CHECK
            }
            Self::Acknowledged(count) => ACKNOWLEDGED << KIND_SHIFT | count & MAX_ACKNOWLEDGED,
            Self::NotReady(count) => NOT_READY << KIND_SHIFT | count & MAX_ACKNOWLEDGED,
            Self::Offer { part, data: [a, b, c, d, e, f] } => {
                OFFER << KIND_SHIFT
                    | (part as u64) << PART_SHIFT
                    | u64::from_be_bytes([0, 0, a, b, c, d, e, f])
            }
            Self::Leave => LEAVE << KIND_SHIFT,
            Self::Left => LEFT << KIND_SHIFT,
            Self::Switch(Route::Tcp) => SWITCH << KIND_SHIFT,
            Self::Switch(Route::SharedMemory) => SWITCH << KIND_SHIFT | 1,
            Self::Unknown(kind) => (kind as u64) << KIND_SHIFT,
        };
        Header::Write(Tagged { last: true, addr: RemoteAddr { tag: SIGNAL_TAG, offset } })
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capabilities(capabilities) => {
                let (offers, timer) = (capabilities.offers(), capabilities.rnr_timer());
                write!(f, "Signal, version {VERSION}, capabilities {offers:#06x}, RNR timer {timer}")
            }
            Self::Acknowledged(count) => write!(f, "Signal, {count} messages acknowledged"),
            Self::NotReady(count) => write!(f, "Signal, message {} waits for a receive", count + 1),
            Self::Offer { part, .. } => {
                let part = u32::from(*part) + 1;
                write!(f, "Signal, offer of shared memory, part {part} of {OFFER_PARTS}")
            }
            Self::Switch(route) => write!(f, "Signal, switch to {route}"),
            Self::Leave => f.write_str("Signal, leave shared memory"),
            Self::Left => f.write_str("Signal, shared memory was left"),
            Self::Unknown(kind) => write!(f, "Signal of unknown kind {kind:#04x}"),
        }
    }
}
