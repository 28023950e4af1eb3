//! Startup: from the first byte of a connection to what both ends agreed (RFC 5044 §7.1, RFC 6581).
//!
//! ```text
//!   Initiator::new ── request() ──────────▶ Incoming::parse       shown to the program, which decides
//!   Initiator::reply ◀───────────────────── accept() or reject()
//!        │ Agreed                                │ Agreed
//!        ▼                                       ▼
//!   sends the RTR, then is free             is silent until one good FPDU came
//! ```
//!
//! Before this step there is a TCP connection and nothing else; behind it a stream begins, with [`Agreed`] as all it needs.
//! Bytes in, bytes and decisions out: who reads, writes, waits and gives up is the driver's business. So is the choice to
//! try again with [`Setup::Unenhanced`] when a peer closes on a Request of revision 2 (RFC 6581 §10).
//!
//! How a connection manager names the depths in its events, seen from the end that gets the event:
//!
//! | event | `initiator_depth` | `responder_resources` |
//! |---|---|---|
//! | CONNECT_REQUEST | [`Incoming::peer`]`.ird` | [`Incoming::peer`]`.ord` |
//! | ESTABLISHED, both ends | [`Agreed::ird`] | [`Agreed::ord`] |
//!
//! A depth that the peer did not tell is reported as the device's largest: a program that accepts with what the event
//! says can then read. (Linux siw reports 0, and such programs fail.)

mod initiator;
mod responder;
#[cfg(test)]
mod tests;

pub use initiator::{Answer, Initiator};
pub use responder::Incoming;

use ironwarp_wire::mpa::{Enhanced, Framing, MAX_STARTUP, NOT_NEGOTIATED, Revision, RtrSet, Startup};
use ironwarp_wire::{Cause, Misuse as WireMisuse, MpaFault, Violation};

/// The deepest IRD or ORD; the one number of 14 bits above it means "not negotiated" (RFC 6581 §9.1).
pub const DEEPEST: u16 = NOT_NEGOTIATED - 1;

/// What one end wants of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How many reads and atomics of the peer this end is asked to hold; at most `max_ird`.
    pub ird: u16,
    /// How far that may be raised if the peer wants more: what the device can hold. At most [`DEEPEST`].
    pub max_ird: u16,
    /// How many reads and atomics this end wants to have outstanding; at most [`DEEPEST`].
    pub ord: u16,
    /// This end wants CRCs. One end that does suffices for both directions.
    pub crc: bool,
    /// This end wants markers in what it receives.
    pub markers: bool,
}

/// Which of the ways to set up a connection is used. An initiator chooses, a responder follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Setup {
    /// Revision 2, and the device sends the first message, the RTR: either program may speak first. The default, because
    /// the Intel driver accepts no other revision 2, and the Chelsio driver by default demands it as initiator.
    #[default]
    PeerToPeer,
    /// Revision 2, and the initiator's program promises to send first.
    ClientServer,
    /// Revision 1 (or 2 without the S bit, which says no more): no IRD and ORD on the wire, the initiator's program sends
    /// first.
    Unenhanced,
}

/// What was agreed: all that a stream needs to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Which end this is, and how it begins.
    pub role: Role,
    /// How the connection was set up: what the Reply says, not what the Request asked for.
    pub setup: Setup,
    /// How this end frames what it sends.
    pub send: Framing,
    /// How the peer frames what this end receives.
    pub receive: Framing,
    /// How many reads and atomics of the peer this end must hold.
    pub ird: u16,
    /// How many reads and atomics this end may have outstanding.
    pub ord: u16,
    /// What the peer said of itself; programs are told (RFC 6581 §9.1).
    pub peer: Depths,
}

/// Which end of a connection this is, and what it owes before it is free to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It sent the Request.
    Initiator {
        /// The message that must leave before any other (RFC 6581 §9.2). `None`: whatever the program sends first.
        rtr: Option<Rtr>,
    },
    /// It sent the Reply. It sends neither FPDU nor marker before it has received one good FPDU (RFC 5044 §7.1.2).
    Responder {
        /// What that first FPDU may be: an RTR of one of these kinds, which gives no completion. Empty: anything.
        rtr: RtrSet,
    },
}

/// The empty message that tells the responder that the initiator is ready to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// An RDMA Write. Its place is not looked at, so the signal that names our capabilities serves.
    Write,
    /// An RDMA Read. It takes MSN 1 of the read queue and one of ORD, and is answered by an empty Read Response.
    Read,
}

/// IRD and ORD as the peer told them. `None`: it did not (revision 1), or does not want them negotiated (0x3fff).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depths {
    /// How many reads and atomics of ours the peer can hold.
    pub ird: Option<u16>,
    /// How many it wants to have, or will have, outstanding.
    pub ord: Option<u16>,
}

