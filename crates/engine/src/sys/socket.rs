//! One TCP connection: the [`Link`] of a stream. `setup.rs` makes it; the stream's two halves then send and receive
//! straight from and to the program's memory, which the kernel copies from and to, whatever becomes of it meanwhile.
#![expect(unsafe_code, reason = "names memory by address, for the kernel to copy")]

use super::fork::Fd;
use super::hurry::moved;
use super::memory::Vectors;
use super::size;
use crate::traffic;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::link::{Link, LinkError, Piece};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use rustix::net::Shutdown;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[cfg(test)]
mod tests;

/// How many vectors a system call takes: the kernel's UIO_MAXIOV.
const MOST_VECTORS: usize = 1024;

/// How many bytes a system call moves at most: the kernel's MAX_RW_COUNT. It refuses vectors that are far longer.
const MOST_BYTES: usize = 0x7fff_f000;

/// Linux has no smaller pages, and its page sizes are multiples of this.
const PAGE: usize = 4096;

/// What TCP assumes of a path it knows nothing of (RFC 9293 §3.7.1).
const DEFAULT_SEGMENT: usize = 536;

/// A connection, or one in the making. Its methods never wait. Dropping it closes the socket.
#[derive(Debug)]
pub struct TcpLink {
    fd: Fd,
    /// Nobody's, as a rule. It is dropped when the socket is closed.
    tap: Option<Box<dyn Tap>>,
    /// This end has sent all that it will.
    finished: AtomicBool,
}

/// What the kernel has counted of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) received: u64,
    /// What the peer has.
    pub(crate) acknowledged: u64,
    pub(crate) round_trip: Duration,
    pub(crate) retransmissions: u32,
    pub(crate) segments_sent: u32,
    pub(crate) segments_received: u32,
}

/// Sees what a connection moves. It is told after the fact, by the thread that moved it.
pub(crate) trait Tap: Send + Sync + fmt::Debug {
    /// The first `len` bytes of these were sent.
    fn sent(&self, link: &TcpLink, pieces: &[Piece<'_>], len: usize);

    /// So many bytes were received, the first of them into the program's memory.
    fn received(&self, link: &TcpLink, host: &[Span], own: &[u8], len: usize);

    /// This end cuts the connection.
    fn aborted(&self);
}

/// What the kernel has counted of a connection (TCP_INFO, tcp(7)). Zero is what it does not tell, and what is no TCP socket:
/// Linux 4.2 and later tell all of it.
pub(crate) fn traffic_of(fd: RawFd) -> Traffic {
    let mut info = [0_u64; 256 / 8];
    let mut len: libc::socklen_t = 256;
    // SAFETY: the kernel writes no more than `len` bytes, and every word may be anything.
    let told = unsafe {
        let to = info.as_mut_ptr().cast::<c_void>();
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut len)
    };
    if told != 0 {
        return Traffic::default();
    }
    // Eight bytes, then words of 32 bits up to the 26th, then of 64, then of 32 again.
    let word = |at: usize| (info[at / 8] >> (at % 8 * 8)) & u64::from(u32::MAX);
    let count = |at: usize| u32::try_from(word(at)).unwrap_or_default();
    Traffic {
        received: info[128 / 8],
        acknowledged: info[120 / 8],
        round_trip: Duration::from_micros(word(68)),
        retransmissions: count(100),
        segments_sent: count(136),
        segments_received: count(140),
    }
}

/// What it moved is counted on.
impl Drop for TcpLink {
    fn drop(&mut self) {
        traffic::keep(self.traffic());
    }
}

impl TcpLink {
    /// Takes over a TCP socket.
    pub fn new(fd: Fd) -> Self {
        Self { fd, tap: None, finished: AtomicBool::new(false) }
    }

    /// Has somebody look on. Before the first byte.
    pub(crate) fn tapped(mut self, tap: Option<Box<dyn Tap>>) -> Self {
        self.tap = tap;
        self
    }

    /// Closing it will reset it, since it was not settled: who looks on is told.
    pub(crate) fn will_be_reset(&self) {
        self.tap.iter().for_each(|tap| tap.aborted());
    }

    /// What became of the attempt to connect: done, still under way, or the reason why it failed, told once.
    pub fn connected(&self) -> io::Result<bool> {
        rustix::net::sockopt::socket_error(&self.fd)??;
        Ok(self.has_peer()?)
    }

