//! One entry of the memory table, its guards, and its revocation.
//!
//! An entry has three parts:
//! - The state word, which tells whether the entry is valid.
//! - The body, which describes the memory that the entry names. A guard is a read lock of the body, taken while the
//!   entry is valid. The body is written only while the entry is invalid.
//! - The control part. Its lock is held throughout a change to the entry; accesses never take it.
//!
//! A revocation makes the entry invalid and then takes the write lock of the body, for which it waits until all guards
//! are dropped. Accesses never wait for that: an access to an invalid entry is refused.

use super::{Domain, EntryInfo, INSTANCE_BITS, Kind, Rights, Translation, index_of, instance_of, tag_of};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, lock, read, try_read, write, yield_now};
use ironwarp_wire::Tag;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

/// Keeps a tag from being revoked: a thread that revokes the tag waits until the guard is dropped.
///
/// Hold a guard while bytes move, and no longer. A thread may hold several guards at once, even on the same
/// entry. A thread that holds a guard must not revoke a tag (`deregister`, `invalidate`, `bind`), because it
/// might wait for itself.
pub struct Guard<'t> {
    pub(super) entry: &'t Entry,
    pub(super) body: RwLockReadGuard<'t, Body>,
    /// The state of the entry when the guard was taken.
    pub(super) state: State,
}

/// A guard, kept for the next access, which usually names the same tag.
///
/// The rules for a [`Guard`] apply: keep it while bytes move, and no longer.
pub struct CachedGuard<'t> {
    /// The tag of the access that took the guard. Its instance may be wrong.
    pub(super) tag: Tag,
    pub(super) guard: Guard<'t>,
}

/// Omits the entry, to which the guard only refers.
impl fmt::Debug for CachedGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedGuard").field("tag", &self.tag).finish_non_exhaustive()
    }
}

/// One entry of the table. Aligned to a cache line, so that guards on neighbouring entries do not contend.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Entry {
    /// A [`State`].
    state: AtomicU64,
    /// The number of the message that has claimed this one-touch memory. Zero if no message has.
    claimed_by: AtomicU64,
    body: RwLock<Body>,
    control: Mutex<Control>,
}

/// The memory that an entry names (requirement M3). Only kind and domain are meaningful while the entry is invalid.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Body {
    pub(super) kind: Kind,
    pub(super) domain: Domain,
    /// The only queue pair whose peer may access the memory. `None` allows all queue pairs of the domain.
    pub(super) qp: Option<u32>,
    pub(super) rights: Rights,
    /// Whether the memory serves a single remote message.
    pub(super) one_touch: bool,
    /// The offset by which accesses name the first byte.
    pub(super) start: u64,
    /// Length in bytes.
    pub(super) len: u64,
    /// The translation to addresses. `None` while the entry is invalid.
    pub(super) translation: Option<Arc<Translation>>,
    /// The position in the translation at which the memory of this entry starts. Nonzero only for windows.
    pub(super) skip: u64,
}

/// The part of an entry that is used only by changes to the entry, not by accesses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Control {
    /// Number of windows bound to this region.
    pub(super) windows: u32,
    /// The index of the region that this window is bound to. `None` for regions and unbound windows.
    pub(super) region: Option<u32>,
    /// Whether the entry stays allocated when it is invalidated: it is a window, or for send-queue registrations.
    pub(super) reusable: bool,
    /// Whether the entry has been valid since it was allocated, so that its next registration needs a new instance.
    pub(super) used: bool,
    /// Number of instances after the current one that the index has never had (requirement M4).
    pub(super) instances_left: u8,
    /// Number of instances after the current one that are promised: the program may have given their tags to peers, for
    /// requests that are not executed yet.
    pub(super) promised: u8,
    /// The index that is reserved for the next tag of this window or region, which has no instances left.
    pub(super) successor: Option<NonZeroU32>,
    /// The index whose successor this free entry is reserved to be.
    pub(super) predecessor: Option<NonZeroU32>,
    /// The queue pair whose peer may invalidate the entry while it is valid. `None` if no peer may.
    pub(super) invalidator: Option<u32>,
}

/// The value of the state word. Bits 0 to 31 are the tag, the rest are flags. The tag tells to which index the entry
/// belongs now: the storage of retired indices is used again (`slab.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State(u64);

/// Flag: accesses may take guards.
const VALID: u64 = 1 << 32;
/// Flag: the entry is allocated, valid or not.
const TAKEN: u64 = 1 << 33;
/// Flag: the registration of the entry is in progress (requirement X6), and the entry is not valid yet.
const PENDING: u64 = 1 << 34;

