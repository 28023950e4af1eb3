//! Moves bytes between a descriptor of the program and the program's memory, with one system call and without another
//! copy: a TAP device has one frame for each call (requirement P7).
#![expect(unsafe_code, reason = "passes addresses of the program's memory to the kernel")]

use super::{MAX_BYTES, MAX_VECTORS, Vectors, as_vector};
use crate::sys::byte_count;
use ironwarp_rnic::host::Span;
use rustix::fd::{AsRawFd, BorrowedFd};
use smallvec::SmallVec;
use std::io;

#[cfg(test)]
mod tests;

/// Reads once from a descriptor to the memory at the spans, in their order. Returns the number of bytes read, which is 0
/// at the end of the file, or if there are no spans. Fails as readv(2) does, but never with EINTR.
pub fn read_from(from: BorrowedFd<'_>, into: &[Span]) -> io::Result<usize> {
    with_vectors(into, |vectors| {
        let (fd, start, count) = (from.as_raw_fd(), vectors.as_ptr(), vectors.len());
        // SAFETY: the kernel writes only to the memory that the vectors name, and returns EFAULT if it is not mapped.
        // That is registered memory, to which there are no references (`host.rs`). The vectors outlive the call.
        byte_count(unsafe { libc::syscall(libc::SYS_readv, fd, start, count) })
    })
}

/// Writes `head`, and then the bytes in memory at the spans, in their order, to a descriptor with one call. Returns the
/// number of bytes written. Fails as writev(2) does, but never with EINTR.
pub fn write_to(to: BorrowedFd<'_>, head: &[u8], from: &[Span]) -> io::Result<usize> {
    let mut spans = SmallVec::<[Span; 4]>::new();
    if !head.is_empty() {
        spans.push(Span::new(head.as_ptr() as u64, head.len()));
    }
    spans.extend_from_slice(from);
    with_vectors(&spans, |vectors| {
        let (fd, start, count) = (to.as_raw_fd(), vectors.as_ptr(), vectors.len());
        // SAFETY: the kernel only reads the memory that the vectors name, and returns EFAULT if it is not mapped. The
        // vectors and `head` outlive the call.
        byte_count(unsafe { libc::syscall(libc::SYS_writev, fd, start, count) })
    })
}

/// Makes a system call with the vectors of all spans. Fails without a call if they are too many for one, because two
/// calls would move two frames.
fn with_vectors(spans: &[Span], call: impl Fn(&[libc::iovec]) -> libc::ssize_t) -> io::Result<usize> {
    match spans {
        [one] => retry_interrupted(|| call(&[as_vector(*one)])),
        _ if spans.len() > MAX_VECTORS => {
            let count = spans.len();
            let why = format!(
                "range in {count} separate parts of memory exceeds the maximum of {MAX_VECTORS} for one system call: \
                 use a shorter range"
            );
            Err(io::Error::new(io::ErrorKind::InvalidInput, why))
        }
        _ => with_many_vectors(spans, call),
    }
}

/// Makes a system call with the vectors of at most [`MAX_VECTORS`] spans.
#[inline(never)] // the vectors take 16 KiB of stack, which one span does not need
fn with_many_vectors(spans: &[Span], call: impl Fn(&[libc::iovec]) -> libc::ssize_t) -> io::Result<usize> {
    let mut vectors = Vectors::<MAX_VECTORS>::new(MAX_BYTES);
    for span in spans {
        vectors.push_span(*span);
    }
    retry_interrupted(|| call(vectors.as_slice()))
}

/// Makes a system call, and repeats it while it fails with EINTR: then it has moved nothing. Returns the number of bytes
/// moved.
fn retry_interrupted(call: impl Fn() -> libc::ssize_t) -> io::Result<usize> {
    loop {
        if let Ok(moved) = usize::try_from(call()) {
            return Ok(moved);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
