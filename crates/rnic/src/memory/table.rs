//! Registration, by call and by send-queue request, and deregistration.
//!
//! The cost of each operation does not depend on the number of entries or the length of the memory: nothing
//! is pinned, nothing is copied.

use super::access::{Access, Kinds};
use super::entry::{Body, Change, Control, Entry, GuardWait, State};
use super::pending::Pending;
use super::slab::Slab;
use super::{
    Check, Denied, DeregisterError, Domain, EntryInfo, Guard, Kind, Memory, RegisterError, Rights, Spans,
    Stream, TagCipher, index_of, instance_of, next_tag, tag_of,
};
use crate::host::Host;
use crate::sync::atomic::AtomicU64;
use ironwarp_wire::Tag;
use std::fmt;
use std::sync::Arc;

/// Size limit and policy of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of entries, capped at 16,777,214. Storage grows as needed.
    pub entries: usize,
    /// Whether peers can access windows only (requirement M9).
    pub strict: bool,
}

/// The translation and protection table of an adapter.
pub struct Table {
    pub(super) slab: Slab,
    pub(super) guard_wait: GuardWait,
    pub(super) pending: Pending,
    strict: bool,
    /// Number of messages that have claimed one-touch memory; each claim gets the next number.
    pub(super) touches: AtomicU64,
}

impl Table {
    /// Creates an empty table whose tags are derived from `cipher`.
    pub fn new(limits: Limits, cipher: Arc<TagCipher>) -> Self {
        Self {
            slab: Slab::new(limits.entries, cipher),
            guard_wait: GuardWait::default(),
            pending: Pending::default(),
            strict: limits.strict,
            touches: AtomicU64::new(0),
        }
    }

    /// Registers memory by call. All of it must be mapped.
    pub fn register(&self, host: &dyn Host, domain: Domain, memory: Memory) -> Result<Tag, RegisterError> {
        memory.check(host)?;
        self.publish_new(memory.into_body(domain))
    }

    /// Registers memory that need not be mapped yet and may be mapped and unmapped later (on-demand paging).
    /// It may cover the whole address space.
    pub fn register_on_demand(&self, domain: Domain, memory: Memory) -> Result<Tag, RegisterError> {
        memory.check_shape()?;
        self.publish_new(memory.into_body(domain))
    }

    /// Registers the memory of an existing region again, with a tag, domain, start and rights of its own.
    /// Both use one translation (requirement M5). The new region is not one-touch, even if the existing one
    /// is.
    pub fn share(&self, tag: Tag, domain: Domain, start: u64, rights: Rights) -> Result<Tag, RegisterError> {
        // The region may be in any domain: the caller is the program that owns both domains.
        let access = Access { qp: None, ..Access::to_change(tag, Stream { domain, qp: 0 }) };
        let Some((guard, state)) = self.guard(tag) else {
            return Err(self.refusal(&access).into());
        };
        let body = guard.entry().body().clone();
        let denied = |check| access.denied(check, Some(guard.entry().info(&body, index_of(tag), state)));
        if body.kind != Kind::Region {
            return Err(denied(Check::Kind).into());
        }
        if instance_of(tag) != state.instance() {
            return Err(denied(Check::Instance).into());
        }
        check_range(start, body.len)?;
        check_rights(rights)?;
        self.publish_new(Body { domain, start, rights, one_touch: false, ..body })
    }

    /// Allocates an entry for registrations by send-queue request (requirement M6). Its tag is known at once;
    /// it becomes valid when [`fill`](Self::fill) executes the request.
    pub fn allocate(&self, domain: Domain) -> Result<Tag, RegisterError> {
        self.allocate_new(Body { kind: Kind::Region, domain, ..Body::default() })
    }

    /// Allocates an unbound window.
    pub fn allocate_window(&self, domain: Domain) -> Result<Tag, RegisterError> {
        self.allocate_new(Body { kind: Kind::Window, domain, ..Body::default() })
    }

    /// Executes a registration by send-queue request of this stream. `tag` becomes valid. It
    /// must be the tag that [`allocate`](Self::allocate) returned the first time, and the [`next_tag`] of the
    /// previous tag after each invalidation.
    ///
    /// All streams of the domain can use the region; only the peer of this stream can invalidate it.
    pub fn fill(
        &self,
        host: &dyn Host,
        stream: Stream,
        tag: Tag,
        memory: Memory,
    ) -> Result<(), RegisterError> {
        let access = Access {
            offset: memory.start,
            len: memory.len,
            need: memory.rights,
            kinds: Kinds::Only(Kind::Region),
            ..Access::to_change(tag, stream)
        };
        let mut change = self.change(&access)?;
        let due = change.next_registration_tag(index_of(tag));
        if change.entry.state().is_valid() || change.entry.state().is_pending() {
            return Err(change.denied(&access, Check::Idle).into());
        }
        if tag != due {
            return Err(change.denied(&access, Check::Instance).into());
        }
        memory.check(host)?;
        change.revoke(); // one-touch memory may be invalid while a guard is still held
        change.control.invalidator = Some(stream.qp);
        change.publish(instance_of(tag), memory.into_body(stream.domain));
        Ok(())
    }

