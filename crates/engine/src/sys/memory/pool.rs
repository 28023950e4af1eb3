//! The windows of a process, shared by its threads. `memory.rs` takes one for each copy.
//!
//! A copy holds a window for a microsecond, so there need not be more of them than threads that copy at the same time;
//! they are created when they are first needed. A thread uses the same window again, whose bytes its processor still has in cache.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Maximum number of windows. Threads beyond that wait for each other.
const MOST: usize = 16;

#[derive(Debug)]
pub(super) struct Pool<W> {
    /// The first is always there.
    slots: [Slot<W>; MOST],
    make: fn() -> io::Result<W>,
}

/// A cache line each, so that threads do not slow each other down.
#[derive(Debug)]
#[repr(align(64))]
struct Slot<W>(Mutex<Option<W>>);

impl<W> Pool<W> {
    pub(super) fn new(make: fn() -> io::Result<W>) -> io::Result<Self> {
        let mut slots: [Slot<W>; MOST] = std::array::from_fn(|_| Slot(Mutex::new(None)));
        slots[0] = Slot(Mutex::new(Some(make()?)));
        Ok(Self { slots, make })
    }

    /// Calls `copy` with a window that no other thread uses meanwhile.
    pub(super) fn with<T>(&self, copy: impl FnOnce(&W) -> T) -> T {
        let own = own_slot();
        let free = (0..MOST).find_map(|step| self.slots[(own + step) % MOST].try_lock());
        let mut slot = free.unwrap_or_else(|| self.slots[own].lock());
        if slot.is_none() {
            *slot = (self.make)().ok();
        }
        if let Some(window) = &*slot {
            return copy(window);
        }
        // No file descriptors left: share the first.
        drop(slot);
        copy(self.slots[0].lock().as_ref().expect("the first window was made with the pool"))
    }
}

impl<W> Slot<W> {
    fn try_lock(&self) -> Option<MutexGuard<'_, Option<W>>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::WouldBlock) => None,
            // A window has nothing that a copy depends on.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<W>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The slot that this thread tries first.
fn own_slot() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static OWN: Cell<Option<usize>> = const { Cell::new(None) });
    OWN.get().unwrap_or_else(|| {
        let own = NEXT.fetch_add(1, Ordering::Relaxed) % MOST;
        OWN.set(Some(own));
        own
    })
}
