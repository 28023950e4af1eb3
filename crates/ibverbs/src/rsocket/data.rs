//! The calls that send and receive.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::buffer::IoSlices;
use super::table::find;
use super::wait::until;
use super::waiters::Timeout;
use super::{address, names};
use crate::support::errno::Errno;
use std::ffi::{c_int, c_void};
use std::ptr;

/// Returns how much was done. An error counts only if that is nothing: the next call gets it again.
pub(super) fn size(result: Result<(), Errno>, done: usize) -> isize {
    match result {
        Err(errno) if done == 0 => {
            errno.set();
            -1
        }
        _ => isize::try_from(done).unwrap_or(isize::MAX),
    }
}

fn send(socket: c_int, mut from: IoSlices<'_>, flags: c_int) -> isize {
    let total = from.len();
    let sent = ready(socket, flags).and_then(|timeout| {
        until(socket, timeout, |socket| {
            socket.stream()?.send(&mut from)?;
            Ok((from.len() == 0).then_some(()))
        })
    });
    size(sent, total - from.len())
}

fn receive(socket: c_int, mut to: IoSlices<'_>, flags: c_int) -> isize {
    let total = to.len();
    let peek = flags & libc::MSG_PEEK != 0;
    let all = flags & libc::MSG_WAITALL != 0 && !peek;
    let received = ready(socket, flags).and_then(|timeout| {
        until(socket, timeout, |socket| {
            let received = socket.stream()?.receive(&mut to, peek)?;
            // Zero means the end, or that the buffers are full.
            Ok(received.filter(|&now| now == 0 || !all || to.len() == 0).map(|_| ()))
        })
    });
    size(received, total - to.len())
}

fn ready(socket: c_int, flags: c_int) -> Result<Timeout, Errno> {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    Ok(find(socket)?.timeout(flags))
}

fn piece(at: *const c_void, len: usize) -> [libc::iovec; 1] {
    [libc::iovec { iov_base: at.cast_mut(), iov_len: len }]
}

/// # Safety
/// `list` has `count` elements, which the call may read or write.
unsafe fn pieces<'l>(list: *const libc::iovec, count: usize) -> Result<IoSlices<'l>, Errno> {
    const IOV_MAX: usize = 1024;
    if count > IOV_MAX || (list.is_null() && count > 0) {
        return Err(Errno::INVALID);
    }
    // SAFETY: guaranteed by the caller.
    let list = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(list, count) } };
    let total = list.iter().try_fold(0usize, |sum, it| sum.checked_add(it.iov_len));
    match total.and_then(|total| isize::try_from(total).ok()) {
        // SAFETY: guaranteed by the caller.
        Some(_) => Ok(unsafe { IoSlices::new(list) }),
        None => Err(Errno::INVALID),
    }
}

fn failed(errno: Errno) -> isize {
    size(Err(errno), 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rsend(socket: c_int, buf: *const c_void, len: usize, flags: c_int) -> isize {
    let list = piece(buf, len);
    // SAFETY: valid by the caller's contract.
    match unsafe { pieces(list.as_ptr(), 1) } {
        Ok(from) => send(socket, from, flags),
        Err(errno) => failed(errno),
    }
}

/// Ignores the address: the socket is connected.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rsendto(
    socket: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    _addr: *const libc::sockaddr,
    _addrlen: libc::socklen_t,
) -> isize {
    // SAFETY: valid by the caller's contract.
    unsafe { rsend(socket, buf, len, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rwrite(socket: c_int, buf: *const c_void, count: usize) -> isize {
    // SAFETY: valid by the caller's contract.
    unsafe { rsend(socket, buf, count, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rwritev(socket: c_int, iov: *const libc::iovec, iovcnt: c_int) -> isize {
    // SAFETY: valid by the caller's contract.
    match usize::try_from(iovcnt).map_err(|_| Errno::INVALID).and_then(|n| unsafe { pieces(iov, n) }) {
        Ok(from) => send(socket, from, 0),
        Err(errno) => failed(errno),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rsendmsg(socket: c_int, msg: *const libc::msghdr, flags: c_int) -> isize {
    // SAFETY: valid by the caller's contract.
    match unsafe { list_of(msg) } {
        Ok(from) => send(socket, from, flags),
        Err(errno) => failed(errno),
    }
}

/// # Safety
/// `msg` is NULL or valid.
unsafe fn list_of<'l>(msg: *const libc::msghdr) -> Result<IoSlices<'l>, Errno> {
    // SAFETY: guaranteed by the caller.
    let msg = unsafe { msg.as_ref() }.ok_or(Errno::INVALID)?;
    if !msg.msg_control.is_null() && msg.msg_controllen > 0 {
        return Err(Errno::UNSUPPORTED);
    }
    #[allow(clippy::unnecessary_cast, reason = "the C library decides on the type")]
    let count = msg.msg_iovlen as usize;
    // SAFETY: guaranteed by the caller.
    unsafe { pieces(msg.msg_iov, count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rrecv(socket: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize {
    let list = piece(buf, len);
    // SAFETY: valid by the caller's contract.
    match unsafe { pieces(list.as_ptr(), 1) } {
        Ok(to) => receive(socket, to, flags),
        Err(errno) => failed(errno),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rrecvfrom(
    socket: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut libc::sockaddr,
    addrlen: *mut libc::socklen_t,
) -> isize {
    // SAFETY: valid by the caller's contract.
    let received = unsafe { rrecv(socket, buf, len, flags) };
    if received > 0
        && let Ok((peer, family)) = names::peer(socket)
    {
        // SAFETY: valid by the caller's contract.
        unsafe { address::write(peer, family, addr, addrlen) };
    }
    received
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rread(socket: c_int, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: valid by the caller's contract.
    unsafe { rrecv(socket, buf, count, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rreadv(socket: c_int, iov: *const libc::iovec, iovcnt: c_int) -> isize {
    // SAFETY: valid by the caller's contract.
    match usize::try_from(iovcnt).map_err(|_| Errno::INVALID).and_then(|n| unsafe { pieces(iov, n) }) {
        Ok(to) => receive(socket, to, 0),
        Err(errno) => failed(errno),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rrecvmsg(socket: c_int, msg: *mut libc::msghdr, flags: c_int) -> isize {
    // SAFETY: valid by the caller's contract.
    let received = match unsafe { list_of(msg) } {
        Ok(to) => receive(socket, to, flags),
        Err(errno) => return failed(errno),
    };
    if received >= 0 {
        // SAFETY: not NULL, and valid by the caller's contract.
        unsafe {
            (*msg).msg_flags = 0;
            let len = ptr::addr_of_mut!((*msg).msg_namelen);
            if let Ok((peer, family)) = names::peer(socket) {
                address::write(peer, family, (*msg).msg_name.cast(), len);
            }
        }
    }
    received
}
