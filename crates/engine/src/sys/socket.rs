//! [`TcpLink`], a TCP socket as the [`Link`] of a stream. `tcp.rs` creates it. The two halves of the stream then send
//! directly from the program's memory and receive directly into that memory. Only the kernel accesses the memory, and
//! reports EFAULT for an address that is not mapped: the program may unmap or change its memory at any time.
#![expect(unsafe_code, reason = "passes addresses of memory to the kernel")]

use super::byte_count;
use super::counters::{self, Traffic};
use super::fork::Fd;
use super::memory::{MAX_BYTES, MAX_VECTORS, Vectors};
use super::sched::yield_after_moving;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::link::{Link, LinkError, Piece, Route};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};
use std::ffi::{c_int, c_void};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[cfg(test)]
mod tests;

/// The smallest page size of Linux; all other page sizes are multiples of it.
const PAGE: usize = 4096;

/// The MSS that TCP assumes for an unknown path (RFC 9293 §3.7.1).
const DEFAULT_SEGMENT: usize = 536;

/// The interval of probes for [`TcpLink::probe_often`]: the shortest that the kernel has.
const PROBE_OFTEN: Duration = Duration::from_secs(1);

/// A TCP socket, connected or connecting. Its methods never block. Dropping it closes the socket.
#[derive(Debug)]
pub struct TcpLink {
    fd: Fd,
    /// Observes the traffic, for a packet capture; `None` if the traffic is not captured.
    tap: Option<Box<dyn Tap>>,
    /// Whether this end has closed its sending direction ([`Link::finish`]).
    finished: AtomicBool,
    /// Whether bytes of the connection were received, by any route, since [`take_received`](Self::take_received) was last
    /// called.
    received: AtomicBool,
}

/// The kernel's counters of a TCP connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TcpCounters {
    /// Bytes received.
    pub(crate) received: u64,
    /// Bytes acknowledged by the peer.
    pub(crate) acknowledged: u64,
    /// The smoothed round-trip time.
    pub(crate) round_trip: Duration,
    /// Segments sent again, since the connection began.
    pub(crate) retransmissions: u32,
    pub(crate) segments_sent: u32,
    pub(crate) segments_received: u32,
    /// Segments with data that are not acknowledged.
    pub(crate) unacknowledged: u32,
    /// Probes of an idle connection, or of a closed window, that are not acknowledged.
    pub(crate) probes: u8,
    /// Time since the last acknowledgement.
    pub(crate) since_ack: Duration,
}

impl From<TcpCounters> for Traffic {
    fn from(connection: TcpCounters) -> Self {
        Self {
            sent: connection.acknowledged,
            received: connection.received,
            segments_sent: connection.segments_sent.into(),
            segments_received: connection.segments_received.into(),
            retransmissions: connection.retransmissions.into(),
        }
    }
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Party {
    /// This end.
    Local,
    /// The peer.
    Remote,
}

/// Observes the traffic of a connection. The thread that made a system call calls these methods.
pub(crate) trait Tap: Send + Sync + fmt::Debug {
    /// Records that the kernel has taken the first `len` bytes of `pieces` for sending.
    fn on_sent(&self, link: &TcpLink, pieces: &[Piece<'_>], len: usize);

    /// Records that `len` bytes were received: first into the program's memory at `host`, and the rest into `own`.
    fn on_received(&self, link: &TcpLink, host: &[Span], own: &[u8], len: usize);

    /// Records that this end sends, or the peer does, by another route from the next FPDU on.
    fn on_switch(&self, sender: Party, route: Route);

    /// Records that this end resets the connection, just before the reset is sent.
    fn on_abort(&self);
}

/// Returns the kernel's counters of a connection (TCP_INFO, tcp(7)). All are zero if `fd` is not a TCP socket. A
/// counter that the kernel does not have is zero, too; Linux 4.2 and later have all of them.
pub(crate) fn tcp_counters(fd: RawFd) -> TcpCounters {
    let mut info = [0_u64; 256 / 8];
    let mut len: libc::socklen_t = 256;
    // SAFETY: `info` has the `len` bytes that the kernel may write, and every bit pattern is a valid u64.
    let result = unsafe {
        let to = info.as_mut_ptr().cast::<c_void>();
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut len)
    };
    if result != 0 {
        return TcpCounters::default();
    }
    // The layout of `struct tcp_info`: eight bytes, then 24 fields of 32 bits, then 64-bit fields from offset 104 on,
    // then 32-bit fields again from offset 136 on. All numbers below are byte offsets.
    let u64_at = |offset: usize| info[offset / 8];
    let half = |offset: usize| (u64_at(offset) >> (offset % 8 * 8)) & u64::from(u32::MAX); // little-endian
    let u32_at = |offset: usize| u32::try_from(half(offset)).unwrap_or_default();
    TcpCounters {
        received: u64_at(128),
        acknowledged: u64_at(120),
        round_trip: Duration::from_micros(u32_at(68).into()),
        retransmissions: u32_at(100),
        segments_sent: u32_at(136),
        segments_received: u32_at(140),
        unacknowledged: u32_at(24),
        probes: u64_at(0).to_ne_bytes()[3],
        since_ack: Duration::from_millis(u32_at(56).into()),
    }
}

impl Drop for TcpLink {
    /// Adds the connection's counters to the totals of the process, because the kernel forgets them with the socket.
    fn drop(&mut self) {
        counters::add_closed(self.counters().into());
    }
}

impl TcpLink {
    /// Wraps a TCP socket, without a tap.
    pub fn new(fd: Fd) -> Self {
        Self { fd, tap: None, finished: AtomicBool::new(false), received: AtomicBool::new(false) }
    }

