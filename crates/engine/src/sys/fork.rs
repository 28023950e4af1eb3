//! Closes the adapter's descriptors in forked children. A child has copies of all descriptors and of all memory, but none of the threads that drive them. The copies of the descriptors
//! must be closed at once: as long as the child has them, connections do not end when the parent closes them, ports stay in use, and the
//! child, which may have dropped its privileges, could read what the parent sends and receives.
//!
//! [`Fd`] is a descriptor that is registered here. In a child each registered descriptor is replaced by one for `/dev/null`: the number
//! stays in use, so that the child's copy of an `Fd` cannot reach a file that got the number later. Adapters of the parent must not be
//! used in the child.
//!
//! The thread that forks holds the locks that belong to the process rather than to an adapter, so that a child can open adapters of its
//! own.
#![expect(unsafe_code, reason = "the C library's fork handlers")]

use super::counters;
use ironwarp_rnic::host::{WordLocks, lock_all_words};
use ironwarp_rnic::sync;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::DupFlags;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Once, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Descriptor numbers from this one on are not registered. By default the kernel allows a process no more descriptors.
const MAX_FDS: usize = 1 << 20;

/// A bit for each registered descriptor.
static REGISTERED: [AtomicU64; MAX_FDS / 64] = [const { AtomicU64::new(0) }; MAX_FDS / 64];

/// The inode of each registered descriptor, or 0 if it is unknown, to notice that a number refers to another file. (All epoll, eventfd and
/// timerfd descriptors share one inode.) The pages of this array are allocated when they are first written.
static INODES: [AtomicU64; MAX_FDS] = [const { AtomicU64::new(0) }; MAX_FDS];

/// Read-locked by threads that open or close a descriptor, write-locked by a thread that forks: during a fork, every open [`Fd`] is
/// registered.
static FORKING: RwLock<()> = RwLock::new(());

/// A descriptor that forked children do not keep.
///
/// The program may close it behind the adapter's back, for example with closefrom(3), and its number may then refer to another file. When a
/// call fails with EBADF or ENOTSOCK, the descriptor is considered [lost](Self::lose): from then on the number is neither used nor
/// closed. Before a number is closed, its inode is compared. Until the adapter notices, its reads and writes reach
/// whatever the program has opened under the number since; a check before each call would double the number of system calls.
#[derive(Debug)]
pub struct Fd(AtomicI32);

/// The number of a lost [`Fd`]. It is never open: the kernel allows a process no more than 2^30 descriptors.
const LOST: RawFd = RawFd::MAX;

