//! epoll(7) for sockets over RDMA and ordinary descriptors (`repoll_create`, since rdma-core 61).
//!
//! Every wait polls all members, as `rpoll` does. They are level-triggered: EPOLLET has no effect, and
//! EPOLLONESHOT works as with epoll. Errors are -1 and errno, as with epoll, while librdmacm returns some of
//! them as positive numbers.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::forked;
use super::poll::{Asked, leave, look, prepare};
use super::socket::Socket;
use super::table::find;
use super::waiters::{Timeout, Waiters, Waker, sleep};
use crate::support::cancel::without_cancellation;
use crate::support::errno::{Errno, minus_one};
use ironwarp_rnic::sync::lock;
use rustix::event::{EventfdFlags, eventfd};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

/// The bits that epoll shares with poll.
const POLL: u32 =
    (libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLRDHUP)
        as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
const CLOSE_ON_EXEC: c_int = libc::EPOLL_CLOEXEC;

/// A set, by its descriptor.
#[derive(Debug)]
struct Set {
    /// Reserves the number for the program.
    _descriptor: OwnedFd,
    members: Mutex<Members>,
    /// Threads that wait, and must look again when the members change.
    waiters: Waiters,
}

#[derive(Debug, Default)]
struct Members {
    list: Vec<Member>,
    /// Incremented by every change of the list.
    version: u64,
    /// Where the next look starts, so that no member starves if the program takes few events at a time.
    first: usize,
}

#[derive(Debug)]
struct Member {
    fd: RawFd,
    /// The socket that had this number when it was added, or `None` for an ordinary descriptor. A closed
    /// socket is no longer a member, even if its number was reused.
    socket: Option<Weak<Socket>>,
    events: u32,
    data: u64,
}

impl Member {
    fn is_gone(&self) -> bool {
        match (&self.socket, find(self.fd)) {
            (Some(socket), Ok(now)) => socket.as_ptr() != Arc::as_ptr(&now),
            (None, Err(_)) => false,
            _ => true,
        }
    }
}

static SETS: Mutex<Option<HashMap<RawFd, Arc<Set>>>> = Mutex::new(None);

fn find_set(fd: RawFd) -> Result<Arc<Set>, Errno> {
    if forked::is_child() {
        return Err(Errno::UNSUPPORTED);
    }
    lock(&SETS).as_ref().and_then(|sets| sets.get(&fd)).cloned().ok_or(Errno(libc::EBADF))
}

/// Closes a set. Returns false if the descriptor is not one.
pub(super) fn close(fd: RawFd) -> bool {
    let set = if forked::is_child() { None } else { lock(&SETS).as_mut().and_then(|sets| sets.remove(&fd)) };
    set.map(|set| set.waiters.wake()).is_some()
}

#[unsafe(no_mangle)]
pub extern "C" fn repoll_create(flags: c_int) -> c_int {
    let mut made = -1;
    let result = create(flags).map(|fd| made = fd);
    match minus_one!(result) {
        0 => made,
        failed => failed,
    }
}

fn create(flags: c_int) -> Result<RawFd, Errno> {
    if flags & !CLOSE_ON_EXEC != 0 {
        return Err(Errno::INVALID);
    }
    forked::watch();
    let flags = if flags == 0 { EventfdFlags::empty() } else { EventfdFlags::CLOEXEC };
    let descriptor = eventfd(0, flags)?;
    let fd = descriptor.as_raw_fd();
    let set = Set { _descriptor: descriptor, members: Mutex::default(), waiters: Waiters::default() };
    let before = lock(&SETS).get_or_insert_default().insert(fd, Arc::new(set));
    if let Some(before) = before {
        // The program closed the descriptor with close(2). The number belongs to the new set and must not be
        // closed.
        std::mem::forget(before);
    }
    Ok(fd)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn repoll_ctl(
    set: c_int,
    op: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    // SAFETY: NULL, or valid by the caller's contract.
    let event = unsafe { event.as_ref() }.copied();
    minus_one!(find_set(set).and_then(|found| {
        if fd == set {
            return Err(Errno::INVALID);
        }
        change(&found, op, fd, event)?;
        found.waiters.wake();
        Ok(())
    }))
}

fn change(set: &Set, op: c_int, fd: RawFd, event: Option<libc::epoll_event>) -> Result<(), Errno> {
    let socket = find(fd).ok();
    if socket.is_none() && !is_open(fd) {
        return Err(Errno(libc::EBADF));
    }
    let mut members = lock(&set.members);
    members.list.retain(|member| !member.is_gone());
    let at = members.list.iter().position(|member| member.fd == fd);
    match (op, at) {
        (libc::EPOLL_CTL_ADD, Some(_)) => return Err(Errno(libc::EEXIST)),
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => return Err(Errno(libc::ENOENT)),
        (libc::EPOLL_CTL_ADD, None) => {
            let event = event.ok_or(Errno(libc::EFAULT))?;
            let socket = socket.as_ref().map(Arc::downgrade);
            members.list.push(Member { fd, socket, events: event.events, data: event.u64 });
        }
        (libc::EPOLL_CTL_MOD, Some(at)) => {
            let event = event.ok_or(Errno(libc::EFAULT))?;
            (members.list[at].events, members.list[at].data) = (event.events, event.u64);
        }
        (libc::EPOLL_CTL_DEL, Some(at)) => drop(members.list.remove(at)),
        _ => return Err(Errno::INVALID),
    }
    members.version += 1;
    Ok(())
}

fn is_open(fd: RawFd) -> bool {
    // SAFETY: the kernel checks the number.
    fd >= 0 && rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).is_ok()
}

