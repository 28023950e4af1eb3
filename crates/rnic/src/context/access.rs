//! Checks accesses of the peer to local memory: adds the rights of the queue pair, and the domains of XRC, to the
//! checks of the memory table (`memory/admit.rs`).

use super::QpContext;
use super::attributes::Receives;
use crate::memory::{CachedGuard, Check, Denied, Guard, Rights, Spans, Stream, Touch, Translation};
use ironwarp_wire::RemoteAddr;

impl QpContext {
    /// Checks an access of the peer, which both the queue pair and the memory must allow (requirement M9). Appends the
    /// address ranges to `spans`, and returns a guard to hold during the access.
    pub(crate) fn admit_remote(
        &self,
        addr: RemoteAddr,
        len: usize,
        need: Rights,
        spans: &mut Spans,
        touch: &mut Touch,
    ) -> Result<Guard<'_>, Denied> {
        let table = self.device.table();
        self.check_as_peer(addr, len, need, |stream| {
            table.admit_remote(stream, addr, len, need, spans, touch)
        })
    }

    /// Checks an access of the peer, as [`admit_remote`](Self::admit_remote) does, and calls `then` with the
    /// translation and the position of the first byte in it. Uses the guard in `cached` if it is for the same tag, and
    /// leaves the guard there for the next access, unless the memory is one-touch. Pass `&mut None` if no access
    /// follows.
    pub(crate) fn with_remote<'q, R>(
        &'q self,
        cached: &mut Option<CachedGuard<'q>>,
        addr: RemoteAddr,
        len: usize,
        need: Rights,
        touch: &mut Touch,
        mut then: impl FnMut(&Translation, u64) -> R,
    ) -> Result<R, Denied> {
        let table = self.device.table();
        self.check_as_peer(addr, len, need, |stream| {
            table.with_remote(cached, stream, (addr, len), need, touch, |memory, at| then(memory, at))
        })
    }

    /// Checks that the queue pair grants the rights `need`, then calls `attempt`, which checks the memory, with the
    /// protection domain of the queue pair. With XRC, calls it with each domain of the shared receive queues instead,
    /// until the domain is not the reason of a refusal.
    #[inline]
    fn check_as_peer<R>(
        &self,
        addr: RemoteAddr,
        len: usize,
        need: Rights,
        mut attempt: impl FnMut(Stream) -> Result<R, Denied>,
    ) -> Result<R, Denied> {
        let Stream { domain, qp } = self.stream();
        if !self.rights().contains(need) {
            let (tag, offset, len) = (addr.tag, addr.offset, len as u64);
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
