//! Waits until a call on a socket can return: polls for a while, then sleeps until the socket changes.

use super::socket::Socket;
use super::table::find;
use super::waiters::{SPIN, Timeout, Waker, sleep};
use crate::support::cancel::without_cancellation;
use crate::support::errno::Errno;
use std::os::fd::RawFd;
use std::time::Instant;

/// Calls `step` with the socket of a descriptor until it returns a result, and sleeps in between. Fails with EAGAIN
/// at the timeout, and with EINTR after a signal. Neither `step` nor the result may have a destructor, because the
/// thread may be cancelled while it sleeps.
pub(super) fn wait_until<T: Copy>(
    fd: RawFd,
    timeout: Timeout,
    mut step: impl FnMut(&Socket) -> Result<Option<T>, Errno>,
) -> Result<T, Errno> {
    let mut has_slept = false;
    loop {
        let waker = match without_cancellation(|| try_or_register(fd, timeout, has_slept, &mut step))? {
            Outcome::Done(result) => return Ok(result),
            Outcome::MustSleep(waker) => waker,
        };
        let mut poll = libc::pollfd { fd: waker, events: libc::POLLIN, revents: 0 };
        if let Err(errno) = sleep(&raw mut poll, 1, timeout.deadline()) {
            unregister(fd);
            return Err(errno);
        }
        has_slept = true;
    }
}

/// Outcome of [`try_or_register`].
enum Outcome<T> {
    Done(T),
    /// The thread is registered as a waiter, and must sleep until this descriptor is readable.
    MustSleep(RawFd),
}

/// Calls `step`. If it has no result, spins for a while, then registers the thread as a waiter. A thread that has
/// slept is registered already and does not spin, because more data rarely follows soon.
fn try_or_register<T>(
    fd: RawFd,
    timeout: Timeout,
    has_slept: bool,
    step: &mut impl FnMut(&Socket) -> Result<Option<T>, Errno>,
) -> Result<Outcome<T>, Errno> {
    let socket = find(fd)?;
    let result = step(&socket).transpose();
    if result.is_some() || timeout == Timeout::DontWait {
        if has_slept {
            socket.waiters().remove(&Waker::of_this_thread()?);
        }
        return result.unwrap_or(Err(Errno(libc::EAGAIN))).map(Outcome::Done);
    }
    if !has_slept && let Some(result) = spin(&socket, step) {
        return result.map(Outcome::Done);
    }
    let waker = Waker::of_this_thread()?;
    if timeout.deadline().is_some_and(|deadline| Instant::now() >= deadline) {
        socket.waiters().remove(&waker);
        return Err(Errno(libc::EAGAIN));
    }
    loop {
        waker.clear();
        // Registered before the last try: any change after that try wakes this thread.
        socket.waiters().add(&waker);
        if let Some(result) = step(&socket).transpose() {
            socket.waiters().remove(&waker);
            return result.map(Outcome::Done);
        }
        let may_have_changed = socket.arm();
        if !may_have_changed {
            return Ok(Outcome::MustSleep(waker.fd()));
        }
    }
}

/// Polls the socket for [`SPIN`], and calls `step` whenever the socket may have changed. Returns `None` after that
/// time, or as soon as another thread is registered as a waiter: a spinning thread takes the socket from the lane,
/// which is to wake that waiter. No lock is held between two calls of `step`, so that other threads make progress.
fn spin<T>(
    socket: &Socket,
    step: &mut impl FnMut(&Socket) -> Result<Option<T>, Errno>,
) -> Option<Result<T, Errno>> {
    let begin = Instant::now();
    let mut version = socket.version();
    while !socket.waiters().has_any() && begin.elapsed() < SPIN {
        if socket.may_have_changed(version) {
            version = socket.version();
            if let Some(result) = step(socket).transpose() {
                return Some(result);
            }
        }
    }
    None
}

/// Unregisters this thread as a waiter of the socket of a descriptor.
fn unregister(fd: RawFd) {
    if let (Ok(socket), Ok(waker)) = (find(fd), Waker::of_this_thread()) {
        socket.waiters().remove(&waker);
    }
}
