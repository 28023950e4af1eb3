//! The [`Table`] of registered memory: registration by call and by send-queue request, invalidation and
//! deregistration.
//!
//! The cost of each operation does not depend on the number of entries or the length of the memory, because
//! memory is neither pinned nor copied.

use super::access::{Access, Kinds};
use super::entry::{Body, Change, Control, Entry};
use super::pending::Pending;
use super::slab::Slab;
use super::{
    Check, Denied, DeregisterError, Domain, EntryInfo, Guard, Kind, Limits, Memory, RegisterError, Rights,
    Spans, Stream, TagCipher, Usage, index_of, next_tag,
};
use crate::host::Host;
use crate::quota::{Account, QuotaExceeded, Resource};
use crate::sync::atomic::AtomicU64;
use ironwarp_wire::Tag;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The translation and protection table of a function.
pub struct Table {
    /// The entries.
    pub(super) slab: Slab,
    /// The registrations in progress.
    pub(super) pending: Pending,
    /// Whether peers can access only windows.
    strict: bool,
    /// Number of messages that have claimed one-touch memory. Each claim is identified by the next number.
    pub(super) claims: AtomicU64,
    /// The function, for its quotas of entries and of registered bytes.
    account: Arc<Account>,
}

impl Table {
    /// Creates an empty table whose tags are derived from `cipher`. Its function has no quotas.
    pub fn new(limits: Limits, cipher: Arc<TagCipher>) -> Self {
        Self::with_account(limits, cipher, &Arc::default())
    }

    /// Creates an empty table of the function with this account, whose tags are derived from `cipher`.
    pub fn with_account(limits: Limits, cipher: Arc<TagCipher>, account: &Arc<Account>) -> Self {
        Self {
            strict: limits.strict,
            slab: Slab::new(limits, cipher, Arc::clone(account)),
            pending: Pending::default(),
            claims: AtomicU64::new(0),
            account: Arc::clone(account),
        }
    }

    /// Removes the last `count` slots, for the table of another function, or a few more. `None` if fewer are unused.
    pub fn split_off_slots(&self, count: u32) -> Option<Range<u32>> {
        self.slab.split_off(count)
    }

    /// Returns the slots that were never used.
    pub fn unused_slots(&self) -> Range<u32> {
        self.slab.unused_slots()
    }

    /// Returns the permutation from which the tags are derived.
    pub fn cipher(&self) -> &Arc<TagCipher> {
        self.slab.cipher()
    }

    /// Registers memory at once and returns its tag. All of the memory must be mapped.
    pub fn register(&self, host: &dyn Host, domain: Domain, memory: Memory) -> Result<Tag, RegisterError> {
        memory.check(host)?;
        self.publish_new(memory.into_body(domain))
    }

    /// Registers memory that need not be mapped (on-demand paging), and returns its tag. The program may map and
    /// unmap the memory at any time. The memory may cover the whole address space.
    pub fn register_on_demand(&self, domain: Domain, memory: Memory) -> Result<Tag, RegisterError> {
        memory.check_parameters()?;
        self.publish_new(memory.into_body(domain))
    }

    /// Registers the memory of the region `tag` once more, and returns the tag of the new region. The new region
    /// has its own domain, start and rights; both regions use one translation (requirement M5). The new region is
    /// not one-touch, even if the existing region is.
    pub fn share(&self, tag: Tag, domain: Domain, start: u64, rights: Rights) -> Result<Tag, RegisterError> {
        // The region may be in any domain: the caller is the program that owns both domains.
        let access = Access { qp: None, ..Access::to_change(tag, Stream { domain, qp: 0 }) };
        let Some(guard) = self.guard(tag) else {
            return Err(self.explain_refusal(&access).into());
        };
        let (body, state) = (guard.body.clone(), guard.state);
        let deny = |check| access.deny(check, Some(guard.entry.describe(&body, state)));
        if body.kind != Kind::Region {
            return Err(deny(Check::Kind).into());
        }
        if tag != state.tag() {
            return Err(deny(Check::Instance).into());
        }
        check_range(start, body.len)?;
        check_rights(rights)?;
        self.publish_new(Body { domain, start, rights, one_touch: false, ..body })
    }

