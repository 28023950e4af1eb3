//! The calls that send and receive data: `rsend`, `rrecv` and their variants.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::buffer::IoSlices;
use super::table::find;
use super::wait::wait_until;
use super::waiters::Timeout;
use super::{address, names};
use crate::support::errno::Errno;
use std::ffi::{c_int, c_void};
use std::ptr;

/// Returns the number of bytes that a call has transferred. Only if there are none, an error makes it return -1 and
/// set errno; otherwise the next call will fail.
pub(super) fn count_or_minus_one(result: Result<(), Errno>, done: usize) -> isize {
    match result {
        Err(errno) if done == 0 => {
            errno.set();
            -1
        }
        _ => isize::try_from(done).unwrap_or(isize::MAX),
    }
}

/// Sends all data, and waits for room as long as the socket and the flags allow. Returns the number of bytes sent.
fn send(socket: c_int, mut from: IoSlices<'_>, flags: c_int) -> isize {
    let total = from.len();
    let sent = timeout_of(socket, flags).and_then(|timeout| {
        wait_until(socket, timeout, |socket| {
            socket.stream()?.send(&mut from)?;
            Ok((from.len() == 0).then_some(()))
        })
    });
    count_or_minus_one(sent, total - from.len())
}

/// Receives data, and waits for it as long as the socket and the flags allow. Returns the number of bytes received.
fn receive(socket: c_int, mut to: IoSlices<'_>, flags: c_int) -> isize {
    let total = to.len();
    let peek = flags & libc::MSG_PEEK != 0;
    let wait_for_all = flags & libc::MSG_WAITALL != 0 && !peek;
    let received = timeout_of(socket, flags).and_then(|timeout| {
        wait_until(socket, timeout, |socket| {
            let received = socket.stream()?.receive(&mut to, peek)?;
            // Zero bytes: the end of the data, or the buffers were full before.
            let is_done = |&len: &usize| len == 0 || !wait_for_all || to.len() == 0;
            Ok(received.filter(is_done).map(|_| ()))
        })
    });
    count_or_minus_one(received, total - to.len())
}

/// How long a call with these flags may wait. Fails if the flags are not supported.
fn timeout_of(socket: c_int, flags: c_int) -> Result<Timeout, Errno> {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    Ok(find(socket)?.timeout(flags))
}

/// A list of one buffer.
fn one_buffer(at: *const c_void, len: usize) -> [libc::iovec; 1] {
    [libc::iovec { iov_base: at.cast_mut(), iov_len: len }]
}

/// Wraps a C list of buffers. EINVAL if it is too long or NULL, or if the total length overflows.
///
/// # Safety
/// `list` is NULL or has `count` elements. Each is memory that the call may read or write, as it requires, until it
/// returns.
unsafe fn io_slices<'l>(list: *const libc::iovec, count: usize) -> Result<IoSlices<'l>, Errno> {
    const IOV_MAX: usize = 1024;
    if count > IOV_MAX || (list.is_null() && count > 0) {
        return Err(Errno::INVALID);
    }
    // SAFETY: not NULL, and `count` elements by the caller's contract.
    let list = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(list, count) } };
    let total = list.iter().try_fold(0usize, |sum, buffer| sum.checked_add(buffer.iov_len));
    match total.and_then(|total| isize::try_from(total).ok()) {
        // SAFETY: the elements are memory that the call may use, by the caller's contract.
        Some(_) => Ok(unsafe { IoSlices::new(list) }),
        None => Err(Errno::INVALID),
    }
}

