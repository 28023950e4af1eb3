//! One entry of the table, the guards on it, and its revocation.
//!
//! An entry has three parts, by how they are accessed. The state word is all that the fast path needs: a
//! compare-and-exchange that succeeds only while the entry is valid takes a guard. The body describes what
//! the entry names; it is written only while the entry is invalid and no guard is held, so reading it under a
//! guard hardly ever waits. The control part is for changes to the entry; its lock is held throughout a
//! change, and accesses never take it.

use super::{Domain, EntryInfo, Kind, Rights, Translation, tag_of};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, lock, read, wait, write};
use ironwarp_wire::Tag;
use std::fmt;
use std::sync::Arc;

/// Keeps a tag from being revoked: whoever revokes it waits until the guard is dropped.
///
/// Hold it while bytes move, and no longer. Several guards may be held at once, even on the same entry. A
/// thread that holds one must not revoke a tag (`deregister`, `invalidate`, `bind`): it might wait for
/// itself.
pub struct Guard<'t> {
    entry: &'t Entry,
    guard_wait: &'t GuardWait,
}

/// A guard that is kept for the next access, which usually names the same tag, together with the entry's
/// contents.
///
/// The rules for a [`Guard`] apply: keep it while bytes move, and no longer.
pub struct CachedGuard<'t> {
    pub(super) tag: Tag,
    pub(super) body: RwLockReadGuard<'t, Body>,
    pub(super) state: State,
    /// Declared after `body`, so that it is dropped last: whoever waits for the guard writes the body.
    pub(super) guard: Guard<'t>,
}

impl fmt::Debug for CachedGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedGuard").field("tag", &self.tag).finish_non_exhaustive()
    }
}

/// Where threads that revoke an entry wait for its last guard. Shared by the whole table, because a
/// revocation rarely finds a guard held.
#[derive(Debug, Default)]
pub(super) struct GuardWait {
    lock: Mutex<()>,
    last_dropped: Condvar,
}

/// One entry. Aligned to a cache line, so that guards on neighbouring entries do not contend.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Entry {
    state: AtomicU64,
    /// For one-touch memory, the number of the message that claimed it. Zero if none has.
    touched: AtomicU64,
    body: RwLock<Body>,
    control: Mutex<Control>,
}

/// What an entry names (requirement M3). Only kind and domain are meaningful while the entry is invalid.
#[derive(Clone, Debug, Default)]
pub(super) struct Body {
    pub(super) kind: Kind,
    pub(super) domain: Domain,
    /// The only queue pair whose peer may access it; `None` allows all of the domain.
    pub(super) qp: Option<u32>,
    pub(super) rights: Rights,
    /// Whether it serves a single remote message.
    pub(super) one_touch: bool,
    /// The offset of its first byte, and its length.
    pub(super) start: u64,
    pub(super) len: u64,
    /// The translation to addresses. The entry starts at byte `skip` of it.
    pub(super) translation: Option<Arc<Translation>>,
    pub(super) skip: u64,
}

/// The part of an entry that only changes to it need.
#[derive(Debug, Default)]
pub(super) struct Control {
    /// Number of windows bound to this region.
    pub(super) windows: u32,
    /// The index of the region that this window is bound to.
    pub(super) region: Option<u32>,
    /// Whether it can be invalidated and stay allocated: it is a window, or for send-queue registrations.
    pub(super) reusable: bool,
    /// Whether the tag has been valid before, so that the next registration needs a new instance.
    pub(super) used: bool,
    /// The queue pair whose peer may invalidate it, while it is valid.
    pub(super) invalidator: Option<u32>,
}

/// The state word: guards (32 bits), instance (8 bits), flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State(u64);

const GUARD: u64 = 1;
const GUARDS: u64 = 0xffff_ffff;
const INSTANCE_SHIFT: u32 = 32;
/// Accesses may take guards.
const VALID: u64 = 1 << 40;
/// The entry is allocated, valid or not.
const TAKEN: u64 = 1 << 41;
/// A thread waits for the last guard.
const AWAITED: u64 = 1 << 42;
/// Its registration is in progress (requirement X6); it is not valid yet.
const PENDING: u64 = 1 << 43;

/// Exclusive access to change an entry.
#[derive(Debug)]
pub(super) struct Change<'t> {
    pub(super) entry: &'t Entry,
    pub(super) control: MutexGuard<'t, Control>,
    guard_wait: &'t GuardWait,
}

impl State {
    pub(super) const fn is_valid(self) -> bool {
        self.0 & VALID != 0
    }

    pub(super) const fn is_taken(self) -> bool {
        self.0 & TAKEN != 0
    }

    pub(super) const fn is_pending(self) -> bool {
        self.0 & PENDING != 0
    }

    const fn guards(self) -> u64 {
        self.0 & GUARDS
    }

    #[expect(clippy::cast_possible_truncation, reason = "only the low eight bits are wanted")]
    pub(super) const fn instance(self) -> u8 {
        (self.0 >> INSTANCE_SHIFT) as u8
    }

    const fn new(instance: u8, flags: u64) -> Self {
        Self((instance as u64) << INSTANCE_SHIFT | flags)
    }
}

impl Entry {
    /// Creates an unused entry. Its first tag will have this instance.
    pub(super) fn new(instance: u8) -> Self {
        Self { state: AtomicU64::new(State::new(instance, 0).0), ..Self::default() }
    }

