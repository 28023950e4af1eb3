//! [`Pool`], the windows of an adapter. `memory.rs` uses one for each copy.
//!
//! Each thread that copies has a window of its own, which no lock protects and whose bytes stay in the cache of the
//! thread's processor. It is created when the thread first needs it, and the next thread uses it after that thread has
//! ended. If there are more than [`MAX_THREADS`] threads, the others share one window.

use ironwarp_rnic::sync::lock;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Maximum number of threads with a window of their own. One bit of [`TAKEN`] for each.
const MAX_THREADS: usize = u64::BITS as usize;

/// Interval between two attempts to create a window, after one has failed. If no descriptors are left, an attempt at each
/// copy would be slow, and would take the descriptor with which connections are reset (`cm/accept.rs`).
const RETRY: Duration = Duration::from_secs(1);

/// The indices that threads have: no two threads of the process have the same.
static TAKEN: AtomicU64 = AtomicU64::new(0);

thread_local!(static INDEX: Index = Index::take());

/// A pool of windows of type `W`.
#[derive(Debug)]
pub(super) struct Pool<W> {
    /// The windows of threads, each at the index that the thread has.
    own: [OnceLock<W>; MAX_THREADS],
    /// The window of threads that have none of their own.
    shared: Mutex<W>,
    /// Creates a window.
    make: fn() -> io::Result<W>,
    /// When that last failed.
    failed_at: Mutex<Option<Instant>>,
}

impl<W> Pool<W> {
    /// Creates a pool with one window.
    pub(super) fn new(make: fn() -> io::Result<W>) -> io::Result<Self> {
        let own = [const { OnceLock::new() }; MAX_THREADS];
        Ok(Self { own, shared: Mutex::new(make()?), make, failed_at: Mutex::new(None) })
    }

    /// Calls `copy` with a window that no other thread uses meanwhile.
    #[inline]
    pub(super) fn with<T>(&self, copy: impl FnOnce(&W) -> T) -> T {
        // A thread that is ending may copy after its index was dropped.
        let index = INDEX.try_with(|index| index.0).ok().flatten();
        match index.and_then(|index| self.own[index].get().or_else(|| self.create(index))) {
            Some(window) => copy(window),
            None => copy(&lock(&self.shared)),
        }
    }

    /// Creates the window of the thread with this index. Returns `None` if that fails, for example because no file
    /// descriptors are left, or has failed shortly before.
    #[cold]
    fn create(&self, index: usize) -> Option<&W> {
        let mut failed_at = lock(&self.failed_at);
        if failed_at.is_some_and(|at| at.elapsed() < RETRY) {
            return None;
        }
        match (self.make)() {
            Ok(window) => Some(self.own[index].get_or_init(|| window)),
            Err(_) => {
                *failed_at = Some(Instant::now());
                None
            }
        }
    }
}

/// The index of a thread, until it ends. `None` if all are taken.
struct Index(Option<usize>);

impl Index {
    /// Takes a free index for this thread.
    fn take() -> Self {
        let with_lowest = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
        // Acquire pairs with the release in `drop`: what the last thread with this index copied comes before.
        let taken = TAKEN.fetch_update(Ordering::Acquire, Ordering::Relaxed, with_lowest);
        Self(taken.ok().map(|before| before.trailing_ones() as usize))
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        if let Some(index) = self.0 {
            TAKEN.fetch_and(!(1 << index), Ordering::Release);
        }
    }
}
