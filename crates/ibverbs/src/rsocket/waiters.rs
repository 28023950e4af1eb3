//! Wakes threads that wait for a socket. Each thread has an eventfd to sleep on. It becomes readable when the state
//! of the socket may have changed: a lane delivered a completion or event, or another thread applied one.
#![expect(unsafe_code, reason = "the C library's ppoll, where a program may cancel the thread")]

use crate::support::errno::Errno;
use ironwarp_rnic::event::Wake;
use ironwarp_rnic::sync::lock;
use rustix::event::{EventfdFlags, eventfd};
use std::ffi::c_int;
use std::hint::black_box;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// How long a thread polls before it sleeps. Most answers arrive sooner than a sleeping thread wakes up.
pub(super) const SPIN: Duration = Duration::from_micros(50);

/// The eventfd that a thread sleeps on.
#[derive(Debug)]
pub(super) struct Waker(OwnedFd);

thread_local! {
    /// The waker of this thread, or the error with which it could not be created.
    static WAKER: Result<Arc<Waker>, Errno> = Waker::new();
}

impl Waker {
    fn new() -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// The waker of this thread.
    pub(super) fn of_this_thread() -> Result<Arc<Self>, Errno> {
        // A thread that is exiting has lost its own, and gets a temporary one.
        WAKER.try_with(Clone::clone).unwrap_or_else(|_| Self::new())
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Forgets earlier wakeups.
    pub(super) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// Wakes the thread, or keeps it from sleeping.
    fn wake(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// The threads that wait for one socket.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// The wakers of the threads. That of a cancelled thread stays in the list, and is dead once the thread has
    /// exited.
    list: Mutex<Vec<Weak<Waker>>>,
    /// Length of the list, which threads read without the lock. A thread registers before it checks the socket for
    /// the last time, and others change the socket before they read this. SeqCst, so that one of both notices the
    /// other.
    count: AtomicUsize,
}

impl Waiters {
    /// Registers a thread to be woken. Also removes threads that have exited.
    pub(super) fn add(&self, waker: &Arc<Waker>) {
        let mut list = lock(&self.list);
        list.retain(|other| other.strong_count() > 0 && other.as_ptr() != Arc::as_ptr(waker));
        list.push(Arc::downgrade(waker));
        self.count.store(list.len(), Ordering::SeqCst);
    }

    /// Unregisters a thread, if it is registered.
    pub(super) fn remove(&self, waker: &Arc<Waker>) {
        if self.has_any() {
            let mut list = lock(&self.list);
            list.retain(|other| other.as_ptr() != Arc::as_ptr(waker));
            self.count.store(list.len(), Ordering::SeqCst);
        }
    }

    /// Whether any thread is registered.
    pub(super) fn has_any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Wakes all threads.
    pub(super) fn wake_all(&self) {
        self.wake_except(ptr::null());
    }

    /// Wakes all threads except this one.
    pub(super) fn wake_others(&self) {
        if self.has_any() {
            let own = Waker::of_this_thread();
            self.wake_except(own.as_ref().map_or(ptr::null(), Arc::as_ptr));
        }
    }

    /// Wakes all threads except the one that `excluded` belongs to. NULL belongs to none.
    fn wake_except(&self, excluded: *const Waker) {
        if self.has_any() {
            // Copied, so that the system calls are made without the lock.
            let others: Vec<_> =
                lock(&self.list).iter().filter(|waker| waker.as_ptr() != excluded).cloned().collect();
            others.iter().filter_map(Weak::upgrade).for_each(|waker| waker.wake());
        }
    }
}

/// Wakes the waiters of a socket when its armed completion queue gets a completion.
#[derive(Debug)]
pub(super) struct WakeWaiters(pub(super) Arc<Waiters>);

impl Wake for WakeWaiters {
    fn signal(&self) {
        self.0.wake_all();
    }

    /// Does nothing: wakeups are not counted.
    fn consume(&self) {}
}

/// How long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timeout {
    /// The call returns at once.
    DontWait,
    Until(Instant),
    /// The call waits forever.
    Never,
}

impl Timeout {
    /// Converts a timeout of poll(2), where a negative number means forever.
    pub(super) fn from_poll(time: c_int) -> Self {
        match u64::try_from(time) {
            Ok(0) => Self::DontWait,
            Ok(time) => Self::Until(Instant::now() + Duration::from_millis(time)),
            Err(_) => Self::Never,
        }
    }

    /// When to stop waiting, if that is a point in time.
    pub(super) fn deadline(self) -> Option<Instant> {
        if let Self::Until(deadline) = self { Some(deadline) } else { None }
    }
}

// The function of the C library, not the system call, because it must be a cancellation point. A cancelled thread
// unwinds from it. It is called through `black_box` as in `support/wake.rs`.
unsafe extern "C-unwind" {
    fn ppoll(
        fds: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int;
}

type Ppoll = unsafe extern "C-unwind" fn(
    *mut libc::pollfd,
    libc::nfds_t,
    *const libc::timespec,
    *const libc::sigset_t,
) -> c_int;

/// Sleeps until some of the `count` entries of `fds` are ready, and returns their number, or zero at the deadline.
/// EINTR after a signal. The thread may be cancelled here: nothing with a destructor may be alive in the callers.
pub(super) fn sleep(fds: *mut libc::pollfd, count: usize, deadline: Option<Instant>) -> Result<c_int, Errno> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    // A timeout that is too long for the kernel means forever.
    let left = left.and_then(|left| {
        let tv_sec = libc::time_t::try_from(left.as_secs()).ok()?;
        Some(libc::timespec { tv_sec, tv_nsec: left.subsec_nanos().into() })
    });
    let timeout = left.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: all callers pass a list of `count` entries that lives until the call returns, and so does `left`.
    match unsafe { black_box(ppoll as Ppoll)(fds, count as libc::nfds_t, timeout, ptr::null()) } {
        -1 => Err(std::io::Error::last_os_error().into()),
        ready => Ok(ready),
    }
}
