//! Closes the adapter's descriptors in forked children. A child has copies of all descriptors and of all memory of its
//! parent, but none of its threads. The copies of the descriptors must be closed at once: as long as the child has
//! them, connections do not end when the parent closes them, ports stay in use, and the child, which may have dropped
//! its privileges, could read what the parent sends and receives.
//!
//! [`Fd`] is a descriptor that is registered here. In a child each registered descriptor is replaced by one for
//! `/dev/null`. The number thus stays in use, so that the child's copy of an `Fd` cannot refer to a file that the child
//! opens later. Adapters of the parent must not be used in the child.
//!
//! During a fork, the forking thread holds all locks of process-wide state (as opposed to locks of one adapter). So no
//! other thread holds them at that moment, the child's copies of them are not locked forever, and the child can open
//! adapters of its own.
#![expect(unsafe_code, reason = "the C library's fork handlers")]

use super::counters::{self, SharedTraffic};
use ironwarp_rnic::host::{WordLocks, lock_all_words};
use ironwarp_rnic::sync;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::DupFlags;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, Once, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Descriptor numbers from this one on cannot be registered. By default (fs.nr_open) no process has such numbers.
const MAX_FDS: usize = 1 << 20;

/// A bit for each descriptor number, set while it is registered.
static REGISTERED: [AtomicU64; MAX_FDS / 64] = [const { AtomicU64::new(0) }; MAX_FDS / 64];

/// The inode of each registered descriptor, or 0 if it is unknown. If the inode has changed, the program has closed the
/// descriptor and its number refers to another file. (All epoll, eventfd and timerfd descriptors share one inode, so
/// that a change from one of them to another goes unnoticed.) The kernel allocates the pages of this array when they
/// are first written.
static INODES: [AtomicU64; MAX_FDS] = [const { AtomicU64::new(0) }; MAX_FDS];

/// Number of forks between the first process that used the adapter and this one. Two bytes, because each queue pair has
/// one: no value outlives 65,536 forks, each by the child of the last.
static GENERATION: AtomicU16 = AtomicU16::new(0);

/// The process that created a value. A forked child inherits the value, and is another process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Creator(u16);

impl Creator {
    /// Returns this process.
    #[inline]
    pub(crate) fn this() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Returns whether this process is a forked child of the creator.
    #[inline]
    pub(crate) fn is_parent(self) -> bool {
        self.0 != Self::this().0
    }
}

/// Read-locked by threads that open or close a descriptor, write-locked by a thread that forks. So during a fork every
/// open [`Fd`] is registered.
static FORKING: RwLock<()> = RwLock::new(());

/// An open descriptor, registered to be closed in forked children. Holds the descriptor number, or `LOST`.
///
/// The program may close the descriptor without the adapter's knowledge, for example with closefrom(3), and its number
/// may then refer to another file. When a call fails with EBADF or ENOTSOCK, the descriptor is marked as
/// lost: from then on its number is neither used nor closed. Before a descriptor is closed, its inode
/// is compared. Until the loss is noticed, reads and writes of the adapter go to the file that has the number now; a
/// check before each call would double the number of system calls.
#[derive(Debug)]
pub struct Fd(AtomicI32);

/// The number of a lost [`Fd`]. It is never open: the kernel allows a process no more than 2^30 descriptors.
const LOST: RawFd = RawFd::MAX;

