//! The descriptor of a channel, as C programs use it: they wait on it with poll or epoll, make it non-blocking themselves, or
//! block in a thread that they cancel or interrupt. Before this: an event is due; after: the thread that asks for it.
//!
//! It is one end of a pair of sockets, with one byte to read for each event, and blocking until the program says otherwise. A
//! thread waits by looking at the byte and leaving it there, so that signals, cancellation and O_NONBLOCK do what they do
//! with the kernel's own channels, and a thread that vanishes takes nothing along. As with these, there is never room to
//! write: programs that wait for anything to happen (libiscsi) take that for a failure.
#![expect(unsafe_code, reason = "the C library's recv and poll, at which a program may cancel the thread")]

use crate::errno::Errno;
use crate::sync::lock;
use ironwarp_engine::sys::denied::Denied;
use ironwarp_rnic::event::Wake;
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// A semaphore with a descriptor.
#[derive(Clone, Debug)]
pub(crate) struct ChannelWake(Arc<Ends>);

#[derive(Debug)]
struct Ends {
    programs: OwnedFd,
    ours: OwnedFd,
    /// Events for which there was no room: their bytes follow when others have gone.
    left: Mutex<u64>,
}

impl ChannelWake {
    pub(crate) fn new() -> Result<Self, Errno> {
        let (programs, ours) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(|errno| Denied::or_failed("socketpair", errno))?;
        let ends = Ends { programs, ours, left: Mutex::default() };
        sockopt::set_socket_send_buffer_size(&ends.programs, 0)?; // as little as can be
        while send(&ends.programs) {}
        Ok(Self(Arc::new(ends)))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.programs.as_raw_fd()
    }
}

impl Ends {
    fn left(&self) -> MutexGuard<'_, u64> {
        lock(&self.left)
    }
}

impl Wake for ChannelWake {
    fn signal(&self) {
        let mut left = self.0.left();
        if *left > 0 || !send(&self.0.ours) {
            *left += 1;
        }
    }

    fn consume(&self) {
        let mut left = self.0.left();
        // There is one to take, whether or not the program made the descriptor blocking.
        let _ = retry_on_intr(|| rustix::net::recv(&self.0.programs, &mut [0_u8], RecvFlags::DONTWAIT));
        if *left > 0 && send(&self.0.ours) {
            *left -= 1;
        }
    }
}

/// One byte to the other end; false: there is no room. A bare system call, which is no point of cancellation; the same holds
/// for the one above.
fn send(from: &OwnedFd) -> bool {
    retry_on_intr(|| rustix::net::send(from, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)).is_ok()
}

unsafe extern "C-unwind" {
    fn recv(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize;
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
}

/// Waits until there is an event. The caller takes it, and waits again if another thread was faster. Fails as reading the
/// descriptor of a kernel's channel does: EAGAIN if the program made it non-blocking, EINTR after a signal. The thread may be
/// cancelled in here: nothing with a destructor may be alive in the caller.
pub(crate) fn wait(fd: RawFd) -> Result<(), Errno> {
    let mut byte = 0_u8;
    // SAFETY: one byte of our own.
    let outcome = match unsafe { recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) } {
        -1 => Err(Errno::from(std::io::Error::last_os_error())),
        outcome => Ok(outcome),
    };
    match outcome {
        // The other end is gone: the program destroyed the channel while this thread waits for it, as rping does at its end.
        // The kernel's would wait for ever, and so do we, or rping takes it for a failure.
        Ok(0) | Err(Errno(libc::ECONNRESET)) => Err(wait_for_ever()),
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Waits for what will not come, until a signal does.
pub(crate) fn wait_for_ever() -> Errno {
    // SAFETY: no descriptors.
    unsafe { poll(std::ptr::null_mut(), 0, -1) };
    Errno(libc::EINTR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::os::fd::AsFd;

    fn polled(wake: &ChannelWake) -> PollFlags {
        let fd = wake.0.programs.as_fd();
        let mut list = [PollFd::new(&fd, PollFlags::IN | PollFlags::OUT)];
        poll(&mut list, Some(&rustix::event::Timespec::default())).unwrap();
        list[0].revents()
    }

    #[test]
    fn it_is_readable_while_there_is_an_event_and_never_writable() {
        let wake = ChannelWake::new().unwrap();
        assert_eq!(polled(&wake), PollFlags::empty());
        for _ in 0..3 {
            wake.signal();
        }
        for _ in 0..3 {
            assert_eq!(polled(&wake), PollFlags::IN);
            wait(wake.fd()).unwrap();
            wake.consume();
        }
        assert_eq!(polled(&wake), PollFlags::empty());
    }

    /// Far more than a socket holds.
    #[test]
    fn none_is_lost_however_many_there_are() {
        let wake = ChannelWake::new().unwrap();
        for _ in 0..5000 {
            wake.signal();
        }
        assert!(*wake.0.left() > 0);
        for _ in 0..5000 {
            assert_eq!(polled(&wake), PollFlags::IN);
            wake.consume();
        }
        assert_eq!(polled(&wake), PollFlags::empty());
    }
}
