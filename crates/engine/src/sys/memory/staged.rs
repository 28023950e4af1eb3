//! Buffers that the device stages bytes in, before they go to the program's memory. They are files as windows are, so that the
//! kernel copies from where the bytes were received; from any other buffer they would have to be copied to a window first.

use super::super::fork::Fd;
use super::{Map, file_in_memory};
use ironwarp_rnic::host::Buffer;
use rustix::fd::{AsRawFd, RawFd};
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError, RwLock};

/// The buffers that there are: about as many as threads that receive.
#[derive(Debug, Default)]
pub(super) struct Staged(RwLock<Vec<Known>>);

#[derive(Clone, Copy, Debug)]
struct Known {
    start: usize,
    len: usize,
    file: RawFd,
}

/// Where bytes are in a file.
pub(super) struct Place {
    pub(super) file: RawFd,
    pub(super) offset: usize,
}

/// One of them. Nobody else has a reference to its mapping.
#[derive(Debug)]
struct Staging {
    file: Fd,
    map: Map,
    all: Arc<Staged>,
}

impl Staged {
    pub(super) fn buffer(self: &Arc<Self>, len: usize) -> io::Result<Buffer> {
        let (file, map) = file_in_memory(len)?;
        let known = Known { start: map.start.addr().get(), len, file: file.as_raw_fd() };
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(known);
        Ok(Box::new(Staging { file, map, all: Arc::clone(self) }))
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The place of bytes that are in one of them. It is theirs for as long as the caller has a reference to the bytes.
    pub(super) fn find(&self, bytes: &[u8]) -> Option<Place> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().find_map(|known| {
            let offset = bytes.as_ptr().addr().wrapping_sub(known.start);
            (offset < known.len).then_some(Place { file: known.file, offset })
        })
    }
}

impl Deref for Staging {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.bytes()
    }
}

impl DerefMut for Staging {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.map.bytes_mut()
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let file = self.file.as_raw_fd();
        self.all.0.write().unwrap_or_else(PoisonError::into_inner).retain(|known| known.file != file);
    }
}