    /// Wraps a TCP socket that was handed over by another process (requirement X2). It keeps its options. Fails if it is
    /// something else.
    pub(crate) fn handed_over(socket: OwnedFd, is_finished: bool) -> io::Result<Self> {
        use rustix::net::{ipproto, sockopt};
        // Another kind of file would be taken for a descriptor that the program has replaced, and not be closed.
        let is_tcp = matches!(sockopt::socket_protocol(&socket), Ok(Some(ipproto::TCP)));
        if !is_tcp || sockopt::socket_acceptconn(&socket)? {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the descriptor is not a socket of a TCP connection",
            ));
        }
        let Ok(fd) = Fd::open(|| Ok::<_, std::convert::Infallible>(socket));
        let link = Self::new(fd);
        link.finished.store(is_finished, Ordering::Release);
        Ok(link)
    }

    /// Returns whether this end has closed its sending direction.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    /// Sets the tap that observes the traffic. Call this before the first byte is sent or received.
    pub(crate) fn with_tap(mut self, tap: Option<Box<dyn Tap>>) -> Self {
        self.tap = tap;
        self
    }

    /// Notifies the tap that this end resets the connection.
    pub(crate) fn report_abort(&self) {
        self.tap.iter().for_each(|tap| tap.on_abort());
    }

    /// Notifies the tap of bytes that were sent by another route.
    #[inline]
    pub(crate) fn report_sent(&self, pieces: &[Piece<'_>], len: usize) {
        self.tap.iter().for_each(|tap| tap.on_sent(self, pieces, len));
    }

    /// Notifies the tap of bytes that were received by another route.
    #[inline]
    pub(crate) fn report_received(&self, host: &[Span], own: &[u8], len: usize) {
        self.tap.iter().for_each(|tap| tap.on_received(self, host, own, len));
    }

    /// Notifies the tap that this end sends, or the peer does, by another route from the next FPDU on.
    pub(crate) fn report_switch(&self, sender: Party, route: Route) {
        self.tap.iter().for_each(|tap| tap.on_switch(sender, route));
    }

    /// Returns how the connection has ended; `None` if it has not. Bytes that are left in the socket do not matter.
    pub(crate) fn end(&self) -> Option<LinkError> {
        let mut byte = [0];
        loop {
            return match rustix::net::recv(&self.fd, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
                Ok((_, 0)) => Some(self.end_reason()),
                Ok(_) => self.has_peer_closed().then_some(LinkError::Ended),
                Err(Errno::AGAIN) => None,
                Err(Errno::INTR) => continue,
                Err(error) => Some(LinkError::Lost(error.raw_os_error())),
            };
        }
    }

    /// Returns whether the peer has closed its direction.
    fn has_peer_closed(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::RDHUP)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Returns whether the attempt to connect has succeeded; false while the attempt is in progress. If the attempt
    /// failed, the first call returns its error: reading the error clears it in the kernel.
    pub fn is_connected(&self) -> io::Result<bool> {
        rustix::net::sockopt::socket_error(&self.fd)??;
        Ok(self.has_peer()?)
    }

    /// Returns whether the kernel considers the socket connected.
    fn has_peer(&self) -> Result<bool, rustix::io::Errno> {
        match rustix::net::getpeername(&self.fd) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::NOTCONN) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Raises the time that sent data may stay unacknowledged (TCP_USER_TIMEOUT) to `time`. Never lowers it.
    pub fn raise_user_timeout(&self, time: Duration) {
        let time = u32::try_from(time.as_millis()).unwrap_or(i32::MAX.cast_unsigned());
        let time = time.min(i32::MAX.cast_unsigned()); // the kernel's own limit, 24 days
        let current = rustix::net::sockopt::tcp_user_timeout(&self.fd).unwrap_or(u32::MAX);
        if time > current {
            // A failure leaves the current timeout, with which the connection works, too.
            let _ = rustix::net::sockopt::set_tcp_user_timeout(&self.fd, time);
        }
    }

    /// Makes the kernel probe the peer after a second without traffic, so that the loss of the path is noticed although
    /// the traffic takes another route.
    pub(crate) fn probe_often(&self) {
        // Failures leave the intervals of the settings.
        let _ = rustix::net::sockopt::set_tcp_keepidle(&self.fd, PROBE_OFTEN);
        let _ = rustix::net::sockopt::set_tcp_keepintvl(&self.fd, PROBE_OFTEN);
    }

    /// Returns the local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(rustix::net::getsockname(&self.fd)?.try_into()?)
    }

