//! Staging buffers: small messages are received into them, and then copied to the program's memory. Like a window, a
//! staging buffer is a mapped file in memory, from which the kernel can copy directly. Bytes in any other buffer would
//! first have to be copied to a window.

use super::map::{Map, WINDOW_NAME, file_in_memory};
use crate::sys::fork::Fd;
use ironwarp_rnic::host::Buffer;
use ironwarp_rnic::sync::lock;
use rustix::fd::{AsRawFd, RawFd};
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex};

/// Number of staging buffers that are found without a lock. There are about as many buffers as threads that send or
/// receive.
const LISTED: usize = 16;

/// The addresses of all staging buffers.
///
/// Every copy looks for its buffer, so that takes no lock: `listed` repeats the first entries, and `version` tells whether
/// they have changed meanwhile.
#[derive(Debug)]
pub(super) struct StagingBuffers {
    all: Mutex<Vec<Entry>>,
    /// The addresses between which all buffers are that ever existed, so that most other addresses need no search. They
    /// only ever move apart, so whoever has a reference to a buffer finds it between them.
    lowest: AtomicUsize,
    highest: AtomicUsize,
    /// Odd while `listed` and `count` are changed, and higher after each change. Written with `all` locked, as these are.
    version: AtomicUsize,
    /// The first entries of `all`.
    listed: [ListedEntry; LISTED],
    /// Number of entries of `all`.
    count: AtomicUsize,
}

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

/// An [`Entry`] to be read without a lock.
#[derive(Debug, Default)]
struct ListedEntry {
    start: AtomicUsize,
    len: AtomicUsize,
    file: AtomicI32,
}

impl Entry {
    /// Returns the file position of `bytes` if they are in the buffer.
    fn find(&self, bytes: &[u8]) -> Option<FilePosition> {
        // Wraps to a large number if the bytes are before the buffer. If the first byte is in the buffer, all are: a
        // slice is never in two allocations.
        let offset = bytes.as_ptr().addr().wrapping_sub(self.start);
        (offset < self.len).then_some(FilePosition { file: self.file, offset })
    }
}

impl ListedEntry {
    fn get(&self) -> Entry {
        Entry {
            start: self.start.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            file: self.file.load(Ordering::Relaxed),
        }
    }

    fn set(&self, entry: Entry) {
        self.start.store(entry.start, Ordering::Relaxed);
        self.len.store(entry.len, Ordering::Relaxed);
        self.file.store(entry.file, Ordering::Relaxed);
    }
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

impl Default for StagingBuffers {
    fn default() -> Self {
        Self {
            all: Mutex::default(),
            lowest: AtomicUsize::new(usize::MAX),
            highest: AtomicUsize::new(0),
            version: AtomicUsize::new(0),
            listed: Default::default(),
            count: AtomicUsize::new(0),
        }
    }
}

impl StagingBuffers {
    /// Creates a staging buffer of `len` bytes.
    pub(super) fn create(self: &Arc<Self>, len: usize) -> io::Result<Buffer> {
        let (file, map) = file_in_memory(WINDOW_NAME, len)?;
        let entry = Entry { start: map.start.addr().get(), len, file: file.as_raw_fd() };
        self.lowest.fetch_min(entry.start, Ordering::Relaxed);
        self.highest.fetch_max(entry.start + len, Ordering::Relaxed);
        self.change(|all| all.push(entry));
        Ok(Box::new(Staging { file, map, all: Arc::clone(self) }))
    }

    /// Changes the entries, and repeats them where they are read without a lock.
    fn change(&self, change: impl FnOnce(&mut Vec<Entry>)) {
        let mut all = lock(&self.all);
        change(&mut all);
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        // A thread that reads one of the values below also reads the odd version above, or a later one.
        fence(Ordering::Release);
        self.listed.iter().zip(&*all).for_each(|(listed, entry)| listed.set(*entry));
        self.count.store(all.len(), Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        lock(&self.all).len()
    }

    /// Returns the file position of `bytes` if they are in a staging buffer. The position is valid for as long as the
    /// caller has a reference to the bytes.
    #[inline(always)] // a few instructions, and `search` is not
    pub(super) fn find(&self, bytes: &[u8]) -> Option<FilePosition> {
        let addr = bytes.as_ptr().addr();
        if addr < self.lowest.load(Ordering::Relaxed) || addr >= self.highest.load(Ordering::Relaxed) {
            return None; // such as the stack, where the shortest messages are
        }
        self.search(bytes)
    }

    /// Does the same for bytes that are between buffers, or in one.
    #[inline(never)]
    fn search(&self, bytes: &[u8]) -> Option<FilePosition> {
        let version = self.version.load(Ordering::Acquire);
        let count = self.count.load(Ordering::Relaxed);
        let found = self.listed.iter().take(count).find_map(|listed| listed.get().find(bytes));
        fence(Ordering::Acquire);
        let is_current = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        if is_current && (found.is_some() || count <= LISTED) { found } else { self.find_locked(bytes) }
    }

    /// Does the same with the entries locked, because they are being changed, or some are not listed.
    #[cold]
    fn find_locked(&self, bytes: &[u8]) -> Option<FilePosition> {
        lock(&self.all).iter().find_map(|entry| entry.find(bytes))
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
        self.all.change(|all| all.retain(|entry| entry.file != file));
    }
}
