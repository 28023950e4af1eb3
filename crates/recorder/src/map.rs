//! The file in memory.
#![expect(unsafe_code, reason = "maps memory, and refers to it for as long as the process runs")]

use crate::ring::{FILE_LEN, HEADER_LEN, RING_LEN, RINGS, Ring};
use rustix::fd::AsFd;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The rings of a file that was mapped. The memory stays mapped for as long as the process runs.
#[derive(Debug)]
pub(crate) struct Map {
    rings: &'static [Ring; RINGS],
    /// Whether the file was allocated at once. Otherwise each ring is allocated when a thread gets it.
    allocated: bool,
}

impl Map {
    /// Maps a file of [`FILE_LEN`] bytes. Its memory is allocated before it is written, because a process that writes to a
    /// mapped file on a full file system is killed (SIGBUS).
    pub(crate) fn new(file: impl AsFd) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: without an address, the kernel chooses one where nothing is mapped.
        let base = unsafe { mmap(ptr::null_mut(), FILE_LEN, protection, flags, &file, 0)? };
        let base = base.cast::<u8>();
        // SAFETY: the mapping has FILE_LEN = HEADER_LEN + RINGS * RING_LEN bytes, and is aligned to pages, and so are the
        // rings, which begin after HEADER_LEN = 4096 bytes. Nothing unmaps it: `abandon` replaces it. All parts of a ring are atomic, for which
        // every value is valid, whoever writes to the file.
        let rings = unsafe { &*base.add(HEADER_LEN).cast::<[Ring; RINGS]>() };
        // Linux before 5.14 does not know the advice.
        let allocated = match populate(base.cast(), HEADER_LEN) {
            Err(Errno::INVAL) => true,
            populated => {
                populated?;
                false
            }
        };
        if allocated {
            rustix::fs::fallocate(file, FallocateFlags::empty(), 0, FILE_LEN as u64)?;
        }
        Ok(Self { rings, allocated })
    }

    /// Returns the rings.
    pub(crate) fn rings(&self) -> &'static [Ring; RINGS] {
        self.rings
    }

    /// Allocates the memory of a ring.
    pub(crate) fn allocate(&self, ring: &'static Ring) -> io::Result<()> {
        if self.allocated {
            return Ok(());
        }
        let (start, page) = (ptr::from_ref(ring) as usize, page_size()?);
        let first = start / page * page;
        let len = (start + RING_LEN).next_multiple_of(page) - first;
        Ok(populate(first as *mut _, len)?)
    }

    /// Replaces the file by private memory at the same address: what is recorded from now on is lost, and no longer changes
    /// the file. Makes one system call, and may be called in a forked child.
    pub(crate) fn abandon(&self) {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
        let base = ptr::from_ref(self.rings).cast::<u8>().cast_mut().wrapping_sub(HEADER_LEN);
        // SAFETY: the pages are those that `new` has mapped, which nothing else owns. References to them stay valid: the
        // memory is replaced at once, by zeros, which are valid for atomic values.
        let _ = unsafe { mmap_anonymous(base.cast(), FILE_LEN, protection, flags) };
    }
}

/// Returns the size of a page. Not by rustix, which reads the auxiliary vector: that fails under valgrind.
fn page_size() -> io::Result<usize> {
    // SAFETY: takes a number and accesses no memory of the caller.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).map_err(|_| io::Error::last_os_error())
}

/// Allocates the pages of a mapped file that these bytes belong to, as if they were written.
fn populate(start: *mut core::ffi::c_void, len: usize) -> rustix::io::Result<()> {
    // SAFETY: the pages belong to a mapping of this file, and the advice does not change what they contain.
    unsafe { madvise(start, len, Advice::LinuxPopulateWrite) }
}

/// A value that is set once, and can be taken back in a forked child, without a lock, which another thread might have held
/// during the fork.
#[derive(Debug)]
pub(crate) struct Slot<T: 'static>(AtomicPtr<T>);

impl<T: Sync> Slot<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the value, if it is set.
    pub(crate) fn get(&self) -> Option<&'static T> {
        // SAFETY: the pointer is null, or of a value that `set` has leaked.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the value. Sets it first if it is not set; if several threads do so, the value of one is kept.
    pub(crate) fn get_or_init(&self, init: impl FnOnce() -> T) -> &'static T {
        if let Some(value) = self.get() {
            return value;
        }
        let new = Box::into_raw(Box::new(init()));
        match self.0.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: `new` is never freed.
            Ok(_) => unsafe { &*new },
            Err(other) => {
                // SAFETY: no other thread has seen `new`.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: the thread that has set `other` never frees it.
                unsafe { &*other }
            }
        }
    }

    /// Forgets the value.
    pub(crate) fn clear(&self) {
        self.0.store(ptr::null_mut(), Ordering::Release);
    }
}
