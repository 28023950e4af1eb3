//! One entry of the table, the guards on it, and how it is taken away from them.
//!
//! Three parts, for three kinds of haste. The state word is all that an access has to win: one exchange that succeeds only
//! while the entry is valid gives a guard. The body says what the entry names; it is written only while the entry is not
//! valid and no guard is out, so reading it under a guard hardly ever waits. The control part is for those who change the
//! entry; its lock is held through a whole change, and no access ever takes it.

use super::{Domain, EntryInfo, Kind, Rights, Translation, tag_of};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, lock, read, wait, write};
use ironwarp_wire::Tag;
use std::fmt;
use std::sync::Arc;

/// As long as this is held, the memory it was given for stays the tag's: whoever takes the tag away waits.
///
/// Hold it for as long as bytes move, and no longer. Several may be held at once, also on one entry. Who holds one must not
/// take a tag away (`deregister`, `invalidate`, `bind`): it might wait for itself.
pub struct Guard<'t> {
    entry: &'t Entry,
    departures: &'t Departures,
}

/// A guard that is kept for the next access, which as a rule names the same tag; and what was found under it.
///
/// The rules of a [`Guard`] hold for it: keep it while bytes move, and for no longer.
pub struct Hold<'t> {
    pub(super) tag: Tag,
    pub(super) body: RwLockReadGuard<'t, Body>,
    pub(super) state: State,
    /// Behind the lock of the body: who waits for the guard, writes the body.
    pub(super) guard: Guard<'t>,
}

impl fmt::Debug for Hold<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("tag", &self.tag).finish_non_exhaustive()
    }
}

/// Where those who take an entry away wait for the last guard. One for the whole table: it is rare that a guard is out.
#[derive(Debug, Default)]
pub(super) struct Departures {
    lock: Mutex<()>,
    last_left: Condvar,
}

/// One entry. On cache lines of its own, so that guards on neighbours do not slow each other down.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Entry {
    state: AtomicU64,
    /// Of one-touch memory: the number of the message that has it. Zero: none yet.
    touched: AtomicU64,
    body: RwLock<Body>,
    control: Mutex<Control>,
}

/// What an entry names (requirement M3). Not used unless the entry is valid, but for kind and domain.
#[derive(Clone, Debug, Default)]
pub(super) struct Body {
    pub(super) kind: Kind,
    pub(super) domain: Domain,
    /// The only queue pair whose peer may use it; all of the domain if there is none.
    pub(super) qp: Option<u32>,
    pub(super) rights: Rights,
    /// Whether it serves one message of a peer's.
    pub(super) one_touch: bool,
    /// The offset of its first byte, and how many there are.
    pub(super) start: u64,
    pub(super) len: u64,
    /// Where it is: from byte `skip` of the translation on.
    pub(super) translation: Option<Arc<Translation>>,
    pub(super) skip: u64,
}

/// What only those need who change the entry.
#[derive(Debug, Default)]
pub(super) struct Control {
    /// How many windows are bound to this region.
    pub(super) windows: u32,
    /// The index of the region that this window is bound to.
    pub(super) region: Option<u32>,
    /// Whether it can be made invalid and still be kept: it is a window, or for send-queue registrations.
    pub(super) keepable: bool,
    /// Whether the tag was valid once, so that the next registration needs a new instance.
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
/// The entry is somebody's, valid or not.
const TAKEN: u64 = 1 << 41;
/// Somebody waits for the last guard.
const AWAITED: u64 = 1 << 42;
/// Its registration is under way (requirement X6): it is not valid yet.
const PENDING: u64 = 1 << 43;

/// Who changes an entry holds this: no other change happens meanwhile.
#[derive(Debug)]
pub(super) struct Change<'t> {
    pub(super) entry: &'t Entry,
    pub(super) control: MutexGuard<'t, Control>,
    departures: &'t Departures,
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

    #[expect(clippy::cast_possible_truncation, reason = "the eight bits that are wanted")]
    pub(super) const fn instance(self) -> u8 {
        (self.0 >> INSTANCE_SHIFT) as u8
    }

    const fn new(instance: u8, flags: u64) -> Self {
        Self((instance as u64) << INSTANCE_SHIFT | flags)
    }
}

impl Entry {
    /// An entry that nobody uses. Its first tag will have this instance.
    pub(super) fn new(instance: u8) -> Self {
        Self { state: AtomicU64::new(State::new(instance, 0).0), ..Self::default() }
    }