    fn has_peer(&self) -> Result<bool, rustix::io::Errno> {
        match rustix::net::getpeername(&self.fd) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::NOTCONN) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lets sent data stay unacknowledged for this time (TCP_USER_TIMEOUT), if that is longer than now.
    pub fn allow_silence(&self, time: Duration) {
        let time = u32::try_from(time.as_millis()).unwrap_or(i32::MAX.cast_unsigned());
        let time = time.min(i32::MAX.cast_unsigned()); // the kernel's own limit, 24 days
        let now = rustix::net::sockopt::tcp_user_timeout(&self.fd).unwrap_or(u32::MAX);
        if time > now {
            // Refused by no kernel that has it; then the time is as it was.
            let _ = rustix::net::sockopt::set_tcp_user_timeout(&self.fd, time);
        }
    }

    /// This end's address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getsockname(&self.fd)?.try_into()?)
    }

    /// The other end's address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let peer = rustix::net::getpeername(&self.fd)?.ok_or(rustix::io::Errno::NOTCONN)?;
        Ok(peer.try_into()?)
    }

    /// What the kernel has counted.
    pub(crate) fn traffic(&self) -> Traffic {
        traffic_of(self.fd.as_raw_fd())
    }

    #[inline(never)] // a list takes 16 KiB of stack, which a short message should not touch
    fn send_all(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        let mut vectors = Vectors::<MOST_VECTORS>::new(MOST_BYTES);
        for piece in pieces {
            match piece {
                Piece::Own(bytes) => vectors.push(bytes.as_ptr().cast_mut().cast(), bytes.len()),
                Piece::Host(span) => vectors.push_span(*span),
            };
        }
        let fd = self.fd.as_raw_fd();
        exactly(&mut vectors, |vectors| {
            let header = header(vectors);
            // SAFETY: the kernel reads the bytes, or says that it cannot. The header names vectors that live as long as the call.
            size(unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const header, SEND_FLAGS) })
        })
    }

    #[inline(never)] // as above
    fn recv_all(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let mut vectors = Vectors::<MOST_VECTORS>::new(MOST_BYTES);
        for span in host {
            vectors.push_span(*span);
        }
        vectors.push(own.as_mut_ptr().cast(), own.len());
        let fd = self.fd.as_raw_fd();
        exactly(&mut vectors, |vectors| {
            let mut header = header(vectors);
            // SAFETY: the kernel writes to the bytes, or says that it cannot. They are `own`, or memory that the program
            // registered for that and to which the device holds no reference (`host.rs`). The header names vectors that live as
            // long as the call.
            size(unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut header, libc::MSG_DONTWAIT) })
        })
    }

    /// A socket that the program has closed is not touched again: its number may be that of something else by now.
    #[inline]
    fn notice(&self, moved: Result<usize, LinkError>) {
        if let Err(LinkError::Lost(libc::EBADF | libc::ENOTSOCK)) = moved {
            self.fd.lose();
        }
    }

    /// What it means that there is nothing more to receive. The kernel tells a reset once, to whoever calls first: if that was
    /// the half that sends, the other finds an end. A socket that the peer closed in order is connected until this end has, too.
    fn end(&self) -> LinkError {
        match self.has_peer() == Ok(false) && !self.finished.load(Ordering::Acquire) {
            true => LinkError::Lost(libc::ECONNRESET),
            false => LinkError::Ended,
        }
    }
}

