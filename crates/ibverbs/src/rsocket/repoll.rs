//! epoll(7) for sockets over RDMA and ordinary descriptors (`repoll_create`, since rdma-core 61).
//!
//! Every wait polls all members, as `rpoll` does. Members are level-triggered: EPOLLET has no effect, and
//! EPOLLONESHOT works as with epoll. A failed call returns -1 and sets errno, as with epoll, while librdmacm
//! returns some errors as positive numbers.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::forked;
use super::poll::{KernelList, poll_once, register, unregister};
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

/// The bits of epoll that have the same value in poll(2).
const POLL_BITS: u32 =
    (libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLRDHUP)
        as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
const CLOSE_ON_EXEC: c_int = libc::EPOLL_CLOEXEC;

/// A set that `repoll_create` created.
#[derive(Debug)]
struct Set {
    /// An eventfd without function. It reserves the number of the set for the program.
    _descriptor: OwnedFd,
    members: Mutex<Members>,
    /// Threads that wait for events. They are woken when the members change, and list them again.
    waiters: Waiters,
}

#[derive(Debug, Default)]
struct Members {
    list: Vec<Member>,
    /// Incremented by every change of the list.
    version: u64,
    /// Index of the member whose events are reported first, so that no member starves if the program takes few
    /// events at a time.
    first: usize,
}

#[derive(Debug)]
struct Member {
    fd: RawFd,
    /// The socket that had this number when it was added, or `None` for an ordinary descriptor. A closed
    /// socket is no longer a member, even if its number was reused.
    socket: Option<Weak<Socket>>,
    /// The requested events. Only EPOLLONESHOT if such a member has been reported.
    events: u32,
    /// Data that the program gets with the events.
    data: u64,
}

impl Member {
    /// Returns whether the descriptor now belongs to another socket, or to none.
    fn is_gone(&self) -> bool {
        match (&self.socket, find(self.fd)) {
            (Some(added), Ok(current)) => added.as_ptr() != Arc::as_ptr(&current),
            (None, Err(_)) => false,
            _ => true,
        }
    }
}

/// All sets of this process, by their descriptors. `None` until the first is created.
static SETS: Mutex<Option<HashMap<RawFd, Arc<Set>>>> = Mutex::new(None);

/// Finds the set with a descriptor. EBADF if there is none, EOPNOTSUPP in a forked child.
fn find_set(fd: RawFd) -> Result<Arc<Set>, Errno> {
    if forked::is_child() {
        return Err(Errno::UNSUPPORTED);
    }
    lock(&SETS).as_ref().and_then(|sets| sets.get(&fd)).cloned().ok_or(Errno(libc::EBADF))
}

/// Closes the set with a descriptor. Returns false if there is none.
pub(super) fn close(fd: RawFd) -> bool {
    let set = if forked::is_child() { None } else { lock(&SETS).as_mut().and_then(|sets| sets.remove(&fd)) };
    set.map(|set| set.waiters.wake_all()).is_some()
}

#[unsafe(no_mangle)]
pub extern "C" fn repoll_create(flags: c_int) -> c_int {
    match create(flags) {
        Ok(fd) => fd,
        Err(errno) => minus_one!(Err(errno)), // unlike `number_or_minus_one`, also logs the failure
    }
}

/// Creates an empty set, and returns its descriptor.
fn create(flags: c_int) -> Result<RawFd, Errno> {
    if flags & !CLOSE_ON_EXEC != 0 {
        return Err(Errno::INVALID);
    }
    forked::register_handler();
    let flags = if flags == 0 { EventfdFlags::empty() } else { EventfdFlags::CLOEXEC };
    let descriptor = eventfd(0, flags)?;
    let fd = descriptor.as_raw_fd();
    let set = Set { _descriptor: descriptor, members: Mutex::default(), waiters: Waiters::default() };
    let before = lock(&SETS).get_or_insert_default().insert(fd, Arc::new(set));
    if let Some(before) = before {
        // The program closed the descriptor of an earlier set with close(2). Its number belongs to the new set now,
        // so that dropping the earlier set would close the new one.
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
        change_members(&found, op, fd, event)?;
        found.waiters.wake_all();
        Ok(())
    }))
}

