//! Threads that wait until a socket is ready. Each has a descriptor of its own, which whoever changes the socket makes
//! readable: the lane that brings a completion, or another thread that was faster and took it.
#![expect(unsafe_code, reason = "the C library's poll, at which a program may cancel the thread")]

use super::socket::Socket;
use super::{find, lock};
use crate::cancel::uncancelled;
use crate::errno::Errno;
use ironwarp_rnic::event::Wake;
use rustix::event::{EventfdFlags, eventfd};
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// So long a thread looks before it sleeps: most answers come sooner than a sleeping thread wakes.
pub(super) const SPIN: Duration = Duration::from_micros(50);

/// What wakes a thread.
#[derive(Debug)]
pub(super) struct Waker(OwnedFd);

thread_local! {
    static WAKER: Result<Arc<Waker>, Errno> = Waker::new();
}

impl Waker {
    fn new() -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Of this thread.
    pub(super) fn mine() -> Result<Arc<Self>, Errno> {
        // A thread that is ending has none any more; then one for this once does.
        WAKER.try_with(Clone::clone).unwrap_or_else(|_| Self::new())
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Forgets what was; what happens from now on is told.
    pub(super) fn quiet(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// The threads that wait for one socket.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// One that was cancelled stays here. It is gone when its thread is.
    list: Mutex<Vec<Weak<Waker>>>,
    /// How many are in the list.
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

    /// Something changed.
    pub(super) fn wake(&self) {
        self.wake_but(ptr::null());
    }

    /// Something changed, and this thread knows.
    pub(super) fn wake_others(&self) {
        if self.count.load(Ordering::SeqCst) > 0 {
            let me = Waker::mine();
            self.wake_but(me.as_ref().map_or(ptr::null(), Arc::as_ptr));
        }
    }

    fn wake_but(&self, me: *const Waker) {
        if self.count.load(Ordering::SeqCst) > 0 {
            let others = lock(&self.list).iter().filter(|it| it.as_ptr() != me).cloned().collect::<Vec<_>>();
            others.iter().filter_map(Weak::upgrade).for_each(|waker| waker.ring());
        }
    }
}

/// How a completion queue makes itself noticed.
#[derive(Debug)]
pub(super) struct Bell(pub(super) Arc<Waiters>);

impl Wake for Bell {
    fn signal(&self) {
        self.0.wake();
    }

    /// Nobody counts: who waits takes the event, and looks.
    fn consume(&self) {}
}

/// How long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    None,
    Until(Instant),
    Endless,
}

impl Patience {
    /// As poll(2) has it: a negative number is for ever.
    pub(super) fn of_milliseconds(time: c_int) -> Self {
        match u64::try_from(time) {
            Ok(0) => Self::None,
            Ok(time) => Self::Until(Instant::now() + Duration::from_millis(time)),
            Err(_) => Self::Endless,
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

/// Sleeps until one of `fds` is ready, as many of them as are told; none if the deadline came first. The thread may be cancelled
/// in here: nothing with a destructor may be alive in the callers.
pub(super) fn sleep(fds: *mut libc::pollfd, count: usize, deadline: Option<Instant>) -> Result<c_int, Errno> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    // A wait too long for the kernel is as good as for ever.
    let left = left.and_then(|left| {
        let tv_sec = libc::time_t::try_from(left.as_secs()).ok()?;
        Some(libc::timespec { tv_sec, tv_nsec: left.subsec_nanos().into() })
    });
    let timeout = left.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the list is as long as the caller says, and the timeout outlives the call.
    match unsafe { ppoll(fds, count as libc::nfds_t, timeout, ptr::null()) } {
        -1 => Err(std::io::Error::last_os_error().into()),
        ready => Ok(ready),
    }
}

/// Tries `step` on the socket of a descriptor until it has a result. EAGAIN if that would mean to wait longer than allowed,
/// EINTR after a signal. Neither the step nor the result may have a destructor: the thread may be cancelled in here.
pub(super) fn until<T: Copy>(
    fd: RawFd,
    patience: Patience,
    mut step: impl FnMut(&Socket) -> Result<Option<T>, Errno>,
) -> Result<T, Errno> {
    let mut waiting = false;
    loop {
        let waker = match uncancelled(|| look(fd, patience, waiting, &mut step))? {
            Look::Done(result) => return Ok(result),
            Look::Wait(waker) => waker,
        };
        let mut poll = libc::pollfd { fd: waker, events: libc::POLLIN, revents: 0 };
        if let Err(errno) = sleep(&raw mut poll, 1, patience.deadline()) {
            leave(fd);
            return Err(errno);
        }
        waiting = true;
    }
}

enum Look<T> {
    Done(T),
    /// Wait until this descriptor is readable.
    Wait(RawFd),
}

/// `waiting`: this thread slept already. What wakes it then is seldom soon followed by more.
fn look<T>(
    fd: RawFd,
    patience: Patience,
    waiting: bool,
    step: &mut impl FnMut(&Socket) -> Result<Option<T>, Errno>,
) -> Result<Look<T>, Errno> {
    let socket = find(fd)?;
    let first = step(&socket).transpose();
    if first.is_some() || patience == Patience::None {
        if waiting {
            socket.waiters().remove(&Waker::mine()?);
        }
        return first.unwrap_or(Err(Errno(libc::EAGAIN))).map(Look::Done);
    }
    if !waiting && let Some(result) = spin(&socket, step) {
        return result.map(Look::Done);
    }
    let waker = Waker::mine()?;
    if patience.deadline().is_some_and(|deadline| Instant::now() >= deadline) {
        socket.waiters().remove(&waker);
        return Err(Errno(libc::EAGAIN));
    }
    loop {
        waker.quiet();
        // First this, then the look: whatever happens after the look, this thread is told.
        socket.waiters().add(&waker);
        if let Some(result) = step(&socket).transpose() {
            socket.waiters().remove(&waker);
            return result.map(Look::Done);
        }
        if !socket.arm() {
            return Ok(Look::Wait(waker.fd()));
        }
    }
}

/// Looks for a while without sleeping, unless others sleep: then whoever brings something rings. Nothing is locked between
/// looks, so that others get on with it.
fn spin<T>(
    socket: &Socket,
    step: &mut impl FnMut(&Socket) -> Result<Option<T>, Errno>,
) -> Option<Result<T, Errno>> {
    let begin = Instant::now();
    let mut version = socket.version();
    while !socket.waiters().any() && begin.elapsed() < SPIN {
        if socket.glance(version) {
            version = socket.version();
            if let Some(result) = step(socket).transpose() {
                return Some(result);
            }
        }
    }
    None
}

fn leave(fd: RawFd) {
    if let (Ok(socket), Ok(waker)) = (find(fd), Waker::mine()) {
        socket.waiters().remove(&waker);
    }
}
