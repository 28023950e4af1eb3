//! The calls that query a socket or set its options.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::address;
use super::options::is_kept;
use super::socket::{Role, Socket};
use super::table::find;
use crate::support::errno::{Errno, minus_one, number_or_minus_one};
use ironwarp_rnic::sync::lock;
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use std::ffi::{c_int, c_long, c_void};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The peer of a connected socket, and the socket's family.
pub(super) fn peer(socket: c_int) -> Result<(SocketAddr, c_int), Errno> {
    let socket = find(socket)?;
    let established = socket.stream()?.current().established.clone();
    Ok((established.ok_or(Errno(libc::ENOTCONN))?.peer, socket.family()))
}

fn local(socket: &Socket) -> Result<SocketAddr, Errno> {
    let established = socket.stream().ok().and_then(|stream| stream.current().established.clone());
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
    minus_one!(peer(socket).map(|(peer, family)| {
        // SAFETY: valid by the caller's contract.
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
        let name = local(&socket)?;
        // SAFETY: valid by the caller's contract.
        unsafe { address::write(name, socket.family(), addr, addrlen) };
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
    // SAFETY: valid by the caller's contract.
    minus_one!(find(socket).and_then(|socket| unsafe { set(&socket, level, optname, optval, optlen) }))
}

/// # Safety
/// `value` is NULL or has `len` bytes.
unsafe fn set(
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
        // SAFETY: long enough, as just checked.
        let linger = unsafe { value.cast::<libc::linger>().read_unaligned() };
        let time = Duration::from_secs(u64::try_from(linger.l_linger).unwrap_or_default());
        lock(socket.options()).linger = (linger.l_onoff != 0).then_some(time);
        return Ok(());
    }
    // SAFETY: long enough, as checked above.
    let number = unsafe { value.cast::<c_int>().read_unaligned() };
    if let Some(done) = lock(socket.options()).set(level, name, number) {
        return done;
    }
    if !is_kept(level, name) {
        return Err(Errno(libc::ENOPROTOOPT));
    }
    if (level, name, number) == (libc::SOL_SOCKET, libc::SO_REUSEADDR, 0) {
        return Ok(()); // the adapter needs it, see `rbind`
    }
    socket.with_descriptor(|fd| {
        let size = libc::socklen_t::try_from(size_of::<c_int>()).unwrap_or_default();
        // SAFETY: a local number.
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
            // SAFETY: valid by the caller's contract.
            return unsafe { tell(&c, optval, optlen) };
        }
        let number = get(&socket, level, optname)?;
        // SAFETY: valid by the caller's contract.
        unsafe { tell(&number, optval, optlen) }
    }))
}

/// # Safety
/// `to` has as many bytes as `len` says.
unsafe fn tell<T>(value: &T, to: *mut c_void, len: *mut libc::socklen_t) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller, here and below.
    let room = unsafe { len.read_unaligned() } as usize;
    let size = size_of::<T>().min(room);
    // SAFETY: at most the length of either.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), to.cast::<u8>(), size);
        len.write_unaligned(libc::socklen_t::try_from(size).unwrap_or_default());
    }
    Ok(())
}

fn get(socket: &Socket, level: c_int, name: c_int) -> Result<c_int, Errno> {
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
        let stream = socket.stream().ok();
        let error = stream.and_then(|stream| stream.latest().error.take());
        return Ok(error.map_or(0, |errno| errno.0));
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) {
        return Ok(matches!(socket.role(), Role::Listens(_)).into());
    }
    if let Some(number) = lock(socket.options()).get(level, name) {
        return Ok(number);
    }
    if !is_kept(level, name) {
        return Err(Errno(libc::ENOPROTOOPT));
    }
    socket.with_descriptor(|fd| {
        let mut number: c_int = 0;
        let mut size = libc::socklen_t::try_from(size_of::<c_int>()).unwrap_or_default();
        let (value, len) = ((&raw mut number).cast(), &raw mut size);
        // SAFETY: a local number.
        let got = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value, len) };
        if got == 0 { Ok(number) } else { Err(std::io::Error::last_os_error().into()) }
    })
}

/// The argument is optional in C. It is passed like any other, and commands without one ignore it.
#[unsafe(no_mangle)]
pub extern "C" fn rfcntl(socket: c_int, cmd: c_int, arg: c_long) -> c_int {
    number_or_minus_one(find(socket).and_then(|socket| control(&socket, cmd, arg)))
}

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
