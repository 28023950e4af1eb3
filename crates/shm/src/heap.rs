//! A segment in the memory of one process.
#![expect(unsafe_code, reason = "hands out the address of its pages")]

use crate::layout::{PAGE, SEGMENT_LEN};
use crate::segment::Segment;
use std::cell::UnsafeCell;
use std::fmt;
use std::ptr::{self, NonNull};

/// A segment in the heap, for tests in which one process has both ends.
pub struct Heap {
    pages: Box<[Page]>,
}

#[repr(C, align(4096))]
struct Page(UnsafeCell<[u8; PAGE]>);

// SAFETY: the pages are accessed by raw pointers and atomics only, as those of any segment.
unsafe impl Sync for Heap {}

// SAFETY: the pages are aligned, are `SEGMENT_LEN` bytes long, may be written through a shared reference because they are
// `UnsafeCell`s, and live as long as the value. No reference to their contents is ever made.
unsafe impl Segment for Heap {
    fn base(&self) -> NonNull<u8> {
        NonNull::from(&*self.pages).cast()
    }
}

impl Heap {
    /// Allocates a segment.
    pub fn new() -> Self {
        let pages = SEGMENT_LEN.div_ceil(PAGE);
        Self { pages: (0..pages).map(|_| Page(UnsafeCell::new([0; PAGE]))).collect() }
    }

    /// Writes to the segment, as a hostile peer could. Panics if the bytes are not within the segment.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        // SAFETY: the bytes are within the pages, as was checked.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base().as_ptr().add(offset), bytes.len()) }
    }

    /// Reads from the segment, as a hostile peer could. Panics if the bytes are not within the segment.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        // SAFETY: the bytes are within the pages, as was checked.
        unsafe { ptr::copy_nonoverlapping(self.base().as_ptr().add(offset), into.as_mut_ptr(), into.len()) }
    }

    fn check(&self, offset: usize, len: usize) {
        let inside = offset.checked_add(len).is_some_and(|end| end <= SEGMENT_LEN);
        assert!(inside, "{len} bytes at offset {offset} are not within the segment");
    }
}

impl Default for Heap {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").field("base", &self.base()).finish()
    }
}
