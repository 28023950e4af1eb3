//! The hello: private data of the MPA Request and Reply by which two queue pairs that are connected by GID and number find
//! each other, and prove that they know the same key if they have one. `docs/wire.md` has the exchange.

use super::check_qpn;
use super::extension::{Emitted, Format, Parsed, Prologue, Unreadable, array, unknown};
use crate::Misuse;
use core::fmt;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the longest hello, all extensions included.
pub const MAX_HELLO: usize = size_of::<RawHello>() + 3 * 20 + 2 * 8 + 4;

const FORMAT: Format = Format { magic: *b"IRWH", must: 0 };

// Kinds.
const DIAL: u8 = 1;
const ANSWER: u8 = 2;
const CHALLENGE: u8 = 3;
const REFUSAL: u8 = 4;

// Extensions.
const RECEIVE_PSN: u8 = 0x01;
const SEND_PSN: u8 = 0x02;
const DIALLER_NONCE: u8 = 0x81;
const ACCEPTOR_NONCE: u8 = 0x82;
const PROOF: u8 = 0x83;
const REASON: u8 = 0x84;

/// A number used once, or a proof: 128 bits.
pub type Token = [u8; 16];

/// What a queue pair says when it connects to another, or is asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What it is for.
    pub kind: HelloKind,
    /// The receiver's queue pair; 24 bits.
    pub destination: u32,
    /// The sender's queue pair; 24 bits.
    pub source: u32,
    /// Chosen by the end that dials, for one attempt.
    pub dialler_nonce: Option<Token>,
    /// Chosen by the end that is dialled.
    pub acceptor_nonce: Option<Token>,
    /// Proves that the sender knows the key.
    pub proof: Option<Token>,
    /// The packet sequence number that the sender's program expects (rq_psn); 24 bits.
    pub receive_psn: Option<u32>,
    /// The one that it begins with (sq_psn); 24 bits.
    pub send_psn: Option<u32>,
}

/// What a hello is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloKind {
    /// In a Request: "I am `source` and want to talk to your `destination`."
    Dial,
    /// In a Reply that accepts.
    Answer,
    /// In a Reply that rejects: "dial again, and prove with my nonce that you know the key."
    Challenge,
    /// In a Reply that rejects.
    Refusal(Reason),
}

/// Why a queue pair is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// There is no queue pair with this number.
    NoQueuePair,
    /// The queue pair expects another peer, or this one at another address.
    NotExpected,
    /// The queue pair is connected already, or too many others wait for it.
    Busy,
    /// The acceptor has a key, and the dialler none.
    KeyNeeded,
    /// The dialler has a key, and the acceptor none.
    NoKey,
    /// The dialler did not prove that it knows the acceptor's key.
    WrongProof,
    /// The dialler's socket belongs to another user of the host.
    OtherUser,
    /// The packet sequence numbers that the two programs set do not match.
    Psn,
    /// The hello is of another version.
    Version,
    /// The hello requires something that the acceptor does not know.
    MustUnderstand,
    /// A reason of a later release.
    Other(u8),
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHello {
    prologue: Prologue,
    destination: U32,
    source: U32,
}

impl Hello {
    /// A hello without extensions.
    pub const fn new(kind: HelloKind, destination: u32, source: u32) -> Self {
        Self {
            kind,
            destination,
            source,
            dialler_nonce: None,
            acceptor_nonce: None,
            proof: None,
            receive_psn: None,
            send_psn: None,
        }
    }

    /// Reads all of the private data of a Request or Reply.
    pub fn parse(private_data: &[u8]) -> Result<Self, Unreadable> {
        let Parsed { fixed, extensions, rest } = FORMAT.parse::<RawHello>(private_data)?;
        let in_range = |qpn: U32| check_qpn(qpn.get()).map_err(|_| Unreadable::Malformed);
        let mut hello = Self::new(HelloKind::Dial, in_range(fixed.destination)?, in_range(fixed.source)?);
        let mut reason = 0;
        for extension in extensions {
            let (kind, value) = extension?;
            match kind {
                RECEIVE_PSN => hello.receive_psn = Some(psn_from(value)?),
                SEND_PSN => hello.send_psn = Some(psn_from(value)?),
                DIALLER_NONCE => hello.dialler_nonce = Some(array(value)?),
                ACCEPTOR_NONCE => hello.acceptor_nonce = Some(array(value)?),
                PROOF => hello.proof = Some(array(value)?),
                REASON => [reason] = array(value)?,
                _ => unknown(kind)?,
            }
        }
        hello.kind = match fixed.prologue.kind {
            DIAL => HelloKind::Dial,
            ANSWER => HelloKind::Answer,
            CHALLENGE => HelloKind::Challenge,
            REFUSAL => HelloKind::Refusal(Reason::from_code(reason)),
            other => return Err(Unreadable::Extension(other)),
        };
        if rest.is_empty() { Ok(hello) } else { Err(Unreadable::Malformed) }
    }