impl Fd {
    /// Calls `open` and registers the descriptor that it returns.
    pub(super) fn open<E>(open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Self, E> {
        Self::open_with(|| open().map(|fd| (fd, ()))).map(|(fd, ())| fd)
    }

    /// Calls `open` and registers the descriptor that it returns. Returns the other value that `open` returned, too.
    pub(super) fn open_with<T, E>(open: impl FnOnce() -> Result<(OwnedFd, T), E>) -> Result<(Self, T), E> {
        watch_forks();
        let _no_fork = block_forks();
        open().map(|(fd, more)| (Self::register(fd), more))
    }

    /// Calls `open` and registers the two descriptors that it returns.
    pub(super) fn open_both<E>(
        open: impl FnOnce() -> Result<(OwnedFd, OwnedFd), E>,
    ) -> Result<(Self, Self), E> {
        watch_forks();
        let _no_fork = block_forks();
        open().map(|(one, other)| (Self::register(one), Self::register(other)))
    }

    /// Registers a descriptor. The caller must block forks.
    fn register(fd: OwnedFd) -> Self {
        if let Some((word, bit)) = registry_bit(fd.as_raw_fd()) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        if let Some(known) = inode(fd.as_raw_fd()) {
            known.store(rustix::fs::fstat(&fd).map_or(0, |stat| stat.st_ino), Ordering::Relaxed);
        }
        Self(AtomicI32::new(fd.into_raw_fd()))
    }

    /// Marks the descriptor as lost: the program has closed its number, or the number refers to another file. Later calls with it fail
    /// with EBADF.
    #[cold]
    pub(super) fn lose(&self) {
        let _no_fork = block_forks();
        unregister(self.0.swap(LOST, Ordering::Relaxed));
    }

    /// Returns whether the number still refers to the file that was opened. If not, marks the descriptor as lost. This is a system call:
    /// it is only made before a call that would harm another file, such as closing.
    pub(super) fn verify(&self) -> bool {
        let fd = self.as_raw_fd();
        let same = rustix::fs::fstat(self).is_ok_and(|stat| {
            inode(fd).is_none_or(
                |known| matches!(known.load(Ordering::Relaxed), known if known == 0 || known == stat.st_ino),
            )
        });
        if !same {
            self.lose();
        }
        same
    }

    /// Closes the file at once, although other code may still use this descriptor. The number stays reserved: from now on it refers to an
    /// idle eventfd. Does nothing if the program has closed or replaced the descriptor.
    pub(super) fn close_now(&self) -> rustix::io::Result<()> {
        if !self.verify() {
            return Ok(());
        }
        let placeholder = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        let stat = rustix::fs::fstat(&placeholder)?;
        let _no_fork = block_forks();
        let fd = self.as_raw_fd();
        // SAFETY: `self` owns the number and closes it on drop; `target` is never dropped.
        let mut target = ManuallyDrop::new(unsafe { <OwnedFd as rustix::fd::FromRawFd>::from_raw_fd(fd) });
        rustix::io::dup3(&placeholder, &mut target, DupFlags::CLOEXEC)?;
        // Otherwise drop would take the eventfd for a file of the program and not close it.
        inode(fd).into_iter().for_each(|known| known.store(stat.st_ino, Ordering::Relaxed));
        Ok(())
    }

    /// Returns whether the descriptor is [lost](Self::lose), as far as is known.
    pub(super) fn is_lost(&self) -> bool {
        self.as_raw_fd() == LOST
    }
}

/// Returns where the inode of a descriptor is stored. `None` if the number is too large to be registered.
fn inode(fd: RawFd) -> Option<&'static AtomicU64> {
    INODES.get(usize::try_from(fd).ok()?)
}

