//! `rpoll` and `rselect`: wait for any of a list of sockets over RDMA and ordinary descriptors.
//!
//! Both are `extern "C-unwind"`: the C library may cancel a thread that sleeps in them, and cancellation unwinds the
//! stack through these functions.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::table::find;
use super::waiters::{SPIN, Timeout, Waker, sleep};
use crate::support::errno::{Errno, number_or_minus_one};
use std::cell::RefCell;
use std::ffi::{c_int, c_short};
use std::time::{Duration, Instant};

thread_local! {
    /// Memory for the [`KernelList`] of this thread. Calls do not own it, because nothing with a destructor may be
    /// alive where a thread can be cancelled.
    static LIST: RefCell<Vec<libc::pollfd>> = const { RefCell::new(Vec::new()) };
}

/// Calls `fill` with the list of this thread.
fn with_list<T>(fill: impl Fn(&mut Vec<libc::pollfd>) -> T) -> T {
    let filled = LIST.try_with(|list| fill(&mut list.borrow_mut()));
    // A thread that is exiting has lost its list, and gets a new one. It is leaked, because the result refers to it.
    filled.unwrap_or_else(|_| fill(Box::leak(Box::default())))
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rpoll(fds: *mut libc::pollfd, nfds: libc::nfds_t, timeout: c_int) -> c_int {
    let timeout = Timeout::from_poll(timeout);
    let count = usize::try_from(nfds).unwrap_or(usize::MAX);
    // More than the kernel lets a process open (the default of fs.nr_open).
    if count > 1 << 20 || (fds.is_null() && count > 0) {
        return number_or_minus_one(Err(Errno::INVALID));
    }
    // SAFETY: not NULL, and `count` elements by the caller's contract.
    let list = if count == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(fds, count) } };
    number_or_minus_one(poll(list, timeout))
}

/// Waits until an entry of the list is ready, or for the timeout. Sets `revents` of all entries, and returns the
/// number of those that are ready. The thread may be cancelled while it sleeps: nothing that is alive then has a
/// destructor.
fn poll(list: &mut [libc::pollfd], timeout: Timeout) -> Result<c_int, Errno> {
    let begin = Instant::now();
    loop {
        let ready = poll_once(list)?;
        let now = Instant::now();
        let is_over = match timeout {
            Timeout::DontWait => true,
            Timeout::Until(deadline) => now >= deadline,
            Timeout::Never => false,
        };
        if ready > 0 || is_over {
            return Ok(ready);
        }
        if now.duration_since(begin) >= SPIN {
            break;
        }
    }
    loop {
        let woken = match register(list)? {
            Some(KernelList { at, count }) => sleep(at, count, timeout.deadline()),
            None => Ok(1), // ready already
        };
        unregister(list);
        let timed_out = woken? == 0;
        let ready = poll_once(list)?;
        if ready > 0 || timed_out {
            return Ok(ready);
        }
    }
}

/// A list of descriptors for the kernel: the ordinary ones of the program, and the waker of this thread. It is valid
/// until this thread builds another one, and has no destructor.
#[derive(Clone, Copy)]
pub(super) struct KernelList {
    pub(super) at: *mut libc::pollfd,
    pub(super) count: usize,
}

/// Builds the list for the kernel. Each entry has the index that it has in `list`. Those of sockets over RDMA are
/// disabled. The waker, if given, is the last one.
fn kernel_list(list: &[libc::pollfd], waker: Option<c_int>) -> KernelList {
    with_list(|kernel| {
        kernel.clear();
        kernel.extend(list.iter().map(|entry| libc::pollfd {
            // The kernel ignores negative descriptors.
            fd: if entry.fd >= 0 && find(entry.fd).is_ok() { -1 } else { entry.fd },
            revents: 0,
            ..*entry
        }));
        kernel.extend(waker.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }));
        KernelList { at: kernel.as_mut_ptr(), count: kernel.len() }
    })
}

