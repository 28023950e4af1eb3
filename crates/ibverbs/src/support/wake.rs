//! The descriptor of a channel. C programs wait on it with poll or epoll, make it non-blocking, or block in a
//! thread that they cancel or interrupt.
//!
//! It is one end of a socket pair, with one byte to read for each event, and blocking until the program
//! changes that. A thread waits by peeking at the byte, so that signals, cancellation and O_NONBLOCK work as
//! they do with the kernel's channels, and a cancelled thread consumes nothing. As with those, the descriptor
//! is never writable: programs that wait for any event (libiscsi) would take that for a failure.
#![expect(unsafe_code, reason = "the recv and poll of the C library, where a program may cancel the thread")]

use crate::support::errno::Errno;
use ironwarp_engine::sys::denied::Denied;
use ironwarp_rnic::event::Wake;
use ironwarp_rnic::sync::lock;
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
    program: OwnedFd,
    ours: OwnedFd,
    /// Events whose bytes did not fit into the socket. They are sent when others have been consumed.
    backlog: Mutex<u64>,
}

impl ChannelWake {
    pub(crate) fn new() -> Result<Self, Errno> {
        let (program, ours) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(|errno| Denied::from_errno("socketpair", errno))?;
        let ends = Ends { program, ours, backlog: Mutex::default() };
        sockopt::set_socket_send_buffer_size(&ends.program, 0)?; // the minimum
        while send(&ends.program) {}
        Ok(Self(Arc::new(ends)))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.program.as_raw_fd()
    }
}

impl Ends {
    fn backlog(&self) -> MutexGuard<'_, u64> {
        lock(&self.backlog)
    }
}

impl Wake for ChannelWake {
    fn signal(&self) {
        let mut backlog = self.0.backlog();
        if *backlog > 0 || !send(&self.0.ours) {
            *backlog += 1;
        }
    }

    fn consume(&self) {
        let mut backlog = self.0.backlog();
        // There is a byte to consume, whether or not the program made the descriptor non-blocking.
        let _ = retry_on_intr(|| rustix::net::recv(&self.0.program, &mut [0_u8], RecvFlags::DONTWAIT));
        if *backlog > 0 && send(&self.0.ours) {
            *backlog -= 1;
        }
    }
}

/// Sends one byte to the other end. Returns false if there is no room. This is a bare system call, not a
/// cancellation point, and so is the `recv` above.
fn send(from: &OwnedFd) -> bool {
    retry_on_intr(|| rustix::net::send(from, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)).is_ok()
}

unsafe extern "C-unwind" {
    fn recv(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize;
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
}

/// Waits until there is an event. The caller takes it, and waits again if another thread was faster. Fails
/// like a read from the descriptor of a kernel channel: EAGAIN if the program made it non-blocking, EINTR
/// after a signal. The thread may be cancelled here, so nothing with a destructor may be alive in the caller.
pub(crate) fn wait(fd: RawFd) -> Result<(), Errno> {
    let mut byte = 0_u8;
    // SAFETY: a buffer of one byte.
    let outcome = match unsafe { recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) } {
        -1 => Err(Errno::from(std::io::Error::last_os_error())),
        outcome => Ok(outcome),
    };
    match outcome {
        // The other end is closed: the program destroyed the channel while this thread waits on it, as rping
        // does at its end. With the kernel's channels the thread would wait forever. rping takes anything
        // else for a failure.
        Ok(0) | Err(Errno(libc::ECONNRESET)) => Err(wait_for_signal()),
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Waits until a signal arrives.
pub(crate) fn wait_for_signal() -> Errno {
    // SAFETY: an empty list of descriptors.
    unsafe { poll(std::ptr::null_mut(), 0, -1) };
    Errno(libc::EINTR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::os::fd::AsFd;

    fn polled(wake: &ChannelWake) -> PollFlags {
        let fd = wake.0.program.as_fd();
        let mut list = [PollFd::new(&fd, PollFlags::IN | PollFlags::OUT)];
        poll(&mut list, Some(&rustix::event::Timespec::default())).unwrap();
        list[0].revents()
    }

    #[test]
    fn readable_with_an_event_and_never_writable() {
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

    /// Signals far more events than the socket holds bytes.
    #[test]
    fn no_event_is_lost() {
        let wake = ChannelWake::new().unwrap();
        for _ in 0..5000 {
            wake.signal();
        }
        assert!(*wake.0.backlog() > 0);
        for _ in 0..5000 {
            assert_eq!(polled(&wake), PollFlags::IN);
            wake.consume();
        }
        assert_eq!(polled(&wake), PollFlags::empty());
    }
}
