//! The data types of startup: the terms that an end requests, the terms that both ends agree on, and errors.

use ironwarp_wire::mpa::{Enhanced, Framing, MAX_STARTUP, NOT_NEGOTIATED, Revision, RtrSet, Startup};
use ironwarp_wire::{Cause, Misuse as WireMisuse, MpaFault, Violation};
use serde::{Deserialize, Serialize};

/// Maximum IRD or ORD. The next 14-bit value means "not negotiated" (RFC 6581 §9.1).
pub const MAX_DEPTH: u16 = NOT_NEGOTIATED - 1;

/// The terms that one end requests for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Number of the peer's Reads and atomic operations that this end offers to accept at once, at most `max_ird`.
    pub ird: u16,
    /// Maximum to which `ird` may be raised if the peer requests more. At most [`MAX_DEPTH`].
    pub max_ird: u16,
    /// Number of Reads and atomic operations that this end requests to have outstanding, at most [`MAX_DEPTH`].
    pub ord: u16,
    /// Whether this end requests CRCs. If either end does, both directions use CRCs.
    pub crc: bool,
    /// Whether this end requests markers in the bytes that it receives.
    pub markers: bool,
}

/// The mode of MPA startup. The initiator chooses, the responder follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MpaMode {
    /// Revision 2, peer-to-peer model: the initiator's device sends the first message, the RTR, so that either
    /// program may send first. The default, because the Intel driver accepts no other mode of revision 2, and the
    /// Chelsio driver requests this mode by default.
    #[default]
    PeerToPeer,
    /// Revision 2, client-server model: the initiator's program must send first.
    ClientServer,
    /// Revision 1, or the equivalent revision 2 without the S bit: IRD and ORD are not exchanged, and the initiator's
    /// program must send first.
    Unenhanced,
}

/// The terms that both ends agreed on: all that is needed to create a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Agreed {
    /// Which end this is, and the RTR.
    pub role: Role,
    /// The mode, as in the Reply. It may have fewer features than the mode of the Request.
    pub mode: MpaMode,
    /// The framing of the bytes that this end sends.
    pub send: Framing,
    /// The framing of the bytes that this end receives.
    pub receive: Framing,
    /// Number of the peer's Reads and atomic operations that this end must accept at once.
    pub ird: u16,
    /// Maximum number of outstanding Reads and atomic operations of this end.
    pub ord: u16,
    /// The depths that the peer stated, for the program (RFC 6581 §9.1).
    pub peer: Depths,
}

impl Agreed {
    /// Creates terms with the same framing in both directions, between ends that have stated no depths.
    #[doc(hidden)]
    pub const fn symmetric(role: Role, mode: MpaMode, framing: Framing, ird: u16, ord: u16) -> Self {
        let peer = Depths { ird: None, ord: None };
        Self { role, mode, send: framing, receive: framing, ird, ord, peer }
    }
}

/// Which end of a connection this is, and what has to happen before this end may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// This end sent the Request.
    Initiator {
        /// The RTR to send before any other message (RFC 6581 §9.2). `None` if the program sends the first
        /// message.
        rtr: Option<Rtr>,
    },
    /// This end sent the Reply. It must not send an FPDU or a marker before it has received a valid FPDU (RFC
    /// 5044 §7.1.2).
    Responder {
        /// The forms of RTR that the first FPDU may have. An RTR does not cause a completion. If empty, the first FPDU
        /// is an ordinary message.
        rtr: RtrSet,
    },
}

/// The form of the empty message by which an initiator signals that it is ready to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rtr {
    /// An RDMA Write. The peer ignores its address, so the signal that carries our capabilities can serve as RTR.
    Write,
    /// An RDMA Read. It uses MSN 1 of the read queue, counts against the ORD, and is answered with an empty Read
    /// Response.
    Read,
}

/// The IRD and ORD that the peer stated. `None` for a depth that the peer did not state (revision 1), or does not
/// negotiate (0x3fff).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Depths {
    /// Number of our Reads and atomic operations that the peer accepts at once.
    pub ird: Option<u16>,
    /// Number of Reads and atomic operations that the peer requests, or was granted, to have outstanding.
    pub ord: Option<u16>,
}