/// Polls all descriptors once, without waiting. Sets `revents` of all entries, and returns the number of those that
/// are ready.
pub(super) fn poll_once(list: &mut [libc::pollfd]) -> Result<c_int, Errno> {
    let mut has_ordinary = false;
    let mut ready = 0;
    for entry in list.iter_mut() {
        entry.revents = 0;
        if entry.fd < 0 {
            continue;
        }
        match find(entry.fd) {
            Ok(socket) => entry.revents = socket.readiness(entry.events),
            Err(_) => has_ordinary = true,
        }
        ready += c_int::from(entry.revents != 0);
    }
    if has_ordinary {
        let KernelList { at, count } = kernel_list(list, None);
        // SAFETY: the list of this thread has `count` elements, and no other thread uses it.
        if unsafe { libc::poll(at, count as libc::nfds_t, 0) } == -1 {
            let errno = Errno::from(std::io::Error::last_os_error());
            return if errno.0 == libc::EINTR { Ok(ready) } else { Err(errno) };
        }
        // SAFETY: the list of this thread has `count` elements, and no other thread uses it.
        let polled = unsafe { std::slice::from_raw_parts(at, count) };
        for (entry, polled) in list.iter_mut().zip(polled).filter(|(_, polled)| polled.fd >= 0) {
            entry.revents = polled.revents;
            ready += c_int::from(entry.revents != 0);
        }
    }
    Ok(ready)
}

/// Registers this thread to be woken when one of the sockets over RDMA changes, and returns the list of descriptors
/// to sleep on. Returns `None` if a socket is ready already. In any case [`unregister`] must follow.
pub(super) fn register(list: &[libc::pollfd]) -> Result<Option<KernelList>, Errno> {
    let waker = Waker::of_this_thread()?;
    waker.clear();
    for entry in list.iter().filter(|entry| entry.fd >= 0) {
        let Ok(socket) = find(entry.fd) else { continue };
        // Registered before the last check: any change after that check wakes this thread.
        socket.waiters().add(&waker);
        loop {
            if socket.readiness(entry.events) != 0 {
                return Ok(None);
            }
            let may_have_changed = socket.arm();
            if !may_have_changed {
                break;
            }
        }
    }
    Ok(Some(kernel_list(list, Some(waker.fd()))))
}

/// Unregisters this thread from all sockets over RDMA in the list.
pub(super) fn unregister(list: &[libc::pollfd]) {
    if let Ok(waker) = Waker::of_this_thread() {
        for entry in list.iter().filter(|entry| entry.fd >= 0) {
            if let Ok(socket) = find(entry.fd) {
                socket.waiters().remove(&waker);
            }
        }
    }
}

/// A set of select(2) in terms of poll(2).
#[derive(Clone, Copy)]
struct SelectSet {
    /// Events to request.
    events: c_short,
    /// Events that make a descriptor ready.
    ready: c_short,
}

const READ: SelectSet =
    SelectSet { events: libc::POLLIN, ready: libc::POLLIN | libc::POLLHUP | libc::POLLERR };
const WRITE: SelectSet = SelectSet { events: libc::POLLOUT, ready: libc::POLLOUT | libc::POLLERR };
const EXCEPT: SelectSet = SelectSet { events: libc::POLLPRI, ready: libc::POLLPRI };

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
        for (set, SelectSet { events, .. }) in sets {
            // SAFETY: not NULL, and valid by the caller's contract. `fd` is less than FD_SETSIZE.
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
    if list[..used].iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        return number_or_minus_one(Err(Errno(libc::EBADF)));
    }
    let mut count = 0;
    for (set, SelectSet { events, ready }) in sets.into_iter().filter(|(set, _)| !set.is_null()) {
        for entry in &list[..used] {
            if entry.events & events == 0 || entry.revents & ready == 0 {
                // SAFETY: not NULL, and valid by the caller's contract. `fd` is less than FD_SETSIZE.
                unsafe { libc::FD_CLR(entry.fd, set) };
            } else {
                count += 1;
            }
        }
    }
    count
}
