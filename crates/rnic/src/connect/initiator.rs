//! Startup on the side of the initiator, which sends the Request. Mirrors `responder.rs`.

use super::agreement::{Agreed, Depths, InvalidArgument, MpaMode, Role, Rtr, StartupError, Terms, emit};
use ironwarp_wire::Parse;
use ironwarp_wire::mpa::{self, Enhanced, Framing, Revision, RtrSet, Startup};

/// The forms of RTR that the device can send. A Send is not among them, because it would consume a receive of the
/// peer's program.
const OFFERED: RtrSet = RtrSet::WRITE.union(RtrSet::READ);

/// A connection that this end requests. Send [`request`](Self::request) and nothing else, then pass the bytes received
/// to [`parse_reply`](Self::parse_reply).
#[derive(Clone, Debug)]
pub struct Initiator {
    /// The terms that this end requests.
    terms: Terms,
    /// The mode that this end requests.
    mode: MpaMode,
    /// The Request frame.
    request: Box<[u8]>,
}

/// The parsed Reply of the responder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The connection was accepted.
    Accepted {
        /// The terms of the connection.
        agreed: Agreed,
        /// Private data for the program.
        private_data: Box<[u8]>,
        /// Length of the Reply in bytes. FPDUs may follow: not every responder waits for our first FPDU.
        consumed: usize,
    },
    /// The connection was rejected, and is to be closed.
    Rejected {
        /// The depths that the responder stated, possibly those that it requires (RFC 6581 §9.1).
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

    /// Returns the Request to send.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Parses the Reply. `bytes` are all bytes received so far, and may contain FPDUs after the Reply. Returns
    /// [`Parse::Need`] if the Reply is incomplete, with the number of bytes needed in total, not in addition.
    pub fn parse_reply(&self, bytes: &[u8]) -> Result<Parse<Reply>, StartupError> {
        let (reply, consumed) = match Startup::parse_reply(bytes)? {
            Parse::Need(len) => return Ok(Parse::Need(len)),
            Parse::Done(done) => done,
        };
        let private_data = reply.private_data.into();
        if reply.role == (mpa::Role::Reply { rejected: true }) {
            return Ok(Parse::Done(Reply::Rejected {
                peer: Depths::from_revision(reply.revision),
                private_data,
            }));
        }
        let agreed = self.agree(&reply)?;
        Ok(Parse::Done(Reply::Accepted { agreed, private_data, consumed }))
    }

    /// Determines the terms of the connection from an accepting Reply.
    fn agree(&self, reply: &Startup<'_>) -> Result<Agreed, StartupError> {
        // The Reply determines the mode, but an unenhanced Request must not get an enhanced Reply. A peer that
        // answers an enhanced Request without IRD and ORD, or without the A bit, violates RFC 6581, but its Reply is
        // unambiguous.
        let mode = MpaMode::from_revision(reply.revision);
        if self.mode == MpaMode::Unenhanced && mode != MpaMode::Unenhanced {
            return Err(StartupError::UnexpectedEnhancedReply);
        }
        let (send, receive) = self.terms.agree_framing(reply.crc, reply.markers);
        let peer = Depths::from_revision(reply.revision);
        let ird = self.agree_ird(peer, send)?;
        let rtr = choose_rtr(reply.revision, send)?;
        let ord = peer.ird.map_or(self.terms.ord, |ird| self.terms.ord.min(ird));
        // RFC 6581 §9.1: a responder that accepts a Read as RTR accepts at least one Read, whatever its IRD.
        let ord = if rtr == Some(Rtr::Read) { ord.max(1) } else { ord };
        Ok(Agreed { role: Role::Initiator { rtr }, mode, send, receive, ird, ord, peer })
    }

    /// Returns the IRD of this end, raised to the responder's ORD if needed (RFC 6581 §9.1). Fails if that exceeds the
    /// maximum.
    fn agree_ird(&self, peer: Depths, send: Framing) -> Result<u16, StartupError> {
        let Terms { ird, max_ird: have, .. } = self.terms;
        let need = peer.ord.unwrap_or(0);
        if need > have { Err(StartupError::InsufficientIrd { need, have, send }) } else { Ok(ird.max(need)) }
    }
}

/// Chooses the RTR among the forms that the Reply names (RFC 6581 §9.2). `None` if the Reply does not ask for an RTR. A
/// Write is preferred, because it does not count against the IRD and can also carry the signal.
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
