//! Waiting for any of a list of sockets over RDMA and ordinary descriptors.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::table::find;
use super::waiters::{SPIN, Timeout, Waker, sleep};
use crate::support::errno::{Errno, number_or_minus_one};
use std::cell::RefCell;
use std::ffi::{c_int, c_short};
use std::time::{Duration, Instant};

thread_local! {
    /// The list for the kernel: that of the program without sockets over RDMA, and the waker of this thread.
    /// Kept, so that nothing has to be freed when the thread is cancelled.
    static LIST: RefCell<Vec<libc::pollfd>> = const { RefCell::new(Vec::new()) };
}

/// Calls `with` with the list of this thread. A thread that is exiting gets a new one.
fn with_list<T>(with: impl Fn(&mut Vec<libc::pollfd>) -> T) -> T {
    let done = LIST.try_with(|list| with(&mut list.borrow_mut()));
    // Leaked, because the result refers to it. This happens at most a few times per thread.
    done.unwrap_or_else(|_| with(Box::leak(Box::default())))
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rpoll(fds: *mut libc::pollfd, nfds: libc::nfds_t, timeout: c_int) -> c_int {
    let timeout = Timeout::from_poll(timeout);
    let count = usize::try_from(nfds).unwrap_or(usize::MAX);
    if count > 1 << 20 || (fds.is_null() && count > 0) {
        return number_or_minus_one(Err(Errno::INVALID));
    }
    // SAFETY: a list of that length by the caller's contract.
    let list = if count == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(fds, count) } };
    number_or_minus_one(poll(list, timeout))
}

/// Waits until something is ready. The thread may be cancelled here: nothing that is alive has a destructor.
fn poll(list: &mut [libc::pollfd], timeout: Timeout) -> Result<c_int, Errno> {
    let begin = Instant::now();
    loop {
        let ready = look(list)?;
        let now = Instant::now();
        let over = match timeout {
            Timeout::DontWait => true,
            Timeout::Until(deadline) => now >= deadline,
            Timeout::Never => false,
        };
        if ready > 0 || over {
            return Ok(ready);
        }
        if now.duration_since(begin) >= SPIN {
            break;
        }
    }
    loop {
        let woken = match prepare(list)? {
            Some(Asked { at, count }) => sleep(at, count, timeout.deadline()),
            None => Ok(1),
        };
        leave(list);
        let woken = woken?;
        let ready = look(list)?;
        if ready > 0 || woken == 0 {
            return Ok(ready);
        }
    }
}

/// The list for the kernel, which stays in place until this thread asks again.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) at: *mut libc::pollfd,
    pub(super) count: usize,
}

fn ask(list: &[libc::pollfd], waker: Option<c_int>) -> Asked {
    with_list(|asked| {
        asked.clear();
        asked.extend(list.iter().map(|it| libc::pollfd {
            fd: if it.fd >= 0 && find(it.fd).is_ok() { -1 } else { it.fd },
            revents: 0,
            ..*it
        }));
        asked.extend(waker.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }));
        Asked { at: asked.as_mut_ptr(), count: asked.len() }
    })
}

/// Polls once. Sets what is ready, and returns the number.
pub(super) fn look(list: &mut [libc::pollfd]) -> Result<c_int, Errno> {
    let mut ordinary = false;
    let mut ready = 0;
    for it in list.iter_mut() {
        it.revents = 0;
        if it.fd < 0 {
            continue;
        }
        match find(it.fd) {
            Ok(socket) => it.revents = socket.readiness(it.events),
            Err(_) => ordinary = true,
        }
        ready += c_int::from(it.revents != 0);
    }
    if ordinary {
        let Asked { at, count } = ask(list, None);
        // SAFETY: that many elements, which only this thread uses.
        if unsafe { libc::poll(at, count as libc::nfds_t, 0) } == -1 {
            let errno = Errno::from(std::io::Error::last_os_error());
            return if errno.0 == libc::EINTR { Ok(ready) } else { Err(errno) };
        }
        // SAFETY: as above.
        let asked = unsafe { std::slice::from_raw_parts(at, count) };
        for (it, asked) in list.iter_mut().zip(asked).filter(|(_, asked)| asked.fd >= 0) {
            it.revents = asked.revents;
            ready += c_int::from(it.revents != 0);
        }
    }
    Ok(ready)
}

