//! Memory that a test maps, registers, and unmaps while it is in use. An access to it must fail without a signal.
#![expect(unsafe_code, reason = "maps and unmaps memory, and reads it while the kernel writes to it")]

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The smallest page size of Linux; larger ones are multiples of it.
pub const PAGE: usize = 4096;

/// Address of the next mapping. Mappings are far below the addresses that the kernel chooses itself, so that nothing
/// else is mapped where a test has unmapped pages.
static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
/// Minimum distance between the starts of two mappings, in bytes.
const APART: usize = 1 << 21;

/// Pages of this process. All access is by copy, without references, because other threads write to them.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; all access is by copy.
unsafe impl Send for Mapping {}
// SAFETY: as above. Copies that race with others mix bytes, which the tests would see.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps pages filled with zeroes.
    pub fn new(pages: usize) -> Self {
        let (len, access) = (pages * PAGE, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let hint =
            ptr::without_provenance_mut(NEXT.fetch_add(len.next_multiple_of(APART), Ordering::Relaxed));
        // SAFETY: the address is a hint: if it is not free, the kernel chooses another.
        let start = unsafe { libc::mmap(hint, len, access, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at zero");
        Self { start, len }
    }

    /// Maps the first `len` bytes of a file, shared with all who map it.
    pub fn of_file(file: impl AsFd, len: usize) -> Self {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: no address is requested, so the kernel chooses one that is not in use.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, file.as_fd().as_raw_fd(), 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at zero");
        Self { start, len }
    }

    #[expect(clippy::len_without_is_empty, reason = "no mapping is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the byte at offset `at`.
    pub fn addr(&self, at: usize) -> u64 {
        assert!(at <= self.len);
        (self.start.as_ptr().expose_provenance() + at) as u64
    }

    /// Returns a copy of the `len` bytes at offset `at`.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        let mut copy = vec![0; len];
        // SAFETY: within the mapping, which is readable unless a test has changed that, and then it does not read.
        unsafe { ptr::copy(self.start.as_ptr().add(at), copy.as_mut_ptr(), len) };
        copy
    }

    /// Copies `bytes` to offset `at`.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: within the mapping, which is writable unless a test has changed that, and then it does not write.
        unsafe { ptr::copy(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len()) };
    }

    /// Returns whether all of the `len` bytes at offset `at` are `byte`.
    pub fn holds_only(&self, at: usize, len: usize, byte: u8) -> bool {
        self.read(at, len) == vec![byte; len]
    }

    /// Sets the `len` bytes at offset `at` to `byte`.
    pub fn fill(&self, at: usize, len: usize, byte: u8) {
        assert!(at + len <= self.len);
        // SAFETY: as in `write`.
        unsafe { ptr::write_bytes(self.start.as_ptr().add(at), byte, len) };
    }

    /// Unmaps pages.
    pub fn unmap(&self, at: usize, len: usize) {
        // SAFETY: pages of this mapping, to which there are no references.
        let unmapped = unsafe { libc::munmap(self.page(at), len) };
        assert_eq!(unmapped, 0);
    }

    /// Maps pages again that were unmapped.
    pub fn map_again(&self, at: usize, len: usize) {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: pages of this mapping that are not mapped now; it replaces nothing.
        let mapped = unsafe { libc::mmap(self.page(at), len, access, flags, -1, 0) };
        assert_ne!(mapped, libc::MAP_FAILED);
    }

    /// Makes pages read-only.
    pub fn protect(&self, at: usize, len: usize) {
        self.allow(at, len, libc::PROT_READ);
    }

    /// Makes pages readable and writable again.
    pub fn unprotect(&self, at: usize, len: usize) {
        self.allow(at, len, libc::PROT_READ | libc::PROT_WRITE);
    }

    /// Sets the protection of pages.
    pub fn allow(&self, at: usize, len: usize, access: libc::c_int) {
        // SAFETY: pages of this mapping, to which there are no references.
        let allowed = unsafe { libc::mprotect(self.page(at), len, access) };
        assert_eq!(allowed, 0);
    }

    /// Returns a pointer to the page at offset `at`.
    fn page(&self, at: usize) -> *mut c_void {
        assert!(at < self.len && at.is_multiple_of(PAGE));
        ptr::with_exposed_provenance_mut(self.start.as_ptr().expose_provenance() + at)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` created this mapping, and there are no references to it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
