//! The descriptor of a channel, as C programs use it: they wait on it with poll or epoll, make it non-blocking themselves, or
//! block in a thread that they cancel or interrupt. Before this: an event is due; after: the thread that asks for it.
//!
//! It is a semaphore that is readable while an event is there, and blocking until the program says otherwise. A thread waits
//! by reading it, so that signals, cancellation and O_NONBLOCK do what they do with the kernel's own channels; it then puts
//! back what it read, because taking the event takes it once more.
#![expect(unsafe_code, reason = "the C library's read, at which a program may cancel the thread")]

use crate::errno::Errno;
use ironwarp_rnic::event::Wake;
use rustix::event::{EventfdFlags, eventfd};
use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// A semaphore with a descriptor.
#[derive(Clone, Debug)]
pub(crate) struct ChannelWake(Arc<OwnedFd>);

impl ChannelWake {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?)))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Wake for ChannelWake {
    fn signal(&self) {
        add_one(self.fd());
    }

    fn consume(&self) {
        let mut count = 0u64;
        // SAFETY: eight bytes of our own. A bare system call: unlike the C library's read, no point of cancellation.
        // There is one to take, so it returns at once, whether or not the program made the descriptor blocking.
        while unsafe { libc::syscall(libc::SYS_read, self.fd(), &raw mut count, 8) } == -1 && interrupted() {}
    }
}

fn add_one(fd: RawFd) {
    let one = 1u64;
    // SAFETY: eight bytes of our own, and no point of cancellation.
    while unsafe { libc::syscall(libc::SYS_write, fd, &raw const one, 8) } == -1 && interrupted() {}
}

fn interrupted() -> bool {
    std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
}

unsafe extern "C-unwind" {
    fn read(fd: libc::c_int, buf: *mut c_void, count: usize) -> isize;
}

/// Waits until there is an event. The caller takes it, and waits again if another thread was faster. Fails as reading the
/// descriptor does: EAGAIN if the program made it non-blocking, EINTR after a signal. The thread may be cancelled in here:
/// nothing with a destructor may be alive in the caller.
pub(crate) fn wait(fd: RawFd) -> Result<(), Errno> {
    let mut count = 0u64;
    // SAFETY: eight bytes of our own.
    if unsafe { read(fd, (&raw mut count).cast(), 8) } == -1 {
        return Err(std::io::Error::last_os_error().into());
    }
    add_one(fd);
    Ok(())
}
