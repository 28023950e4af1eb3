//! Resolves conflicts with TCP sockets of the program. An RDMA port is at the TCP port of the same number if
//! that is free. If the program then wants that TCP port itself, the listener moves to a candidate port, so
//! that both orders of listening work.
//!
//! Programs are affected only if `bind` or `listen` of the C library fails because the address is in use.
//! `compat.S` gives these functions their names.
#![expect(unsafe_code, reason = "functions of the C library")]

use super::state::Shared;
use crate::files::real;
use crate::support::cancel::without_cancellation;
use crate::support::errno::Errno;
use ironwarp_rnic::sync::lock;
use rustix::fd::BorrowedFd;
use rustix::net::{SocketType, sockopt};
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, Mutex, Weak};

/// The ids that have a port, with the process that they belong to.
static LISTENERS: Mutex<Vec<(u32, Weak<Shared>)>> = Mutex::new(Vec::new());

/// Adds an id that has a port.
pub(super) fn register(id: &Arc<Shared>) {
    let mut listeners = lock(&LISTENERS);
    listeners.retain(|(_, id)| id.strong_count() > 0);
    listeners.push((std::process::id(), Arc::downgrade(id)));
}

/// Moves ids away from a TCP port. Returns whether there were any.
fn move_listeners_aside(port: u16) -> bool {
    let own = std::process::id();
    let ids: Vec<_> = {
        let listeners = lock(&LISTENERS);
        listeners.iter().filter(|(process, _)| *process == own).filter_map(|(_, id)| id.upgrade()).collect()
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
/// `addr` is NULL or has `len` bytes.
unsafe fn port_of(addr: *const libc::sockaddr, len: libc::socklen_t) -> Option<u16> {
    let long = |size: usize| usize::try_from(len).is_ok_and(|len| len >= size);
    if addr.is_null() || !long(size_of::<libc::sockaddr_in>()) {
        return None;
    }
    // SAFETY: long enough, as just checked. The port has the same offset in both families.
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
    // SAFETY: the errno of this thread.
    unsafe { *libc::__errno_location() == libc::EADDRINUSE }
}

/// Makes a call, and repeats it if it failed because of a listener that could be moved.
fn retry_if_in_use(
    socket: c_int,
    port: impl FnOnce(BorrowedFd<'_>) -> Option<u16>,
    call: impl Fn() -> c_int,
) -> c_int {
    let result = call();
    if result != -1 || !is_in_use() {
        return result;
    }
    let moved = without_cancellation(|| {
        // SAFETY: the call would have failed with EBADF if the descriptor were not open.
        let socket = unsafe { BorrowedFd::borrow_raw(socket) };
        let stream = sockopt::socket_type(socket).is_ok_and(|kind| kind == SocketType::STREAM);
        stream && port(socket).is_some_and(move_listeners_aside)
    });
    if moved {
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
    // SAFETY: the real function of this name, with the arguments of this call. It has validated the address
    // if it fails with EADDRINUSE.
    unsafe {
        let real: Function = std::mem::transmute(real(&REAL, c"bind"));
        retry_if_in_use(socket, |_| port_of(addr, len), || real(socket, addr, len))
    }
}

/// Two sockets may be bound to one port if both allow it (SO_REUSEADDR). Then `listen` fails.
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
        retry_if_in_use(socket, bound_port, || real(socket, backlog))
    }
}
