//! Startup on the side of the responder, which receives the Request. Mirrors `initiator.rs`.

use super::agreement::{Agreed, Depths, InvalidArgument, MpaMode, Role, StartupError, Terms, emit};
use ironwarp_wire::Parse;
use ironwarp_wire::mpa::{self, Enhanced, NOT_NEGOTIATED, Revision, RtrSet, Startup};

/// The forms of RTR that the device accepts. A Send is not among them, because it would consume a receive of the
/// program.
const ACCEPTED: RtrSet = RtrSet::WRITE.union(RtrSet::READ);

/// A connection that a peer requests, and that the program is to [`accept`](Self::accept) or
/// [`reject`](Self::reject).
///
/// Neither call changes this object, so that the program can correct its arguments and try again after an
/// [`InvalidArgument`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    markers: bool,
    crc: bool,
    revision: Revision,
    private_data: Box<[u8]>,
}

impl Incoming {
    /// Parses the Request. `bytes` are all bytes received so far. Bytes after the Request are a violation. Returns
    /// [`Parse::Need`] if the Request is incomplete, with the number of bytes needed in total, not in addition.
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

    /// Returns the mode of the connection, which the initiator has chosen.
    pub fn mode(&self) -> MpaMode {
        MpaMode::from_revision(self.revision)
    }

    /// Returns the depths that the peer stated. The ORD of this end will be at most the peer's IRD, and the IRD of this
    /// end should be the peer's ORD.
    pub fn peer(&self) -> Depths {
        Depths::from_revision(self.revision)
    }

    /// Returns the private data for the program.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Accepts the connection on these terms. Returns the Reply to send, and the agreed terms. `private_data` is for
    /// the remote program.
    pub fn accept(&self, terms: Terms, private_data: &[u8]) -> Result<(Box<[u8]>, Agreed), InvalidArgument> {
        terms.check()?;
        let peer = self.peer();
        let rtr = self.accepted_rtr();
        // RFC 6581 §9.1: IRD at least the initiator's ORD if possible, ORD at most the initiator's IRD.
        let ird = peer.ord.map_or(terms.ird, |ord| terms.ird.max(ord.min(terms.max_ird)));
        let ird = if self.may_begin_with_read() { ird.max(1) } else { ird };
        let ord = peer.ird.map_or(terms.ord, |ird| terms.ord.min(ird));
        let (send, receive) = terms.agree_framing(self.crc, self.markers);
        let revision = match self.revision {
            // RFC 6581 §9.1: a depth that the initiator does not negotiate is not negotiated in the Reply either.
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

    /// Rejects the connection. Returns the Reply to send before closing the connection. `private_data` is for the
    /// remote program.
    pub fn reject(&self, private_data: &[u8]) -> Result<Box<[u8]>, InvalidArgument> {
        let revision = match self.revision {
            // Reply with the depths that the initiator requested, as siw does: a rejected connection has no others.
            Revision::Two(Some(Enhanced { ird, ord, .. })) => {
                Revision::Two(Some(Enhanced { ird: ord, ord: ird, rtr: self.accepted_rtr() }))
            }
            unenhanced => unenhanced,
        };
        let role = mpa::Role::Reply { rejected: true };
        emit(&Startup { role, markers: false, crc: self.crc, revision, private_data })
    }

    /// Returns the forms of RTR for the Reply: those that the peer offered and this end accepts, or a Write if there is
    /// none (RFC 6581 §9.2). `None` if the peer does not request the peer-to-peer model.
    fn accepted_rtr(&self) -> Option<RtrSet> {
        let Revision::Two(Some(Enhanced { rtr: Some(offered), .. })) = self.revision else { return None };
        let common = offered & ACCEPTED;
        Some(if common.is_empty() { RtrSet::WRITE } else { common })
    }

    /// Returns whether the first message may be a Read, which requires an IRD of at least 1 (RFC 6581 §9.1). With
    /// revision 1, the RTR is not negotiated, but the Chelsio driver sends a Read.
    fn may_begin_with_read(&self) -> bool {
        match self.revision {
            Revision::One => true,
            Revision::Two(_) => self.accepted_rtr().is_some_and(|rtr| rtr.contains(RtrSet::READ)),
        }
    }
}
