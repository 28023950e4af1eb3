//! Memory that the program maps, registers and takes away again: what a hostile peer must not be able to turn into a
//! signal. The only file of these tests with `unsafe`.
#![expect(unsafe_code, reason = "maps and unmaps memory, and looks at it while the kernel writes to it")]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Linux has no smaller pages here, and its page sizes are multiples of this.
pub(crate) const PAGE: usize = 4096;

/// Mappings are far below where the kernel puts others by itself, so that nothing else gets into a hole that a test made.
static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
const APART: usize = 1 << 21;

/// Pages of this process. Bytes go in and out by copy; nobody has a reference, because others write to them.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; all access is by copy.
unsafe impl Send for Mapping {}
// SAFETY: as above. Copies that race with others mix bytes, which the tests would see.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// So many pages of zeroes.
    pub(crate) fn new(pages: usize) -> Self {
        let (len, access) = (pages * PAGE, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let wish =
            ptr::without_provenance_mut(NEXT.fetch_add(len.next_multiple_of(APART), Ordering::Relaxed));
        // SAFETY: the address is a wish: if it is not free, the kernel takes another.
        let start = unsafe { libc::mmap(wish, len, access, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at zero");
        Self { start, len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of the byte at `at`.
    pub(crate) fn addr(&self, at: usize) -> u64 {
        assert!(at <= self.len);
        (self.start.as_ptr().expose_provenance() + at) as u64
    }

    /// What is there now.
    pub(crate) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        let mut copy = vec![0; len];
        // SAFETY: in the mapping, which is readable unless a test took that away and then does not look.
        unsafe { ptr::copy(self.start.as_ptr().add(at), copy.as_mut_ptr(), len) };
        copy
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: in the mapping, which is writable unless a test took that away and then does not write.
        unsafe { ptr::copy(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len()) };
    }

    /// Whether every byte of this range is `byte`.
    pub(crate) fn holds_only(&self, at: usize, len: usize, byte: u8) -> bool {
        self.read(at, len) == vec![byte; len]
    }

    pub(crate) fn fill(&self, at: usize, len: usize, byte: u8) {
        assert!(at + len <= self.len);
        // SAFETY: as in `write`.
        unsafe { ptr::write_bytes(self.start.as_ptr().add(at), byte, len) };
    }

    /// Takes pages away for good.
    pub(crate) fn unmap(&self, at: usize, len: usize) {
        // SAFETY: pages of this mapping, to which nobody has a reference.
        let unmapped = unsafe { libc::munmap(self.page(at), len) };
        assert_eq!(unmapped, 0);
    }

    /// Lets pages be read only.
    pub(crate) fn protect(&self, at: usize, len: usize) {
        self.allow(at, len, libc::PROT_READ);
    }

    /// Lets pages be read and written again.
    pub(crate) fn unprotect(&self, at: usize, len: usize) {
        self.allow(at, len, libc::PROT_READ | libc::PROT_WRITE);
    }

    fn allow(&self, at: usize, len: usize, access: libc::c_int) {
        // SAFETY: pages of this mapping, to which nobody has a reference.
        let allowed = unsafe { libc::mprotect(self.page(at), len, access) };
        assert_eq!(allowed, 0);
    }

    fn page(&self, at: usize) -> *mut c_void {
        assert!(at < self.len && at.is_multiple_of(PAGE));
        ptr::with_exposed_provenance_mut(self.start.as_ptr().expose_provenance() + at)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made, and nobody has a reference to it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