impl Fd {
    /// Calls `open`, and registers the descriptor that `open` returns.
    pub(super) fn open<E>(open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Self, E> {
        Self::open_with(|| open().map(|fd| (fd, ()))).map(|(fd, ())| fd)
    }

    /// Calls `open`, and registers the descriptor that `open` returns. Passes on the other value that `open` returns.
    pub(super) fn open_with<T, E>(open: impl FnOnce() -> Result<(OwnedFd, T), E>) -> Result<(Self, T), E> {
        install_fork_handlers();
        let _no_fork = block_forks();
        open().map(|(fd, more)| (Self::register(fd), more))
    }

    /// Calls `open`, and registers the two descriptors that `open` returns.
    pub(super) fn open_both<E>(
        open: impl FnOnce() -> Result<(OwnedFd, OwnedFd), E>,
    ) -> Result<(Self, Self), E> {
        install_fork_handlers();
        let _no_fork = block_forks();
        open().map(|(one, other)| (Self::register(one), Self::register(other)))
    }

    /// Registers a descriptor. The caller must block forks.
    fn register(fd: OwnedFd) -> Self {
        if let Some((word, bit)) = registry_bit(fd.as_raw_fd()) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        if let Some(inode) = inode_slot(fd.as_raw_fd()) {
            inode.store(rustix::fs::fstat(&fd).map_or(0, |stat| stat.st_ino), Ordering::Relaxed);
        }
        Self(AtomicI32::new(fd.into_raw_fd()))
    }

    /// Marks the descriptor as lost and unregisters its number, because the program has closed it or the number refers
    /// to another file. Later system calls with this `Fd` fail with EBADF.
    #[cold]
    pub(super) fn mark_lost(&self) {
        let _no_fork = block_forks();
        unregister(self.0.swap(LOST, Ordering::Relaxed));
    }

    /// Returns whether the number still refers to the file that was opened. If not, marks the descriptor as lost. Costs
    /// a system call, so it is used only before a call that would harm another file, such as closing.
    pub(super) fn verify(&self) -> bool {
        let fd = self.as_raw_fd();
        let is_same = rustix::fs::fstat(self).is_ok_and(|stat| {
            let known = inode_slot(fd).map_or(0, |inode| inode.load(Ordering::Relaxed));
            known == 0 || known == stat.st_ino
        });
        if !is_same {
            self.mark_lost();
        }
        is_same
    }

    /// Closes the file at once, although other threads may still use this descriptor. The number stays in use: from now
    /// on it refers to an eventfd that is never signalled. Does nothing if the program has closed or replaced the
    /// descriptor.
    pub(super) fn close_now(&self) -> rustix::io::Result<()> {
        if !self.verify() {
            return Ok(());
        }
        let placeholder = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        let stat = rustix::fs::fstat(&placeholder)?;
        let _no_fork = block_forks();
        let fd = self.as_raw_fd();
        // SAFETY: `self` owns the number, and `target` is never dropped, so the number is not closed twice.
        let mut target = ManuallyDrop::new(unsafe { <OwnedFd as rustix::fd::FromRawFd>::from_raw_fd(fd) });
        rustix::io::dup3(&placeholder, &mut target, DupFlags::CLOEXEC)?;
        // Without this, `drop` would mistake the eventfd for a file of the program, and not close it.
        inode_slot(fd).into_iter().for_each(|inode| inode.store(stat.st_ino, Ordering::Relaxed));
        Ok(())
    }

    /// Returns whether the descriptor was [marked as lost](Self::mark_lost). False if the program has closed it and no
    /// call has noticed.
    pub(super) fn is_lost(&self) -> bool {
        self.as_raw_fd() == LOST
    }
}

/// Returns the element of [`INODES`] for a descriptor. `None` if the number is too large to be registered.
fn inode_slot(fd: RawFd) -> Option<&'static AtomicU64> {
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
            // The system call is made by number: the C library's close is a cancellation point, and programs poll and
            // post on threads that they cancel; rustix's close panics in debug builds if the program has closed the
            // number since `verify`.
            // SAFETY: `self` owns the number, and nothing uses `self` after `drop`.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the number stays open for as long as `self` is borrowed, unless the program closes descriptors that
        // it does not own; or the number is `LOST`, for which every call fails with EBADF. It is never -1.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

impl AsRawFd for Fd {
    #[inline]
    fn as_raw_fd(&self) -> RawFd {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns a guard that keeps all threads from forking.
fn block_forks() -> RwLockReadGuard<'static, ()> {
    sync::read(&FORKING)
}

/// Returns the word of [`REGISTERED`] and the bit in it that stand for a descriptor. `None` if the number is too large.
fn registry_bit(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((REGISTERED.get(fd / 64)?, 1 << (fd % 64)))
}

/// Returns the numbers of all registered descriptors.
pub(crate) fn registered() -> impl Iterator<Item = RawFd> {
    let numbers_of_word = |(index, word): (usize, &AtomicU64)| {
        let bits = word.load(Ordering::Relaxed);
        (0..64).filter(move |bit| bits & (1 << bit) != 0).map(move |bit| index * 64 + bit)
    };
    REGISTERED.iter().enumerate().flat_map(numbers_of_word).filter_map(|fd| RawFd::try_from(fd).ok())
}

/// Functions that take and release a process-wide lock of a higher layer. The forking thread holds the lock during the
/// fork, so that no other thread does. The fork handlers then release it, in the parent and in the child.
#[derive(Debug)]
pub(crate) struct ProcessLock {
    pub(crate) lock: fn(),
    pub(crate) unlock: fn(),
}

/// The process-wide locks of higher layers, in the order in which [`hold_during_forks`] was called for them. No thread
/// takes one of them while it holds another.
static PROCESS_LOCKS: [OnceLock<&'static ProcessLock>; 2] = [const { OnceLock::new() }; 2];

/// Makes every thread that forks hold this lock during the fork. Call it before the lock is taken for the first time.
pub(crate) fn hold_during_forks(lock: &'static ProcessLock) {
    if !PROCESS_LOCKS.iter().filter_map(OnceLock::get).any(|held| ptr::eq(*held, lock)) {
        let _no_fork = block_forks();
        let held = PROCESS_LOCKS.iter().any(|slot| ptr::eq(*slot.get_or_init(|| lock), lock));
        debug_assert!(held, "there are more locks than places for them");
    }
}

/// The locks that a forking thread holds from [`before_fork`] to [`release_locks`], besides [`PROCESS_LOCKS`].
struct Held {
    _word_locks: WordLocks,
    _descriptors: RwLockWriteGuard<'static, ()>,
    shared: MutexGuard<'static, Vec<Arc<SharedTraffic>>>,
}

/// A variable of a thread that has a value only while the thread forks. It has no destructor: exit handlers, which run after
/// the destructors of thread-local variables, may fork.
#[derive(Debug)]
pub struct WhileForking<T>(RefCell<Option<ManuallyDrop<T>>>);

impl<T> WhileForking<T> {
    /// Creates a variable without a value.
    #[expect(clippy::new_without_default, reason = "a thread-local variable is created by a const function")]
    pub const fn new() -> Self {
        Self(RefCell::new(None))
    }

    /// Sets the value, which must be taken after the fork.
    pub fn set(&self, value: T) {
        *self.0.borrow_mut() = Some(ManuallyDrop::new(value));
    }

    /// Takes the value.
    pub fn take(&self) -> Option<T> {
        self.0.take().map(ManuallyDrop::into_inner)
    }
}

thread_local! {
    /// The locks of this thread while it forks.
    static HELD: WhileForking<Held> = const { WhileForking::new() };
}

/// Registers the fork handlers of this file with the C library. Only the first call does anything.
fn install_fork_handlers() {
    static ONCE: Once = Once::new();
    // If registration fails for lack of memory, children keep the descriptors.
    ONCE.call_once(|| register_handlers(Some(before_fork), Some(release_locks), Some(close_in_child)));
}

/// A fork handler, as pthread_atfork(3) takes it.
pub type Handler = extern "C" fn();

/// Registers fork handlers for as long as the process runs. `before` is called before a fork; afterwards `in_parent` is
/// called in the parent and `in_child` in the child. The library that contains the handlers must never be unloaded.
///
/// pthread_atfork(3) is not used: it ties the handlers to the calling library, and exit(3) removes them when it runs
/// the destructors of that library. glibc (2.36) then aborts a fork that another thread has begun, or does not call
/// `in_parent` and `in_child`, and locks that `before` took stay locked. Handlers that are registered without a library
/// are not removed.
pub fn register_handlers(before: Option<Handler>, in_parent: Option<Handler>, in_child: Option<Handler>) {
    unsafe extern "C" {
        fn __register_atfork(
            before: Option<Handler>,
            in_parent: Option<Handler>,
            in_child: Option<Handler>,
            library: *const c_void,
        ) -> c_int;
    }
    // SAFETY: the caller guarantees that the functions are never unloaded. glibc exports `__register_atfork` for
    // libc_nonshared.a, whose pthread_atfork only calls it, with the library as last argument; a null library is
    // allowed.
    unsafe { __register_atfork(before, in_parent, in_child, ptr::null()) };
}

/// Fork handler: takes the process-wide locks, before a fork.
extern "C" fn before_fork() {
    // In the order in which all other code takes these locks: the word locks of atomic operations, the process locks,
    // FORKING, the list of shared memory.
    let word_locks = lock_all_words();
    let mut process_locks = PROCESS_LOCKS.iter().peekable();
    let descriptors = loop {
        while let Some(lock) = process_locks.next_if(|slot| slot.get().is_some()).and_then(OnceLock::get) {
            (lock.lock)();
        }
        let descriptors = sync::write(&FORKING);
        // If another thread has called `hold_during_forks` between the two lines above, its lock was not taken.
        if process_locks.peek().is_none_or(|slot| slot.get().is_none()) {
            break descriptors;
        }
    };
    let shared = counters::lock_shared();
    let held = Held { _word_locks: word_locks, _descriptors: descriptors, shared };
    HELD.with(|slot| slot.set(held));
}

/// Fork handler for the parent: releases the locks that [`before_fork`] took.
extern "C" fn release_locks() {
    drop(HELD.with(WhileForking::take));
    PROCESS_LOCKS.iter().filter_map(OnceLock::get).for_each(|lock| (lock.unlock)());
}

/// Fork handler for the child: closes the child's copies of all registered descriptors, and releases the locks.
extern "C" fn close_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    ironwarp_recorder::forget_in_child();
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok();
    for (at, word) in REGISTERED.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let fd = at * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1; // clears the lowest bit that is set
            if let Ok(fd) = RawFd::try_from(fd) {
                replace_with_null(fd, null.as_ref());
            }
        }
    }
    let mut held = HELD.with(WhileForking::take);
    counters::reset(held.as_mut().map(|held| &mut *held.shared));
    drop(held);
    release_locks();
}

/// Makes the child's copy of a descriptor refer to `/dev/null`, which is open as `null`. Closes the copy if that fails.
fn replace_with_null(fd: RawFd, null: Option<&OwnedFd>) {
    let replaced = null.is_some_and(|null| {
        // SAFETY: the number is registered, so it is open in the child as well; `target` is never dropped, so the
        // number stays open.
        let mut target = ManuallyDrop::new(unsafe { <OwnedFd as rustix::fd::FromRawFd>::from_raw_fd(fd) });
        rustix::io::dup3(null, &mut target, DupFlags::CLOEXEC).is_ok()
    });
    if !replaced {
        // SAFETY: the number is registered, so it is open, and nothing in the child uses the parent's adapters.
        unsafe { rustix::io::close(fd) };
    }
}