/// A change to an entry. Holds the lock of the control part, which excludes other changes.
#[derive(Debug)]
pub(super) struct Change<'t> {
    pub(super) entry: &'t Entry,
    pub(super) control: MutexGuard<'t, Control>,
}

impl State {
    pub(super) const fn is_valid(self) -> bool {
        self.0 & VALID != 0
    }

    /// Returns whether the entry is allocated.
    pub(super) const fn is_taken(self) -> bool {
        self.0 & TAKEN != 0
    }

    /// Returns whether the registration of the entry is in progress.
    pub(super) const fn is_pending(self) -> bool {
        self.0 & PENDING != 0
    }

    /// Returns whether the entry is valid and belongs to the index of `tag`.
    #[inline]
    const fn is_valid_at(self, tag: Tag) -> bool {
        (self.0 ^ tag.0 as u64) >> INSTANCE_BITS == (VALID | TAKEN) >> INSTANCE_BITS
    }

    /// Returns whether the entry is allocated and belongs to the index of `tag`.
    pub(super) const fn is_taken_at(self, tag: Tag) -> bool {
        self.is_taken() && index_of(self.tag()) == index_of(tag)
    }

    /// Returns the current tag of the entry.
    #[expect(clippy::cast_possible_truncation, reason = "only the low 32 bits are wanted")]
    pub(super) const fn tag(self) -> Tag {
        Tag(self.0 as u32)
    }

    const fn new(tag: Tag, flags: u64) -> Self {
        Self(tag.0 as u64 | flags)
    }
}

impl Entry {
    /// Takes a guard. `None` if the entry is not valid, is being changed, or belongs to another index than `tag` by now.
    /// Does not check the instance: other checks come first, and the tag cannot change while the guard is held.
    #[inline]
    pub(super) fn guard(&self, tag: Tag) -> Option<Guard<'_>> {
        let body = self.try_body().or_else(|| self.body_after_change())?;
        // Read with the body locked: either a thread that makes the entry invalid waits for this guard, or it has had
        // the write lock since, and the change of the state is visible here.
        let state = self.state();
        state.is_valid_at(tag).then_some(Guard { entry: self, body, state })
    }

    /// Locks the body for reading, after it was found locked for writing. Returns `None` as soon as the state shows that
    /// the entry is invalid, as it is while it is revoked, and does not wait for guards.
    #[cold]
    fn body_after_change(&self) -> Option<RwLockReadGuard<'_, Body>> {
        while self.state().is_valid() {
            if let Some(body) = self.try_body() {
                return Some(body);
            }
            yield_now(); // the entry is about to become invalid, or to be unlocked
        }
        None
    }

    /// Locks the entry, to change it. Waits until no other thread changes the entry.
    pub(super) fn begin_change(&self) -> Change<'_> {
        Change { entry: self, control: lock(&self.control) }
    }

    /// Returns the current state.
    pub(super) fn state(&self) -> State {
        State(self.state.load(Ordering::Acquire))
    }

    /// Claims one-touch memory for the message with this number. Returns true if the message has claimed the
    /// memory, now or before, and false if another message has. Call only while holding a guard.
    pub(super) fn claim(&self, number: u64) -> bool {
        // Relaxed suffices: no other data depends on which message was first. `Change::store` resets the number
        // while no guard is held, and taking a guard synchronises with that store.
        match self.claimed_by.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(by) => by == number,
        }
    }

    /// Returns the number of the message that has claimed this one-touch memory, or zero if no message has.
    pub(super) fn claimed_by(&self) -> u64 {
        self.claimed_by.load(Ordering::Relaxed)
    }

    /// Makes the entry invalid without waiting for guards, so that a thread that holds a guard may call this. The
    /// next change to the entry waits for the guards.
    pub(super) fn invalidate_now(&self) {
        self.state.fetch_and(!VALID, Ordering::Relaxed);
    }

    /// Describes the entry, whose body is locked. `None` if it is free, or belongs to another index than `tag`.
    pub(super) fn describe_taken(&self, body: &Body, tag: Tag) -> Option<EntryInfo> {
        // Read with the body locked: `Change::store` writes both with the body locked, so they belong together.
        let state = self.state();
        state.is_taken_at(tag).then(|| self.describe(body, state))
    }

    /// Describes the entry, for queries and error messages. `body` and `state` are its contents as the caller has read
    /// them.
    pub(super) fn describe(&self, body: &Body, state: State) -> EntryInfo {
        EntryInfo {
            tag: state.tag(),
            kind: body.kind,
            valid: state.is_valid(),
            domain: body.domain,
            qp: body.qp,
            start: body.start,
            len: body.len,
            rights: body.rights,
            one_touch: body.one_touch,
            touched: self.claimed_by() != 0,
        }
    }

    /// Locks the body for reading. Waits while another thread revokes the entry or writes the body.
    pub(super) fn body(&self) -> RwLockReadGuard<'_, Body> {
        read(&self.body)
    }

    /// Locks the body for reading. `None` while a thread revokes the entry or writes the body.
    #[inline]
    pub(super) fn try_body(&self) -> Option<RwLockReadGuard<'_, Body>> {
        try_read(&self.body)
    }
}

