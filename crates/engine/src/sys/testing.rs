//! Helpers for the tests of `sys`: memory with unmapped pages, connected sockets, a sandbox, and threads that end
//! abruptly.
#![expect(unsafe_code, reason = "installs a filter for system calls, and ends threads without Rust")]

use super::socket::TcpLink;
use super::tcp::{Accepted, Keepalive, Listener, configure_accepted, connect};
use ironwarp_rnic::host::Span;
use ironwarp_testkit::mapping::Mapping;
pub(super) use ironwarp_testkit::mapping::PAGE;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::AsFd;
use std::ffi::c_void;
use std::net::SocketAddr;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub(super) mod hosts;

/// An address in the kernel's half of the address space.
pub(super) const KERNEL: u64 = 0xffff_8000_0000_0000;

/// Consecutive pages of memory, readable and writable unless a test changes that.
#[derive(Debug)]
pub(super) struct Pages(Mapping);

impl Pages {
    pub(super) fn new(count: usize) -> Self {
        Self(Mapping::new(count))
    }

    /// Returns the span of `len` bytes at an offset from the first page.
    pub(super) fn span(&self, offset: usize, len: usize) -> Span {
        Span::new(self.0.addr(0) + offset as u64, len)
    }

    /// Reads all pages, which must be readable.
    pub(super) fn read(&self) -> Vec<u8> {
        self.0.read(0, self.0.len())
    }

    /// Writes from the beginning. The pages must be writable.
    pub(super) fn write(&self, bytes: &[u8]) {
        self.0.write(0, bytes);
    }

    /// Changes the access rights of a page.
    pub(super) fn protect(&self, page: usize, access: libc::c_int) {
        self.0.allow(page * PAGE, PAGE, access);
    }

    pub(super) fn unmap(&self, page: usize) {
        self.0.unmap(page * PAGE, PAGE);
    }

    /// Maps a page again that was unmapped.
    pub(super) fn map_again(&self, page: usize) {
        self.0.map_again(page * PAGE, PAGE);
    }
}

/// Closes all descriptors except the standard ones, like closefrom(3).
pub(crate) fn close_all() {
    // SAFETY: `close_range` accesses no memory. It closes descriptors of others on purpose: the tests are about how
    // their owners react.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) }, 0);
}

/// Makes these system calls fail with EPERM in this thread and the threads that it starts later, as in a sandbox.
pub(super) fn deny(calls: &[libc::c_long]) {
    let step = |code: u32, skip: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt: 0,
        jf: skip,
        k,
    };
    // The system call number is the first field of the filter's input.
    let mut filter = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for &call in calls {
        filter.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, u32::try_from(call).unwrap()));
        filter.push(step(libc::BPF_RET, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    }
    filter.push(step(libc::BPF_RET, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: u16::try_from(filter.len()).unwrap(), filter: filter.as_mut_ptr() };
    // SAFETY: with these arguments `prctl` accesses no memory.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: `program` points to `filter`, and both outlive the call.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(result, 0);
}

/// Moves this thread, and processes that it starts, to a network namespace of its own. Needs root of a user namespace.
pub(super) fn new_network() {
    // SAFETY: CLONE_NEWNET changes neither the descriptors nor the memory of the thread.
    let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Returns the kernel's ID of this thread.
pub(super) fn thread_id() -> libc::pid_t {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Binds a socket to the loopback interface (SO_BINDTODEVICE), which any user may do.
pub(super) fn bind_to_loopback(socket: impl AsFd) {
    let (fd, name) = (socket.as_fd(), c"lo");
    let len = libc::socklen_t::try_from(name.count_bytes()).unwrap();
    // SAFETY: the kernel reads `len` bytes of `name`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&fd),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            name.as_ptr().cast(),
            len,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Pseudo-random numbers that are the same in every run.
#[derive(Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    /// Returns a number below `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        // Xorshift, by Marsaglia.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % bound
    }

    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| u8::try_from(self.below(256)).unwrap()).collect()
    }
}

pub(super) const KEEPALIVE: Keepalive = Keepalive {
    idle: Duration::from_secs(7),
    interval: Duration::from_secs(3),
    probes: 4,
    user_timeout: Duration::from_millis(25_500),
};

pub(super) fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Returns two connected sockets on loopback: the client and the server.
pub(super) fn pair() -> (TcpLink, TcpLink) {
    let listener = Listener::new(loopback(), &KEEPALIVE).unwrap();
    let client = connect(listener.local_addr().unwrap(), None, 0, &KEEPALIVE).unwrap();
    wait(&listener, PollFlags::IN);
    let Accepted { link: server, peer, same_host } = listener.accept().unwrap().unwrap();
    configure_accepted(&server, same_host);
    wait(&client, PollFlags::OUT);
    assert!(client.is_connected().unwrap());
    assert_eq!(peer, client.local_addr().unwrap());
    (client, server)
}

/// Waits until `poll` reports these flags for a descriptor. Panics after ten seconds.
pub(super) fn wait(fd: impl AsFd, until: PollFlags) {
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    let ready = rustix::event::poll(&mut [PollFd::new(&fd, until)], Some(&limit)).unwrap();
    assert_eq!(ready, 1, "not ready after ten seconds");
}

