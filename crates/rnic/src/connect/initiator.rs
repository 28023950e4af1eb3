//! The end that sends the Request. Mirrors `responder.rs`.

use super::{Agreed, Depths, Misuse, Role, Rtr, Setup, StartupError, Terms, emit};
use ironwarp_wire::Parse;
use ironwarp_wire::mpa::{self, Enhanced, Framing, Revision, RtrSet, Startup};

/// What the device can send as its first message. A Send is not offered: it would take a receive of the peer's program.
const OFFERED: RtrSet = RtrSet::WRITE.union(RtrSet::READ);

/// A connection that this end asks for: send [`request`](Self::request), nothing behind it, then show what comes to
/// [`reply`](Self::reply).
#[derive(Clone, Debug)]
pub struct Initiator {
    terms: Terms,
    setup: Setup,
    request: Box<[u8]>,
}

/// What the responder said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Yes.
    Accepted {
        /// On these terms.
        agreed: Agreed,
        /// For the program.
        private_data: Box<[u8]>,
        /// Length of the Reply. What lies behind it are FPDUs: not every responder waits for the first of ours.
        consumed: usize,
    },
    /// No. Close the connection.
    Rejected {
        /// What the responder would have needed, perhaps (RFC 6581 §9.1).
        peer: Depths,
        /// For the program.
        private_data: Box<[u8]>,
    },
}

impl Initiator {
    /// A connection on these terms; `private_data` is for the program at the other end.
    pub fn new(setup: Setup, mut terms: Terms, private_data: &[u8]) -> Result<Self, Misuse> {
        terms.check()?;
        let rtr = (setup == Setup::PeerToPeer).then_some(OFFERED);
        if rtr.is_some() {
            terms.ord = terms.ord.max(1); // RFC 6581 §9.1: else a Read could not be the RTR
        }
        let revision = match setup {
            Setup::PeerToPeer | Setup::ClientServer => {
                Revision::Two(Some(Enhanced { ird: terms.ird, ord: terms.ord, rtr }))
            }
            Setup::Unenhanced => Revision::One,
        };
        let Terms { markers, crc, .. } = terms;
        let request = emit(&Startup { role: mpa::Role::Request, markers, crc, revision, private_data })?;
        Ok(Self { terms, setup, request })
    }

    /// The bytes to send.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Reads the Reply at the front of all bytes received so far.
    pub fn reply(&self, bytes: &[u8]) -> Result<Parse<Answer>, StartupError> {
        let (reply, consumed) = match Startup::parse_reply(bytes)? {
            Parse::Need(len) => return Ok(Parse::Need(len)),
            Parse::Done(done) => done,
        };
        let private_data = reply.private_data.into();
        if reply.role == (mpa::Role::Reply { rejected: true }) {
            return Ok(Parse::Done(Answer::Rejected { peer: Depths::of(reply.revision), private_data }));
        }
        let agreed = self.agree(&reply)?;
        Ok(Parse::Done(Answer::Accepted { agreed, private_data, consumed }))
    }

    fn agree(&self, reply: &Startup<'_>) -> Result<Agreed, StartupError> {
        // The Reply decides on the setup, as long as it takes away: a peer that answers an enhanced Request without the
        // word, or without the A bit, does not do what RFC 6581 asks, but says clearly what it will do.
        let setup = Setup::of(reply.revision);
        if self.setup == Setup::Unenhanced && setup != Setup::Unenhanced {
            return Err(StartupError::Unasked);
        }
        let (send, receive) = self.terms.framing(reply.crc, reply.markers);
        let peer = Depths::of(reply.revision);
        let ird = self.ird(peer, send)?;
        let rtr = choose_rtr(reply.revision, send)?;
        let ord = peer.ird.map_or(self.terms.ord, |ird| self.terms.ord.min(ird));
        // RFC 6581 §9.1: a responder that takes a Read as RTR holds at least that one, whatever its IRD says.
        let ord = if rtr == Some(Rtr::Read) { ord.max(1) } else { ord };
        Ok(Agreed { role: Role::Initiator { rtr }, setup, send, receive, ird, ord, peer })
    }

    /// RFC 6581 §9.1: at least the responder's ORD.
    fn ird(&self, peer: Depths, send: Framing) -> Result<u16, StartupError> {
        let Terms { ird, max_ird: have, .. } = self.terms;
        let need = peer.ord.unwrap_or(0);
        if need > have { Err(StartupError::InsufficientIrd { need, have, send }) } else { Ok(ird.max(need)) }
    }
}

/// RFC 6581 §9.2: one of the kinds that the responder named. The Write comes first, because it costs the peer no read and
/// can be the signal.
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