    /// Executes a local invalidation: the entry stays allocated, to be filled or bound again, but can no
    /// longer be accessed. It need not be valid. Waits for guards.
    pub fn invalidate(&self, stream: Stream, tag: Tag) -> Result<(), Denied> {
        let access = Access::to_change(tag, stream);
        let mut change = self.change_of(&access)?;
        self.invalidate_entry(&mut change, &access)
    }

    /// Executes the invalidation that a remote Send with Invalidate requests (requirement M12). Waits for
    /// guards.
    ///
    /// The tag must be valid and belong to this stream (RFC 5040 §7.2). If several peers could invalidate a
    /// tag, one could take it away from another (RFC 5042 §6.4.5). Therefore at most one stream's peer may:
    /// that of the stream a window is bound to, or of the stream that registered the region by send-queue
    /// request.
    pub fn invalidate_remotely(&self, stream: Stream, tag: Tag) -> Result<(), Denied> {
        let access = Access { kinds: self.remote_kinds(), ..Access::to_change(tag, stream) };
        let mut change = self.change_of(&access)?;
        if !change.entry.state().is_valid() {
            return Err(change.denied(&access, Check::Valid));
        }
        match change.control.invalidator {
            None => Err(change.denied(&access, Check::Invalidate)),
            Some(qp) if qp != stream.qp => Err(change.denied(&access, Check::Stream)),
            Some(_) => self.invalidate_entry(&mut change, &access),
        }
    }

    /// Deregisters a region or deallocates a window, valid or not. Waits for guards: when it returns, nothing
    /// accesses the memory through the tag any more.
    pub fn deregister(&self, tag: Tag) -> Result<(), DeregisterError> {
        let index = index_of(tag);
        let entry = self.slab.entry(index).ok_or(DeregisterError::Unknown(tag))?;
        let mut change = entry.change(&self.guard_wait);
        if !entry.state().is_taken() || change.tag(index) != tag {
            return Err(DeregisterError::Unknown(tag));
        }
        let windows = change.control.windows;
        if windows != 0 {
            return Err(DeregisterError::Busy { tag, windows });
        }
        change.revoke();
        self.unbind(&mut change);
        let pending = entry.state().is_pending();
        change.release();
        drop(change);
        if pending {
            self.pending.cleared(tag);
        }
        self.slab.release(index);
        Ok(())
    }

    /// Looks up a tag. Returns `None` if it is stale.
    pub fn look_up(&self, tag: Tag) -> Option<EntryInfo> {
        self.look_up_any(tag).filter(|info| info.tag == tag)
    }

    /// The current tag of the entry that `tag` names: `tag` itself, or another instance.
    pub fn current_tag(&self, tag: Tag) -> Option<Tag> {
        self.look_up_any(tag).map(|info| info.tag)
    }

    /// The tag that the next registration by send-queue request must give the entry that `tag` names.
    pub fn next_registration_tag(&self, tag: Tag) -> Option<Tag> {
        let entry = self.slab.entry(index_of(tag))?;
        Some(entry.change(&self.guard_wait).next_registration_tag(index_of(tag)))
    }

    /// Number of entries in use.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether no entry is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Table {
    pub(super) fn is_strict(&self) -> bool {
        self.strict
    }

    /// Takes a guard on the entry with the index of this tag, if it is valid.
    #[inline]
    pub(super) fn guard(&self, tag: Tag) -> Option<(Guard<'_>, State)> {
        self.slab.entry(index_of(tag))?.guard(&self.guard_wait)
    }

    /// Looks up the entry with the index of this tag, ignoring the instance. Does not wait for guards, so
    /// that a thread that holds one may call it.
    pub(super) fn look_up_any(&self, tag: Tag) -> Option<EntryInfo> {
        let entry = self.slab.entry(index_of(tag))?;
        let body = entry.body();
        let state = entry.state();
        state.is_taken().then(|| entry.info(&body, index_of(tag), state))
    }