/// Adds, changes or removes a member, as epoll_ctl(2) does.
fn change_members(set: &Set, op: c_int, fd: RawFd, event: Option<libc::epoll_event>) -> Result<(), Errno> {
    let socket = find(fd).ok();
    if socket.is_none() && !is_open(fd) {
        return Err(Errno(libc::EBADF));
    }
    let mut members = lock(&set.members);
    members.list.retain(|member| !member.is_gone());
    let index = members.list.iter().position(|member| member.fd == fd);
    match (op, index) {
        (libc::EPOLL_CTL_ADD, Some(_)) => return Err(Errno(libc::EEXIST)),
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => return Err(Errno(libc::ENOENT)),
        (libc::EPOLL_CTL_ADD, None) => {
            let event = event.ok_or(Errno(libc::EFAULT))?;
            let socket = socket.as_ref().map(Arc::downgrade);
            members.list.push(Member { fd, socket, events: event.events, data: event.u64 });
        }
        (libc::EPOLL_CTL_MOD, Some(index)) => {
            let event = event.ok_or(Errno(libc::EFAULT))?;
            (members.list[index].events, members.list[index].data) = (event.events, event.u64);
        }
        (libc::EPOLL_CTL_DEL, Some(index)) => drop(members.list.remove(index)),
        _ => return Err(Errno::INVALID),
    }
    members.version += 1;
    Ok(())
}

/// Returns whether a number is that of an open descriptor.
fn is_open(fd: RawFd) -> bool {
    // SAFETY: not -1. The kernel checks whether the number is open, and nothing else is done with it.
    fd >= 0 && rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).is_ok()
}

thread_local! {
    /// Memory for the [`MemberList`] of this thread. Calls do not own it, because nothing with a destructor may be
    /// alive where a thread can be cancelled.
    static LIST: RefCell<Vec<libc::pollfd>> = const { RefCell::new(Vec::new()) };
}

/// The members of a set as a list for poll, in the same order. It is valid until this thread builds another one,
/// and has no destructor.
#[derive(Clone, Copy)]
struct MemberList {
    at: *mut libc::pollfd,
    count: usize,
    /// Version of the members when the list was built.
    version: u64,
}

impl MemberList {
    /// Returns the entries of the list. Their lifetime is not that of `self`, which is only a copy of a pointer: they
    /// are valid until this thread builds another list.
    fn entries<'l>(self) -> &'l mut [libc::pollfd] {
        // SAFETY: the list of this thread has `count` elements, and no other thread uses it. Each result is used in
        // one expression only, so that no two exist at a time.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.count) }
    }
}

/// Lists the members of a set for poll. Removes those whose descriptors were closed.
fn list_members(set: RawFd) -> Result<MemberList, Errno> {
    let set = find_set(set)?;
    let mut members = lock(&set.members);
    let before = members.list.len();
    members.list.retain(|member| !member.is_gone());
    members.version += u64::from(members.list.len() != before);
    let version = members.version;
    let fill = |list: &mut Vec<libc::pollfd>| {
        list.clear();
        list.extend(members.list.iter().map(|member| {
            // A one-shot member that was reported is ignored until the program changes it.
            let is_disabled = member.events & !ONE_SHOT == 0;
            let bits = (member.events & POLL_BITS).cast_signed();
            let events = i16::try_from(bits).unwrap_or_default();
            libc::pollfd { fd: if is_disabled { -1 } else { member.fd }, events, revents: 0 }
        }));
        MemberList { at: list.as_mut_ptr(), count: list.len(), version }
    };
    let filled = LIST.try_with(|list| fill(&mut list.borrow_mut()));
    // A thread that is exiting has lost its list, and gets a new one. It is leaked, because the result refers to it.
    Ok(filled.unwrap_or_else(|_| fill(Box::leak(Box::default()))))
}

