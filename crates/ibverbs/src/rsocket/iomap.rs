//! The calls for memory that the peer writes to directly: `riomap`, `riounmap` and `riowrite`.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::adapter::engine;
use super::buffer::{IoSlices, register};
use super::data::count_or_minus_one;
use super::mappings::LocalMapping;
use super::stream::Stream;
use super::table::find;
use super::wait::wait_until;
use super::waiters::Timeout;
use super::wire::Message;
use crate::support::errno::{Errno, minus_one};
use ironwarp_rnic::memory::Rights;
use std::ffi::{c_int, c_void};

impl Stream {
    /// Maps memory. With an offset, lets the peer write to it at that offset. Returns `None` if the caller has to
    /// wait until there is credit to notify the peer.
    fn map(&self, addr: u64, len: usize, offset: Option<u64>) -> Result<Option<()>, Errno> {
        let mut state = self.progressed_state();
        state.check_may_send()?;
        let Some(offset) = offset else {
            state.mappings.local.push(LocalMapping { addr, len, tag: None });
            return Ok(Some(()));
        };
        if !state.out.may_send() {
            return Ok(None);
        }
        if !state.mappings.may_add_writable() {
            return Err(Errno::NO_MEMORY);
        }
        let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE | Rights::REMOTE_WRITE;
        let tag = register(engine()?, self.domain(), addr, len, rights)?;
        state.mappings.local.push(LocalMapping { addr, len, tag: Some(tag) });
        self.send_control(&mut state, Message::Mapped { offset, len: len as u64, tag })?;
        state.out.count_message();
        Ok(Some(()))
    }

    /// Removes a mapping of the program. EINVAL if there is none with this address and length. Returns `None` if the
    /// caller has to wait until there is credit to notify the peer.
    fn unmap(&self, addr: u64, len: usize) -> Result<Option<()>, Errno> {
        let mut state = self.progressed_state();
        let local = &state.mappings.local;
        let index = local.iter().position(|mapping| (mapping.addr, mapping.len) == (addr, len));
        let index = index.ok_or(Errno::INVALID)?;
        if let Some(tag) = local[index].tag {
            if state.check_may_send().is_ok() {
                if !state.out.may_send() {
                    return Ok(None);
                }
                // Sending fails only if the connection has ended. Then the peer need not know.
                if self.send_control(&mut state, Message::Unmapped { tag }).is_ok() {
                    state.out.count_message();
                }
            }
            engine()?.device().table().deregister(tag)?;
        }
        state.mappings.local.remove(index);
        Ok(Some(()))
    }

    /// Removes all mappings of the program, without notifying the peer.
    pub(super) fn unmap_all(&self) {
        let local = std::mem::take(&mut self.state().mappings.local);
        if let Ok(engine) = engine() {
            for tag in local.iter().filter_map(|mapping| mapping.tag) {
                let _ = engine.device().table().deregister(tag);
            }
        }
    }

    /// Writes to the memory that the peer has mapped at `offset`, as much as there is room for. Returns the number
    /// of bytes. EINVAL if the peer has mapped nothing there.
    fn write_mapped(&self, from: &mut IoSlices<'_>, offset: u64) -> Result<usize, Errno> {
        let known = self.polled_state().mappings.find_remote(offset);
        // The message about the mapping may not have been read from the TCP socket yet.
        let found = known.or_else(|| self.progressed_state().mappings.find_remote(offset));
        let (addr, len) = found.ok_or(Errno::INVALID)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(from.len());
        self.write_to(addr, len, from)
    }
}

/// Maps memory of the program at an offset, by which the peer's program can then write to it with `riowrite`. Returns
/// the offset, or -1 with errno set. With PROT_NONE the peer gets no access: the mapping is only recorded, so that
/// `riounmap` finds it.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn riomap(
    socket: c_int,
    buf: *mut c_void,
    len: usize,
    prot: c_int,
    _flags: c_int,
    offset: libc::off_t,
) -> libc::off_t {
    let addr = buf as u64;
    // -1 means that the offset is the address. `off_t` has room for every address of a program.
    let offset = if offset == -1 { libc::off_t::try_from(addr).unwrap_or(-1) } else { offset };
    let mapped = match (prot, u64::try_from(offset)) {
        _ if buf.is_null() || len == 0 => Err(Errno::INVALID),
        (libc::PROT_NONE, _) => {
            wait_until(socket, Timeout::Never, |socket| socket.stream()?.map(addr, len, None))
        }
        (libc::PROT_WRITE, Ok(offset)) => {
            wait_until(socket, Timeout::Never, |socket| socket.stream()?.map(addr, len, Some(offset)))
        }
        _ => Err(Errno::INVALID),
    };
    if minus_one!(mapped) == 0 { offset } else { -1 }
}

/// Removes a mapping of `riomap`, which is identified by its address and length.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn riounmap(socket: c_int, buf: *mut c_void, len: usize) -> c_int {
    let addr = buf as u64;
    let unmapped = wait_until(socket, Timeout::Never, |socket| socket.stream()?.unmap(addr, len));
    minus_one!(unmapped)
}

/// Writes to the memory that the peer has mapped from `offset` on. Returns the number of bytes written, which is less
/// than `count` if waiting for room is not allowed or fails, or -1 with errno set. The result is unsigned in C, too.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn riowrite(
    socket: c_int,
    buf: *const c_void,
    count: usize,
    offset: libc::off_t,
    flags: c_int,
) -> usize {
    let list = [libc::iovec { iov_base: buf.cast_mut(), iov_len: count }];
    // SAFETY: `buf` has `count` readable bytes until the call returns, by the caller's contract.
    let mut from = unsafe { IoSlices::new(&list) };
    let mut done = 0;
    let written = find(socket).map(|socket| socket.timeout(flags)).and_then(|timeout| {
        let begin = u64::try_from(offset).map_err(|_| Errno::INVALID)?;
        wait_until(socket, timeout, |socket| {
            let stream = socket.stream()?;
            while done < count {
                match stream.write_mapped(&mut from, begin + done as u64)? {
                    0 => return Ok(None),
                    len => done += len,
                }
            }
            Ok(Some(()))
        })
    });
    count_or_minus_one(written, done).cast_unsigned()
}
