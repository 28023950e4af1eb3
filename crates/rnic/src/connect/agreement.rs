//! What an end asks of a connection, what both ends agree on, and how startup fails.

use ironwarp_wire::mpa::{Enhanced, Framing, MAX_STARTUP, NOT_NEGOTIATED, Revision, RtrSet, Startup};
use ironwarp_wire::{Cause, Misuse as WireMisuse, MpaFault, Violation};

/// Maximum IRD or ORD. The next 14-bit value means "not negotiated" (RFC 6581 §9.1).
pub const MAX_DEPTH: u16 = NOT_NEGOTIATED - 1;

/// What one end requests of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Number of remote Reads and atomic operations that this end offers to hold; at most `max_ird`.
    pub ird: u16,
    /// Maximum to which `ird` may be raised if the peer wants more: the limit of the device. At most
    /// [`MAX_DEPTH`].
    pub max_ird: u16,
    /// Number of outstanding Reads and atomic operations that this end wants; at most [`MAX_DEPTH`].
    pub ord: u16,
    /// This end wants CRCs. If either end does, both directions use them.
    pub crc: bool,
    /// This end wants markers in what it receives.
    pub markers: bool,
}

/// How a connection is set up. The initiator chooses, the responder follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MpaMode {
    /// Revision 2; the device sends the first message, the RTR, so that either program may send first. The
    /// default, because the Intel driver accepts no other form of revision 2, and the Chelsio driver demands
    /// it as initiator by default.
    #[default]
    PeerToPeer,
    /// Revision 2; the initiator's program must send first.
    ClientServer,
    /// Revision 1, or revision 2 without the S bit, which is equivalent: no IRD and ORD on the wire, and the
    /// initiator's program must send first.
    Unenhanced,
}

/// What both ends agreed on: all that a stream needs to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Which end this is, and how it begins.
    pub role: Role,
    /// How the connection was set up, as the Reply says, not as the Request asked for.
    pub mode: MpaMode,
    /// The framing of what this end sends.
    pub send: Framing,
    /// The framing of what this end receives.
    pub receive: Framing,
    /// Number of remote Reads and atomic operations that this end must hold.
    pub ird: u16,
    /// Maximum number of outstanding Reads and atomic operations of this end.
    pub ord: u16,
    /// The depths that the peer stated, for the program (RFC 6581 §9.1).
    pub peer: Depths,
}

/// Which end of a connection this is, and what must happen before it may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        /// The forms of RTR that the first FPDU may take; an RTR gives no completion. If empty, the first
        /// FPDU is an ordinary message.
        rtr: RtrSet,
    },
}

/// The form of the empty message by which an initiator signals that it is ready to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// An RDMA Write. Its address is ignored, so the signal that carries our capabilities can serve as one.
    Write,
    /// An RDMA Read. It uses MSN 1 of the read queue and counts against the ORD, and is answered with an
    /// empty Read Response.
    Read,
}

/// The IRD and ORD that the peer stated. `None` if it did not (revision 1), or does not want to negotiate
/// (0x3fff).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depths {
    /// Number of our Reads and atomic operations that the peer can hold.
    pub ird: Option<u16>,
    /// Number of Reads and atomic operations that the peer will have outstanding, or wants to.
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
    /// Data after the Request. The initiator must wait for the Reply before it sends anything else (RFC 5044
    /// §7.1.2).
    #[error("{0} bytes received after the MPA Request, before the Reply was sent")]
    DataBeforeReply(usize),
    /// An enhanced Reply to an unenhanced Request, which must get an unenhanced Reply (RFC 6581 §10).
    #[error("enhanced MPA Reply to an unenhanced Request")]
    UnexpectedEnhancedReply,

    // Both ends follow the protocol, but cannot agree.
    /// The responder's ORD exceeds what this initiator can hold (RFC 6581 §9.1).
    #[error(
        "the peer's ORD of {need} exceeds the maximum IRD of {have}: raise the maximum IRD or lower the peer's ORD"
    )]
    InsufficientIrd {
        /// The responder's ORD.
        need: u16,
        /// The maximum IRD of this end.
        have: u16,
        /// The framing of what this end sends.
        send: Framing,
    },
    /// The ends have no form of RTR in common (RFC 6581 §9.2).
    #[error(
        "no RTR in common (the peer accepts {}): connect in the client-server model", if .named.is_empty() { "none" } else { "only an empty Send" }
    )]
    NoRtr {
        /// The forms that the responder named, which include neither Write nor Read.
        named: RtrSet,
        /// The framing of what this end sends.
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
    /// The cause and framing of the Terminate to send before the connection is closed; it is the only FPDU.
    /// `None` if the connection is to be closed at once.
    pub const fn terminate(&self) -> Option<(Cause, Framing)> {
        match *self {
            Self::Malformed(_) | Self::DataBeforeReply(_) | Self::UnexpectedEnhancedReply => None,
            Self::InsufficientIrd { send, .. } => Some((Cause::Mpa(MpaFault::InsufficientIrd), send)),
            Self::NoRtr { send, .. } => Some((Cause::Mpa(MpaFault::NoRtr), send)),
        }
    }
}

impl MpaMode {
    /// The setup that a frame of this revision stands for.
    pub(super) fn of(revision: Revision) -> Self {
        match revision {
            Revision::One | Revision::Two(None) => Self::Unenhanced,
            Revision::Two(Some(Enhanced { rtr: None, .. })) => Self::ClientServer,
            Revision::Two(Some(Enhanced { rtr: Some(_), .. })) => Self::PeerToPeer,
        }
    }
}

impl Depths {
    pub(super) fn of(revision: Revision) -> Self {
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

    /// The framing of what is sent and of what is received, given the flags of the peer.
    pub(super) fn framing(&self, peer_crc: bool, peer_markers: bool) -> (Framing, Framing) {
        // RFC 5044 §7.1.1: a C bit in either frame binds both ends; an M bit binds the other end alone.
        let crc = self.crc || peer_crc;
        (Framing { crc, markers: peer_markers }, Framing { crc, markers: self.markers })
    }
}

/// Encodes a frame whose depths were checked.
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