/// Writes the events of the members that are ready, as many as there is room for, and returns their number. Returns
/// zero if the members changed since they were listed.
fn collect(set: RawFd, polled: MemberList, room: &mut [libc::epoll_event]) -> Result<c_int, Errno> {
    let set = find_set(set)?;
    let mut members = lock(&set.members);
    if members.version != polled.version || polled.count == 0 {
        return Ok(0);
    }
    let (first, count) = (members.first % polled.count, polled.count);
    let mut written = 0;
    let mut next = first;
    for index in (first..count).chain(0..first) {
        let revents = polled.entries()[index].revents;
        // POLLNVAL: the program has closed the descriptor, and the member is removed below.
        if revents == 0 || revents & libc::POLLNVAL != 0 {
            continue;
        }
        let Some(event) = room.get_mut(written) else { break };
        let member = &mut members.list[index];
        *event = libc::epoll_event { events: u32::from(revents.cast_unsigned()), u64: member.data };
        if member.events & ONE_SHOT != 0 {
            member.events = ONE_SHOT;
        }
        written += 1;
        next = index + 1;
    }
    members.first = next;
    members.list.retain(|member| member.socket.is_some() || is_open(member.fd));
    members.version += u64::from(members.list.len() != count);
    c_int::try_from(written).map_err(|_| Errno::INVALID)
}

/// Registers this thread to be woken when the members of a set change. Returns false if they changed since they were
/// listed.
fn register_with_set(set: RawFd, listed: MemberList) -> Result<bool, Errno> {
    let set = find_set(set)?;
    set.waiters.add(&Waker::of_this_thread()?);
    let unchanged = lock(&set.members).version == listed.version;
    Ok(unchanged)
}

/// Unregisters this thread as a waiter of a set.
fn unregister_from_set(set: RawFd) {
    if let (Ok(set), Ok(waker)) = (find_set(set), Waker::of_this_thread()) {
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
        // SAFETY: not NULL, and `max` elements by the caller's contract.
        Ok(max @ 1..) if !events.is_null() => unsafe { std::slice::from_raw_parts_mut(events, max) },
        _ => return minus_one!(Err(Errno::INVALID)),
    };
    match wait(set, room, timeout) {
        Ok(ready) => ready,
        Err(errno) => minus_one!(Err(errno)),
    }
}

/// Waits for events of the members, writes them to `room`, and returns their number, or zero at the timeout.
///
/// The thread may be cancelled while it sleeps: nothing that is alive then has a destructor. A cancelled thread stays
/// registered, which is harmless: the waiters of a socket or a set hold only weak references to wakers.
fn wait(set: RawFd, room: &mut [libc::epoll_event], timeout: Timeout) -> Result<c_int, Errno> {
    loop {
        let members = without_cancellation(|| list_members(set))?;
        if without_cancellation(|| poll_once(members.entries()))? > 0 {
            match without_cancellation(|| collect(set, members, room))? {
                0 => continue, // the members have changed, or one was closed
                ready => return Ok(ready),
            }
        }
        let is_over = timeout.deadline().is_some_and(|deadline| Instant::now() >= deadline);
        if is_over || timeout == Timeout::DontWait {
            return Ok(0);
        }
        let registered = without_cancellation(|| match register(members.entries())? {
            Some(list) if register_with_set(set, members)? => Ok(Some(list)),
            _ => Ok(None),
        });
        // The result is returned only below, because the thread must be unregistered also after an error.
        let slept = match registered {
            Ok(Some(KernelList { at, count })) => sleep(at, count, timeout.deadline()).map(drop),
            Ok(None) => Ok(()), // a member is ready, or the members have changed
            Err(errno) => Err(errno),
        };
        without_cancellation(|| {
            unregister(members.entries());
            unregister_from_set(set);
        });
        slept?;
    }
}
