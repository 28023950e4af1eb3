//! The descriptor of an event channel. C programs wait on the descriptor with poll or epoll, make it non-blocking,
//! or block on it in a thread that they cancel or interrupt.
//!
//! The descriptor is one end of a socket pair, with one byte to read for each event. It is blocking unless the
//! program changes that. A thread waits by peeking at the byte: signals, cancellation and O_NONBLOCK then work as
//! with the kernel's channels, and a cancelled thread consumes nothing. The descriptor is never writable, like
//! those of the kernel's channels: programs that wait for any poll event (libiscsi) take POLLOUT for a failure.
#![expect(unsafe_code, reason = "the recv and poll of the C library, where a program may cancel the thread")]

use crate::support::errno::Errno;
use ironwarp_engine::HeldEvents;
use ironwarp_engine::sys::denied::Denied;
use ironwarp_rnic::event::Wake;
use ironwarp_rnic::sync::lock;
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// A semaphore with a descriptor: the count of pending events is the number of bytes that can be read from it.
#[derive(Clone, Debug)]
pub(crate) struct ChannelWake(Arc<Ends>);

/// The two ends of the socket pair.
#[derive(Debug)]
struct Ends {
    /// The end that the program waits on. Bytes are read from it.
    program: OwnedFd,
    /// The end that signals events. Bytes are written to it.
    signaller: OwnedFd,
    state: Mutex<State>,
}

/// The events that have no byte in the socket.
#[derive(Debug, Default)]
struct State {
    /// Number of events whose bytes did not fit into the socket. Each is sent after another event was consumed.
    backlog: u64,
    /// Events that threads are about to take.
    held: HeldEvents,
}

impl ChannelWake {
    /// Creates a descriptor without events.
    pub(crate) fn new() -> Result<Self, Errno> {
        let (program, signaller) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(|errno| Denied::from_errno("socketpair", errno))?;
        let ends = Ends { program, signaller, state: Mutex::default() };
        // Nothing reads from `signaller`. A full send buffer, the smallest that the kernel allows, keeps the
        // program's end from becoming writable.
        sockopt::set_socket_send_buffer_size(&ends.program, 0)?;
        while send_byte(&ends.program) {}
        Ok(Self(Arc::new(ends)))
    }

    /// Returns the descriptor that the program waits on.
    pub(crate) fn fd(&self) -> RawFd {
        self.0.program.as_raw_fd()
    }

    /// Keeps events from making the descriptor readable until the guard is dropped, because this thread is about to take
    /// them. An event that the same thread raises and takes then needs no system call.
    pub(crate) fn begin_take(&self) -> Taking<'_> {
        self.0.state().held.begin_take();
        Taking(&self.0)
    }
}

impl AsFd for ChannelWake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.program.as_fd()
    }
}

impl Ends {
    /// Locks the state, which also keeps `signal` and `consume` from running at the same time.
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Makes the descriptor readable for one more event.
    fn send(&self, state: &mut State) {
        if state.backlog > 0 || !send_byte(&self.signaller) {
            state.backlog += 1;
        }
    }
}

/// Keeps events from making the descriptor readable while it exists, because this thread is about to take them. When
/// the last one is dropped, the descriptor becomes readable for those that are left.
#[derive(Debug)]
pub(crate) struct Taking<'w>(&'w Ends);

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        for _ in 0..state.held.end_take() {
            self.0.send(&mut state);
        }
    }
}

impl Wake for ChannelWake {
    fn signal(&self) {
        let mut state = self.0.state();
        if !state.held.hold() {
            self.0.send(&mut state);
        }
    }

    fn consume(&self) {
        let mut state = self.0.state();
        if state.held.take() {
            return;
        }
        // There is a byte, because each `consume` follows a `signal`. If there were none, DONTWAIT would not block.
        let _ = retry_on_intr(|| rustix::net::recv(&self.0.program, &mut [0_u8], RecvFlags::DONTWAIT));
        if state.backlog > 0 && send_byte(&self.0.signaller) {
            state.backlog -= 1;
        }
    }
}

/// Sends one byte to the other end. Returns false if there is no room. Rustix makes the system call directly, so
/// this is not a cancellation point, and neither is the `recv` in `consume`.
fn send_byte(from: &OwnedFd) -> bool {
    retry_on_intr(|| rustix::net::send(from, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)).is_ok()
}

