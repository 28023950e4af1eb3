//! Memory that a peer names: which domains and rights its accesses have.

use super::QpContext;
use super::attributes::Receives;
use crate::memory::{CachedGuard, Check, Denied, Guard, Rights, Spans, Stream, Touch, Translation};
use ironwarp_wire::Place;

impl QpContext {
    /// Finds memory that the peer names, if both the memory and the queue pair allow the access (requirement M9).
    pub(crate) fn remote(
        &self,
        place: Place,
        len: usize,
        need: Rights,
        spans: &mut Spans,
        message: &mut Touch,
    ) -> Result<Guard<'_>, Denied> {
        let table = self.device.table();
        self.check_as_peer(place, len, need, |stream| {
            table.admit_remote(stream, place, len, need, spans, message)
        })
    }

    /// Checks an access by the peer and calls `then` with the translation and the first byte in it. Leaves the
    /// guard in `cached`, for the next access.
    pub(crate) fn with_remote<'q, R>(
        &'q self,
        cached: &mut Option<CachedGuard<'q>>,
        place: Place,
        len: usize,
        need: Rights,
        message: &mut Touch,
        mut then: impl FnMut(&Translation, u64) -> R,
    ) -> Result<R, Denied> {
        let table = self.device.table();
        self.check_as_peer(place, len, need, |stream| {
            table.with_remote(cached, stream, (place, len), need, message, |memory, at| then(memory, at))
        })
    }

    /// Tries an access by the peer with the protection domain of the queue pair, or, with XRC, with each domain
    /// of its shared queues.
    #[inline]
    fn check_as_peer<R>(
        &self,
        place: Place,
        len: usize,
        need: Rights,
        mut attempt: impl FnMut(Stream) -> Result<R, Denied>,
    ) -> Result<R, Denied> {
        let Stream { domain, qp } = self.stream();
        if !self.rights().contains(need) {
            let (tag, offset, len) = (place.tag, place.offset, len as u64);
            let check = Check::QueuePair;
            return Err(Denied { check, tag, offset, len, need, domain, qp: Some(qp), entry: None });
        }
        let Receives::Named(xrc) = &self.attributes.receives else { return attempt(self.stream()) };
        let mut denied = None;
        for domain in xrc.domains() {
            match attempt(Stream { domain, qp }) {
                Err(why) if why.check == Check::Domain => denied = Some(why),
                found => return found,
            }
        }
        match denied {
            Some(denied) => Err(denied),
            None => attempt(self.stream()),
        }
    }
}
