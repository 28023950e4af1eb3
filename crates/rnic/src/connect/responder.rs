//! The end that gets the Request. Mirrors `initiator.rs`.

use super::{Agreed, Depths, Misuse, Role, Setup, StartupError, Terms, emit};
use ironwarp_wire::Parse;
use ironwarp_wire::mpa::{self, Enhanced, NOT_NEGOTIATED, Revision, RtrSet, Startup};

/// What the device takes as the initiator's first message. Not a Send: it would take a receive of the program.
const TAKEN: RtrSet = RtrSet::WRITE.union(RtrSet::READ);

/// A connection that a peer asks for. Show it to the program, then [`accept`](Self::accept) or [`reject`](Self::reject).
///
/// Both leave it as it is, so that a misuse, which sends nothing, can be followed by another try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    markers: bool,
    crc: bool,
    revision: Revision,
    private_data: Box<[u8]>,
}

impl Incoming {
    /// Reads the Request that is all of `bytes`, what was received so far.
    pub fn parse(bytes: &[u8]) -> Result<Parse<Self>, StartupError> {
        let (request, len) = match Startup::parse_request(bytes)? {
            Parse::Need(len) => return Ok(Parse::Need(len)),
            Parse::Done(done) => done,
        };
        if bytes.len() > len {
            return Err(StartupError::Early(bytes.len() - len));
        }
        let Startup { role: _, markers, crc, revision, private_data } = request;
        Ok(Parse::Done(Self { markers, crc, revision, private_data: private_data.into() }))
    }

    /// How the connection will be set up.
    pub fn setup(&self) -> Setup {
        Setup::of(self.revision)
    }

    /// What the peer said of itself: our ORD will be at most its IRD, our IRD should be its ORD.
    pub fn peer(&self) -> Depths {
        Depths::of(self.revision)
    }

    /// For the program.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Agrees; returns the Reply to send, and what holds from then on.
    pub fn accept(&self, terms: Terms, private_data: &[u8]) -> Result<(Box<[u8]>, Agreed), Misuse> {
        terms.check()?;
        let peer = self.peer();
        let rtr = self.rtr();
        // RFC 6581 §9.1: IRD at least the initiator's ORD if possible, ORD at most the initiator's IRD.
        let ird = peer.ord.map_or(terms.ird, |ord| terms.ird.max(ord.min(terms.max_ird)));
        let ird = if self.may_begin_with_read() { ird.max(1) } else { ird };
        let ord = peer.ird.map_or(terms.ord, |ird| terms.ord.min(ird));
        let (send, receive) = terms.framing(self.crc, self.markers);
        let revision = match self.revision {
            // RFC 6581 §9.1: what the initiator does not want negotiated is answered in kind.
            Revision::Two(Some(_)) => Revision::Two(Some(Enhanced {
                ird: if peer.ord.is_some() { ird } else { NOT_NEGOTIATED },
                ord: if peer.ird.is_some() { ord } else { NOT_NEGOTIATED },
                rtr,
            })),
            unenhanced => unenhanced,
        };
        let reply = emit(&Startup {
            role: mpa::Role::Reply { rejected: false },
            markers: terms.markers,
            crc: send.crc,
            revision,
            private_data,
        })?;
        let role = Role::Responder { rtr: rtr.unwrap_or(RtrSet::empty()) };
        Ok((reply, Agreed { role, setup: self.setup(), send, receive, ird, ord, peer }))
    }

    /// Refuses; returns the Reply to send. Close the connection behind it.
    pub fn reject(&self, private_data: &[u8]) -> Result<Box<[u8]>, Misuse> {
        let revision = match self.revision {
            // What would have suited the initiator, as siw does: nothing else is known of a connection that is not wanted.
            Revision::Two(Some(Enhanced { ird, ord, .. })) => {
                Revision::Two(Some(Enhanced { ird: ord, ord: ird, rtr: self.rtr() }))
            }
            unenhanced => unenhanced,
        };
        let role = mpa::Role::Reply { rejected: true };
        emit(&Startup { role, markers: false, crc: self.crc, revision, private_data })
    }

    /// RFC 6581 §9.2: every kind that was offered and is taken; if there is none, one that would be. `None`: the peer does not
    /// want the peer-to-peer model.
    fn rtr(&self) -> Option<RtrSet> {
        let Revision::Two(Some(Enhanced { rtr: Some(offered), .. })) = self.revision else { return None };
        let common = offered & TAKEN;
        Some(if common.is_empty() { RtrSet::WRITE } else { common })
    }

    /// RFC 6581 §9.1: a Read as RTR needs an IRD of 1. The Chelsio driver sends it on revision 1 too, where nothing says so.
    fn may_begin_with_read(&self) -> bool {
        match self.revision {
            Revision::One => true,
            Revision::Two(_) => self.rtr().is_some_and(|rtr| rtr.contains(RtrSet::READ)),
        }
    }
}