    /// Allocates an entry for registrations by send-queue request (requirement M6), and returns its tag. The tag
    /// becomes valid when [`fill`](Self::fill) executes such a request.
    pub fn allocate(&self, domain: Domain) -> Result<Tag, RegisterError> {
        self.allocate_new(Body { kind: Kind::Region, domain, ..Body::default() })
    }

    /// Allocates an unbound window and returns its tag.
    pub fn allocate_window(&self, domain: Domain) -> Result<Tag, RegisterError> {
        self.allocate_new(Body { kind: Kind::Window, domain, ..Body::default() })
    }

    /// Executes a registration that was posted to the send queue of `stream`: gives an allocated entry its memory
    /// and makes `tag` valid. The first time, `tag` must be the one that [`allocate`](Self::allocate) returned;
    /// after each invalidation, it must be the one that [`reserve_next_tag`](Self::reserve_next_tag) returns for the
    /// previous one.
    ///
    /// All streams of the domain can use the region; only the peer of `stream` can invalidate it.
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
        let mut change = match self.begin_change(&access) {
            Err(Denied { check: Check::Valid, .. }) => {
                return self.fill_successor(host, &access, stream.qp, memory);
            }
            change => change?,
        };
        if change.entry.state().is_valid() || change.entry.state().is_pending() {
            return Err(change.deny(&access, Check::Idle).into());
        }
        match self.next_registration_tag_of(&change) {
            Some(expected) if expected == tag => {}
            Some(_) => return Err(change.deny(&access, Check::Instance).into()),
            None => {
                // The program has not reserved the next tag: tell it why, if there is none.
                self.reserve_successor(&mut change)?;
                return Err(change.deny(&access, Check::Instance).into());
            }
        }
        memory.check(host)?;
        self.charge(&change, memory.len)?;
        // The entry is already invalid, but `Entry::invalidate_now` does not wait for guards: wait for them here.
        change.revoke();
        change.control.invalidator = Some(stream.qp);
        change.publish(tag, memory.into_body(stream.domain));
        Ok(())
    }

    /// Executes an invalidation that was posted to the send queue of `stream`. The entry can no longer be accessed
    /// but stays allocated, to be filled or bound again. An entry that is not valid is accepted, too. Waits for
    /// guards.
    pub fn invalidate(&self, stream: Stream, tag: Tag) -> Result<(), Denied> {
        let access = Access::to_change(tag, stream);
        let mut change = self.begin_change_of_instance(&access)?;
        self.invalidate_entry(&mut change, &access)
    }

    /// Executes the invalidation that the peer of `stream` requests by a Send with Invalidate (requirement M12).
    /// Waits for guards.
    ///
    /// The tag must be valid and belong to this stream (RFC 5040 §7.2). If several peers could invalidate a
    /// tag, one peer could make the tag invalid for another (RFC 5042 §6.4.5). Therefore at most one peer can:
    /// the peer of the stream that a window is bound to, or of the stream that registered the region by
    /// send-queue request.
    pub fn invalidate_remotely(&self, stream: Stream, tag: Tag) -> Result<(), Denied> {
        let access = Access { kinds: self.remote_kinds(), ..Access::to_change(tag, stream) };
        let mut change = self.begin_change_of_instance(&access)?;
        if !change.entry.state().is_valid() {
            return Err(change.deny(&access, Check::Valid));
        }
        match change.control.invalidator {
            None => Err(change.deny(&access, Check::Invalidate)),
            Some(qp) if qp != stream.qp => Err(change.deny(&access, Check::Stream)),
            Some(_) => self.invalidate_entry(&mut change, &access),
        }
    }

    /// Deregisters a region or deallocates a window, valid or not. Waits for guards: after the call returns, no
    /// byte is read or written through the tag any more.
    pub fn deregister(&self, tag: Tag) -> Result<(), DeregisterError> {
        let index = index_of(tag);
        let entry = self.slab.entry(index).ok_or(DeregisterError::Unknown(tag))?;
        let mut change = entry.begin_change();
        if !entry.state().is_taken() || change.tag() != tag {
            return Err(DeregisterError::Unknown(tag));
        }
        let windows = change.control.windows;
        if windows != 0 {
            return Err(DeregisterError::Busy { tag, windows });
        }
        change.revoke();
        self.unbind(&mut change);
        self.release_bytes(&change);
        let pending = entry.state().is_pending();
        let successor = change.control.successor;
        let is_reusable = change.release();
        drop(change);
        if pending {
            // Without the lock: this drives the queue pairs that wait for the registration.
            self.pending.remove(tag);
        }
        self.slab.release(index, is_reusable);
        self.release_successors(successor);
        Ok(())
    }

    /// Returns the description of the entry that `tag` names. `None` if the entry is free or `tag` is stale.
    pub fn look_up(&self, tag: Tag) -> Option<EntryInfo> {
        self.look_up_any(tag).filter(|info| info.tag == tag)
    }

    /// Returns the current tag of the entry that `tag` names: `tag` itself, or another instance if `tag` is stale. If the
    /// index of `tag` is [reserved](Self::reserve_next_tag) for a window or region, returns the current tag of that.
    /// `None` if the entry is free.
    pub fn current_tag(&self, tag: Tag) -> Option<Tag> {
        loop {
            // Read first: a window or region that moves meanwhile is then found at `tag`, now or in the next round.
            let predecessor = self.predecessor_of(tag);
            if let Some(info) = self.look_up_any(tag) {
                return Some(info.tag);
            }
            if let Some(tag) = self.current_tag(predecessor?) {
                return Some(tag);
            }
        }
    }

    /// Returns whether `tag`, the current tag of an entry for send-queue registrations, has been valid, so that the next
    /// registration assigns another.
    pub fn has_been_valid(&self, tag: Tag) -> bool {
        self.slab.entry(index_of(tag)).is_some_and(|entry| entry.begin_change().control.used)
    }

    /// Returns the number of entries in use, the number of retired indices, and the memory that the table takes.
    pub fn usage(&self) -> Usage {
        self.slab.usage()
    }

    /// Returns the number of entries in use.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Returns whether no entry is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Table {
    /// Charges registered bytes to the account of the function.
    pub(super) fn charge_registered(&self, bytes: u64) -> Result<(), QuotaExceeded> {
        self.account.charge(Resource::RegisteredBytes, bytes)
    }

    /// Takes registered bytes off the account of the function.
    pub(super) fn release_registered(&self, bytes: u64) {
        self.account.release(Resource::RegisteredBytes, bytes);
    }

    /// Returns whether peers can access only windows.
    pub(super) fn is_strict(&self) -> bool {
        self.strict
    }

    /// Takes a guard on the entry with the index of `tag`. `None` if the entry is not valid. Does not check the
    /// instance. Does not wait.
    #[inline]
    pub(super) fn guard(&self, tag: Tag) -> Option<Guard<'_>> {
        self.slab.entry(index_of(tag))?.guard(tag)
    }

    /// Returns the description of the entry with the index of `tag`, whatever its instance. `None` if the entry is
    /// free. While another thread revokes the entry, waits for its guards.
    pub(super) fn look_up_any(&self, tag: Tag) -> Option<EntryInfo> {
        let entry = self.slab.entry(index_of(tag))?;
        entry.describe_taken(&entry.body(), tag)
    }

    /// Returns the description of the entry with the index of `tag`, whatever its instance. `None` if the entry is free,
    /// or is being changed. Does not wait: a thread that holds a guard may call this.
    pub(super) fn glance_at(&self, tag: Tag) -> Option<EntryInfo> {
        let entry = self.slab.entry(index_of(tag))?;
        entry.describe_taken(&*entry.try_body()?, tag)
    }

    /// Locks the entry that `access` names, to change it. Checks that the entry is allocated and that kind, domain
    /// and stream match; does not check the instance of the tag.
    pub(super) fn begin_change(&self, access: &Access) -> Result<Change<'_>, Denied> {
        let entry = self.slab.entry(index_of(access.tag)).ok_or_else(|| access.deny(Check::Valid, None))?;
        let change = entry.begin_change();
        if !entry.state().is_taken_at(access.tag) {
            return Err(access.deny(Check::Valid, None));
        }
        let checked = access.check_owner(&entry.body());
        checked.map_err(|check| change.deny(access, check))?;
        Ok(change)
    }

    /// Locks the entry that `access` names, as [`begin_change`](Self::begin_change) does, and also checks the
    /// instance of the tag.
    pub(super) fn begin_change_of_instance(&self, access: &Access) -> Result<Change<'_>, Denied> {
        let change = self.begin_change(access)?;
        if change.tag() != access.tag {
            return Err(change.deny(access, Check::Instance));
        }
        Ok(change)
    }

    /// Returns the tag that the next send-queue registration of a locked entry must name: the current tag if it was never
    /// valid, else the next one, or that of the successor. `None` if no successor is reserved.
    pub(super) fn next_registration_tag_of(&self, change: &Change<'_>) -> Option<Tag> {
        match *change.control {
            Control { used: false, .. } => Some(change.tag()),
            Control { instances_left: 0, .. } => self.successor_tag(change),
            _ => Some(next_tag(change.tag())),
        }
    }

    /// Makes a locked entry invalid, if an entry of its kind can be invalidated and no window is bound to it.
    fn invalidate_entry(&self, change: &mut Change<'_>, access: &Access) -> Result<(), Denied> {
        if !change.control.reusable {
            return Err(change.deny(access, Check::Invalidate));
        }
        if change.control.windows != 0 {
            return Err(change.deny(access, Check::Windows));
        }
        self.clear_entry(change, access.tag);
        Ok(())
    }

    /// Makes the entry invalid and removes its memory, but keeps its tag allocated. Waits for guards.
    pub(super) fn clear_entry(&self, change: &mut Change<'_>, tag: Tag) {
        change.revoke();
        self.unbind(change);
        self.release_bytes(change);
        let emptied = change.entry.body().without_memory();
        change.allocate(tag, emptied);
    }

    /// Charges the function for the registration of `len` bytes at a locked entry, in place of those that the entry has
    /// registered before.
    pub(super) fn charge(&self, change: &Change<'_>, len: u64) -> Result<(), QuotaExceeded> {
        let before = change.entry.body().registered_bytes();
        match len.checked_sub(before) {
            Some(more) => self.account.charge(Resource::RegisteredBytes, more),
            None => {
                self.account.release(Resource::RegisteredBytes, before - len);
                Ok(())
            }
        }
    }

    /// Releases the bytes that a locked entry has registered. Its memory is about to be removed.
    pub(super) fn release_bytes(&self, change: &Change<'_>) {
        self.account.release(Resource::RegisteredBytes, change.entry.body().registered_bytes());
    }

    /// Detaches a bound window from its region; does nothing for other entries. The entry must have been revoked.
    pub(super) fn unbind(&self, change: &mut Change<'_>) {
        let Some(region) = change.control.region.take() else { return };
        let region = self.slab.entry(region).expect("a bound window has a region");
        region.begin_change().control.windows -= 1;
    }

    /// Takes a free entry, makes it valid with this body and returns its tag.
    fn publish_new(&self, body: Body) -> Result<Tag, RegisterError> {
        let bytes = body.registered_bytes();
        self.account.charge(Resource::RegisteredBytes, bytes)?;
        let taken = self.slab.take();
        let (_, entry) = taken.inspect_err(|_| self.account.release(Resource::RegisteredBytes, bytes))?;
        Ok(self.publish_at(entry, body))
    }

    /// Makes a free entry valid with this body and returns its tag.
    pub(super) fn publish_at(&self, entry: &Entry, body: Body) -> Tag {
        let mut change = entry.begin_change();
        let tag = change.tag();
        change.publish(tag, body);
        tag
    }

    /// Takes a free entry and returns its tag. The entry is not valid yet, and can be invalidated without being
    /// deregistered.
    pub(super) fn allocate_new(&self, body: Body) -> Result<Tag, RegisterError> {
        let (_, entry) = self.slab.take()?;
        let mut change = entry.begin_change();
        let tag = change.tag();
        change.control.reusable = true;
        change.allocate(tag, body);
        Ok(tag)
    }
}

