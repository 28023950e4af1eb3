//! Registrations that are under way (requirement X6): the tag is given out, the pending bit of its entry is set, and somebody
//! else, a control queue, does the work.
//!
//! Nobody can use such an entry: it fails the first check, like any that is not valid. Only then it is looked at again, so
//! that those who meet none pay nothing. The program's own requests wait for it, each queue by itself; they are put down here,
//! and called when the bit clears. Who is put down looks whether it is still set with the list locked, and who clears it looks
//! who is put down afterwards: one of the two sees the other. A peer does not wait: to it, the tag names nothing yet.

use super::access::Access;
use super::entry::Body;
use super::{
    Check, Denied, Domain, Kind, Memory, RegisterError, Spans, Stream, Table, index_of, instance_of,
};
use crate::host::{Host, Span};
use crate::sync::{Mutex, lock};
use ironwarp_wire::Tag;
use std::collections::HashMap;
use std::fmt;
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A queue with a request that waits for a registration.
pub trait Stalled: Send + Sync {
    /// The registration is done, or has failed: the request is to be looked at again. Must not block.
    fn registered(&self);
}

/// So much is touched at a time: others that change the mappings of the process get their turn in between.
const STEP: usize = 16 << 20;

/// The pending registrations of a table, and who waits for them.
#[derive(Default)]
pub(super) struct Pending {
    /// How many there are, for those who would look at each receive otherwise.
    count: AtomicUsize,
    stalled: Mutex<HashMap<Tag, Vec<Weak<dyn Stalled>>>>,
}

impl Pending {
    /// The bit of this tag is clear: whoever waited for it is called.
    pub(super) fn cleared(&self, tag: Tag) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        let stalled = lock(&self.stalled).remove(&tag);
        for waiter in stalled.into_iter().flatten() {
            if let Some(waiter) = waiter.upgrade() {
                waiter.registered();
            }
        }
    }
}

impl Table {
    /// Begins a registration: its tag is known at once, its entry is pending until [`finish`](Self::finish) or
    /// [`deregister`](Self::deregister).
    pub fn begin(&self, domain: Domain) -> Result<Tag, RegisterError> {
        let (index, entry) = self.slab.take()?;
        let mut change = entry.change(&self.departures);
        let tag = change.tag(index);
        self.pending.count.fetch_add(1, Ordering::Relaxed); // seen by whoever learns of the tag
        change.keep_pending(instance_of(tag), Body { kind: Kind::Region, domain, ..Body::default() });
        Ok(tag)
    }

    /// Ends a registration that was begun: its memory was prepared, and the tag becomes valid. If that failed
    /// the tag is kept, and never becomes valid: requests that waited for it fail, as they do with any such tag.
    pub fn finish(
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
                change.keep(instance_of(tag), empty);
            }
        }
        drop(change);
        self.pending.cleared(tag);
        prepared
    }

    /// Whether any registration is under way. False is no news to who was told of a tag by another thread, and has not
    /// synchronised with it.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        self.pending.count.load(Ordering::Relaxed) != 0
    }

    /// If the registration of this tag is under way, puts somebody down to be called when it is not. Returns whether it is.
    pub(crate) fn stalls(&self, tag: Tag, who: &Weak<dyn Stalled>) -> bool {
        let mut stalled = lock(&self.pending.stalled);
        let pending = self.is_pending(tag);
        if pending {
            let waiters = stalled.entry(tag).or_default();
            if !waiters.iter().any(|known| known.ptr_eq(who)) {
                waiters.push(Weak::clone(who));
            }
        }
        pending
    }

    /// Why there is no guard for this access.
    #[cold]
    pub(super) fn refusal(&self, access: &Access) -> Denied {
        let check = if self.is_pending(access.tag) { Check::Pending } else { Check::Valid };
        access.denied(check, self.look_up_any(access.tag))
    }

    /// Whether the registration of this tag is under way.
    pub fn is_pending(&self, tag: Tag) -> bool {
        self.slab.entry(index_of(tag)).is_some_and(|entry| {
            let state = entry.state();
            state.is_pending() && state.instance() == instance_of(tag)
        })
    }
}

impl Memory {
    /// All that can take long in a registration: the memory is checked, and its pages are made if it is to be `prefaulted`.
    pub(crate) fn prepare(&self, host: &dyn Host, prefaulted: bool) -> Result<(), RegisterError> {
        self.check(host)?;
        if prefaulted { self.prefault(host) } else { Ok(()) }
    }

    /// Has all of its pages made, so that nobody waits for one later.
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

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pending").field(&self.count).finish()
    }
}
