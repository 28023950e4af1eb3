//! [`Pool`], the windows of an adapter, shared by all threads. `memory.rs` takes one for each copy.
//!
//! A copy holds a window for a microsecond, so there need not be more windows than threads that copy at the same time.
//! Windows are created when they are first needed. A thread prefers the window that it used before, whose bytes are
//! still in the cache of its processor.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Maximum number of windows. If more threads copy at the same time, the others wait.
const MAX_WINDOWS: usize = 16;

/// A pool of windows of type `W`.
#[derive(Debug)]
pub(super) struct Pool<W> {
    /// The first slot always has a window. The others are empty until a thread first needs them.
    slots: [Slot<W>; MAX_WINDOWS],
    /// Creates a window.
    make: fn() -> io::Result<W>,
}

/// A window that a thread locks for the duration of a copy. Each has a cache line of its own, so that threads do not
/// slow each other down.
#[derive(Debug)]
#[repr(align(64))]
struct Slot<W>(Mutex<Option<W>>);

impl<W> Pool<W> {
    /// Creates a pool with one window.
    pub(super) fn new(make: fn() -> io::Result<W>) -> io::Result<Self> {
        let mut slots: [Slot<W>; MAX_WINDOWS] = std::array::from_fn(|_| Slot(Mutex::new(None)));
        slots[0] = Slot(Mutex::new(Some(make()?)));
        Ok(Self { slots, make })
    }

    /// Calls `copy` with a window that no other thread uses meanwhile.
    pub(super) fn with<T>(&self, copy: impl FnOnce(&W) -> T) -> T {
        let preferred = preferred_slot();
        let free = (0..MAX_WINDOWS).find_map(|step| self.slots[(preferred + step) % MAX_WINDOWS].try_lock());
        let mut slot = free.unwrap_or_else(|| self.slots[preferred].lock());
        if slot.is_none() {
            *slot = (self.make)().ok();
        }
        if let Some(window) = &*slot {
            return copy(window);
        }
        // No window could be created, for example because no file descriptors are left: wait for the first.
        drop(slot);
        copy(self.slots[0].lock().as_ref().expect("the first window was made with the pool"))
    }
}

impl<W> Slot<W> {
    /// Locks the slot, unless another thread has locked it.
    fn try_lock(&self) -> Option<MutexGuard<'_, Option<W>>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::WouldBlock) => None,
            // A copy does not depend on the contents of the window, so a panic in an earlier copy does no harm.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        }
    }

    /// Locks the slot, and waits for other threads to unlock it.
    fn lock(&self) -> MutexGuard<'_, Option<W>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the index of the slot that this thread tries first. Threads get indices round robin.
fn preferred_slot() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static PREFERRED: Cell<Option<usize>> = const { Cell::new(None) });
    PREFERRED.get().unwrap_or_else(|| {
        let preferred = NEXT.fetch_add(1, Ordering::Relaxed) % MAX_WINDOWS;
        PREFERRED.set(Some(preferred));
        preferred
    })
}
