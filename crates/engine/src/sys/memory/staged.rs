//! Buffers in which the device stages bytes before they go to the program's memory. They are files like windows, so that the kernel copies
//! from where the bytes were received; bytes in any other buffer would have to be copied to a window first.

use super::map::{Map, file_in_memory};
use crate::sys::fork::Fd;
use ironwarp_rnic::host::Buffer;
use ironwarp_rnic::sync;
use rustix::fd::{AsRawFd, RawFd};
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, RwLock};

/// All staging buffers: about as many as threads that receive.
#[derive(Debug, Default)]
pub(super) struct Staged(RwLock<Vec<Known>>);

#[derive(Clone, Copy, Debug)]
struct Known {
    start: usize,
    len: usize,
    file: RawFd,
}

/// The position of bytes in a file.
pub(super) struct Place {
    pub(super) file: RawFd,
    pub(super) offset: usize,
}

/// A staging buffer. Nothing else has a reference to its mapping.
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
        sync::write(&self.0).push(known);
        Ok(Box::new(Staging { file, map, all: Arc::clone(self) }))
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        sync::read(&self.0).len()
    }

    /// The file position of bytes that are in a staging buffer. It is valid as long as the caller has a reference to the bytes.
    pub(super) fn find(&self, bytes: &[u8]) -> Option<Place> {
        let all = sync::read(&self.0);
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
        sync::write(&self.all.0).retain(|known| known.file != file);
    }
}
