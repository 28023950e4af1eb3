//! Forks. A child has copies of all descriptors and of all memory, but none of the threads that drive them: what it inherits
//! is dead there. The copies of the descriptors must go at once. As long as the child has them, connections do not end when
//! the parent closes them, ports stay taken, and the child, which may have dropped its privileges, could read notices for the
//! parent and what the parent sends and receives.
//!
//! [`Fd`] is a descriptor that is known here. In a child each is replaced by one that leads nowhere: its number stays taken,
//! so that whoever still has it in the child's copy of the memory cannot reach a file that got the number since. What
//! adapters of the parent are to the child is the business of whoever has them; they must not be used.
//!
//! Locks that belong to the process rather than to an adapter are held by the thread that forks, while it does, so that a
//! child can make adapters of its own.
#![expect(unsafe_code, reason = "the C library's fork handlers")]

use crate::gid::{GidTable, TableGuard};
use ironwarp_rnic::host::{Turns, all_turns};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::DupFlags;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// So many descriptors can be known. The kernel allows no more by default.
const MOST: usize = 1 << 20;

/// A bit for each number.
static KNOWN: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

/// The inode of each, by which a number is found to stand for something else. (epoll, eventfd and timerfd have one in common.) Pages
/// of it come when they are used.
static INODES: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];

/// Shared by who opens or closes, taken by who forks: no descriptor is open and unknown during a fork.
static FORKING: RwLock<()> = RwLock::new(());

/// A descriptor that children do not keep.
///
/// The program may close it all the same, as with closefrom(3), and get its number for something else. A call that fails as it
/// does for a number that is not open, or stands for something else, loses the descriptor: from then on the number is
/// neither used nor closed. Before a number is closed, its inode is compared. What the adapter reads from it or writes to it until it
/// notices reaches whatever the program has opened since; to ask before each call would double the number of calls.
#[derive(Debug)]
pub struct Fd(AtomicI32);

/// A number that is never open: the kernel allows a process no more than 2^30 descriptors.
const NOWHERE: RawFd = RawFd::MAX;

impl Fd {
    /// The one that `open` makes.
    pub(super) fn open<E>(open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Self, E> {
        Self::open_with(|| open().map(|fd| (fd, ()))).map(|(fd, ())| fd)
    }

    /// The one that `open` makes, and what else it found out.
    pub(super) fn open_with<T, E>(open: impl FnOnce() -> Result<(OwnedFd, T), E>) -> Result<(Self, T), E> {
        watch();
        let _no_fork = no_fork();
        open().map(|(fd, more)| (Self::know(fd), more))
    }

    /// The two that `open` makes.
    pub(super) fn open_both<E>(
        open: impl FnOnce() -> Result<(OwnedFd, OwnedFd), E>,
    ) -> Result<(Self, Self), E> {
        watch();
        let _no_fork = no_fork();
        open().map(|(one, other)| (Self::know(one), Self::know(other)))
    }

    /// The caller keeps the process from forking.
    fn know(fd: OwnedFd) -> Self {
        if let Some((word, bit)) = place(fd.as_raw_fd()) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        if let Some(known) = inode(fd.as_raw_fd()) {
            known.store(rustix::fs::fstat(&fd).map_or(0, |stat| stat.st_ino), Ordering::Relaxed);
        }
        Self(AtomicI32::new(fd.into_raw_fd()))
    }

    /// It is not open any more, or not what it was: the program has closed it. Calls with it fail from now on.
    #[cold]
    pub(super) fn lose(&self) {
        let _no_fork = no_fork();
        unknow(self.0.swap(NOWHERE, Ordering::Relaxed));
    }

    /// Looks whether it still is what was opened, and loses it if not. For what happens once to a descriptor.
    pub(super) fn is_there(&self) -> bool {
        let fd = self.as_raw_fd();
        let there = rustix::fs::fstat(self).is_ok_and(|stat| {
            inode(fd).is_none_or(
                |known| matches!(known.load(Ordering::Relaxed), known if known == 0 || known == stat.st_ino),
            )
        });
        if !there {
            self.lose();
        }
        there
    }

    /// Closes what it stands for, whoever still has it. The number stays taken, and leads nowhere.
    pub(super) fn close_now(&self) -> rustix::io::Result<()> {
        if !self.is_there() {
            return Ok(());
        }
        let nowhere = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        let stat = rustix::fs::fstat(&nowhere)?;
        let _no_fork = no_fork();
        let fd = self.as_raw_fd();
        // SAFETY: it was opened for this value, whose drop closes the number.
        let mut copy = ManuallyDrop::new(unsafe { <OwnedFd as rustix::fd::FromRawFd>::from_raw_fd(fd) });
        rustix::io::dup3(&nowhere, &mut copy, DupFlags::CLOEXEC)?;
        inode(fd).into_iter().for_each(|known| known.store(stat.st_ino, Ordering::Relaxed));
        Ok(())
    }

    /// Whether the program has closed it, as far as anybody has noticed.
    pub(super) fn is_lost(&self) -> bool {
        self.as_raw_fd() == NOWHERE
    }
}

/// Where the inode of a descriptor is.
fn inode(fd: RawFd) -> Option<&'static AtomicU64> {
    INODES.get(usize::try_from(fd).ok()?)
}

