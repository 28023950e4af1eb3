//! The hello: private data of the MPA Request and Reply of two manually connected queue pairs. By their hellos, both ends
//! verify that the other is the expected queue pair and, if they have a cluster key, that it knows the key.
//! `docs/wire.md` specifies the exchange.

use super::check_qpn;
use super::extension::{Emitted, Format, Parsed, Prologue, Unreadable, reject_if_required, to_array};
use crate::Misuse;
use core::fmt;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Maximum length of a hello in bytes, all extensions included.
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

/// A nonce or a proof: 128 bits.
pub type Token = [u8; 16];

/// The contents of a hello. The dialler sends it in the MPA Request, the acceptor in the Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The kind of hello.
    pub kind: HelloKind,
    /// The number of the receiver's queue pair, 24 bits.
    pub destination: u32,
    /// The number of the sender's queue pair, 24 bits.
    pub source: u32,
    /// The nonce that the dialler has chosen for this attempt. `None` if the dialler has no key.
    pub dialler_nonce: Option<Token>,
    /// The nonce that the acceptor has chosen. `None` without a key, and in a dialler's first hello.
    pub acceptor_nonce: Option<Token>,
    /// The proof that the sender knows the key, if the hello contains one.
    pub proof: Option<Token>,
    /// The first packet sequence number that the sender's program expects (rq_psn), 24 bits. `None` if not set.
    pub receive_psn: Option<u32>,
    /// The first packet sequence number that the sender's program uses (sq_psn), 24 bits. `None` if not set.
    pub send_psn: Option<u32>,
}

/// The kinds of hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloKind {
    /// In a Request: requests a connection from `source` to `destination`.
    Dial,
    /// In an accepting Reply: accepts the connection.
    Answer,
    /// In a rejecting Reply: requests that the dialler dials again with a proof, made with the acceptor's nonce, that it
    /// knows the key.
    Challenge,
    /// In a rejecting Reply: the connection is refused.
    Refusal(Reason),
}

/// Why a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// There is no queue pair with this number.
    NoQueuePair,
    /// The queue pair expects another peer, or this peer at another address.
    NotExpected,
    /// The queue pair is already connected, or too many peers are waiting for it.
    Busy,
    /// The acceptor has a key and the dialler has none.
    KeyNeeded,
    /// The dialler has a key and the acceptor has none.
    NoKey,
    /// The dialler did not prove that it knows the acceptor's key.
    WrongProof,
    /// The dialler's socket belongs to another user of the host.
    OtherUser,
    /// The packet sequence numbers of the two programs do not match.
    Psn,
    /// The hello has an unsupported version.
    Version,
    /// The hello requires a feature that the acceptor does not support.
    MustUnderstand,
    /// A reason that a later release defines.
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
    /// Creates a hello without extensions.
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

    /// Parses the private data of a Request or Reply.
    pub fn parse(private_data: &[u8]) -> Result<Self, Unreadable> {
        let Parsed { fixed, extensions, rest } = FORMAT.parse::<RawHello>(private_data)?;
        let in_range = |qpn: U32| check_qpn(qpn.get()).map_err(|_| Unreadable::Malformed);
        let mut hello = Self::new(HelloKind::Dial, in_range(fixed.destination)?, in_range(fixed.source)?);
        let mut reason = 0;
        for extension in extensions {
            let (kind, value) = extension?;
            match kind {
                RECEIVE_PSN => hello.receive_psn = Some(parse_psn(value)?),
                SEND_PSN => hello.send_psn = Some(parse_psn(value)?),
                DIALLER_NONCE => hello.dialler_nonce = Some(to_array(value)?),
                ACCEPTOR_NONCE => hello.acceptor_nonce = Some(to_array(value)?),
                PROOF => hello.proof = Some(to_array(value)?),
                REASON => [reason] = to_array(value)?,
                _ => reject_if_required(kind)?,
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

    /// Encodes the private data to send.
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
            .add_extension(RECEIVE_PSN, receive.as_ref().map(|psn| &psn[1..]))
            .add_extension(SEND_PSN, send.as_ref().map(|psn| &psn[1..]))
            .add_extension(DIALLER_NONCE, self.dialler_nonce.as_ref().map(|it| &it[..]))
            .add_extension(ACCEPTOR_NONCE, self.acceptor_nonce.as_ref().map(|it| &it[..]))
            .add_extension(PROOF, self.proof.as_ref().map(|it| &it[..]))
            .add_extension(REASON, reason.as_ref().map(|it| &it[..])))
    }
}

/// Decodes a packet sequence number, which has three bytes.
fn parse_psn(value: &[u8]) -> Result<u32, Unreadable> {
    let [high, middle, low] = to_array(value)?;
    Ok(u32::from_be_bytes([0, high, middle, low]))
}

impl Reason {
    /// All reasons with a defined code, in the order of their codes, which start at 1.
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

    /// Returns the reason with this code.
    fn from_code(code: u8) -> Self {
        let known = usize::from(code).checked_sub(1).and_then(|index| Self::ALL.get(index));
        known.copied().unwrap_or(Self::Other(code))
    }

    /// Returns the code on the wire.
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
            Self::NotExpected => "it expects a different peer, or this one at a different address",
            Self::Busy => "its queue pair is already connected, or too many peers are waiting for it",
            Self::KeyNeeded => "it has a cluster key and this end has none: set the same key on both ends",
            Self::NoKey => "it has no cluster key and this end has one: set the same key on both ends",
            Self::WrongProof => "it has a different cluster key: set the same key on both ends",
            Self::OtherUser => {
                "this program runs as a different user of the same host: add the user to the peer's setting `users`"
            }
            Self::Psn => "the packet sequence numbers do not match: rq_psn must be the peer's sq_psn",
            Self::Version => {
                return write!(
                    f,
                    "it does not support version {} of Ironwarp's private protocol: run the same release on both ends",
                    super::VERSION
                );
            }
            Self::MustUnderstand => {
                "it does not support a feature that this end requires: run the same release on both ends"
            }
            Self::Other(code) => return write!(f, "reason {code}, which a later release defines"),
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