/// Sets errno, and returns -1.
fn fail(errno: Errno) -> isize {
    count_or_minus_one(Err(errno), 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rsend(socket: c_int, buf: *const c_void, len: usize, flags: c_int) -> isize {
    let list = one_buffer(buf, len);
    // SAFETY: a list of one buffer, which has `len` bytes by the caller's contract.
    match unsafe { io_slices(list.as_ptr(), 1) } {
        Ok(from) => send(socket, from, flags),
        Err(errno) => fail(errno),
    }
}

/// Sends data. Ignores the address, because only connected sockets are supported.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rsendto(
    socket: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    _addr: *const libc::sockaddr,
    _addrlen: libc::socklen_t,
) -> isize {
    // SAFETY: the buffer of this call, whose contract is the same.
    unsafe { rsend(socket, buf, len, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rwrite(socket: c_int, buf: *const c_void, count: usize) -> isize {
    // SAFETY: the buffer of this call, whose contract is the same.
    unsafe { rsend(socket, buf, count, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rwritev(socket: c_int, iov: *const libc::iovec, iovcnt: c_int) -> isize {
    // SAFETY: NULL, or `iovcnt` valid elements by the caller's contract.
    match usize::try_from(iovcnt).map_err(|_| Errno::INVALID).and_then(|n| unsafe { io_slices(iov, n) }) {
        Ok(from) => send(socket, from, 0),
        Err(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rsendmsg(socket: c_int, msg: *const libc::msghdr, flags: c_int) -> isize {
    // SAFETY: NULL, or valid by the caller's contract.
    match unsafe { msg_slices(msg) } {
        Ok(from) => send(socket, from, flags),
        Err(errno) => fail(errno),
    }
}

/// The buffers of a message. EOPNOTSUPP if the message has control data.
///
/// # Safety
/// `msg` is NULL or valid.
unsafe fn msg_slices<'l>(msg: *const libc::msghdr) -> Result<IoSlices<'l>, Errno> {
    // SAFETY: NULL or valid, by the caller's contract.
    let msg = unsafe { msg.as_ref() }.ok_or(Errno::INVALID)?;
    if !msg.msg_control.is_null() && msg.msg_controllen > 0 {
        return Err(Errno::UNSUPPORTED);
    }
    #[allow(clippy::unnecessary_cast, reason = "the C library decides on the type")]
    let count = msg.msg_iovlen as usize;
    // SAFETY: a valid message has `msg_iovlen` valid elements.
    unsafe { io_slices(msg.msg_iov, count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rrecv(socket: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize {
    let list = one_buffer(buf, len);
    // SAFETY: a list of one buffer, which has `len` bytes by the caller's contract.
    match unsafe { io_slices(list.as_ptr(), 1) } {
        Ok(to) => receive(socket, to, flags),
        Err(errno) => fail(errno),
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
    // SAFETY: the buffer of this call, whose contract is the same.
    let received = unsafe { rrecv(socket, buf, len, flags) };
    if received > 0
        && let Ok((peer, family)) = names::peer_address(socket)
    {
        // SAFETY: NULL, or as many bytes as `addrlen` says, by the caller's contract.
        unsafe { address::write(peer, family, addr, addrlen) };
    }
    received
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rread(socket: c_int, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: the buffer of this call, whose contract is the same.
    unsafe { rrecv(socket, buf, count, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rreadv(socket: c_int, iov: *const libc::iovec, iovcnt: c_int) -> isize {
    // SAFETY: NULL, or `iovcnt` valid elements by the caller's contract.
    match usize::try_from(iovcnt).map_err(|_| Errno::INVALID).and_then(|n| unsafe { io_slices(iov, n) }) {
        Ok(to) => receive(socket, to, 0),
        Err(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rrecvmsg(socket: c_int, msg: *mut libc::msghdr, flags: c_int) -> isize {
    // SAFETY: NULL, or valid by the caller's contract.
    let received = match unsafe { msg_slices(msg) } {
        Ok(to) => receive(socket, to, flags),
        Err(errno) => return fail(errno),
    };
    if received >= 0 {
        // SAFETY: not NULL, because `msg_slices` succeeded, and valid by the caller's contract.
        unsafe {
            (*msg).msg_flags = 0;
            let len = ptr::addr_of_mut!((*msg).msg_namelen);
            if let Ok((peer, family)) = names::peer_address(socket) {
                address::write(peer, family, (*msg).msg_name.cast(), len);
            }
        }
    }
    received
}