impl Change<'_> {
    /// Makes the entry invalid, so that no new guard is granted, and waits until all existing guards are dropped.
    pub(super) fn revoke(&self) {
        self.entry.invalidate_now();
        drop(write(&self.entry.body)); // waits for the guards
    }

    /// Returns the current tag of the entry.
    pub(super) fn tag(&self) -> Tag {
        self.entry.state().tag()
    }

    /// Gives a free entry to another index, which was never used: `tag` will be its first tag, and `instances_left` more
    /// can follow.
    pub(super) fn assign(&mut self, tag: Tag, instances_left: u8) {
        self.store(tag, 0, Body::default());
        *self.control = Control { instances_left, ..Control::default() };
    }

    /// Makes a free entry one that was loaded from an image (requirement X2).
    pub(super) fn restore(
        &mut self,
        tag: Tag,
        [is_taken, is_valid]: [bool; 2],
        body: Body,
        control: Control,
    ) {
        self.store(tag, if is_taken { TAKEN } else { 0 } | if is_valid { VALID } else { 0 }, body);
        *self.control = control;
    }

    /// Makes the entry valid with this body and tag.
    pub(super) fn publish(&mut self, tag: Tag, body: Body) {
        self.control.used = true;
        self.store(tag, VALID | TAKEN, body);
    }

    /// Marks the entry as allocated but not valid.
    pub(super) fn allocate(&mut self, tag: Tag, body: Body) {
        self.store(tag, TAKEN, body);
    }

    /// Marks the entry as allocated and its registration as in progress.
    pub(super) fn allocate_pending(&mut self, tag: Tag, body: Body) {
        self.store(tag, TAKEN | PENDING, body);
    }

    /// Frees the entry and advances its instance, so that its tags stay invalid when the entry is reused, also those
    /// that were promised (requirement M4). Returns whether the index can be used again. If not, the index has had all of its instances,
    /// and is to be retired.
    pub(super) fn release(&mut self) -> bool {
        let Control { instances_left, promised, .. } = *self.control;
        let is_reusable = instances_left > promised;
        let tag = self.tag();
        let next = tag_of(index_of(tag), instance_of(tag).wrapping_add(promised).wrapping_add(1));
        self.store(if is_reusable { next } else { tag }, 0, Body::default());
        *self.control = Control { instances_left: self.control.instances_left, ..Control::default() };
        is_reusable
    }

    /// Stores body and state with the body locked, so that a thread that locks the body and then reads the state
    /// gets a pair that belongs together. No other thread writes the state meanwhile: no guard is held or granted,
    /// because the entry was revoked, and this change excludes others.
    ///
    /// The instances from the current one to that of `tag` count as used, also those that a program has skipped.
    fn store(&mut self, tag: Tag, flags: u64, body: Body) {
        let state = self.entry.state();
        assert!(!state.is_valid(), "entry changed while it is in use");
        let steps = instance_of(tag).wrapping_sub(instance_of(state.tag()));
        self.control.instances_left = self.control.instances_left.saturating_sub(steps);
        self.control.promised = self.control.promised.saturating_sub(steps);
        let mut place = write(&self.entry.body);
        *place = body;
        self.entry.claimed_by.store(0, Ordering::Relaxed);
        self.entry.state.store(State::new(tag, flags).0, Ordering::Release);
    }
}

impl Body {
    /// Returns a copy for an entry that names no memory: only kind and domain are kept.
    pub(super) fn without_memory(&self) -> Self {
        Self { kind: self.kind, domain: self.domain, ..Self::default() }
    }

    /// Returns the number of bytes that the entry registers: those of its memory, if it is a region and has any.
    pub(super) fn registered_bytes(&self) -> u64 {
        if self.kind == Kind::Region && self.translation.is_some() { self.len } else { 0 }
    }
}

/// Omits the entry except for its state: the guard only refers to it.
impl fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("state", &self.state).finish_non_exhaustive()
    }
}