impl Access {
    /// Describes a request of `stream` that changes an entry of any kind and accesses no bytes.
    pub(super) fn to_change(tag: Tag, stream: Stream) -> Self {
        let Stream { domain, qp } = stream;
        let need = Rights::empty();
        Self { tag, offset: 0, len: 0, need, domain, qp: Some(qp), kinds: Kinds::Any }
    }
}

impl Change<'_> {
    /// Creates the error for a request that failed `check` on this entry.
    pub(super) fn deny(&self, access: &Access, check: Check) -> Denied {
        let info = self.entry.describe(&self.entry.body(), self.entry.state());
        access.deny(check, Some(info))
    }
}

impl Memory {
    /// Checks that the memory can be registered: its parameters are valid and all of it is mapped.
    pub(super) fn check(&self, host: &dyn Host) -> Result<(), RegisterError> {
        self.check_parameters()?;
        let Self { len, ref translation, .. } = *self;
        if translation.is_held() {
            return Ok(());
        }
        let mut spans = Spans::new();
        let translated = translation.len();
        let bytes = usize::try_from(len).map_err(|_| RegisterError::TooLong { len, translated })?;
        translation.append_spans(0, bytes, &mut spans);
        match spans.iter().find(|&&span| !host.is_mapped(span)) {
            Some(&span) => Err(RegisterError::Unmapped(span)),
            None => Ok(()),
        }
    }