/// Unregisters a descriptor. The caller must block forks.
fn unregister(fd: RawFd) {
    if let Some((word, bit)) = registry_bit(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if self.verify() {
            let _no_fork = block_forks();
            let fd = *self.0.get_mut();
            unregister(fd);
            // A raw system call: the C library's close is a cancellation point, and programs poll and post on threads that they
            // cancel; rustix's close panics in debug builds if the program has closed the number since.
            // SAFETY: `self` owns the number, which is not used after this.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the number stays open as long as `self` lives, unless the program closes descriptors that it does not own; or it is
        // `LOST`, for which every call fails with EBADF. It is not -1.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

impl AsRawFd for Fd {
    #[inline]
    fn as_raw_fd(&self) -> RawFd {
        self.0.load(Ordering::Relaxed)
    }
}

/// Keeps all threads from forking while the guard is held.
fn block_forks() -> RwLockReadGuard<'static, ()> {
    sync::read(&FORKING)
}

/// Returns the word of [`REGISTERED`] and the bit in it that stand for a descriptor. `None` if the number is too large.
fn registry_bit(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((REGISTERED.get(fd / 64)?, 1 << (fd % 64)))
}

/// Returns the registered descriptors.
pub(crate) fn registered() -> impl Iterator<Item = RawFd> {
    let numbers = |(at, word): (usize, &AtomicU64)| {
        let bits = word.load(Ordering::Relaxed);
        (0..64).filter(move |bit| bits & (1 << bit) != 0).map(move |bit| at * 64 + bit)
    };
    REGISTERED.iter().enumerate().flat_map(numbers).filter_map(|fd| RawFd::try_from(fd).ok())
}

/// Functions that take and release a process-wide lock of a higher layer. The thread that forks holds the lock during the fork, so that no
/// other thread does, and the child's copy of the lock is free once the handler in the child has released it.
#[derive(Debug)]
pub(crate) struct ProcessLock {
    pub(crate) lock: fn(),
    pub(crate) unlock: fn(),
}

/// The process-wide lock of a higher layer, once [`hold_during_forks`] was called.
static PROCESS_LOCK: OnceLock<&'static ProcessLock> = OnceLock::new();

/// Makes every thread that forks hold this lock during the fork. Call it before the lock is taken for the first time.
pub(crate) fn hold_during_forks(lock: &'static ProcessLock) {
    if PROCESS_LOCK.get().is_none() {
        let _no_fork = block_forks();
        PROCESS_LOCK.get_or_init(|| lock);
    }
}

/// What the thread that forks holds from [`before`] to [`release`].
struct Held {
    _word_locks: WordLocks,
    _descriptors: RwLockWriteGuard<'static, ()>,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Registers the fork handlers of this file, once.
fn watch_forks() {
    static ONCE: Once = Once::new();
    // If registration fails for lack of memory, forks go unnoticed.
    ONCE.call_once(|| register_handlers(Some(before), Some(in_parent), Some(in_child)));
}

/// A fork handler, as pthread_atfork(3) takes it.
pub type Handler = extern "C" fn();

/// Registers fork handlers for as long as the process runs. `before` is called before a fork; afterwards `in_parent` is called in the
/// parent and `in_child` in the child. The code that calls this must never be unloaded.
///
/// pthread_atfork(3) is not used: it ties the handlers to the calling library, and exit(3) removes them when it finishes that library.
/// glibc (2.36) then aborts a fork that another thread has begun, or does not call the handlers that release what `before` took.
/// Handlers that belong to no library stay.
pub fn register_handlers(before: Option<Handler>, in_parent: Option<Handler>, in_child: Option<Handler>) {
    unsafe extern "C" {
        fn __register_atfork(
            before: Option<Handler>,
            in_parent: Option<Handler>,
            in_child: Option<Handler>,
            library: *const c_void,
        ) -> c_int;
    }
    // SAFETY: the functions are never unloaded. glibc exports this for libc_nonshared.a, whose pthread_atfork calls nothing else.
    unsafe { __register_atfork(before, in_parent, in_child, ptr::null()) };
}

/// Takes the process-wide locks.
extern "C" fn before() {
    // In the order in which all other code takes these locks.
    let word_locks = lock_all_words();
    let descriptors = loop {
        let process = PROCESS_LOCK.get().inspect(|process| (process.lock)());
        let descriptors = sync::write(&FORKING);
        // Another thread may have called `hold_during_forks` and taken its lock between the two lines above: then try again, with it.
        if process.is_some() || PROCESS_LOCK.get().is_none() {
            break descriptors;
        }
    };
    HELD.with_borrow_mut(|slot| *slot = Some(Held { _word_locks: word_locks, _descriptors: descriptors }));
}

extern "C" fn in_parent() {
    release();
}

/// Releases what [`before`] took.
fn release() {
    HELD.take();
    PROCESS_LOCK.get().inspect(|process| (process.unlock)());
}

/// Closes the child's copies of all registered descriptors, and releases the locks.
extern "C" fn in_child() {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok();
    for (at, word) in REGISTERED.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let fd = at * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            if let Ok(fd) = RawFd::try_from(fd) {
                replace(fd, null.as_ref());
            }
        }
    }
    counters::forget();
    release();
}

/// Makes the child's copy of a descriptor refer to `/dev/null`, which is open as `null`. Closes the copy if that fails.
fn replace(fd: RawFd, null: Option<&OwnedFd>) {
    let replaced = null.is_some_and(|null| {
        // SAFETY: the number is registered, so it is open in the child as well; `target` is never dropped.
        let mut target = ManuallyDrop::new(unsafe { <OwnedFd as rustix::fd::FromRawFd>::from_raw_fd(fd) });
        rustix::io::dup3(null, &mut target, DupFlags::CLOEXEC).is_ok()
    });
    if !replaced {
        // SAFETY: as above; nothing in the child uses the parent's adapters.
        unsafe { rustix::io::close(fd) };
    }
}