/// It is not known any more. The caller keeps the process from forking.
fn unknow(fd: RawFd) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if self.is_there() {
            let _no_fork = no_fork();
            let fd = *self.0.get_mut();
            unknow(fd);
            // By number: the C library's close is a point of cancellation, and programs poll and post on threads that they cancel;
            // rustix's panics in debug builds if the program has closed it since.
            // SAFETY: it was opened for this value, and is not used after this.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it stays open as long as this value, unless the program breaks the rules of descriptors; or the number is one that
        // is never open, and the kernel says so. It is not -1.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

impl AsRawFd for Fd {
    #[inline]
    fn as_raw_fd(&self) -> RawFd {
        self.0.load(Ordering::Relaxed)
    }
}

fn no_fork() -> RwLockReadGuard<'static, ()> {
    FORKING.read().unwrap_or_else(PoisonError::into_inner)
}

/// Where the bit of a descriptor is.
fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((KNOWN.get(fd / 64)?, 1 << (fd % 64)))
}

/// The descriptors that are open now.
pub(crate) fn known() -> impl Iterator<Item = RawFd> {
    let numbers = |(at, word): (usize, &AtomicU64)| {
        let bits = word.load(Ordering::Relaxed);
        (0..64).filter(move |bit| bits & (1 << bit) != 0).map(move |bit| at * 64 + bit)
    };
    KNOWN.iter().enumerate().flat_map(numbers).filter_map(|fd| RawFd::try_from(fd).ok())
}

/// What the thread that forks holds.
struct Held {
    _turns: Turns,
    _gids: TableGuard,
    _descriptors: RwLockWriteGuard<'static, ()>,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Asks the C library to be told of forks, once.
fn watch() {
    static ONCE: Once = Once::new();
    // If there is no memory for it, forks are not seen.
    ONCE.call_once(|| handle(Some(before), Some(in_parent), Some(in_child)));
}

/// A fork handler, as pthread_atfork(3) takes it.
pub type Handler = extern "C" fn();

/// Registers fork handlers for as long as the process runs: the code that registers them is never unloaded.
///
/// pthread_atfork(3) registers them for its library, and exit(3) takes them off the list when it finishes that library. glibc (2.36) then
/// aborts a fork that another thread has begun, or does not call the handlers that release what the first ones hold. Handlers that
/// belong to no library stay.
pub fn handle(before: Option<Handler>, in_parent: Option<Handler>, in_child: Option<Handler>) {
    unsafe extern "C" {
        fn __register_atfork(
            before: Option<Handler>,
            in_parent: Option<Handler>,
            in_child: Option<Handler>,
            library: *const c_void,
        ) -> c_int;
    }
    // SAFETY: the functions stay where they are. glibc exports this for libc_nonshared.a, whose pthread_atfork calls nothing else.
    unsafe { __register_atfork(before, in_parent, in_child, ptr::null()) };
}

extern "C" fn before() {
    // In the order in which all others take them.
    let held = Held {
        _turns: all_turns(),
        _gids: GidTable::of_process().hold(),
        _descriptors: FORKING.write().unwrap_or_else(PoisonError::into_inner),
    };
    HELD.with_borrow_mut(|slot| *slot = Some(held));
}

extern "C" fn in_parent() {
    HELD.take();
}

extern "C" fn in_child() {
    let nowhere = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok();
    for (at, word) in KNOWN.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let fd = at * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            if let Ok(fd) = RawFd::try_from(fd) {
                leave(fd, nowhere.as_ref());
            }
        }
    }
    crate::traffic::forget();
    HELD.take();
}

/// The child's copy of a descriptor leads nowhere from now on.
fn leave(fd: RawFd, nowhere: Option<&OwnedFd>) {
    let replaced = nowhere.is_some_and(|nowhere| {
        // SAFETY: the parent's number, which is open in this copy; who has it here does not drop it.
        let mut copy = ManuallyDrop::new(unsafe { <OwnedFd as rustix::fd::FromRawFd>::from_raw_fd(fd) });
        rustix::io::dup3(nowhere, &mut copy, DupFlags::CLOEXEC).is_ok()
    });
    if !replaced {
        // SAFETY: as above; nobody in the child uses what the parent had.
        unsafe { rustix::io::close(fd) };
    }
}