    /// Checks that length, range and rights are valid, and that one-touch memory does not allow windows. Does not check
    /// whether the memory is mapped: memory that is registered on demand need not be.
    fn check_parameters(&self) -> Result<(), RegisterError> {
        let Self { start, len, rights, one_touch, ref translation } = *self;
        if len == 0 {
            return Err(RegisterError::Empty);
        }
        let translated = translation.len(); // number of bytes that the translation covers
        if len > translated {
            return Err(RegisterError::TooLong { len, translated });
        }
        check_range(start, len)?;
        check_rights(rights)?;
        if one_touch && rights.contains(Rights::BIND) {
            // The first message invalidates the memory, but not windows that were bound to it.
            return Err(RegisterError::OneTouch);
        }
        Ok(())
    }

    /// Turns the parameters of a registration into the body of an entry.
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

/// Checks that the offsets of the memory fit 64 bits.
fn check_range(start: u64, len: u64) -> Result<(), RegisterError> {
    start.checked_add(len).map(|_| ()).ok_or(RegisterError::Wrap { start, len })
}

/// Checks that remote write and atomic access come with local write access, as verbs require: a program can grant
/// only rights that it has itself.
fn check_rights(rights: Rights) -> Result<(), RegisterError> {
    let writes = rights.intersects(Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC);
    if writes && !rights.contains(Rights::LOCAL_WRITE) {
        return Err(RegisterError::Rights(rights));
    }
    Ok(())
}

/// Omits the entries, which may be many.
impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("len", &self.len())
            .field("strict", &self.strict)
            .finish_non_exhaustive()
    }
}