/// Registers this thread to be woken when one of the sockets changes. Returns `None` if one is ready now.
pub(super) fn prepare(list: &[libc::pollfd]) -> Result<Option<Asked>, Errno> {
    let waker = Waker::mine()?;
    waker.clear();
    for it in list.iter().filter(|it| it.fd >= 0) {
        let Ok(socket) = find(it.fd) else { continue };
        // Register first, then look: whatever happens after the look wakes this thread.
        socket.waiters().add(&waker);
        loop {
            if socket.readiness(it.events) != 0 {
                return Ok(None);
            }
            if !socket.arm() {
                break;
            }
        }
    }
    Ok(Some(ask(list, Some(waker.fd()))))
}

pub(super) fn leave(list: &[libc::pollfd]) {
    if let Ok(waker) = Waker::mine() {
        for it in list.iter().filter(|it| it.fd >= 0) {
            if let Ok(socket) = find(it.fd) {
                socket.waiters().remove(&waker);
            }
        }
    }
}

/// The three sets of select in terms of poll: the events to ask for, and those that count as ready.
const READ: (c_short, c_short) = (libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR);
const WRITE: (c_short, c_short) = (libc::POLLOUT, libc::POLLOUT | libc::POLLERR);
const EXCEPT: (c_short, c_short) = (libc::POLLPRI, libc::POLLPRI);

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rselect(
    nfds: c_int,
    readfds: *mut libc::fd_set,
    writefds: *mut libc::fd_set,
    exceptfds: *mut libc::fd_set,
    timeout: *mut libc::timeval,
) -> c_int {
    const MAX_FDS: usize = libc::FD_SETSIZE;
    let none = libc::pollfd { fd: -1, events: 0, revents: 0 };
    let mut list = [none; MAX_FDS];
    let sets = [(readfds, READ), (writefds, WRITE), (exceptfds, EXCEPT)];
    let Ok(count) = usize::try_from(nfds) else { return number_or_minus_one(Err(Errno::INVALID)) };
    let mut used = 0;
    for fd in 0..c_int::try_from(count.min(MAX_FDS)).unwrap_or_default() {
        for (set, (events, _)) in sets {
            // SAFETY: NULL, or valid by the caller's contract. The number is within the set.
            if !set.is_null() && unsafe { libc::FD_ISSET(fd, set) } {
                list[used].fd = fd;
                list[used].events |= events;
            }
        }
        used += usize::from(list[used].fd == fd);
    }
    // SAFETY: NULL, or valid by the caller's contract.
    let timeout = match unsafe { timeout.as_ref() } {
        None => Timeout::Never,
        Some(libc::timeval { tv_sec: 0, tv_usec: 0 }) => Timeout::DontWait,
        Some(time) => match (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec)) {
            (Ok(seconds), Ok(micros)) => {
                let time = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
                Instant::now().checked_add(time).map_or(Timeout::Never, Timeout::Until)
            }
            _ => return number_or_minus_one(Err(Errno::INVALID)),
        },
    };
    if let Err(errno) = poll(&mut list[..used], timeout) {
        return number_or_minus_one(Err(errno));
    }
    if list[..used].iter().any(|it| it.revents & libc::POLLNVAL != 0) {
        return number_or_minus_one(Err(Errno(libc::EBADF)));
    }
    let mut ready = 0;
    for (set, (events, answers)) in sets.into_iter().filter(|(set, _)| !set.is_null()) {
        for it in &list[..used] {
            if it.events & events == 0 || it.revents & answers == 0 {
                // SAFETY: valid by the caller's contract. The number is within the set.
                unsafe { libc::FD_CLR(it.fd, set) };
            } else {
                ready += 1;
            }
        }
    }
    ready
}
