//! The responder of a connection, which receives the Request. Mirrors `initiator.rs`.

use super::agreement::{Agreed, Depths, InvalidArgument, MpaMode, Role, StartupError, Terms, emit};
use ironwarp_wire::Parse;
use ironwarp_wire::mpa::{self, Enhanced, NOT_NEGOTIATED, Revision, RtrSet, Startup};

/// The forms of RTR that the device accepts. Not a Send, which would consume a receive of the program.
const ACCEPTED: RtrSet = RtrSet::WRITE.union(RtrSet::READ);

/// A connection requested by a peer. Show it to the program, then [`accept`](Self::accept) or
/// [`reject`](Self::reject) it.
///
/// Neither changes it, so that the call can be repeated after an [`InvalidArgument`], which sends nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    markers: bool,
    crc: bool,
    revision: Revision,
    private_data: Box<[u8]>,
}

impl Incoming {
    /// Parses the Request. `bytes` is everything received so far and must not contain anything else.
    pub fn parse(bytes: &[u8]) -> Result<Parse<Self>, StartupError> {
        let (request, len) = match Startup::parse_request(bytes)? {
            Parse::Need(len) => return Ok(Parse::Need(len)),
            Parse::Done(done) => done,
        };
        if bytes.len() > len {
            return Err(StartupError::DataBeforeReply(bytes.len() - len));
        }
        let Startup { role: _, markers, crc, revision, private_data } = request;
        Ok(Parse::Done(Self { markers, crc, revision, private_data: private_data.into() }))
    }

    /// How the connection will be set up.
    pub fn mode(&self) -> MpaMode {
        MpaMode::of(self.revision)
    }

    /// The depths that the peer stated: our ORD will be at most its IRD, and our IRD should be its ORD.
    pub fn peer(&self) -> Depths {
        Depths::of(self.revision)
    }

    /// Private data for the program.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Accepts the connection. Returns the Reply to send, and the agreed terms.
    pub fn accept(&self, terms: Terms, private_data: &[u8]) -> Result<(Box<[u8]>, Agreed), InvalidArgument> {
        terms.check()?;
        let peer = self.peer();
        let rtr = self.rtr();
        // RFC 6581 §9.1: IRD at least the initiator's ORD if possible, ORD at most the initiator's IRD.
        let ird = peer.ord.map_or(terms.ird, |ord| terms.ird.max(ord.min(terms.max_ird)));
        let ird = if self.may_begin_with_read() { ird.max(1) } else { ird };
        let ord = peer.ird.map_or(terms.ord, |ird| terms.ord.min(ird));
        let (send, receive) = terms.framing(self.crc, self.markers);
        let revision = match self.revision {
            // RFC 6581 §9.1: if the initiator does not want to negotiate a depth, neither does the Reply.
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
        Ok((reply, Agreed { role, mode: self.mode(), send, receive, ird, ord, peer }))
    }

    /// Rejects the connection. Returns the Reply to send, after which the connection is to be closed.
    pub fn reject(&self, private_data: &[u8]) -> Result<Box<[u8]>, InvalidArgument> {
        let revision = match self.revision {
            // Reply with the depths that would suit the initiator, as siw does: there are no others for a
            // rejected connection.
            Revision::Two(Some(Enhanced { ird, ord, .. })) => {
                Revision::Two(Some(Enhanced { ird: ord, ord: ird, rtr: self.rtr() }))
            }
            unenhanced => unenhanced,
        };
        let role = mpa::Role::Reply { rejected: true };
        emit(&Startup { role, markers: false, crc: self.crc, revision, private_data })
    }

    /// Every form of RTR that was offered and is accepted, or an accepted one if there is none in common (RFC
    /// 6581 §9.2). `None` if the peer does not want the peer-to-peer model.
    fn rtr(&self) -> Option<RtrSet> {
        let Revision::Two(Some(Enhanced { rtr: Some(offered), .. })) = self.revision else { return None };
        let common = offered & ACCEPTED;
        Some(if common.is_empty() { RtrSet::WRITE } else { common })
    }

    /// Whether the first message may be a Read, which needs an IRD of 1 (RFC 6581 §9.1). The Chelsio driver
    /// sends one on revision 1 too, where it is not negotiated.
    fn may_begin_with_read(&self) -> bool {
        match self.revision {
            Revision::One => true,
            Revision::Two(_) => self.rtr().is_some_and(|rtr| rtr.contains(RtrSet::READ)),
        }
    }
}