// Functions of the C library, which are cancellation points. Cancellation unwinds the thread through them. They are called
// through `black_box`: other crates declare the same functions as `extern "C"`, from which link-time optimisation concludes
// that no call of them unwinds, and the process would abort.
unsafe extern "C-unwind" {
    fn recv(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize;
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
}

type Recv = unsafe extern "C-unwind" fn(c_int, *mut c_void, usize, c_int) -> isize;
type Poll = unsafe extern "C-unwind" fn(*mut libc::pollfd, libc::nfds_t, c_int) -> c_int;

/// Waits until there is an event, and leaves it for the caller to take. If another thread takes it first, the
/// caller waits again. Fails like a read from the descriptor of a kernel channel: with EAGAIN if the program made
/// the descriptor non-blocking, with EINTR after a signal. The thread may be cancelled in this function, so nothing
/// with a destructor may be alive in the caller.
pub(crate) fn wait(fd: RawFd) -> Result<(), Errno> {
    let mut byte = 0_u8;
    // SAFETY: `byte` has room for the one byte that is received.
    let outcome = match unsafe { black_box(recv as Recv)(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) } {
        -1 => Err(Errno::from(std::io::Error::last_os_error())),
        outcome => Ok(outcome),
    };
    match outcome {
        // The other end is closed: the program destroyed the channel while this thread waits on it, as rping does
        // before it exits. With a kernel channel the thread would keep waiting, and rping takes any error for a
        // failure, so wait here as well.
        Ok(0) | Err(Errno(libc::ECONNRESET)) => Err(wait_for_signal()),
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The descriptors at which a thread waits for an event. Has no destructor, see [`wait`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitList {
    entries: [libc::pollfd; Self::MAX],
    len: usize,
}

impl WaitList {
    /// Maximum number of descriptors. If there are more, lanes notice the others.
    const MAX: usize = 16;

    /// Creates a list of one descriptor, which must be that of a [`ChannelWake`].
    pub(crate) fn new(wake: RawFd) -> Self {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut list = Self { entries: [entry(-1); Self::MAX], len: 0 };
        list.add(wake);
        list
    }

    /// Adds a descriptor.
    pub(crate) fn add(&mut self, fd: RawFd) {
        if let Some(entry) = self.entries.get_mut(self.len) {
            entry.fd = fd;
            self.len += 1;
        }
    }

    /// Waits until one of the descriptors is readable. Fails with EINTR after a signal, like [`wait`]. The thread may be
    /// cancelled in this function.
    pub(crate) fn wait(&mut self) -> Result<(), Errno> {
        // SAFETY: the list has `len` entries.
        let ready =
            unsafe { black_box(poll as Poll)(self.entries.as_mut_ptr(), self.len as libc::nfds_t, -1) };
        if ready < 0 {
            // Unlike a read, poll(2) is never restarted.
            return if all_handlers_restart() { Ok(()) } else { Err(Errno(libc::EINTR)) };
        }
        // The program has destroyed the channel, see `wait`.
        if self.entries[0].revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 {
            return Err(wait_for_signal());
        }
        Ok(())
    }
}

/// Returns whether all signal handlers of the program restart the system calls that they interrupt (SA_RESTART). Those of
/// faults do not count: a thread that waits causes none.
fn all_handlers_restart() -> bool {
    const FAULTS: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];
    (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal)).all(|signal| {
        // SAFETY: `sigaction` has only integers, pointers and optional functions, for which zero is valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: only reads the action of the signal, and stores it in `action`.
        let known = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) } == 0;
        let is_handled = known && ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
        !is_handled || action.sa_flags & libc::SA_RESTART != 0
    })
}

/// Waits until a signal handler interrupts the thread, and returns EINTR. The thread may be cancelled, as in [`wait`].
pub(crate) fn wait_for_signal() -> Errno {
    // SAFETY: `poll` does not access the list, because it has no elements.
    unsafe { black_box(poll as Poll)(std::ptr::null_mut(), 0, -1) };
    Errno(libc::EINTR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    /// Returns what poll reports for the program's end, without waiting.
    fn poll_events(wake: &ChannelWake) -> PollFlags {
        let fd = wake.0.program.as_fd();
        let mut list = [PollFd::new(&fd, PollFlags::IN | PollFlags::OUT)];
        poll(&mut list, Some(&rustix::event::Timespec::default())).unwrap();
        list[0].revents()
    }

    #[test]
    fn readable_with_an_event_and_never_writable() {
        let wake = ChannelWake::new().unwrap();
        assert_eq!(poll_events(&wake), PollFlags::empty());
        for _ in 0..3 {
            wake.signal();
        }
        for _ in 0..3 {
            assert_eq!(poll_events(&wake), PollFlags::IN);
            wait(wake.fd()).unwrap();
            wake.consume();
        }
        assert_eq!(poll_events(&wake), PollFlags::empty());
    }

    #[test]
    fn a_thread_that_takes_an_event_needs_no_byte() {
        let wake = ChannelWake::new().unwrap();
        let (taking, other) = (wake.begin_take(), wake.begin_take());
        wake.signal();
        wake.signal();
        assert_eq!(poll_events(&wake), PollFlags::empty());
        wake.consume();
        drop(taking);
        assert_eq!(poll_events(&wake), PollFlags::empty(), "another thread is about to take it");
        drop(other);
        assert_eq!(poll_events(&wake), PollFlags::IN, "it was left");
        wake.consume();
        assert_eq!(poll_events(&wake), PollFlags::empty());
    }

    /// Signals far more events than the socket holds bytes.
    #[test]
    fn no_event_is_lost() {
        let wake = ChannelWake::new().unwrap();
        for _ in 0..5000 {
            wake.signal();
        }
        assert!(wake.0.state().backlog > 0);
        for _ in 0..5000 {
            assert_eq!(poll_events(&wake), PollFlags::IN);
            wake.consume();
        }
        assert_eq!(poll_events(&wake), PollFlags::empty());
    }
}