/// An error during startup. [`terminate`](Self::terminate) returns the Terminate to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartupError {
    // The peer violated the protocol.
    /// A malformed frame. The connection must be closed (RFC 5044 §7.1.2).
    #[error("malformed MPA startup frame: {0}")]
    Malformed(#[from] Violation),
    /// Data followed the Request. The initiator must wait for the Reply before it sends anything else (RFC 5044
    /// §7.1.2).
    #[error("{0} bytes received after the MPA Request, before the Reply was sent")]
    DataBeforeReply(usize),
    /// The Reply to an unenhanced Request is enhanced, which RFC 6581 §10 forbids.
    #[error("enhanced MPA Reply to an unenhanced Request")]
    UnexpectedEnhancedReply,

    // Both ends follow the protocol, but cannot agree.
    /// The responder's ORD exceeds the maximum IRD of this initiator (RFC 6581 §9.1).
    #[error(
        "the peer's ORD of {need} exceeds the maximum IRD of {have}: raise the maximum IRD or lower the peer's ORD"
    )]
    InsufficientIrd {
        /// The responder's ORD.
        need: u16,
        /// The maximum IRD of this end.
        have: u16,
        /// The framing of the bytes that this end sends.
        send: Framing,
    },
    /// The ends have no form of RTR in common (RFC 6581 §9.2).
    #[error(
        "no RTR in common (the peer accepts {}): connect in the client-server model", if .named.is_empty() { "none" } else { "only an empty Send" }
    )]
    NoRtr {
        /// The forms that the responder named, which include neither Write nor Read.
        named: RtrSet,
        /// The framing of the bytes that this end sends.
        send: Framing,
    },
}

/// Invalid arguments of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidArgument {
    /// The private data is too long. The maximum is 512 bytes with revision 1 and 508 with revision 2. (Linux
    /// siw and the Chelsio driver refuse more than 256 and 252.)
    #[error("private data of {len} bytes exceeds the maximum of {room}: send the rest as a message")]
    PrivateDataTooLong {
        /// The value given.
        len: usize,
        /// The maximum length.
        room: usize,
    },
    /// A depth exceeds its maximum.
    #[error("{name} of {depth} exceeds the maximum of {limit}")]
    DepthTooLarge {
        /// "IRD", "maximum IRD" or "ORD".
        name: &'static str,
        /// The value given.
        depth: u16,
        /// The maximum.
        limit: u16,
    },
}

impl StartupError {
    /// Returns the cause and framing of the Terminate to send, as the only FPDU, before the connection is closed. `None`
    /// if the connection is to be closed at once.
    pub const fn terminate(&self) -> Option<(Cause, Framing)> {
        match *self {
            Self::Malformed(_) | Self::DataBeforeReply(_) | Self::UnexpectedEnhancedReply => None,
            Self::InsufficientIrd { send, .. } => Some((Cause::Mpa(MpaFault::InsufficientIrd), send)),
            Self::NoRtr { send, .. } => Some((Cause::Mpa(MpaFault::NoRtr), send)),
        }
    }
}

impl MpaMode {
    /// Returns the mode of a startup frame with this revision and, in revision 2, this IRD/ORD word.
    pub(super) fn from_revision(revision: Revision) -> Self {
        match revision {
            Revision::One | Revision::Two(None) => Self::Unenhanced,
            Revision::Two(Some(Enhanced { rtr: None, .. })) => Self::ClientServer,
            Revision::Two(Some(Enhanced { rtr: Some(_), .. })) => Self::PeerToPeer,
        }
    }
}

impl Depths {
    /// Returns the depths in the IRD/ORD word of a startup frame, which is part of its revision. Both are `None` if the
    /// frame has no such word.
    pub(super) fn from_revision(revision: Revision) -> Self {
        let Revision::Two(Some(Enhanced { ird, ord, .. })) = revision else { return Self::default() };
        let stated = |depth| (depth != NOT_NEGOTIATED).then_some(depth);
        Self { ird: stated(ird), ord: stated(ord) }
    }
}

impl Terms {
    /// Checks that the depths are within their limits.
    pub fn check(&self) -> Result<(), InvalidArgument> {
        let depths = [
            ("maximum IRD", self.max_ird, MAX_DEPTH),
            ("IRD", self.ird, self.max_ird),
            ("ORD", self.ord, MAX_DEPTH),
        ];
        match depths.into_iter().find(|(_, depth, limit)| depth > limit) {
            Some((name, depth, limit)) => Err(InvalidArgument::DepthTooLarge { name, depth, limit }),
            None => Ok(()),
        }
    }

    /// Returns the framing of the bytes that this end sends, and of those that it receives, given the flags of the
    /// peer.
    pub(super) fn agree_framing(&self, peer_crc: bool, peer_markers: bool) -> (Framing, Framing) {
        // RFC 5044 §7.1.1: a C bit in either frame binds both ends; an M bit binds the other end alone.
        let crc = self.crc || peer_crc;
        (Framing { crc, markers: peer_markers }, Framing { crc, markers: self.markers })
    }
}

/// Encodes a frame whose depths were [checked](Terms::check).
pub(super) fn emit(startup: &Startup<'_>) -> Result<Box<[u8]>, InvalidArgument> {
    let mut out = [0; MAX_STARTUP];
    match startup.emit(&mut out) {
        Ok(len) => Ok(out[..len].into()),
        Err(WireMisuse::PrivateDataTooLong { len, room }) => {
            Err(InvalidArgument::PrivateDataTooLong { len, room })
        }
        Err(other) => unreachable!("the depths were checked and the buffer fits the longest frame: {other}"),
    }
}