    /// Takes a guard, if the entry is valid, whatever its instance: that comes fourth of the checks, and cannot change
    /// while the guard is held.
    #[inline]
    pub(super) fn guard<'t>(&'t self, departures: &'t Departures) -> Option<(Guard<'t>, State)> {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            if !State(state).is_valid() {
                return None;
            }
            // Acquire: with `publish`, so that the body is seen as it was written.
            match self.state.compare_exchange_weak(state, state + GUARD, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return Some((Guard { entry: self, departures }, State(state))),
                Err(now) => state = now,
            }
        }
    }

    /// Waits until nobody else changes the entry.
    pub(super) fn change<'t>(&'t self, departures: &'t Departures) -> Change<'t> {
        Change { entry: self, control: lock(&self.control), departures }
    }

    pub(super) fn state(&self) -> State {
        State(self.state.load(Ordering::Acquire))
    }

    /// Of one-touch memory: whether it serves the message of this number, be it from now on. Ask under a guard.
    pub(super) fn claim(&self, number: u64) -> bool {
        // Relaxed: only who was first matters. `store` resets it while no guard is out, and guards see that.
        match self.touched.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(by) => by == number,
        }
    }

    /// The number of the message that has it.
    pub(super) fn claimed_by(&self) -> u64 {
        self.touched.load(Ordering::Relaxed)
    }

    /// Lets no new guard out and waits for none, so that who holds one may do it. Whoever changes the entry next waits.
    pub(super) fn shut(&self) {
        self.state.fetch_and(!VALID, Ordering::Relaxed);
    }

    /// What a message says of it.
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
    /// Ends all access: no new guard is given, and when this returns all old ones are gone. Does nothing if the entry is
    /// not valid.
    pub(super) fn revoke(&self) {
        // Acquire: what was done under guards that are gone has been done.
        let before = State(self.entry.state.fetch_and(!VALID, Ordering::Acquire));
        if before.guards() == 0 {
            return;
        }
        self.entry.state.fetch_or(AWAITED, Ordering::Relaxed);
        let mut waiting = lock(&self.departures.lock);
        // The last guard takes this lock before it wakes us, so its wake cannot fall between the look and the wait.
        while self.entry.state().guards() != 0 {
            waiting = wait(&self.departures.last_left, waiting);
        }
    }

    /// Makes the entry valid with this body and instance.
    pub(super) fn publish(&mut self, instance: u8, body: Body) {
        self.control.used = true;
        self.store(instance, VALID | TAKEN, body);
    }

    /// Makes the entry somebody's, with a body that is not valid yet.
    pub(super) fn keep(&mut self, instance: u8, body: Body) {
        self.store(instance, TAKEN, body);
    }

    /// The same, and its registration is under way.
    pub(super) fn keep_pending(&mut self, instance: u8, body: Body) {
        self.store(instance, TAKEN | PENDING, body);
    }

    /// Gives the entry back, under the next instance: the old tag is not honoured again (requirement M4).
    pub(super) fn release(&mut self) {
        *self.control = Control::default();
        self.store(self.entry.state().instance().wrapping_add(1), 0, Body::default());
    }

    /// Both together, so that who reads the body and then the state sees what belongs together. Nobody else writes the state
    /// meanwhile: guards are neither given nor out, and changes come one at a time.
    fn store(&self, instance: u8, flags: u64, body: Body) {
        let state = self.entry.state();
        assert!(!state.is_valid() && state.guards() == 0, "an entry is changed while it can be used");
        let mut place = write(&self.entry.body);
        *place = body;
        self.entry.touched.store(0, Ordering::Relaxed);
        self.entry.state.store(State::new(instance, flags).0, Ordering::Release);
    }
}

impl Body {
    /// The same entry with nothing to name: kind and domain stay.
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
        // Release: what was done under this guard was done before whoever waits goes on.
        let before = State(self.entry.state.fetch_sub(GUARD, Ordering::Release));
        if before.guards() == 1 && before.0 & AWAITED != 0 {
            self.departures.announce();
        }
    }
}

impl fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("state", &self.entry.state()).finish_non_exhaustive()
    }
}

impl Departures {
    /// The last guard of some entry is gone.
    #[cold]
    fn announce(&self) {
        drop(lock(&self.lock));
        self.last_left.notify_all();
    }
}
