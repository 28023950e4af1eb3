//! Staging buffers: small messages are received into them, and then copied to the program's memory. Like a window, a
//! staging buffer is a mapped file in memory, from which the kernel can copy directly. Bytes in any other buffer would
//! first have to be copied to a window.

use super::map::{Map, file_in_memory};
use crate::sys::fork::Fd;
use ironwarp_rnic::host::Buffer;
use ironwarp_rnic::sync;
use rustix::fd::{AsRawFd, RawFd};
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, RwLock};

/// The addresses of all staging buffers. There are about as many as threads that receive.
#[derive(Debug, Default)]
pub(super) struct StagingBuffers(RwLock<Vec<Entry>>);

/// The addresses of one staging buffer.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Address of the first byte.
    start: usize,
    /// Length in bytes.
    len: usize,
    /// The file that is mapped there.
    file: RawFd,
}

/// The position of bytes in a file.
pub(super) struct FilePosition {
    pub(super) file: RawFd,
    pub(super) offset: usize,
}

/// A staging buffer. Nothing else has a reference to its mapping.
#[derive(Debug)]
struct Staging {
    file: Fd,
    map: Map,
    /// The list that has an entry for this buffer.
    all: Arc<StagingBuffers>,
}

impl StagingBuffers {
    /// Creates a staging buffer of `len` bytes.
    pub(super) fn create(self: &Arc<Self>, len: usize) -> io::Result<Buffer> {
        let (file, map) = file_in_memory(len)?;
        let entry = Entry { start: map.start.addr().get(), len, file: file.as_raw_fd() };
        sync::write(&self.0).push(entry);
        Ok(Box::new(Staging { file, map, all: Arc::clone(self) }))
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        sync::read(&self.0).len()
    }

    /// Returns the file position of `bytes` if they are in a staging buffer. The position is valid for as long as the
    /// caller has a reference to the bytes.
    pub(super) fn find(&self, bytes: &[u8]) -> Option<FilePosition> {
        let all = sync::read(&self.0);
        all.iter().find_map(|entry| {
            // Wraps to a large number if the bytes are before the buffer. If the first byte is in the buffer, all are:
            // a slice is never in two allocations.
            let offset = bytes.as_ptr().addr().wrapping_sub(entry.start);
            (offset < entry.len).then_some(FilePosition { file: entry.file, offset })
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
    /// Removes the entry, before the mapping goes away and its addresses can be used for something else.
    fn drop(&mut self) {
        let file = self.file.as_raw_fd();
        sync::write(&self.all.0).retain(|entry| entry.file != file);
    }
}