/// A thread that can be cancelled or killed, unlike a `std::thread`.
#[derive(Debug)]
pub(crate) struct RawThread {
    handle: libc::pthread_t,
    /// The kernel's ID of the thread.
    id: libc::pid_t,
}

/// The closure that a [`RawThread`] runs.
type Body = Box<dyn FnOnce() + Send>;

/// The signal with which [`RawThread::kill`] ends a thread. The standard library and the test harness do not use it.
const KILL: libc::c_int = libc::SIGUSR2;

/// The signal of [`RawThread::interrupt`], which nothing else here uses.
const INTERRUPT: libc::c_int = libc::SIGUSR1;

/// Number of times that a thread has handled [`INTERRUPT`].
static INTERRUPTIONS: AtomicUsize = AtomicUsize::new(0);

impl RawThread {
    pub(crate) fn spawn(body: impl FnOnce() + Send + 'static) -> Self {
        let (id, started) = std::sync::mpsc::sync_channel(1);
        let body: Box<Body> = Box::new(Box::new(move || {
            id.send(thread_id()).unwrap();
            drop(id);
            body();
        }));
        let mut handle = 0;
        // SAFETY: the two ABIs differ only in that "C-unwind" allows unwinding. The C library, which calls `run`,
        // catches the unwinding of a cancelled thread.
        let run: extern "C" fn(*mut c_void) -> *mut c_void =
            unsafe { std::mem::transmute(run as extern "C-unwind" fn(*mut c_void) -> *mut c_void) };
        // SAFETY: `run` has the signature that `pthread_create` requires, and receives the pointer of a `Box<Body>`,
        // which it frees once.
        let made =
            unsafe { libc::pthread_create(&raw mut handle, ptr::null(), run, Box::into_raw(body).cast()) };
        assert_eq!(made, 0);
        Self { handle, id: started.recv().unwrap() }
    }

    /// Returns whether the thread sleeps in a system call. Only then can it be killed without harm to the process: a
    /// running thread may hold the lock of the allocator.
    pub(crate) fn is_asleep(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", self.id)).unwrap();
        // The state follows the name, which is in parentheses (proc(5)).
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
    }

    /// Cancels the thread: it ends at the next cancellation point, and unwinds from there.
    pub(crate) fn cancel(&self) {
        // SAFETY: the thread was not joined, because `join` consumes `self`, so its handle is valid.
        assert_eq!(unsafe { libc::pthread_cancel(self.handle) }, 0);
    }

    /// Ends the thread at once, wherever it is, without unwinding and without destructors. It should be
    /// [asleep](Self::is_asleep).
    pub(crate) fn kill(&self) {
        // SAFETY: `sigaction` has only integers, pointers and optional functions, for which zero is valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = exit_thread as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the handler only makes a system call, which is allowed in a signal handler.
        assert_eq!(unsafe { libc::sigaction(KILL, &raw const action, ptr::null_mut()) }, 0);
        // SAFETY: the thread was not joined, because `join` consumes `self`, so its handle is valid.
        assert_eq!(unsafe { libc::pthread_kill(self.handle, KILL) }, 0);
    }

    /// Interrupts the system call in which the thread [sleeps](Self::is_asleep): it fails with EINTR.
    pub(crate) fn interrupt(&self) {
        let before = INTERRUPTIONS.load(Ordering::Relaxed);
        // SAFETY: `sigaction` has only integers, pointers and optional functions, for which zero is valid. Without the
        // flag SA_RESTART, the kernel does not repeat system calls.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = count_interruption as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the handler only changes an atomic, which is allowed in a signal handler.
        assert_eq!(unsafe { libc::sigaction(INTERRUPT, &raw const action, ptr::null_mut()) }, 0);
        // SAFETY: the thread was not joined, because `join` consumes `self`, so its handle is valid.
        assert_eq!(unsafe { libc::pthread_kill(self.handle, INTERRUPT) }, 0);
        while INTERRUPTIONS.load(Ordering::Relaxed) == before {
            std::thread::yield_now();
        }
    }

    /// Waits until the thread has ended.
    pub(crate) fn join(self) {
        // SAFETY: the thread is joined only once, because this consumes `self`.
        assert_eq!(unsafe { libc::pthread_join(self.handle, ptr::null_mut()) }, 0);
    }
}

/// Start routine of a [`RawThread`]: calls the closure that `body` points to.
extern "C-unwind" fn run(body: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` passes the pointer of a `Box<Body>`, and does not use it any more.
    let body = unsafe { Box::from_raw(body.cast::<Body>()) };
    body();
    ptr::null_mut()
}

/// Signal handler: counts its calls.
extern "C" fn count_interruption(_: libc::c_int) {
    INTERRUPTIONS.fetch_add(1, Ordering::Relaxed);
}

/// Signal handler: ends this thread with a system call.
extern "C" fn exit_thread(_: libc::c_int) {
    // SAFETY: exit(2) ends only this thread. Its stack stays allocated until `join`, and its values are leaked.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}
