//! The initiator of a connection, which sends the Request. Mirrors `responder.rs`.

use super::agreement::{Agreed, Depths, InvalidArgument, MpaMode, Role, Rtr, StartupError, Terms, emit};
use ironwarp_wire::Parse;
use ironwarp_wire::mpa::{self, Enhanced, Framing, Revision, RtrSet, Startup};

/// The forms of RTR that the device can send. Not a Send, which would consume a receive of the peer's
/// program.
const OFFERED: RtrSet = RtrSet::WRITE.union(RtrSet::READ);

/// A connection requested by this end: send [`request`](Self::request) and nothing else, then pass what is
/// received to [`parse_reply`](Self::parse_reply).
#[derive(Clone, Debug)]
pub struct Initiator {
    terms: Terms,
    mode: MpaMode,
    request: Box<[u8]>,
}

/// The responder's decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The connection was accepted.
    Accepted {
        /// The terms of the connection.
        agreed: Agreed,
        /// Private data for the program.
        private_data: Box<[u8]>,
        /// Length of the Reply. FPDUs may follow it: not every responder waits for our first FPDU.
        consumed: usize,
    },
    /// The connection was rejected. Close it.
    Rejected {
        /// The depths that the responder stated, possibly those that it would have needed (RFC 6581 §9.1).
        peer: Depths,
        /// Private data for the program.
        private_data: Box<[u8]>,
    },
}

impl Initiator {
    /// Creates the Request for a connection on these terms. `private_data` is for the remote program.
    pub fn new(mode: MpaMode, mut terms: Terms, private_data: &[u8]) -> Result<Self, InvalidArgument> {
        terms.check()?;
        let rtr = (mode == MpaMode::PeerToPeer).then_some(OFFERED);
        if rtr.is_some() {
            terms.ord = terms.ord.max(1); // RFC 6581 §9.1: the RTR may have to be a Read
        }
        let revision = match mode {
            MpaMode::PeerToPeer | MpaMode::ClientServer => {
                Revision::Two(Some(Enhanced { ird: terms.ird, ord: terms.ord, rtr }))
            }
            MpaMode::Unenhanced => Revision::One,
        };
        let Terms { markers, crc, .. } = terms;
        let request = emit(&Startup { role: mpa::Role::Request, markers, crc, revision, private_data })?;
        Ok(Self { terms, mode, request })
    }

    /// The Request to send.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Parses the Reply at the beginning of all bytes received so far.
    pub fn parse_reply(&self, bytes: &[u8]) -> Result<Parse<Reply>, StartupError> {
        let (reply, consumed) = match Startup::parse_reply(bytes)? {
            Parse::Need(len) => return Ok(Parse::Need(len)),
            Parse::Done(done) => done,
        };
        let private_data = reply.private_data.into();
        if reply.role == (mpa::Role::Reply { rejected: true }) {
            return Ok(Parse::Done(Reply::Rejected { peer: Depths::of(reply.revision), private_data }));
        }
        let agreed = self.agree(&reply)?;
        Ok(Parse::Done(Reply::Accepted { agreed, private_data, consumed }))
    }

    fn agree(&self, reply: &Startup<'_>) -> Result<Agreed, StartupError> {
        // The Reply decides on the setup as long as it only takes features away. A peer that answers an
        // enhanced Request without the word, or without the A bit, violates RFC 6581, but states clearly what
        // it will do.
        let mode = MpaMode::of(reply.revision);
        if self.mode == MpaMode::Unenhanced && mode != MpaMode::Unenhanced {
            return Err(StartupError::UnexpectedEnhancedReply);
        }
        let (send, receive) = self.terms.framing(reply.crc, reply.markers);
        let peer = Depths::of(reply.revision);
        let ird = self.ird(peer, send)?;
        let rtr = choose_rtr(reply.revision, send)?;
        let ord = peer.ird.map_or(self.terms.ord, |ird| self.terms.ord.min(ird));
        // RFC 6581 §9.1: a responder that accepts a Read as RTR holds at least one, whatever its IRD says.
        let ord = if rtr == Some(Rtr::Read) { ord.max(1) } else { ord };
        Ok(Agreed { role: Role::Initiator { rtr }, mode, send, receive, ird, ord, peer })
    }

    /// The IRD of this end, which must be at least the responder's ORD (RFC 6581 §9.1).
    fn ird(&self, peer: Depths, send: Framing) -> Result<u16, StartupError> {
        let Terms { ird, max_ird: have, .. } = self.terms;
        let need = peer.ord.unwrap_or(0);
        if need > have { Err(StartupError::InsufficientIrd { need, have, send }) } else { Ok(ird.max(need)) }
    }
}

/// Chooses one of the forms that the responder named (RFC 6581 §9.2). A Write is preferred, because it costs
/// the peer no Read and can serve as the signal.
fn choose_rtr(revision: Revision, send: Framing) -> Result<Option<Rtr>, StartupError> {
    let Revision::Two(Some(Enhanced { rtr: Some(named), .. })) = revision else { return Ok(None) };
    if named.contains(RtrSet::WRITE) {
        Ok(Some(Rtr::Write))
    } else if named.contains(RtrSet::READ) {
        Ok(Some(Rtr::Read))
    } else {
        Err(StartupError::NoRtr { named, send })
    }
}
