//! What the tests of system calls need: memory with holes, a connected pair, a process of their own, a sandbox.
#![expect(unsafe_code, reason = "maps and unmaps memory, and installs a filter for system calls")]

use super::setup::{Accepted, Keepalive, Listener, connect, settle};
use super::socket::TcpLink;
use ironwarp_rnic::host::Span;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::AsFd;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use std::ffi::c_void;
use std::net::SocketAddr;
use std::process::Command;
use std::ptr;
use std::time::Duration;

pub(super) const PAGE: usize = 4096;

/// The end of what programs have on 64-bit machines, and then some: the kernel's half.
pub(super) const KERNEL: u64 = 0xffff_8000_0000_0000;

/// Some pages in a row, readable and writable until a test says otherwise.
///
/// One more at either end stays inaccessible. A hole is then never larger than a page, and what other tests map meanwhile
/// is: it does not fill the hole.
#[derive(Debug)]
pub(super) struct Pages {
    start: *mut c_void,
    count: usize,
}

// SAFETY: the memory is only reached by copies, and tests tolerate that they race.
unsafe impl Sync for Pages {}

impl Pages {
    pub(super) fn new(count: usize) -> Self {
        let (len, none) = ((count + 2) * PAGE, ProtFlags::empty());
        // SAFETY: the kernel takes addresses that are free.
        let guard = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, none, MapFlags::PRIVATE) };
        let start = guard.unwrap().wrapping_byte_add(PAGE);
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: no reference to the pages exists.
        unsafe { rustix::mm::mprotect(start, count * PAGE, access) }.unwrap();
        Self { start, count }
    }

    pub(super) fn span(&self, offset: usize, len: usize) -> Span {
        Span { addr: (self.start.expose_provenance() + offset) as u64, len }
    }

    /// All of it. Every page must be readable.
    pub(super) fn read(&self) -> Vec<u8> {
        // SAFETY: the test made sure that the pages are there.
        unsafe { std::slice::from_raw_parts(self.start.cast::<u8>(), self.count * PAGE) }.to_vec()
    }

    /// Fills it from the beginning. Every page must be writable.
    pub(super) fn write(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.count * PAGE);
        // SAFETY: the test made sure that the pages are there.
        unsafe { ptr::copy(bytes.as_ptr(), self.start.cast(), bytes.len()) }
    }

    pub(super) fn protect(&self, page: usize, access: MprotectFlags) {
        // SAFETY: no reference to the page exists.
        unsafe { rustix::mm::mprotect(self.page(page), PAGE, access) }.unwrap();
    }

    pub(super) fn unmap(&self, page: usize) {
        // SAFETY: no reference to the page exists.
        unsafe { rustix::mm::munmap(self.page(page), PAGE) }.unwrap();
    }

    /// Puts a page where one was unmapped.
    pub(super) fn map_again(&self, page: usize) {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: it replaces nothing.
        unsafe { rustix::mm::mmap_anonymous(self.page(page), PAGE, access, flags) }.unwrap();
    }

    fn page(&self, page: usize) -> *mut c_void {
        assert!(page < self.count);
        self.start.wrapping_byte_add(page * PAGE)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let guard = self.start.wrapping_byte_sub(PAGE);
        // SAFETY: no reference to the memory exists, and nobody took the holes.
        unsafe { rustix::mm::munmap(guard, (self.count + 2) * PAGE) }.unwrap();
    }
}

/// A process of its own for a test, which calls this first: `true` in the child, which then does the test; in the parent
/// the child has passed.
pub(crate) fn in_child(test: &str) -> bool {
    const CHILD: &str = "IRONWARP_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let name = test;
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{name}: {}\n{text}\n{errors}",
        output.status
    );
    false
}

/// What closefrom(3) does: closes all descriptors that are not standard.
pub(crate) fn close_all() {
    // SAFETY: numbers only. The test is about what becomes of those who had them.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) }, 0);
}

