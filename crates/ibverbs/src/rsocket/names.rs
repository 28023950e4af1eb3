//! The calls that query a socket or set its options: `rgetpeername`, `rgetsockname`, `rsetsockopt`, `rgetsockopt`
//! and `rfcntl`.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::address;
use super::options::is_stored_in_kernel;
use super::socket::{Role, Socket};
use super::table::find;
use crate::support::errno::{Errno, minus_one, number_or_minus_one};
use ironwarp_rnic::sync::lock;
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use std::ffi::{c_int, c_long, c_void};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The address of the peer, and the address family of the socket. ENOTCONN if the socket is not connected.
pub(super) fn peer_address(socket: c_int) -> Result<(SocketAddr, c_int), Errno> {
    let socket = find(socket)?;
    let established = socket.stream()?.polled_state().established.clone();
    Ok((established.ok_or(Errno(libc::ENOTCONN))?.peer, socket.family()))
}

/// The local address of the connection, or else the address that the socket is bound to.
fn local_address(socket: &Socket) -> Result<SocketAddr, Errno> {
    let established = socket.stream().ok().and_then(|stream| stream.polled_state().established.clone());
    match established {
        Some(established) => Ok(established.local),
        None => socket.with_descriptor(|fd| {
            SocketAddr::try_from(rustix::net::getsockname(fd)?).map_err(|_| Errno::INVALID)
        }),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetpeername(
    socket: c_int,
    addr: *mut libc::sockaddr,
    addrlen: *mut libc::socklen_t,
) -> c_int {
    minus_one!(peer_address(socket).map(|(peer, family)| {
        // SAFETY: NULL, or as many bytes as `addrlen` says, by the caller's contract.
        unsafe { address::write(peer, family, addr, addrlen) }
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockname(
    socket: c_int,
    addr: *mut libc::sockaddr,
    addrlen: *mut libc::socklen_t,
) -> c_int {
    minus_one!(find(socket).and_then(|socket| {
        let local = local_address(&socket)?;
        // SAFETY: NULL, or as many bytes as `addrlen` says, by the caller's contract.
        unsafe { address::write(local, socket.family(), addr, addrlen) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: libc::socklen_t,
) -> c_int {
    // SAFETY: NULL, or `optlen` bytes by the caller's contract.
    minus_one!(find(socket).and_then(|socket| unsafe { set_option(&socket, level, optname, optval, optlen) }))
}

/// Sets an option: in the options of the socket, or, if the option has no effect on the connection, in the
/// descriptor. ENOPROTOOPT if the option is unknown.
///
/// # Safety
/// `value` is NULL or has `len` bytes.
unsafe fn set_option(
    socket: &Socket,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> Result<(), Errno> {
    let len = len as usize;
    if value.is_null() || len < size_of::<c_int>() {
        return Err(Errno::INVALID);
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
        if len < size_of::<libc::linger>() {
            return Err(Errno::INVALID);
        }
        // SAFETY: not NULL, and long enough, as checked above. Every `linger` is valid.
        let linger = unsafe { value.cast::<libc::linger>().read_unaligned() };
        let time = Duration::from_secs(u64::try_from(linger.l_linger).unwrap_or_default());
        lock(socket.options()).linger = (linger.l_onoff != 0).then_some(time);
        return Ok(());
    }
    // SAFETY: not NULL, and long enough, as checked above. Every `c_int` is valid.
    let number = unsafe { value.cast::<c_int>().read_unaligned() };
    if let Some(result) = lock(socket.options()).set(level, name, number) {
        return result;
    }
    if !is_stored_in_kernel(level, name) {
        return Err(Errno(libc::ENOPROTOOPT));
    }
    if (level, name, number) == (libc::SOL_SOCKET, libc::SO_REUSEADDR, 0) {
        return Ok(()); // stays set, because the adapter binds sockets to the same port, see `rbind`
    }
    socket.with_descriptor(|fd| {
        let size = libc::socklen_t::try_from(size_of::<c_int>()).unwrap_or_default();
        // SAFETY: an open descriptor, and a local number of `size` bytes.
        let set = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const number).cast(), size) };
        if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut libc::socklen_t,
) -> c_int {
    minus_one!(find(socket).and_then(|socket| {
        if optval.is_null() || optlen.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        if (level, optname) == (libc::SOL_SOCKET, libc::SO_LINGER) {
            let linger = lock(socket.options()).linger;
            let seconds = linger.map_or(0, |time| time.as_secs());
            let l_linger = c_int::try_from(seconds).unwrap_or(c_int::MAX);
            let c = libc::linger { l_onoff: linger.is_some().into(), l_linger };
            // SAFETY: not NULL, and as many bytes as `optlen` says, by the caller's contract.
            unsafe { write_option(&c, optval, optlen) };
            return Ok(());
        }
        let number = get_option(&socket, level, optname)?;
        // SAFETY: not NULL, and as many bytes as `optlen` says, by the caller's contract.
        unsafe { write_option(&number, optval, optlen) };
        Ok(())
    }))
}

/// Writes the value of an option, truncated to the room that the program has, and sets `len` to the number of bytes
/// written.
///
/// # Safety
/// `len` is valid, and `to` has as many bytes as it says.
unsafe fn write_option<T>(value: &T, to: *mut c_void, len: *mut libc::socklen_t) {
    // SAFETY: `len` is valid by the caller's contract.
    let room = unsafe { len.read_unaligned() } as usize;
    let size = size_of::<T>().min(room);
    // SAFETY: `size` is at most the size of `value` and the length of `to`. `len` is valid by the caller's contract.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), to.cast::<u8>(), size);
        len.write_unaligned(libc::socklen_t::try_from(size).unwrap_or_default());
    }
}

/// Returns the value of a numeric option: that of this socket, or else that of the kernel's socket behind its
/// descriptor. SO_ERROR takes the pending error of the connection. Fails with ENOPROTOOPT if the option is unknown.
fn get_option(socket: &Socket, level: c_int, name: c_int) -> Result<c_int, Errno> {
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
        let stream = socket.stream().ok();
        let error = stream.and_then(|stream| stream.progressed_state().error.take());
        return Ok(error.map_or(0, |errno| errno.0));
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) {
        return Ok(matches!(socket.role(), Role::Listens(_)).into());
    }
    if let Some(number) = lock(socket.options()).get(level, name) {
        return Ok(number);
    }
    if !is_stored_in_kernel(level, name) {
        return Err(Errno(libc::ENOPROTOOPT));
    }
    socket.with_descriptor(|fd| {
        let mut number: c_int = 0;
        let mut size = libc::socklen_t::try_from(size_of::<c_int>()).unwrap_or_default();
        let (value, len) = ((&raw mut number).cast(), &raw mut size);
        // SAFETY: an open descriptor, and a local number of `size` bytes.
        let got = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value, len) };
        if got == 0 { Ok(number) } else { Err(std::io::Error::last_os_error().into()) }
    })
}

/// Gets or sets the flags of a socket. In C the argument is optional (`...`): on 64-bit systems it is passed like any
/// other, and commands that need none ignore it.
#[unsafe(no_mangle)]
pub extern "C" fn rfcntl(socket: c_int, cmd: c_int, arg: c_long) -> c_int {
    number_or_minus_one(find(socket).and_then(|socket| control(&socket, cmd, arg)))
}

/// Implements the commands of fcntl(2) that are supported. EOPNOTSUPP for others.
fn control(socket: &Socket, cmd: c_int, arg: c_long) -> Result<c_int, Errno> {
    match cmd {
        libc::F_GETFL => Ok(libc::O_RDWR | if socket.is_nonblocking() { libc::O_NONBLOCK } else { 0 }),
        libc::F_SETFL => {
            socket.set_nonblocking(arg & c_long::from(libc::O_NONBLOCK) != 0);
            Ok(0)
        }
        libc::F_GETFD => {
            let flags = socket.with_descriptor(|fd| Ok(fcntl_getfd(fd)?))?;
            Ok(if flags.contains(FdFlags::CLOEXEC) { libc::FD_CLOEXEC } else { 0 })
        }
        libc::F_SETFD => {
            let set = arg & c_long::from(libc::FD_CLOEXEC) != 0;
            let flags = if set { FdFlags::CLOEXEC } else { FdFlags::empty() };
            socket.with_descriptor(|fd| Ok(fcntl_setfd(fd, flags)?))?;
            Ok(0)
        }
        _ => Err(Errno::UNSUPPORTED),
    }
}