    /// Returns the remote address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let peer = rustix::net::getpeername(&self.fd)?.ok_or(rustix::io::Errno::NOTCONN)?;
        Ok(peer.try_into()?)
    }

    /// Returns the kernel's counters.
    pub(crate) fn counters(&self) -> TcpCounters {
        tcp_counters(self.fd.as_raw_fd())
    }

    /// Makes one `sendmsg` call for as many of the pieces as fit in one call. Returns the number of bytes sent, which
    /// may be fewer than the pieces have. The system call is made by number, because the C library's sendmsg is a
    /// cancellation point.
    #[inline(never)] // the vectors take 16 KiB of stack, which a short message should not touch
    fn send_vectored(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        let mut vectors = Vectors::<MAX_VECTORS>::new(MAX_BYTES);
        for piece in pieces {
            match piece {
                Piece::Own(bytes) => vectors.push(bytes.as_ptr().cast_mut().cast(), bytes.len()),
                Piece::Host(span) => vectors.push_span(*span),
            };
        }
        let fd = self.fd.as_raw_fd();
        retry_first_page_on_fault(&mut vectors, |vectors| {
            let header = header(vectors);
            // SAFETY: the kernel only reads the memory that the vectors name, and returns EFAULT if it is not mapped.
            // `header` and the vectors that it points to outlive the call.
            byte_count(unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const header, SEND_FLAGS) })
        })
    }

    /// Makes one `recvmsg` call, into the memory at `host` and then into `own`. Returns the number of bytes received; 0
    /// at the end of the stream. Called by `recv` if there is memory of the program to receive into. The system call is
    /// made by number, because the C library's recvmsg is a cancellation point.
    #[inline(never)] // the vectors take 16 KiB of stack
    fn recv_vectored(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let mut vectors = Vectors::<MAX_VECTORS>::new(MAX_BYTES);
        for span in host {
            vectors.push_span(*span);
        }
        vectors.push(own.as_mut_ptr().cast(), own.len());
        let fd = self.fd.as_raw_fd();
        // If a page is unmapped, the bytes before it are received, and the next call fails.
        retry_first_page_on_fault(&mut vectors, |vectors| {
            let mut header = header(vectors);
            // SAFETY: the kernel writes only to the memory that the vectors name, and returns EFAULT if it is not
            // mapped. That memory is `own`, which is borrowed mutably, or memory that the program registered for
            // writing and to which the device holds no reference (`host.rs`). `header` and the vectors that it points
            // to outlive the call.
            byte_count(unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut header, libc::MSG_DONTWAIT) })
        })
    }

    /// Marks the descriptor as lost if the result of a system call shows that the program has closed the descriptor:
    /// its number may refer to another file by now.
    #[inline]
    fn mark_lost_if_closed(&self, result: Result<usize, LinkError>) {
        if let Err(LinkError::Lost(libc::EBADF | libc::ENOTSOCK)) = result {
            self.fd.mark_lost();
        }
    }

    /// Returns why the stream of received bytes ended: the peer closed its direction, or reset the connection.
    ///
    /// The kernel reports a reset only once. If the tx half got that error, `recv` in the rx half returns 0, as after
    /// an orderly end. The two are told apart by the state of the socket: after an orderly end the socket stays
    /// connected until this end has closed its direction as well; after a reset the socket is not connected.
    fn end_reason(&self) -> LinkError {
        match self.has_peer() == Ok(false) && !self.finished.load(Ordering::Acquire) {
            true => LinkError::Lost(libc::ECONNRESET),
            false => LinkError::Ended,
        }
    }
}