/// From now on these system calls fail with EPERM in this thread and those it starts, as in a sandbox.
pub(super) fn refuse(calls: &[libc::c_long]) {
    let step = |code: u32, skip: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt: 0,
        jf: skip,
        k,
    };
    // The number of the call is the first field of what the filter sees.
    let mut filter = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for &call in calls {
        filter.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, u32::try_from(call).unwrap()));
        filter.push(step(libc::BPF_RET, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    }
    filter.push(step(libc::BPF_RET, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: u16::try_from(filter.len()).unwrap(), filter: filter.as_mut_ptr() };
    // SAFETY: numbers only.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program and its filter live as long as the call.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(result, 0);
}

/// Moves this thread, and processes that it starts, to a network namespace of its own. False: that is not allowed.
pub(super) fn new_network() -> bool {
    // SAFETY: descriptors and memory stay as they are.
    unsafe { libc::unshare(libc::CLONE_NEWNET) == 0 }
}

/// The kernel's number of this thread.
pub(super) fn thread_id() -> libc::pid_t {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Binds a socket to the loopback interface, which any user may do.
pub(super) fn bind_to_loopback(socket: impl AsFd) {
    let (fd, name) = (socket.as_fd(), c"lo");
    let len = libc::socklen_t::try_from(name.count_bytes()).unwrap();
    // SAFETY: the name lives as long as the call.
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

/// Numbers that look random and are the same every time.
#[derive(Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    /// Below `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        // Xorshift.
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
    unacknowledged: Duration::from_millis(25_500),
};

pub(super) fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Who connected, and who accepted.
pub(super) fn pair() -> (TcpLink, TcpLink) {
    let listener = Listener::new(loopback(), &KEEPALIVE).unwrap();
    let client = connect(listener.local_addr().unwrap(), None, &KEEPALIVE).unwrap();
    wait(&listener, PollFlags::IN);
    let Accepted { link: server, peer, same_host } = listener.accept().unwrap().unwrap();
    settle(&server, same_host);
    wait(&client, PollFlags::OUT);
    assert!(client.connected().unwrap());
    assert_eq!(peer, client.local_addr().unwrap());
    (client, server)
}

/// Waits until the socket is ready for that.
pub(super) fn wait(fd: impl AsFd, until: PollFlags) {
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    let ready = rustix::event::poll(&mut [PollFd::new(&fd, until)], Some(&limit)).unwrap();
    assert_eq!(ready, 1, "not ready after ten seconds");
}

/// A thread that can go in ways that Rust's do not.
#[derive(Debug)]
pub(crate) struct RawThread(libc::pthread_t);

/// What a [`RawThread`] runs.
type Body = Box<dyn FnOnce() + Send>;

/// With which a [`RawThread`] is made to vanish. The standard library and the test harness use no such signal.
const VANISH: libc::c_int = libc::SIGUSR2;

impl RawThread {
    pub(crate) fn spawn(body: impl FnOnce() + Send + 'static) -> Self {
        let body: Box<Body> = Box::new(Box::new(body));
        let mut thread = 0;
        // SAFETY: the two ABIs differ in that the one allows unwinding, which ends at the C library that called it.
        let run: extern "C" fn(*mut c_void) -> *mut c_void =
            unsafe { std::mem::transmute(run as extern "C-unwind" fn(*mut c_void) -> *mut c_void) };
        // SAFETY: `run` takes the box back, once.
        let made =
            unsafe { libc::pthread_create(&raw mut thread, ptr::null(), run, Box::into_raw(body).cast()) };
        assert_eq!(made, 0);
        Self(thread)
    }

    /// It ends at the next point at which it can be cancelled, and unwinds from there.
    pub(crate) fn cancel(&self) {
        // SAFETY: it was not joined.
        assert_eq!(unsafe { libc::pthread_cancel(self.0) }, 0);
    }

    /// It ends wherever it is, and nothing of it runs any more.
    pub(crate) fn vanish(&self) {
        // SAFETY: all zero is a valid action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = exit_thread as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the handler does nothing but a system call.
        assert_eq!(unsafe { libc::sigaction(VANISH, &raw const action, ptr::null_mut()) }, 0);
        // SAFETY: it was not joined.
        assert_eq!(unsafe { libc::pthread_kill(self.0, VANISH) }, 0);
    }

    pub(crate) fn join(self) {
        // SAFETY: it is joined once.
        assert_eq!(unsafe { libc::pthread_join(self.0, ptr::null_mut()) }, 0);
    }
}

extern "C-unwind" fn run(body: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` made it of a box, and gave it away.
    let body = unsafe { Box::from_raw(body.cast::<Body>()) };
    body();
    ptr::null_mut()
}

extern "C" fn exit_thread(_: libc::c_int) {
    // SAFETY: ends this thread; what it owned is lost, which is what the test is about.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}