impl AsFd for TcpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Link for TcpLink {
    #[inline]
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        let sent = match pieces {
            // Most trains are one run of bytes, and most of them are short: no list is made for it.
            [Piece::Own(bytes)] if !bytes.is_empty() => outcome(|| {
                let (fd, len) = (self.fd.as_raw_fd(), bytes.len());
                // SAFETY: the kernel reads the bytes.
                size(unsafe {
                    libc::syscall(libc::SYS_sendto, fd, bytes.as_ptr(), len, SEND_FLAGS, NOBODY, 0_usize)
                })
            }),
            _ => self.send_all(pieces),
        };
        self.notice(sent);
        if let Ok(len) = sent {
            self.tap.iter().for_each(|tap| tap.sent(self, pieces, len));
            moved(len);
        }
        sent
    }

    #[inline]
    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let received = if host.is_empty() {
            assert!(!own.is_empty(), "{NOTHING}");
            let (fd, start, len) = (self.fd.as_raw_fd(), own.as_mut_ptr(), own.len());
            outcome(|| {
                // SAFETY: the kernel writes to the bytes, which are nobody else's.
                size(unsafe {
                    libc::syscall(libc::SYS_recvfrom, fd, start, len, libc::MSG_DONTWAIT, NOBODY, 0_usize)
                })
            })
        } else {
            self.recv_all(host, own)
        };
        self.notice(received);
        let received = received?;
        if received == 0 {
            return Err(self.end());
        }
        if let Some(tap) = &self.tap {
            tap.received(self, host, own, received);
        }
        moved(received);
        Ok(received)
    }

    fn arrived(&self) -> usize {
        rustix::io::ioctl_fionread(&self.fd).map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    fn lost(&self) -> Option<i32> {
        match rustix::net::sockopt::socket_error(&self.fd) {
            Ok(Err(error)) | Err(error) => Some(error.raw_os_error()),
            Ok(Ok(())) => None,
        }
    }

    fn tells_of_more(&self) -> bool {
        true // epoll(7), of stream sockets and edges
    }

    fn finish(&self) {
        self.finished.store(true, Ordering::Release);
        // Fails only if the connection is gone, which the next call tells.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
    }

    fn abort(&self) {
        self.will_be_reset();
        if !self.fd.is_there() {
            return; // the program has closed it, and may have a socket of its own there
        }
        // RST goes out when the socket is dissolved from its peer, not when it is shut down. Lingering for no time makes
        // closing do the same, should dissolving be refused.
        let _ = rustix::net::sockopt::set_socket_linger(&self.fd, Some(Duration::ZERO));
        if rustix::net::connect_unspec(&self.fd).is_err() {
            let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
        }
    }

    fn segment_size(&self) -> usize {
        let size = option(&self.fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG);
        size.ok().and_then(|size| usize::try_from(size).ok()).unwrap_or(DEFAULT_SEGMENT)
    }
}

/// A bound address keeps its port open until the socket connects: then only the pair of addresses must be unique, and
/// one address connects more than its 28,000 ephemeral ports.
pub(super) fn choose_port_late(fd: &Fd) -> io::Result<()> {
    set_option(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// Makes a call for the vectors. If some of their memory is bad, the kernel may refuse what comes before it, too: then
/// only what is on the first page is tried, so that the answer is exact.
fn exactly<const N: usize>(
    vectors: &mut Vectors<N>,
    call: impl Fn(&[libc::iovec]) -> libc::ssize_t,
) -> Result<usize, LinkError> {
    let first = *vectors.as_slice().first().expect(NOTHING);
    match outcome(|| call(vectors.as_slice())) {
        Err(LinkError::Unmapped) => {
            vectors.clear();
            vectors.push(first.iov_base, first.iov_len.min(PAGE - first.iov_base.addr() % PAGE));
            outcome(|| call(vectors.as_slice()))
        }
        result => result,
    }
}

/// Makes the call until it is not interrupted.
fn outcome(call: impl Fn() -> libc::ssize_t) -> Result<usize, LinkError> {
    loop {
        if let Ok(moved) = usize::try_from(call()) {
            return Ok(moved);
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN) => return Err(LinkError::WouldBlock),
            Some(libc::EFAULT) => return Err(LinkError::Unmapped),
            error => return Err(LinkError::Lost(error.unwrap_or(libc::EIO))),
        }
    }
}

/// The kernel would take a call for no bytes for the end, or make it one.
const NOTHING: &str = "there is something to move";

const SEND_FLAGS: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// No address: the socket is connected.
const NOBODY: *const c_void = std::ptr::null();

/// For a call that reads or writes the vectors' memory; it leaves the vectors themselves as they are.
fn header(vectors: &[libc::iovec]) -> libc::msghdr {
    // SAFETY: all zeroes is a header that names nothing.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vectors.as_ptr().cast_mut();
    header.msg_iovlen = vectors.len() as _;
    header
}

pub(super) fn option(fd: impl AsFd, level: c_int, name: c_int) -> io::Result<c_int> {
    let (mut value, mut len) = (0, INT_LEN);
    // SAFETY: `value` has room for the `len` bytes that are asked for.
    let result = unsafe {
        libc::getsockopt(fd.as_fd().as_raw_fd(), level, name, (&raw mut value).cast::<c_void>(), &raw mut len)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

fn set_option(fd: &impl AsFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: `value` has the bytes that are told.
    let result = unsafe {
        libc::setsockopt(fd.as_fd().as_raw_fd(), level, name, (&raw const value).cast::<c_void>(), INT_LEN)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[expect(clippy::cast_possible_truncation, reason = "it is 4")]
const INT_LEN: libc::socklen_t = size_of::<c_int>() as libc::socklen_t;
