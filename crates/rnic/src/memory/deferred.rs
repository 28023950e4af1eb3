//! Registrations in progress (requirement X6): the tag is already known, the pending bit of its entry is set,
//! and another thread (a control queue) does the work.
//!
//! Such an entry cannot be accessed: it fails the first check, like any invalid entry. Only then is the
//! pending bit checked, so that accesses to valid memory pay nothing. Local requests wait for the
//! registration, each queue by itself: their queues are listed here and notified when the bit clears. A queue
//! is listed only after checking, with the list locked, that the bit is still set; the list is read only
//! after the bit was cleared. One of the two therefore always sees the other. A peer does not wait: for it,
//! the tag is not valid yet.

use super::access::Access;
use super::entry::Body;
use super::{
    Check, Denied, Domain, Kind, Memory, RegisterError, RegistrationWaiter, Spans, Stream, Table, index_of,
    instance_of,
};
use crate::host::{Host, Span};
use crate::sync::lock;
use ironwarp_wire::Tag;
use std::sync::Weak;
use std::sync::atomic::Ordering;

/// Number of bytes prefaulted at a time. In between, other threads can change the mappings of the process.
const STEP: usize = 16 << 20;

impl Table {
    /// Begins a registration. Its tag is known at once; its entry is pending until [`finish_registration`](Self::finish_registration)
    /// or [`deregister`](Self::deregister).
    pub fn begin_registration(&self, domain: Domain) -> Result<Tag, RegisterError> {
        let (index, entry) = self.slab.take()?;
        let mut change = entry.change(&self.guard_wait);
        let tag = change.tag(index);
        self.pending.count.fetch_add(1, Ordering::Relaxed); // before the tag is known to anyone
        change.allocate_pending(instance_of(tag), Body { kind: Kind::Region, domain, ..Body::default() });
        Ok(tag)
    }

    /// Ends a registration whose memory was prepared: the tag becomes valid. If the preparation failed, the
    /// tag stays allocated and never becomes valid: requests that waited for it fail, as with any invalid
    /// tag.
    pub fn finish_registration(
        &self,
        domain: Domain,
        tag: Tag,
        memory: Memory,
        prepared: Result<(), RegisterError>,
    ) -> Result<(), RegisterError> {
        let access = Access::to_change(tag, Stream { domain, qp: 0 });
        let mut change = self.change_of(&Access { qp: None, ..access })?;
        if !change.entry.state().is_pending() {
            return Err(change.denied(&access, Check::Valid).into());
        }
        match prepared {
            Ok(()) => change.publish(instance_of(tag), memory.into_body(domain)),
            Err(_) => {
                let empty = change.entry.body().emptied();
                change.allocate(instance_of(tag), empty);
            }
        }
        drop(change);
        self.pending.cleared(tag);
        prepared
    }

    /// Whether any registration is in progress. May return false to a thread that learned of a tag from
    /// another thread without synchronising with it.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        self.pending.count.load(Ordering::Relaxed) != 0
    }

    /// If the registration of this tag is in progress, lists `waiter` to be notified when it ends and returns
    /// true.
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

    /// Explains why no guard was granted for this access. An entry that is valid by now was pending when the
    /// guard was refused: its registration has ended in between, and the request is to be retried.
    #[cold]
    pub(super) fn refusal(&self, access: &Access) -> Denied {
        let tag = access.tag;
        let retry = self.slab.entry(index_of(tag)).is_some_and(|entry| {
            let state = entry.state();
            (state.is_pending() || state.is_valid()) && state.instance() == instance_of(tag)
        });
        let check = if retry { Check::Pending } else { Check::Valid };
        access.denied(check, self.look_up_any(access.tag))
    }

    /// Whether the registration of this tag is in progress.
    pub fn is_pending(&self, tag: Tag) -> bool {
        self.slab.entry(index_of(tag)).is_some_and(|entry| {
            let state = entry.state();
            state.is_pending() && state.instance() == instance_of(tag)
        })
    }
}

impl Memory {
    /// Does everything in a registration that can take long: checks that the memory is mapped, and faults its
    /// pages in if `prefaulted`.
    pub(crate) fn prepare(&self, host: &dyn Host, prefaulted: bool) -> Result<(), RegisterError> {
        self.check(host)?;
        if prefaulted { self.prefault(host) } else { Ok(()) }
    }

    /// Faults all of its pages in, so that no access waits for one later.
    fn prefault(&self, host: &dyn Host) -> Result<(), RegisterError> {
        let mut spans = Spans::new();
        let (len, translated) = (self.len, self.translation.len());
        let bytes = usize::try_from(len).map_err(|_| RegisterError::TooLong { len, translated })?;
        self.translation.spans(0, bytes, &mut spans);
        for &span in spans.iter() {
            for at in (0..span.len).step_by(STEP) {
                let step = Span { addr: span.addr + at as u64, len: STEP.min(span.len - at) };
                host.prefault(step).map_err(|_| RegisterError::Unmapped(step))?;
            }
        }
        Ok(())
    }
}