impl TcpLink {
    /// Records that bytes of the connection were received.
    #[inline]
    pub(crate) fn set_received(&self) {
        self.received.store(true, Ordering::Relaxed);
    }

    /// Returns whether bytes were received since the last call.
    pub(crate) fn take_received(&self) -> bool {
        self.received.swap(false, Ordering::Relaxed)
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
            // Most calls are for one short piece, for which `sendto` without vectors is faster.
            [Piece::Own(bytes)] if !bytes.is_empty() => retry_interrupted(|| {
                let (fd, len) = (self.fd.as_raw_fd(), bytes.len());
                // SAFETY: the kernel only reads `bytes`, which is borrowed for the duration of the call.
                byte_count(unsafe {
                    libc::syscall(libc::SYS_sendto, fd, bytes.as_ptr(), len, SEND_FLAGS, NO_ADDRESS, 0_usize)
                })
            }),
            _ => self.send_vectored(pieces),
        };
        self.mark_lost_if_closed(sent);
        if let Ok(len) = sent {
            self.report_sent(pieces, len);
            yield_after_moving(len);
        }
        sent
    }

    #[inline]
    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let received = if host.is_empty() {
            assert!(!own.is_empty(), "{NO_BYTES}");
            let (fd, start, len) = (self.fd.as_raw_fd(), own.as_mut_ptr(), own.len());
            retry_interrupted(|| {
                // SAFETY: the kernel writes only to the `len` bytes of `own`, which is borrowed mutably for the
                // duration of the call.
                byte_count(unsafe {
                    libc::syscall(libc::SYS_recvfrom, fd, start, len, libc::MSG_DONTWAIT, NO_ADDRESS, 0_usize)
                })
            })
        } else {
            self.recv_vectored(host, own)
        };
        self.mark_lost_if_closed(received);
        let received = received?;
        if received == 0 {
            return Err(self.end_reason());
        }
        self.report_received(host, own, received);
        yield_after_moving(received);
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

    fn is_empty_after_short_recv(&self) -> bool {
        true // an edge-triggered epoll reports each arrival at a stream socket (epoll(7))
    }

    fn finish(&self) {
        self.finished.store(true, Ordering::Release);
        // Fails only if the connection is lost, which the next call reports.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
    }

    fn abort(&self) {
        self.report_abort();
        if !self.fd.verify() {
            return; // the program has closed the descriptor, and may have a socket of its own with this number
        }
        // Disconnecting (a connect to AF_UNSPEC) sends a reset at once; shutting down does not. If disconnecting is
        // refused, the linger time of zero makes the later close send the reset.
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

/// Makes the kernel choose the local port when the socket connects, not when it is bound. Then only the pair of local
/// and remote address must be unique, and one local address can have more connections than its 28,000 ephemeral ports.
/// An emulated kernel may not have the option (QEMU's user mode does not): then the port is chosen when it is bound.
pub(super) fn defer_port_choice(fd: &Fd) {
    let _ = set_option(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
}

/// Makes a system call with the vectors; if it fails with EFAULT, makes it again with only the bytes on the first page.
///
/// The kernel may return EFAULT although the memory before the unmapped byte is valid. With the second call, `Unmapped`
/// is returned only if the first byte is not mapped: a page is mapped as a whole.
fn retry_first_page_on_fault<const N: usize>(
    vectors: &mut Vectors<N>,
    call: impl Fn(&[libc::iovec]) -> libc::ssize_t,
) -> Result<usize, LinkError> {
    let first = *vectors.as_slice().first().expect(NO_BYTES);
    match retry_interrupted(|| call(vectors.as_slice())) {
        Err(LinkError::Unmapped) => {
            vectors.clear();
            vectors.push(first.iov_base, first.iov_len.min(PAGE - first.iov_base.addr() % PAGE));
            retry_interrupted(|| call(vectors.as_slice()))
        }
        result => result,
    }
}

/// Makes a system call, and repeats it while it fails with EINTR. Returns the number of bytes moved, or the error that
/// `errno` stands for.
fn retry_interrupted(call: impl Fn() -> libc::ssize_t) -> Result<usize, LinkError> {
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

/// Panic message for a call with no bytes to send or receive: its result 0 would look like the end of the stream.
const NO_BYTES: &str = "there is something to move";

const SEND_FLAGS: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// The address argument of sendto(2) and recvfrom(2) on a connected socket.
const NO_ADDRESS: *const c_void = std::ptr::null();

/// Returns a message header with these vectors and no address. The kernel does not change the vectors, though `msg_iov`
/// is a mutable pointer.
fn header(vectors: &[libc::iovec]) -> libc::msghdr {
    // SAFETY: `msghdr` has only integers and raw pointers, for which zero is a valid value: no address, no vectors, no
    // control data.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vectors.as_ptr().cast_mut();
    header.msg_iovlen = vectors.len() as _;
    header
}

/// Returns the value of a socket option of type `int` (getsockopt(2)).
pub(super) fn option(fd: impl AsFd, level: c_int, name: c_int) -> io::Result<c_int> {
    let (mut value, mut len) = (0, INT_LEN);
    // SAFETY: `value` has the `len` bytes that the kernel may write, and every bit pattern is a valid c_int.
    let result = unsafe {
        libc::getsockopt(fd.as_fd().as_raw_fd(), level, name, (&raw mut value).cast::<c_void>(), &raw mut len)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Sets a socket option of type `int` (setsockopt(2)).
pub(super) fn set_option(fd: &impl AsFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: `value` has the `INT_LEN` bytes that the kernel reads.
    let result = unsafe {
        libc::setsockopt(fd.as_fd().as_raw_fd(), level, name, (&raw const value).cast::<c_void>(), INT_LEN)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The smallest time to live of packets that a TCP socket accepts while it is deaf. Linux sends packets with 64, and no
/// other system with more than this.
const MAX_TTL: c_int = 255;

/// Makes the kernel drop everything that arrives at a TCP socket, before TCP sees it, or accept it again: a segment is not
/// acknowledged, a connection is not answered, and the sender retransmits. As if a cable were unplugged, but only in this
/// direction.
///
/// The socket demands a time to live that packets do not have (IP_MINTTL, ip(7)). A filter (SO_ATTACH_FILTER) would do
/// the same, but requires CAP_NET_ADMIN for TCP in newer kernels.
pub(crate) fn set_deaf(fd: &impl AsFd, deaf: bool) -> io::Result<()> {
    let min = if deaf { MAX_TTL } else { 0 };
    // Sockets of IPv6 have both options, because they may receive IPv4.
    set_option(fd, libc::IPPROTO_IP, libc::IP_MINTTL, min)?;
    match set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT, min) {
        Err(error) if error.raw_os_error() != Some(libc::ENOPROTOOPT) => Err(error),
        _ => Ok(()), // sockets of IPv4 do not know it
    }
}

/// Makes the kernel drop all datagrams that arrive at a socket, or accept them again.
pub(super) fn set_drops_datagrams(fd: &impl AsFd, drops: bool) -> io::Result<()> {
    if !drops {
        return match set_option(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
            _ => Ok(()), // it may have had no filter
        };
    }
    // A filter of one instruction: keep no byte of a packet (BPF_RET | BPF_K, socket(7)).
    let mut instruction = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut instruction };
    #[expect(clippy::cast_possible_truncation, reason = "it is 16")]
    let len = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: `program` has the `len` bytes that the kernel reads, and points to as many instructions as it says. The
    // kernel copies both.
    let result = unsafe {
        let program = (&raw const program).cast::<c_void>();
        libc::setsockopt(fd.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program, len)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the process and the user at the other end of a Unix socket (SO_PEERCRED, unix(7)). The process is 0 if it is in
/// another namespace of processes, which the type of rustix does not allow.
pub(crate) fn peer_credentials(fd: &impl AsFd) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
    #[expect(clippy::cast_possible_truncation, reason = "it is 12")]
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (socket, to) = (fd.as_fd().as_raw_fd(), (&raw mut peer).cast::<c_void>());
    // SAFETY: the kernel writes at most `len` bytes to `peer`, and any bytes are a valid `ucred`.
    let result = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut len) };
    if result == 0 { Ok(peer) } else { Err(io::Error::last_os_error()) }
}

#[expect(clippy::cast_possible_truncation, reason = "it is 4")]
const INT_LEN: libc::socklen_t = size_of::<c_int>() as libc::socklen_t;