    /// The private data to send.
    pub fn emit(&self) -> Result<Emitted<MAX_HELLO>, Misuse> {
        let (kind, reason) = match self.kind {
            HelloKind::Dial => (DIAL, None),
            HelloKind::Answer => (ANSWER, None),
            HelloKind::Challenge => (CHALLENGE, None),
            HelloKind::Refusal(reason) => (REFUSAL, Some([reason.code()])),
        };
        let raw = RawHello {
            prologue: FORMAT.prologue::<RawHello>(kind, 0, 0),
            destination: check_qpn(self.destination)?.into(),
            source: check_qpn(self.source)?.into(),
        };
        let psn = |psn: Option<u32>| psn.map(|psn| (psn & 0xff_ffff).to_be_bytes());
        let (receive, send) = (psn(self.receive_psn), psn(self.send_psn));
        Ok(Emitted::new(&raw)
            .extension(RECEIVE_PSN, receive.as_ref().map(|psn| &psn[1..]))
            .extension(SEND_PSN, send.as_ref().map(|psn| &psn[1..]))
            .extension(DIALLER_NONCE, self.dialler_nonce.as_ref().map(|it| &it[..]))
            .extension(ACCEPTOR_NONCE, self.acceptor_nonce.as_ref().map(|it| &it[..]))
            .extension(PROOF, self.proof.as_ref().map(|it| &it[..]))
            .extension(REASON, reason.as_ref().map(|it| &it[..])))
    }
}

fn psn_from(value: &[u8]) -> Result<u32, Unreadable> {
    let [high, middle, low] = array(value)?;
    Ok(u32::from_be_bytes([0, high, middle, low]))
}

impl Reason {
    /// Those that have a number, from 1 on. New ones come at the end.
    pub const ALL: [Self; 10] = [
        Self::NoQueuePair,
        Self::NotExpected,
        Self::Busy,
        Self::KeyNeeded,
        Self::NoKey,
        Self::WrongProof,
        Self::OtherUser,
        Self::Psn,
        Self::Version,
        Self::MustUnderstand,
    ];

    fn from_code(code: u8) -> Self {
        let known = usize::from(code).checked_sub(1).and_then(|index| Self::ALL.get(index));
        known.copied().unwrap_or(Self::Other(code))
    }

    fn code(self) -> u8 {
        match self {
            Self::NoQueuePair => 1,
            Self::NotExpected => 2,
            Self::Busy => 3,
            Self::KeyNeeded => 4,
            Self::NoKey => 5,
            Self::WrongProof => 6,
            Self::OtherUser => 7,
            Self::Psn => 8,
            Self::Version => 9,
            Self::MustUnderstand => 10,
            Self::Other(code) => code,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoQueuePair => "no such queue pair",
            Self::NotExpected => "it expects another peer, or this one at another address",
            Self::Busy => "its queue pair is connected already, or too many peers wait for it",
            Self::KeyNeeded => "it has a cluster key and this end has none: set the same key at both ends",
            Self::NoKey => "it has no cluster key and this end has one: set the same key at both ends",
            Self::WrongProof => "it has another cluster key: set the same key at both ends",
            Self::OtherUser => {
                "this program runs as another user of the same host: list the user in the peer's setting `users`"
            }
            Self::Psn => "the packet sequence numbers do not match: rq_psn must be the peer's sq_psn",
            Self::Version => {
                return write!(
                    f,
                    "it speaks another version of Ironwarp's private protocol than {}: run the same release at both ends",
                    super::VERSION
                );
            }
            Self::MustUnderstand => {
                "it does not know a feature that this end requires: run the same release at both ends"
            }
            Self::Other(code) => return write!(f, "reason {code}, of a later release"),
        })
    }
}

impl fmt::Display for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            HelloKind::Dial => "Hello",
            HelloKind::Answer => "Hello, answer",
            HelloKind::Challenge => "Hello, challenge",
            HelloKind::Refusal(_) => "Hello, refusal",
        };
        write!(f, "{kind}, from {:#08x} to {:#08x}", self.source, self.destination)?;
        for (name, psn) in [("RQ PSN", self.receive_psn), ("SQ PSN", self.send_psn)] {
            if let Some(psn) = psn {
                write!(f, ", {name} {psn:#x}")?;
            }
        }
        if self.proof.is_some() {
            f.write_str(", proof")?;
        }
        match self.kind {
            HelloKind::Refusal(reason) => write!(f, ": {reason}"),
            _ => Ok(()),
        }
    }
}
