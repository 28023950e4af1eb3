//! Memory that the peer writes to directly: mapped at one end, and known at the other by the offset that it was mapped to.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::buffer::{Pieces, register};
use super::data::size;
use super::stream::Stream;
use super::wait::{Patience, until};
use super::wire::{Hello, Message};
use super::{engine, find};
use crate::errno::{Errno, minus_one};
use ironwarp_rnic::memory::Rights;
use ironwarp_wire::{Place, Tag};
use std::ffi::{c_int, c_void};

/// The mappings of a connection.
#[derive(Debug)]
pub(super) struct Mappings {
    /// Those of the peer's, as it told of them, and how many this end takes note of.
    remote: Vec<Remote>,
    most_remote: usize,
    /// Those of the program's, and how many for the peer it takes note of.
    local: Vec<Local>,
    most_local: usize,
}

#[derive(Clone, Copy, Debug)]
struct Remote {
    offset: u64,
    len: u64,
    tag: Tag,
}

#[derive(Clone, Copy, Debug)]
struct Local {
    addr: u64,
    len: usize,
    /// `None`: the peer does not know of it.
    tag: Option<Tag>,
}

impl Mappings {
    pub(super) fn new(most_remote: u32) -> Self {
        Self { remote: Vec::new(), most_remote: most_remote as usize, local: Vec::new(), most_local: 0 }
    }

    pub(super) fn connected(&mut self, peer: &Hello) {
        self.most_local = peer.mappings as usize;
    }

    /// The peer mapped memory. Whether that can be.
    pub(super) fn add(&mut self, offset: u64, len: u64, tag: Tag) -> bool {
        let possible = self.remote.len() < self.most_remote && offset.checked_add(len).is_some();
        if possible {
            self.remote.push(Remote { offset, len, tag });
        }
        possible
    }

    /// The peer took a mapping back. Whether there was one.
    pub(super) fn remove(&mut self, tag: Tag) -> bool {
        let at = self.remote.iter().position(|it| it.tag == tag);
        at.map(|at| self.remote.remove(at)).is_some()
    }

    /// Where an offset is in the peer's memory, and how many bytes follow there.
    pub(super) fn find(&self, offset: u64) -> Option<(Place, u64)> {
        let it = self.remote.iter().find(|it| (it.offset..it.offset + it.len).contains(&offset))?;
        let within = offset - it.offset;
        Some((Place { tag: it.tag, offset: within }, it.len - within))
    }

    /// Whether the peer may write to memory of the program's.
    pub(super) fn any(&self) -> bool {
        self.local.iter().any(|it| it.tag.is_some())
    }

    fn has_room(&self) -> bool {
        self.local.iter().filter(|it| it.tag.is_some()).count() < self.most_local
    }
}

impl Stream {
    /// Maps memory, for the peer to write to if it has an offset. `None`: there is no room to tell the peer.
    fn map(&self, addr: u64, len: usize, offset: Option<u64>) -> Result<Option<()>, Errno> {
        let mut state = self.latest();
        state.may_send()?;
        let Some(offset) = offset else {
            state.mappings.local.push(Local { addr, len, tag: None });
            return Ok(Some(()));
        };
        if !state.out.may_send() {
            return Ok(None);
        }
        if !state.mappings.has_room() {
            return Err(Errno::NO_MEMORY);
        }
        let rights = Rights::LOCAL_READ | Rights::LOCAL_WRITE | Rights::REMOTE_WRITE;
        let tag = register(engine()?, self.domain(), (addr, len), rights)?;
        state.mappings.local.push(Local { addr, len, tag: Some(tag) });
        self.say(&mut state, Message::Mapped { offset, len: len as u64, tag })?;
        state.out.message_sent();
        Ok(Some(()))
    }

    /// Takes a mapping back. `None`: there is no room to tell the peer.
    fn unmap(&self, addr: u64, len: usize) -> Result<Option<()>, Errno> {
        let mut state = self.latest();
        let at = state.mappings.local.iter().position(|it| (it.addr, it.len) == (addr, len));
        let at = at.ok_or(Errno::INVALID)?;
        if let Some(tag) = state.mappings.local[at].tag {
            if state.may_send().is_ok() {
                if !state.out.may_send() {
                    return Ok(None);
                }
                // If it fails, there is no peer to be told.
                if self.say(&mut state, Message::Unmapped { tag }).is_ok() {
                    state.out.message_sent();
                }
            }
            engine()?.device().table().deregister(tag)?;
        }
        state.mappings.local.remove(at);
        Ok(Some(()))
    }

    /// All that the program mapped and did not take back.
    pub(super) fn unmap_all(&self) {
        let local = std::mem::take(&mut self.state().mappings.local);
        if let Ok(engine) = engine() {
            for tag in local.iter().filter_map(|it| it.tag) {
                let _ = engine.device().table().deregister(tag);
            }
        }
    }

    /// Writes to the peer's mapped memory what there is room for.
    fn write_mapped(&self, from: &mut Pieces<'_>, offset: u64) -> Result<usize, Errno> {
        let known = self.current().mappings.find(offset);
        let (place, len) = known.or_else(|| self.latest().mappings.find(offset)).ok_or(Errno::INVALID)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(from.len());
        self.write_to(place, len, from)
    }
}

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
    let offset = if offset == -1 { libc::off_t::try_from(addr).unwrap_or(-1) } else { offset };
    let mapped = match (prot, u64::try_from(offset)) {
        _ if buf.is_null() || len == 0 => Err(Errno::INVALID),
        (libc::PROT_NONE, _) => {
            until(socket, Patience::Endless, |socket| socket.stream()?.map(addr, len, None))
        }
        (libc::PROT_WRITE, Ok(offset)) => {
            until(socket, Patience::Endless, |socket| socket.stream()?.map(addr, len, Some(offset)))
        }
        _ => Err(Errno::INVALID),
    };
    if minus_one!(mapped) == 0 { offset } else { -1 }
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn riounmap(socket: c_int, buf: *mut c_void, len: usize) -> c_int {
    let addr = buf as u64;
    let unmapped = until(socket, Patience::Endless, |socket| socket.stream()?.unmap(addr, len));
    minus_one!(unmapped)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn riowrite(
    socket: c_int,
    buf: *const c_void,
    count: usize,
    offset: libc::off_t,
    flags: c_int,
) -> usize {
    let list = [libc::iovec { iov_base: buf.cast_mut(), iov_len: count }];
    // SAFETY: the program's, to be read.
    let mut from = unsafe { Pieces::new(&list) };
    let mut done = 0;
    let written = find(socket).map(|socket| socket.patience(flags)).and_then(|patience| {
        let begin = u64::try_from(offset).map_err(|_| Errno::INVALID)?;
        until(socket, patience, |socket| {
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
    size(written, done).cast_unsigned()
}