    /// Locks the entry for a change by a stream, after checking that it is allocated and of the right kind,
    /// domain and stream.
    pub(super) fn change(&self, access: &Access) -> Result<Change<'_>, Denied> {
        let entry = self.slab.entry(index_of(access.tag)).ok_or_else(|| access.denied(Check::Valid, None))?;
        let change = entry.change(&self.guard_wait);
        if !entry.state().is_taken() {
            return Err(access.denied(Check::Valid, None));
        }
        let checked = access.check_owner(&entry.body());
        checked.map_err(|check| change.denied(access, check))?;
        Ok(change)
    }

    /// Locks the entry for a change by a stream, as [`change`](Self::change) does, and also checks the
    /// instance.
    pub(super) fn change_of(&self, access: &Access) -> Result<Change<'_>, Denied> {
        let change = self.change(access)?;
        if change.tag(index_of(access.tag)) != access.tag {
            return Err(change.denied(access, Check::Instance));
        }
        Ok(change)
    }

    fn invalidate_entry(&self, change: &mut Change<'_>, access: &Access) -> Result<(), Denied> {
        if !change.control.reusable {
            return Err(change.denied(access, Check::Invalidate));
        }
        if change.control.windows != 0 {
            return Err(change.denied(access, Check::Windows));
        }
        self.empty(change, access.tag);
        Ok(())
    }

    /// Makes the entry invalid but keeps its tag allocated. Waits for guards.
    pub(super) fn empty(&self, change: &mut Change<'_>, tag: Tag) {
        change.revoke();
        self.unbind(change);
        let emptied = change.entry.body().emptied();
        change.allocate(instance_of(tag), emptied);
    }

    /// If this is a bound window, detaches it from its region. It must have been revoked.
    pub(super) fn unbind(&self, change: &mut Change<'_>) {
        let Some(region) = change.control.region.take() else { return };
        let region = self.slab.entry(region).expect("a bound window has a region");
        region.change(&self.guard_wait).control.windows -= 1;
    }

    fn publish_new(&self, body: Body) -> Result<Tag, RegisterError> {
        let (index, entry) = self.slab.take()?;
        Ok(self.publish_at(index, entry, body))
    }

    /// Makes an unused entry valid.
    pub(super) fn publish_at(&self, index: u32, entry: &Entry, body: Body) -> Tag {
        let mut change = entry.change(&self.guard_wait);
        let tag = change.tag(index);
        change.publish(instance_of(tag), body);
        tag
    }

    fn allocate_new(&self, body: Body) -> Result<Tag, RegisterError> {
        let (index, entry) = self.slab.take()?;
        let mut change = entry.change(&self.guard_wait);
        let tag = change.tag(index);
        *change.control = Control { reusable: true, ..Control::default() };
        change.allocate(instance_of(tag), body);
        Ok(tag)
    }
}

impl Access {
    /// Describes a request that changes an entry and accesses no bytes.
    pub(super) fn to_change(tag: Tag, stream: Stream) -> Self {
        let Stream { domain, qp } = stream;
        let need = Rights::empty();
        Self { tag, offset: 0, len: 0, need, domain, qp: Some(qp), kinds: Kinds::Any }
    }
}

impl Change<'_> {
    /// The tag that the next registration must give the entry.
    fn next_registration_tag(&self, index: u32) -> Tag {
        let current = self.tag(index);
        if self.control.used { next_tag(current) } else { current }
    }

    /// The current tag of the entry.
    pub(super) fn tag(&self, index: u32) -> Tag {
        tag_of(index, self.entry.state().instance())
    }

    pub(super) fn denied(&self, access: &Access, check: Check) -> Denied {
        let info = self.entry.info(&self.entry.body(), index_of(access.tag), self.entry.state());
        access.denied(check, Some(info))
    }
}

impl Memory {
    pub(super) fn check(&self, host: &dyn Host) -> Result<(), RegisterError> {
        self.check_shape()?;
        let Self { len, ref translation, .. } = *self;
        let mut spans = Spans::new();
        let translated = translation.len();
        let bytes = usize::try_from(len).map_err(|_| RegisterError::TooLong { len, translated })?;
        translation.spans(0, bytes, &mut spans);
        match spans.iter().find(|&&span| !host.is_mapped(span)) {
            Some(&span) => Err(RegisterError::Unmapped(span)),
            None => Ok(()),
        }
    }

    /// Checks everything that does not depend on what is mapped.
    fn check_shape(&self) -> Result<(), RegisterError> {
        let Self { start, len, rights, one_touch, ref translation } = *self;
        if len == 0 {
            return Err(RegisterError::Empty);
        }
        let translated = translation.len();
        if len > translated {
            return Err(RegisterError::TooLong { len, translated });
        }
        check_range(start, len)?;
        check_rights(rights)?;
        if one_touch && rights.contains(Rights::BIND) {
            return Err(RegisterError::OneTouch);
        }
        Ok(())
    }

    pub(super) fn into_body(self, domain: Domain) -> Body {
        let Self { start, len, rights, one_touch, translation } = self;
        Body {
            kind: Kind::Region,
            domain,
            qp: None,
            rights,
            one_touch,
            start,
            len,
            translation: Some(translation),
            skip: 0,
        }
    }
}

fn check_range(start: u64, len: u64) -> Result<(), RegisterError> {
    start.checked_add(len).map(|_| ()).ok_or(RegisterError::Wrap { start, len })
}

/// Remote write access implies local write access, as verbs demand: the program must have the right that it
/// grants.
fn check_rights(rights: Rights) -> Result<(), RegisterError> {
    let writes = rights.intersects(Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC);
    if writes && !rights.contains(Rights::LOCAL_WRITE) {
        return Err(RegisterError::Rights(rights));
    }
    Ok(())
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("len", &self.len())
            .field("strict", &self.strict)
            .finish_non_exhaustive()
    }
}