/// Why no stream begins. [`terminate`](Self::terminate) says what the peer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartupError {
    // The peer broke a rule.
    /// RFC 5044 §7.1.2: a malformed frame is answered by closing the connection.
    #[error("{0}; close the connection, there is no stream yet that could carry an answer")]
    Malformed(#[from] Violation),
    /// RFC 5044 §7.1.2: the initiator waits for the Reply before it sends anything.
    #[error(
        "{0} bytes came behind the MPA Request, before its Reply; close the connection, the peer does not wait"
    )]
    Early(usize),
    /// RFC 6581 §10: an unenhanced Request gets an unenhanced Reply.
    #[error(
        "an MPA Reply with IRD/ORD word to a Request without; close the connection, the ends disagree on the private data"
    )]
    Unasked,

    // Both kept the rules, and yet cannot agree.
    /// RFC 6581 §9.1: the initiator's IRD is at least the responder's ORD.
    #[error(
        "the peer will have {need} reads outstanding, this device holds {have}: raise its largest IRD, or lower the peer's ORD"
    )]
    InsufficientIrd {
        /// The responder's ORD.
        need: u16,
        /// The most this end can hold.
        have: u16,
        /// How this end frames what it sends.
        send: Framing,
    },
    /// RFC 6581 §9.2: both ends know a kind of RTR in common.
    #[error(
        "the peer wants an RTR that this device does not send ({}): connect in the client-server model", if .named.is_empty() { "it names none" } else { "an empty Send" }
    )]
    NoRtr {
        /// The kinds that the responder named; neither Write nor Read is among them.
        named: RtrSet,
        /// How this end frames what it sends.
        send: Framing,
    },
}

/// A request of the caller that cannot be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// 512 bytes go with revision 1, 508 with revision 2. (Linux siw and the Chelsio driver refuse more than 256 and 252.)
    #[error("{len} bytes of private data, the frame has room for {room}: send the rest as a message")]
    PrivateDataTooLong {
        /// What was given.
        len: usize,
        /// What fits.
        room: usize,
    },
    /// A depth is larger than it may be.
    #[error("{name} {depth}, at most {limit} is possible here: ask for less")]
    TooDeep {
        /// "IRD", "largest IRD" or "ORD".
        name: &'static str,
        /// What was given.
        depth: u16,
        /// What is possible.
        limit: u16,
    },
}

impl StartupError {
    /// The Terminate to send before the connection is closed, and its framing; it is the only FPDU. `None`: close at once.
    pub const fn terminate(&self) -> Option<(Cause, Framing)> {
        match *self {
            Self::Malformed(_) | Self::Early(_) | Self::Unasked => None,
            Self::InsufficientIrd { send, .. } => Some((Cause::Mpa(MpaFault::InsufficientIrd), send)),
            Self::NoRtr { send, .. } => Some((Cause::Mpa(MpaFault::NoRtr), send)),
        }
    }
}

impl Setup {
    /// What a frame of this revision stands for.
    fn of(revision: Revision) -> Self {
        match revision {
            Revision::One | Revision::Two(None) => Self::Unenhanced,
            Revision::Two(Some(Enhanced { rtr: None, .. })) => Self::ClientServer,
            Revision::Two(Some(Enhanced { rtr: Some(_), .. })) => Self::PeerToPeer,
        }
    }
}

impl Depths {
    fn of(revision: Revision) -> Self {
        let Revision::Two(Some(Enhanced { ird, ord, .. })) = revision else { return Self::default() };
        let told = |depth| (depth != NOT_NEGOTIATED).then_some(depth);
        Self { ird: told(ird), ord: told(ord) }
    }
}

impl Terms {
    /// Whether its depths are possible.
    pub fn check(&self) -> Result<(), Misuse> {
        let depths = [
            ("largest IRD", self.max_ird, DEEPEST),
            ("IRD", self.ird, self.max_ird),
            ("ORD", self.ord, DEEPEST),
        ];
        match depths.into_iter().find(|(_, depth, limit)| depth > limit) {
            Some((name, depth, limit)) => Err(Misuse::TooDeep { name, depth, limit }),
            None => Ok(()),
        }
    }

    /// Framing of what is sent and what is received, once the peer's frame is known.
    fn framing(&self, peer_crc: bool, peer_markers: bool) -> (Framing, Framing) {
        // RFC 5044 §7.1.1: a C bit in either frame binds both ends; an M bit binds the other end alone.
        let crc = self.crc || peer_crc;
        (Framing { crc, markers: peer_markers }, Framing { crc, markers: self.markers })
    }
}

/// The bytes of a frame whose depths were checked.
fn emit(startup: &Startup<'_>) -> Result<Box<[u8]>, Misuse> {
    let mut out = [0; MAX_STARTUP];
    match startup.emit(&mut out) {
        Ok(len) => Ok(out[..len].into()),
        Err(WireMisuse::PrivateDataTooLong { len, room }) => Err(Misuse::PrivateDataTooLong { len, room }),
        Err(other) => unreachable!("depths were checked, and the buffer holds the longest frame: {other}"),
    }
}