    /// Takes a guard if the entry is valid, whatever its instance. The instance is the fourth check, and
    /// cannot change while the guard is held.
    #[inline]
    pub(super) fn guard<'t>(&'t self, guard_wait: &'t GuardWait) -> Option<(Guard<'t>, State)> {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            if !State(state).is_valid() {
                return None;
            }
            // Acquire pairs with the release in `store`, so that the body is seen as it was written.
            match self.state.compare_exchange_weak(state, state + GUARD, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return Some((Guard { entry: self, guard_wait }, State(state))),
                Err(now) => state = now,
            }
        }
    }

    /// Waits until no other thread changes the entry, and locks it.
    pub(super) fn change<'t>(&'t self, guard_wait: &'t GuardWait) -> Change<'t> {
        Change { entry: self, control: lock(&self.control), guard_wait }
    }

    pub(super) fn state(&self) -> State {
        State(self.state.load(Ordering::Acquire))
    }

    /// Claims one-touch memory for the message of this number. Returns whether that message has it, by this
    /// claim or an earlier one. Call only under a guard.
    pub(super) fn claim(&self, number: u64) -> bool {
        // Relaxed suffices: only which message was first matters. `store` resets it while no guard is held,
        // and taking a guard synchronises with that.
        match self.touched.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(by) => by == number,
        }
    }

    /// The number of the message that has claimed it, or zero.
    pub(super) fn claimed_by(&self) -> u64 {
        self.touched.load(Ordering::Relaxed)
    }

    /// Makes the entry invalid without waiting for guards, so that a thread that holds one may call it. The
    /// next change to the entry waits for them.
    pub(super) fn invalidate_now(&self) {
        self.state.fetch_and(!VALID, Ordering::Relaxed);
    }

    /// Describes the entry for queries and error messages.
    pub(super) fn info(&self, body: &Body, index: u32, state: State) -> EntryInfo {
        EntryInfo {
            tag: tag_of(index, state.instance()),
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

    #[inline]
    pub(super) fn body(&self) -> RwLockReadGuard<'_, Body> {
        read(&self.body)
    }
}

impl Change<'_> {
    /// Ends all access: no new guard is granted, and all existing ones are gone when this returns. Does
    /// nothing if there are none and the entry is not valid.
    pub(super) fn revoke(&self) {
        // Acquire: everything done under guards that are gone happened before.
        let before = State(self.entry.state.fetch_and(!VALID, Ordering::Acquire));
        if before.guards() == 0 {
            return;
        }
        self.entry.state.fetch_or(AWAITED, Ordering::Relaxed);
        let mut waiting = lock(&self.guard_wait.lock);
        // The last guard takes this lock before it notifies, so the notification cannot fall between this
        // check and the wait.
        while self.entry.state().guards() != 0 {
            waiting = wait(&self.guard_wait.last_dropped, waiting);
        }
    }

    /// Makes the entry valid with this body and instance.
    pub(super) fn publish(&mut self, instance: u8, body: Body) {
        self.control.used = true;
        self.store(instance, VALID | TAKEN, body);
    }

    /// Marks the entry as allocated but not valid.
    pub(super) fn allocate(&mut self, instance: u8, body: Body) {
        self.store(instance, TAKEN, body);
    }

    /// Marks the entry as allocated and its registration as in progress.
    pub(super) fn allocate_pending(&mut self, instance: u8, body: Body) {
        self.store(instance, TAKEN | PENDING, body);
    }

    /// Frees the entry and advances its instance, so that the old tag is not honoured again (requirement M4).
    pub(super) fn release(&mut self) {
        *self.control = Control::default();
        self.store(self.entry.state().instance().wrapping_add(1), 0, Body::default());
    }

    /// Stores body and state together, so that a thread that reads the body and then the state sees a
    /// consistent pair. No other thread writes the state meanwhile: guards are neither granted nor held, and
    /// changes are exclusive.
    fn store(&self, instance: u8, flags: u64, body: Body) {
        let state = self.entry.state();
        assert!(!state.is_valid() && state.guards() == 0, "entry changed while it is in use");
        let mut place = write(&self.entry.body);
        *place = body;
        self.entry.touched.store(0, Ordering::Relaxed);
        self.entry.state.store(State::new(instance, flags).0, Ordering::Release);
    }
}

impl Body {
    /// The body of an entry that names no memory: only kind and domain stay.
    pub(super) fn emptied(&self) -> Self {
        Self { kind: self.kind, domain: self.domain, ..Self::default() }
    }
}

impl<'t> Guard<'t> {
    pub(super) fn entry(&self) -> &'t Entry {
        self.entry
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: everything done under this guard happens before a waiting revocation continues.
        let before = State(self.entry.state.fetch_sub(GUARD, Ordering::Release));
        if before.guards() == 1 && before.0 & AWAITED != 0 {
            self.guard_wait.notify();
        }
    }
}

impl fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("state", &self.entry.state()).finish_non_exhaustive()
    }
}

impl GuardWait {
    /// Wakes waiting threads: the last guard of some entry was dropped.
    #[cold]
    fn notify(&self) {
        drop(lock(&self.lock));
        self.last_dropped.notify_all();
    }
}