thread_local! {
    /// What this thread waits for. Kept, so that nothing has to be freed when the thread is cancelled.
    static WATCHED: RefCell<Vec<libc::pollfd>> = const { RefCell::new(Vec::new()) };
}

/// What a thread waits for. It stays in place until this thread asks again.
#[derive(Clone, Copy)]
struct Watched {
    at: *mut libc::pollfd,
    count: usize,
    version: u64,
}

impl Watched {
    fn list<'l>(self) -> &'l mut [libc::pollfd] {
        // SAFETY: that many elements, which only this thread uses. Each use ends before the next.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.count) }
    }
}

/// Lists what there is to wait for.
fn watch(set: RawFd) -> Result<Watched, Errno> {
    let set = find_set(set)?;
    let mut members = lock(&set.members);
    let before = members.list.len();
    members.list.retain(|member| !member.is_gone());
    members.version += u64::from(members.list.len() != before);
    let version = members.version;
    let fill = |watched: &mut Vec<libc::pollfd>| {
        watched.clear();
        watched.extend(members.list.iter().map(|member| {
            // A one-shot member that was reported is ignored until the program changes it.
            let idle = member.events & !ONE_SHOT == 0;
            let bits = (member.events & POLL).cast_signed();
            let events = i16::try_from(bits).unwrap_or_default();
            libc::pollfd { fd: if idle { -1 } else { member.fd }, events, revents: 0 }
        }));
        Watched { at: watched.as_mut_ptr(), count: watched.len(), version }
    };
    // A thread that is exiting gets a new list. Leaked, because the result refers to it.
    let done = WATCHED.try_with(|watched| fill(&mut watched.borrow_mut()));
    Ok(done.unwrap_or_else(|_| fill(Box::leak(Box::default()))))
}

/// Writes the events that are ready, as far as there is room. Returns zero if the set changed meanwhile.
fn collect(set: RawFd, watched: Watched, room: &mut [libc::epoll_event]) -> Result<c_int, Errno> {
    let set = find_set(set)?;
    let mut members = lock(&set.members);
    if members.version != watched.version || watched.count == 0 {
        return Ok(0);
    }
    let (first, count) = (members.first % watched.count, watched.count);
    let mut written = 0;
    let mut next = first;
    for at in (first..count).chain(0..first) {
        let revents = watched.list()[at].revents;
        // A closed descriptor is no longer waited for.
        if revents == 0 || revents & libc::POLLNVAL != 0 {
            continue;
        }
        let Some(place) = room.get_mut(written) else { break };
        let member = &mut members.list[at];
        *place = libc::epoll_event { events: u32::from(revents.cast_unsigned()), u64: member.data };
        if member.events & ONE_SHOT != 0 {
            member.events = ONE_SHOT;
        }
        written += 1;
        next = at + 1;
    }
    members.first = next;
    members.list.retain(|member| member.socket.is_some() || is_open(member.fd));
    members.version += u64::from(members.list.len() != count);
    c_int::try_from(written).map_err(|_| Errno::INVALID)
}

/// Registers this thread to be woken by changes. Returns false if there was one since `watched` was listed.
fn join(set: RawFd, watched: Watched) -> Result<bool, Errno> {
    let set = find_set(set)?;
    set.waiters.add(&Waker::mine()?);
    let same = lock(&set.members).version == watched.version;
    Ok(same)
}

fn quit(set: RawFd) {
    if let (Ok(set), Ok(waker)) = (find_set(set), Waker::mine()) {
        set.waiters.remove(&waker);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn repoll_wait(
    set: c_int,
    events: *mut libc::epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    let timeout = Timeout::from_poll(timeout);
    let room = match usize::try_from(max) {
        // SAFETY: that many elements by the caller's contract.
        Ok(max @ 1..) if !events.is_null() => unsafe { std::slice::from_raw_parts_mut(events, max) },
        _ => return minus_one!(Err(Errno::INVALID)),
    };
    match wait(set, room, timeout) {
        Ok(ready) => ready,
        Err(errno) => minus_one!(Err(errno)),
    }
}

/// Waits for events. The thread may be cancelled here: nothing that is alive while it sleeps has a
/// destructor.
fn wait(set: RawFd, room: &mut [libc::epoll_event], timeout: Timeout) -> Result<c_int, Errno> {
    loop {
        let watched = without_cancellation(|| watch(set))?;
        if without_cancellation(|| look(watched.list()))? > 0 {
            match without_cancellation(|| collect(set, watched, room))? {
                0 => continue,
                ready => return Ok(ready),
            }
        }
        let over = timeout.deadline().is_some_and(|deadline| Instant::now() >= deadline);
        if over || timeout == Timeout::DontWait {
            return Ok(0);
        }
        let asked = without_cancellation(|| match prepare(watched.list())? {
            Some(asked) if join(set, watched)? => Ok(Some(asked)),
            _ => Ok(None),
        });
        let slept = match asked {
            Ok(Some(Asked { at, count })) => sleep(at, count, timeout.deadline()).map(drop),
            Ok(None) => Ok(()),
            Err(errno) => Err(errno),
        };
        without_cancellation(|| {
            leave(watched.list());
            quit(set);
        });
        slept?;
    }
}
