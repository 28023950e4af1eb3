//! The signal: how two Ironwarp ends recognise each other, and acknowledge what they placed.
//!
//! It is an RDMA Write with no payload. A receiver must not check tag and offset of such a message (RFC 5041 §5.2, and
//! Linux siw drops it unseen), so those 96 bits are free: the tag holds a magic, the offset a word.
//!
//! ```text
//!  63    56 55    48 47          32 31                             0
//!  ┌───────┬────────┬──────────────┬────────────────────────────────┐
//!  │ 1     │version │ capabilities │ check, "WARP"                  │   capabilities: once, the first of its direction
//!  ├───────┼────────┴──────────────┴────────────────────────────────┤
//!  │ 2     │ count                                                  │   acknowledgement: cumulative
//!  │ 3     │ count                                                  │   not ready: the message behind these waits
//!  └───────┴────────────────────────────────────────────────────────┘
//! ```

use crate::{Header, Place, Tag, Tagged};
use bitflags::bitflags;
use core::fmt;

/// The tag of a signal: "IRWP".
pub const SIGNAL_TAG: Tag = Tag(0x4952_5750);
/// The count of an acknowledgement has 56 bits: a billion messages a second for two years.
pub const MAX_ACKNOWLEDGED: u64 = (1 << 56) - 1;

const CAPABILITIES: u64 = 1;
const ACKNOWLEDGED: u64 = 2;
const NOT_READY: u64 = 3;
const KIND_SHIFT: u32 = 56;
const VERSION: u64 = 1;
const VERSION_SHIFT: u32 = 48;
const FLAGS_SHIFT: u32 = 32;
/// Where the timer begins in the flags: it is the last of them.
const RNR_SHIFT: u32 = 11;
/// "WARP": with the magic in the tag, 88 bits must agree before a stranger's empty Write is taken for one of ours.
const CHECK: u64 = 0x5741_5250;

/// What an empty Write with the right magic says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// "I am Ironwarp, and this is what I understand."
    Capabilities(Capabilities),
    /// So many messages of the request class (Write, Send, Immediate, Read and Atomic Request; not signals, not the RTR)
    /// were delivered on this stream so far. At most [`MAX_ACKNOWLEDGED`]; higher bits are not sent.
    Acknowledged(u64),
    /// So many were delivered, and the one behind them waits for a receive.
    NotReady(u64),
}

bitflags! {
    /// What an end understands beyond the RFCs. Bits that are not defined are ignored.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Capabilities: u16 {
        /// It sends cumulative acknowledgements to whoever wants them.
        const ACKNOWLEDGE = 1 << 0;
        /// It takes FPDUs that are larger than the path's segment size.
        const LARGE_FPDU = 1 << 1;
        /// It understands Send with Immediate (requirement X8).
        const SEND_IMMEDIATE = 1 << 2;
        /// It understands Read V2 (requirement X4).
        const READ_V2 = 1 << 3;
        /// It wants to be told what was delivered: its queue pair completes requests when they are acknowledged.
        const WANTS_ACKNOWLEDGE = 1 << 4;
        /// Five bits for a number: see [`rnr_timer`](Self::rnr_timer).
        const RNR_TIMER = 0x1f << RNR_SHIFT;
    }
}

impl Capabilities {
    /// The same, with the time between two attempts at a message for which no receive is posted, in the verbs' code of five
    /// bits (min_rnr_timer): a sender whose queue pair counts such attempts gives up after so many times this.
    #[must_use]
    pub const fn with_rnr_timer(self, code: u8) -> Self {
        let timer = Self::RNR_TIMER.bits();
        Self::from_bits_truncate(self.bits() & !timer | (code as u16) << RNR_SHIFT & timer)
    }

    /// The code of that time.
    pub const fn rnr_timer(self) -> u8 {
        (self.bits() >> RNR_SHIFT) as u8
    }
}

impl Signal {
    /// Reads the place of a Write that has no payload. `None`: not a signal, or one of a kind or version that is not known
    /// here; in either case the message is to be ignored.
    pub fn parse(place: Place) -> Option<Self> {
        if place.tag != SIGNAL_TAG {
            return None;
        }
        let word = place.offset;
        match word >> KIND_SHIFT {
            CAPABILITIES if word >> VERSION_SHIFT & 0xff == VERSION && word & 0xffff_ffff == CHECK => {
                #[expect(clippy::cast_possible_truncation, reason = "the 16 bits of the flags")]
                let flags = (word >> FLAGS_SHIFT) as u16;
                Some(Self::Capabilities(Capabilities::from_bits_truncate(flags)))
            }
            ACKNOWLEDGED => Some(Self::Acknowledged(word & MAX_ACKNOWLEDGED)),
            NOT_READY => Some(Self::NotReady(word & MAX_ACKNOWLEDGED)),
            _ => None,
        }
    }

    /// The message to send, with no payload.
    pub const fn header(self) -> Header {
        let offset = match self {
            Self::Capabilities(capabilities) => {
                CAPABILITIES << KIND_SHIFT
                    | VERSION << VERSION_SHIFT
                    | (capabilities.bits() as u64) << FLAGS_SHIFT
                    | CHECK
            }
            Self::Acknowledged(count) => ACKNOWLEDGED << KIND_SHIFT | count & MAX_ACKNOWLEDGED,
            Self::NotReady(count) => NOT_READY << KIND_SHIFT | count & MAX_ACKNOWLEDGED,
        };
        Header::Write(Tagged { last: true, place: Place { tag: SIGNAL_TAG, offset } })
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capabilities(capabilities) => {
                write!(f, "Signal, capabilities {:#06x}", capabilities.bits())
            }
            Self::Acknowledged(count) => write!(f, "Signal, {count} messages acknowledged"),
            Self::NotReady(count) => write!(f, "Signal, message {} waits for a receive", count + 1),
        }
    }
}
