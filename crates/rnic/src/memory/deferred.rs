//! Registrations in progress (requirement X6): the program already has the tag, the pending bit of the entry is
//! set, and another thread (of a control queue) prepares the memory.
//!
//! A pending entry cannot be accessed: an access to it fails the first check, as with any invalid entry. The
//! pending bit is checked only after that failure, so that it adds no cost to accesses to valid memory.
//!
//! A local request that names a pending tag waits, and so do the requests after it on the same queue. The
//! queue is added to a list and notified when the pending bit is cleared. No notification is lost: a queue is added
//! with the list locked, if the bit is still set, and the list is read after the bit was cleared.
//!
//! Remote messages do not wait: to a peer, a pending tag is invalid.

use super::access::Access;
use super::entry::Body;
use super::{
    Check, Denied, Domain, Kind, Memory, RegisterError, RegistrationWaiter, Spans, Stream, Table, index_of,
};
use crate::host::{Host, Span};
use crate::sync::lock;
use ironwarp_wire::Tag;
use std::sync::Weak;
use std::sync::atomic::Ordering;

/// Number of bytes prefaulted by one call to the host. Between two calls, other threads can change the mappings of
/// the process.
const STEP: usize = 16 << 20;

impl Table {
    /// Begins a registration and returns its tag. The entry is pending until
    /// [`finish_registration`](Self::finish_registration) or [`deregister`](Self::deregister).
    pub fn begin_registration(&self, domain: Domain) -> Result<Tag, RegisterError> {
        let (_, entry) = self.slab.take()?;
        let mut change = entry.begin_change();
        let tag = change.tag();
        self.pending.count.fetch_add(1, Ordering::Relaxed); // before another thread can know the tag
        change.allocate_pending(tag, Body { kind: Kind::Region, domain, ..Body::default() });
        Ok(tag)
    }

    /// Ends a registration and notifies the queues that wait for it. If `prepared`, the result of preparing the
    /// memory, is `Ok`, the tag becomes valid. Otherwise the tag stays allocated and never becomes valid: requests
    /// that name it fail, as with any invalid tag. Returns `prepared`, or the error if a quota is reached.
    pub fn finish_registration(
        &self,
        domain: Domain,
        tag: Tag,
        memory: Memory,
        prepared: Result<(), RegisterError>,
    ) -> Result<(), RegisterError> {
        let access = Access { qp: None, ..Access::to_change(tag, Stream { domain, qp: 0 }) };
        let mut change = self.begin_change_of_instance(&access)?;
        if !change.entry.state().is_pending() {
            return Err(change.deny(&access, Check::Valid).into());
        }
        let prepared = prepared.and_then(|()| Ok(self.charge(&change, memory.len)?));
        match prepared {
            Ok(()) => change.publish(tag, memory.into_body(domain)),
            Err(_) => {
                let empty = change.entry.body().without_memory();
                change.allocate(tag, empty);
            }
        }
        drop(change);
        self.pending.remove(tag);
        prepared
    }

    /// Returns whether any registration is in progress. May return false for a registration that another thread has
    /// begun, if this thread has not synchronised with that thread since.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        self.pending.count.load(Ordering::Relaxed) != 0
    }

    /// Makes `waiter` be notified when the registration of `tag` ends. Returns false, without effect, if no
    /// registration of `tag` is in progress.
    pub(crate) fn defer_until_registered(&self, tag: Tag, waiter: &Weak<dyn RegistrationWaiter>) -> bool {
        let mut waiting = lock(&self.pending.waiters);
        let pending = self.is_pending(tag);
        if pending {
            let waiters = waiting.entry(tag).or_default();
            if !waiters.iter().any(|known| known.ptr_eq(waiter)) {
                waiters.push(Weak::clone(waiter));
            }
        }
        pending
    }

    /// Creates the error for an access that got no guard: [`Check::Pending`] if its request is to be retried, else
    /// [`Check::Valid`]. If the entry is valid by now, its registration was pending when the guard was refused and has
    /// ended since, so the request is to be retried, too.
    #[cold]
    pub(super) fn explain_refusal(&self, access: &Access) -> Denied {
        let tag = access.tag;
        let retry = self.slab.entry(index_of(tag)).is_some_and(|entry| {
            let state = entry.state();
            (state.is_pending() || state.is_valid()) && state.tag() == tag
        });
        let check = if retry { Check::Pending } else { Check::Valid };
        access.deny(check, self.glance_at(access.tag))
    }

    /// Returns whether the registration of this tag is in progress.
    pub fn is_pending(&self, tag: Tag) -> bool {
        self.slab.entry(index_of(tag)).is_some_and(|entry| {
            let state = entry.state();
            state.is_pending() && state.tag() == tag
        })
    }
}

impl Memory {
    /// Does the slow part of a registration: checks that the memory is mapped and, if `prefaulted`, faults its pages
    /// in.
    pub(crate) fn prepare(&self, host: &dyn Host, prefaulted: bool) -> Result<(), RegisterError> {
        self.check(host)?;
        if prefaulted { self.prefault(host) } else { Ok(()) }
    }

    /// Faults all pages of the memory in, so that no access waits for a page fault later.
    fn prefault(&self, host: &dyn Host) -> Result<(), RegisterError> {
        let mut spans = Spans::new();
        let (len, translated) = (self.len, self.translation.len());
        let bytes = usize::try_from(len).map_err(|_| RegisterError::TooLong { len, translated })?;
        self.translation.append_spans(0, bytes, &mut spans);
        for &span in spans.iter() {
            for at in (0..span.len).step_by(STEP) {
                let step = Span::new(span.addr + at as u64, STEP.min(span.len - at));
                host.prefault(step).map_err(|_| RegisterError::Unmapped(step))?;
            }
        }
        Ok(())
    }
}
