//! Waking threads that wait for a socket. Each thread has a descriptor, which becomes readable when the
//! socket changes: because a lane delivered a completion, or because another thread took it.
#![expect(unsafe_code, reason = "the C library's ppoll, where a program may cancel the thread")]

use crate::support::errno::Errno;
use ironwarp_rnic::event::Wake;
use ironwarp_rnic::sync::lock;
use rustix::event::{EventfdFlags, eventfd};
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// How long a thread polls before it sleeps: most answers arrive sooner than a sleeping thread wakes up.
pub(super) const SPIN: Duration = Duration::from_micros(50);

/// Wakes a thread.
#[derive(Debug)]
pub(super) struct Waker(OwnedFd);

thread_local! {
    static WAKER: Result<Arc<Waker>, Errno> = Waker::new();
}

impl Waker {
    fn new() -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// The waker of this thread.
    pub(super) fn mine() -> Result<Arc<Self>, Errno> {
        // A thread that is exiting gets a temporary one.
        WAKER.try_with(Clone::clone).unwrap_or_else(|_| Self::new())
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Forgets earlier wakeups.
    pub(super) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// The threads that wait for one socket.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// A cancelled thread stays in the list until it has exited.
    list: Mutex<Vec<Weak<Waker>>>,
    /// Length of the list.
    count: AtomicUsize,
}

impl Waiters {
    pub(super) fn add(&self, waker: &Arc<Waker>) {
        let mut list = lock(&self.list);
        list.retain(|other| other.strong_count() > 0 && other.as_ptr() != Arc::as_ptr(waker));
        list.push(Arc::downgrade(waker));
        self.count.store(list.len(), Ordering::SeqCst);
    }

    pub(super) fn remove(&self, waker: &Arc<Waker>) {
        if self.count.load(Ordering::SeqCst) > 0 {
            let mut list = lock(&self.list);
            list.retain(|other| other.as_ptr() != Arc::as_ptr(waker));
            self.count.store(list.len(), Ordering::SeqCst);
        }
    }

    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Wakes all threads.
    pub(super) fn wake(&self) {
        self.wake_but(ptr::null());
    }

    /// Wakes all threads except this one.
    pub(super) fn wake_others(&self) {
        if self.count.load(Ordering::SeqCst) > 0 {
            let me = Waker::mine();
            self.wake_but(me.as_ref().map_or(ptr::null(), Arc::as_ptr));
        }
    }

    fn wake_but(&self, me: *const Waker) {
        if self.count.load(Ordering::SeqCst) > 0 {
            let others = lock(&self.list).iter().filter(|it| it.as_ptr() != me).cloned().collect::<Vec<_>>();
            others.iter().filter_map(Weak::upgrade).for_each(|waker| waker.wake());
        }
    }
}

/// Wakes the waiters of a socket for its completion queue.
#[derive(Debug)]
pub(super) struct WakeWaiters(pub(super) Arc<Waiters>);

impl Wake for WakeWaiters {
    fn signal(&self) {
        self.0.wake();
    }

    /// Nothing is counted: a thread that was woken takes the event and looks.
    fn consume(&self) {}
}

/// How long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timeout {
    DontWait,
    Until(Instant),
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

    pub(super) fn deadline(self) -> Option<Instant> {
        if let Self::Until(deadline) = self { Some(deadline) } else { None }
    }
}

unsafe extern "C-unwind" {
    fn ppoll(
        fds: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int;
}

/// Sleeps until some of `fds` are ready, and returns their number, or zero at the deadline. The thread may be
/// cancelled here: nothing with a destructor may be alive in the callers.
pub(super) fn sleep(fds: *mut libc::pollfd, count: usize, deadline: Option<Instant>) -> Result<c_int, Errno> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    // A timeout that is too long for the kernel means forever.
    let left = left.and_then(|left| {
        let tv_sec = libc::time_t::try_from(left.as_secs()).ok()?;
        Some(libc::timespec { tv_sec, tv_nsec: left.subsec_nanos().into() })
    });
    let timeout = left.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: a list of this length by the caller's contract. The timeout outlives the call.
    match unsafe { ppoll(fds, count as libc::nfds_t, timeout, ptr::null()) } {
        -1 => Err(std::io::Error::last_os_error().into()),
        ready => Ok(ready),
    }
}
