//! Makes room for TCP sockets of the program. An RDMA port is at the TCP port of its number if that is free; when the program then
//! wants the TCP port for itself, the listener moves aside to a candidate, so that both orders of listening work.
//!
//! Nothing is looked at unless the C library's `bind` or `listen` says that the address is in use. `compat.S` gives these functions their
//! names.
#![expect(unsafe_code, reason = "functions of the C library")]

use super::state::Shared;
use crate::cancel::uncancelled;
use crate::errno::Errno;
use crate::files::real;
use crate::sync::lock;
use rustix::fd::BorrowedFd;
use rustix::net::{SocketType, sockopt};
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, Mutex, Weak};

/// The ids that have taken a port, and the process that they are of.
static TAKEN: Mutex<Vec<(u32, Weak<Shared>)>> = Mutex::new(Vec::new());

/// An id has taken a port.
pub(super) fn taken(id: &Arc<Shared>) {
    let mut taken = lock(&TAKEN);
    taken.retain(|(_, id)| id.strong_count() > 0);
    taken.push((std::process::id(), Arc::downgrade(id)));
}

/// Moves ids aside that have this TCP port. Whether there were any.
fn make_room(port: u16) -> bool {
    let own = std::process::id();
    let ids: Vec<_> = {
        let taken = lock(&TAKEN);
        taken.iter().filter(|(process, _)| *process == own).filter_map(|(_, id)| id.upgrade()).collect()
    };
    let moved = ids.iter().filter(|id| match id.move_aside(port) {
        Ok(moved) => moved,
        Err(error) => {
            tracing::warn!(%error, "failed to move the listener of RDMA port {port} away from TCP port {port}");
            false
        }
    });
    moved.count() > 0
}

/// The port of a TCP address.
///
/// # Safety
/// `addr` has `len` bytes, or is NULL.
unsafe fn port_of(addr: *const libc::sockaddr, len: libc::socklen_t) -> Option<u16> {
    let long = |size: usize| usize::try_from(len).is_ok_and(|len| len >= size);
    if addr.is_null() || !long(size_of::<libc::sockaddr_in>()) {
        return None;
    }
    // SAFETY: it is as long as it says. The port is in the same place in both families.
    unsafe {
        match c_int::from((*addr).sa_family) {
            libc::AF_INET | libc::AF_INET6 => {
                Some(u16::from_be((*addr.cast::<libc::sockaddr_in>()).sin_port)).filter(|port| *port != 0)
            }
            _ => None,
        }
    }
}

fn is_in_use() -> bool {
    // SAFETY: the C library's own, for this thread.
    unsafe { *libc::__errno_location() == libc::EADDRINUSE }
}

/// Calls, and once more if it fails because an address is in use that a listener of ours can leave.
fn retried(
    socket: c_int,
    port: impl FnOnce(BorrowedFd<'_>) -> Option<u16>,
    call: impl Fn() -> c_int,
) -> c_int {
    let result = call();
    if result != -1 || !is_in_use() {
        return result;
    }
    let room = uncancelled(|| {
        // SAFETY: the call would have failed in another way if it were not open.
        let socket = unsafe { BorrowedFd::borrow_raw(socket) };
        let stream = sockopt::socket_type(socket).is_ok_and(|kind| kind == SocketType::STREAM);
        stream && port(socket).is_some_and(make_room)
    });
    if room {
        return call();
    }
    Errno(libc::EADDRINUSE).set();
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_bind(
    socket: c_int,
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
) -> c_int {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    type Function = unsafe extern "C" fn(c_int, *const libc::sockaddr, libc::socklen_t) -> c_int;
    // SAFETY: the real function of this name, with the arguments that ours was called with. It has looked at the address before
    // it says that it is in use.
    unsafe {
        let real: Function = std::mem::transmute(real(&REAL, c"bind"));
        retried(socket, |_| port_of(addr, len), || real(socket, addr, len))
    }
}

/// Two sockets may be bound to one port if both allow it (SO_REUSEADDR). Then it is `listen` that fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_listen(socket: c_int, backlog: c_int) -> c_int {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    type Function = unsafe extern "C" fn(c_int, c_int) -> c_int;
    let bound_port = |socket: BorrowedFd<'_>| {
        let at = rustix::net::getsockname(socket).ok()?;
        SocketAddr::try_from(at).ok().map(|at| at.port())
    };
    // SAFETY: as above.
    unsafe {
        let real: Function = std::mem::transmute(real(&REAL, c"listen"));
        retried(socket, bound_port, || real(socket, backlog))
    }
}
