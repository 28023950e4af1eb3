//! Waiting until a socket is ready.

use super::socket::Socket;
use super::table::find;
use super::waiters::{SPIN, Timeout, Waker, sleep};
use crate::support::cancel::without_cancellation;
use crate::support::errno::Errno;
use std::os::fd::RawFd;
use std::time::Instant;

/// Tries `step` on the socket of a descriptor until it has a result. EAGAIN if that would take longer than
/// the timeout, EINTR after a signal. Neither the step nor the result may have a destructor, because the
/// thread may be cancelled here.
pub(super) fn until<T: Copy>(
    fd: RawFd,
    timeout: Timeout,
    mut step: impl FnMut(&Socket) -> Result<Option<T>, Errno>,
) -> Result<T, Errno> {
    let mut waiting = false;
    loop {
        let waker = match without_cancellation(|| look(fd, timeout, waiting, &mut step))? {
            Look::Done(result) => return Ok(result),
            Look::Wait(waker) => waker,
        };
        let mut poll = libc::pollfd { fd: waker, events: libc::POLLIN, revents: 0 };
        if let Err(errno) = sleep(&raw mut poll, 1, timeout.deadline()) {
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

/// Tries `step`, and registers the thread as a waiter if there is no result. A thread that has slept
/// (`waiting`) does not spin: more rarely follows soon.
fn look<T>(
    fd: RawFd,
    timeout: Timeout,
    waiting: bool,
    step: &mut impl FnMut(&Socket) -> Result<Option<T>, Errno>,
) -> Result<Look<T>, Errno> {
    let socket = find(fd)?;
    let first = step(&socket).transpose();
    if first.is_some() || timeout == Timeout::DontWait {
        if waiting {
            socket.waiters().remove(&Waker::mine()?);
        }
        return first.unwrap_or(Err(Errno(libc::EAGAIN))).map(Look::Done);
    }
    if !waiting && let Some(result) = spin(&socket, step) {
        return result.map(Look::Done);
    }
    let waker = Waker::mine()?;
    if timeout.deadline().is_some_and(|deadline| Instant::now() >= deadline) {
        socket.waiters().remove(&waker);
        return Err(Errno(libc::EAGAIN));
    }
    loop {
        waker.clear();
        // Register first, then look: whatever happens after the look wakes this thread.
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

/// Polls for a while before sleeping, unless other threads sleep, which are woken in time. Nothing is locked
/// in between, so that other threads make progress.
fn spin<T>(
    socket: &Socket,
    step: &mut impl FnMut(&Socket) -> Result<Option<T>, Errno>,
) -> Option<Result<T, Errno>> {
    let begin = Instant::now();
    let mut version = socket.version();
    while !socket.waiters().any() && begin.elapsed() < SPIN {
        if socket.may_have_changed(version) {
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
