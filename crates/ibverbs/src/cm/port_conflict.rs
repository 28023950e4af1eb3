//! Lets a program use an RDMA port and a TCP port of the same number. An RDMA port is at the TCP port of the same
//! number if that is free. If the program binds a TCP socket to that port later, the RDMA port moves to a
//! candidate port, so that the program may listen on both in any order.
//!
//! For this, `bind` and `listen` of the C library are interposed (`compat.S` gives the functions of this file
//! these names). They differ from the real ones only if those fail with EADDRINUSE.
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

/// The ids that have an RDMA port, with the process that each belongs to. A forked child inherits the list.
static BOUND_IDS: Mutex<Vec<(u32, Weak<Shared>)>> = Mutex::new(Vec::new());

/// Adds an id that has an RDMA port, and removes ids that were destroyed.
pub(super) fn register(id: &Arc<Shared>) {
    let mut bound = lock(&BOUND_IDS);
    bound.retain(|(_, id)| id.strong_count() > 0);
    bound.push((std::process::id(), Arc::downgrade(id)));
}

/// Moves the RDMA ports of this process away from a TCP port. Returns whether any was there and could be moved.
fn move_rdma_ports_aside(port: u16) -> bool {
    let own = std::process::id();
    let ids: Vec<_> = {
        let bound = lock(&BOUND_IDS);
        bound.iter().filter(|(process, _)| *process == own).filter_map(|(_, id)| id.upgrade()).collect()
    };
    let moved = ids.iter().filter(|id| match id.move_aside(port) {
        Ok(moved) => moved,
        Err(error) => {
            tracing::warn!(%error, "failed to move the listener of RDMA port {port} away from TCP port {port}");
            false
        }
    });
    moved.count() > 0 // `count` moves all of them, where `any` would stop after the first
}

/// Reads the port of an IPv4 or IPv6 address. Returns `None` for port 0 and for other families.
///
/// # Safety
/// `addr` is NULL or has `len` bytes.
unsafe fn port_of(addr: *const libc::sockaddr, len: libc::socklen_t) -> Option<u16> {
    let len = usize::try_from(len).unwrap_or_default();
    if addr.is_null() || len < size_of::<libc::sockaddr_in>() {
        return None;
    }
    // SAFETY: long enough for `sockaddr_in`, as just checked. `sockaddr_in6` has the port at the same offset.
    unsafe {
        match c_int::from((*addr).sa_family) {
            libc::AF_INET | libc::AF_INET6 => {
                Some(u16::from_be((*addr.cast::<libc::sockaddr_in>()).sin_port)).filter(|port| *port != 0)
            }
            _ => None,
        }
    }
}

/// Whether errno is EADDRINUSE.
fn errno_is_in_use() -> bool {
    // SAFETY: `__errno_location` returns a valid pointer, to the errno of this thread.
    unsafe { *libc::__errno_location() == libc::EADDRINUSE }
}

/// Makes a call for a socket of the program. If it fails with EADDRINUSE and the socket is a TCP socket, moves the
/// RDMA ports of this process away from its port, which `port` returns, and repeats the call.
fn retry_if_in_use(
    socket: c_int,
    port: impl FnOnce(BorrowedFd<'_>) -> Option<u16>,
    call: impl Fn() -> c_int,
) -> c_int {
    let result = call();
    if result != -1 || !errno_is_in_use() {
        return result;
    }
    let moved = without_cancellation(|| {
        // SAFETY: the descriptor is open: otherwise the call would have failed with EBADF.
        let socket = unsafe { BorrowedFd::borrow_raw(socket) };
        let is_stream = sockopt::socket_type(socket).is_ok_and(|kind| kind == SocketType::STREAM);
        is_stream && port(socket).is_some_and(move_rdma_ports_aside)
    });
    if moved {
        return call();
    }
    Errno(libc::EADDRINUSE).set(); // the calls above may have changed errno
    result
}

/// Replaces bind(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_bind(
    socket: c_int,
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
) -> c_int {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    type Function = unsafe extern "C" fn(c_int, *const libc::sockaddr, libc::socklen_t) -> c_int;
    // SAFETY: the real function has this type, and gets the arguments of this call. `port_of` reads the address
    // only after the real function has validated it, and failed with EADDRINUSE.
    unsafe {
        let real: Function = std::mem::transmute(real(&REAL, c"bind"));
        retry_if_in_use(socket, |_| port_of(addr, len), || real(socket, addr, len))
    }
}

/// Replaces listen(2), which fails with EADDRINUSE instead of `bind` if both sockets were bound to the port with
/// SO_REUSEADDR.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironwarp_listen(socket: c_int, backlog: c_int) -> c_int {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    type Function = unsafe extern "C" fn(c_int, c_int) -> c_int;
    let bound_port = |socket: BorrowedFd<'_>| {
        let address = rustix::net::getsockname(socket).ok()?;
        SocketAddr::try_from(address).ok().map(|address| address.port())
    };
    // SAFETY: the real function has this type, and gets the arguments of this call.
    unsafe {
        let real: Function = std::mem::transmute(real(&REAL, c"listen"));
        retry_if_in_use(socket, bound_port, || real(socket, backlog))
    }
}
