//! The calls that send and receive.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::buffer::Pieces;
use super::wait::until;
use super::{address, find, names};
use crate::errno::Errno;
use std::ffi::{c_int, c_void};
use std::ptr;

/// How much was done: an error counts only if that is nothing, the next call will meet it again.
pub(super) fn size(result: Result<(), Errno>, done: usize) -> isize {
    match result {
        Err(errno) if done == 0 => {
            errno.set();
            -1
        }
        _ => isize::try_from(done).unwrap_or(isize::MAX),
    }
}

fn send(socket: c_int, mut from: Pieces<'_>, flags: c_int) -> isize {
    let total = from.len();
    let sent = ready(socket, flags).and_then(|patience| {
        until(socket, patience, |socket| {
            socket.stream()?.send(&mut from)?;
            Ok((from.len() == 0).then_some(()))
        })
    });
    size(sent, total - from.len())
}

fn receive(socket: c_int, mut to: Pieces<'_>, flags: c_int) -> isize {
    let total = to.len();
    let peek = flags & libc::MSG_PEEK != 0;
    let all = flags & libc::MSG_WAITALL != 0 && !peek;
    let received = ready(socket, flags).and_then(|patience| {
        until(socket, patience, |socket| {
            let received = socket.stream()?.receive(&mut to, peek)?;
            // Zero is the end, or there is no room for more.
            Ok(received.filter(|&now| now == 0 || !all || to.len() == 0).map(|_| ()))
        })
    });
    size(received, total - to.len())
}

fn ready(socket: c_int, flags: c_int) -> Result<super::wait::Patience, Errno> {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    Ok(find(socket)?.patience(flags))
}

fn piece(at: *const c_void, len: usize) -> [libc::iovec; 1] {
    [libc::iovec { iov_base: at.cast_mut(), iov_len: len }]
}

/// # Safety
/// `list` has `count` elements, which the call may read or write.
unsafe fn pieces<'l>(list: *const libc::iovec, count: usize) -> Result<Pieces<'l>, Errno> {
    const MOST: usize = 1024; // IOV_MAX
    if count > MOST || (list.is_null() && count > 0) {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's word.
    let list = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(list, count) } };
    let total = list.iter().try_fold(0usize, |sum, it| sum.checked_add(it.iov_len));
    match total.and_then(|total| isize::try_from(total).ok()) {
        // SAFETY: the caller's word.
        Some(_) => Ok(unsafe { Pieces::new(list) }),
        None => Err(Errno::INVALID),
    }
}

fn failed(errno: Errno) -> isize {
    size(Err(errno), 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rsend(socket: c_int, buf: *const c_void, len: usize, flags: c_int) -> isize {
    let list = piece(buf, len);
    // SAFETY: the caller's.
    match unsafe { pieces(list.as_ptr(), 1) } {
        Ok(from) => send(socket, from, flags),
        Err(errno) => failed(errno),
    }
}

/// The address is that of the connection.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rsendto(
    socket: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    _addr: *const libc::sockaddr,
    _addrlen: libc::socklen_t,
) -> isize {
    // SAFETY: the caller's.
    unsafe { rsend(socket, buf, len, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rwrite(socket: c_int, buf: *const c_void, count: usize) -> isize {
    // SAFETY: the caller's.
    unsafe { rsend(socket, buf, count, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rwritev(socket: c_int, iov: *const libc::iovec, iovcnt: c_int) -> isize {
    // SAFETY: the caller's.
    match usize::try_from(iovcnt).map_err(|_| Errno::INVALID).and_then(|n| unsafe { pieces(iov, n) }) {
        Ok(from) => send(socket, from, 0),
        Err(errno) => failed(errno),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rsendmsg(socket: c_int, msg: *const libc::msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's.
    match unsafe { list_of(msg) } {
        Ok(from) => send(socket, from, flags),
        Err(errno) => failed(errno),
    }
}

/// # Safety
/// `msg` is NULL or whole.
unsafe fn list_of<'l>(msg: *const libc::msghdr) -> Result<Pieces<'l>, Errno> {
    // SAFETY: the caller's word.
    let msg = unsafe { msg.as_ref() }.ok_or(Errno::INVALID)?;
    if !msg.msg_control.is_null() && msg.msg_controllen > 0 {
        return Err(Errno::UNSUPPORTED);
    }
    #[allow(clippy::unnecessary_cast, reason = "the C library decides on the type")]
    let count = msg.msg_iovlen as usize;
    // SAFETY: the caller's word.
    unsafe { pieces(msg.msg_iov, count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rrecv(socket: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize {
    let list = piece(buf, len);
    // SAFETY: the caller's.
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
    // SAFETY: the caller's.
    let received = unsafe { rrecv(socket, buf, len, flags) };
    if received > 0
        && let Ok((peer, family)) = names::peer(socket)
    {
        // SAFETY: the caller's.
        unsafe { address::write(peer, family, addr, addrlen) };
    }
    received
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rread(socket: c_int, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: the caller's.
    unsafe { rrecv(socket, buf, count, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rreadv(socket: c_int, iov: *const libc::iovec, iovcnt: c_int) -> isize {
    // SAFETY: the caller's.
    match usize::try_from(iovcnt).map_err(|_| Errno::INVALID).and_then(|n| unsafe { pieces(iov, n) }) {
        Ok(to) => receive(socket, to, 0),
        Err(errno) => failed(errno),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rrecvmsg(socket: c_int, msg: *mut libc::msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's.
    let received = match unsafe { list_of(msg) } {
        Ok(to) => receive(socket, to, flags),
        Err(errno) => return failed(errno),
    };
    if received >= 0 {
        // SAFETY: the caller's, and not NULL.
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
