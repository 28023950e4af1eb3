//! Socket options, ioctls and addresses that rustix does not have, for connections that move between hosts: the options of
//! TCP_REPAIR, the lengths of a send queue, the network namespace of a socket, and frames for a link.
#![expect(unsafe_code, reason = "passes structures to the kernel")]

use rustix::fd::{AsFd, AsRawFd};
use std::ffi::{c_int, c_ulong, c_void};
use std::io;

/// A socket option whose value is a structure of integers. None of these structures contains an address, so that the kernel
/// accesses no memory but the structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Structure {
    /// `struct tcp_info`, which can only be read.
    TcpInfo,
    /// An array of `struct tcp_repair_opt`, which can only be written.
    RepairOptions,
    /// `struct tcp_repair_window`.
    RepairWindow,
    /// The number of the socket's network namespace, which can only be read.
    NetworkNamespace,
}

impl Structure {
    /// Returns the level and the name of the option.
    const fn option(self) -> (c_int, c_int) {
        match self {
            Self::TcpInfo => (libc::IPPROTO_TCP, libc::TCP_INFO),
            Self::RepairOptions => (libc::IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS),
            Self::RepairWindow => (libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW),
            Self::NetworkNamespace => (libc::SOL_SOCKET, libc::SO_NETNS_COOKIE),
        }
    }
}

/// Reads a socket option into `value`, as a whole. Fails if the kernel's structure is shorter.
pub(super) fn read_structure(fd: &impl AsFd, structure: Structure, value: &mut [u8]) -> io::Result<()> {
    let (level, name) = structure.option();
    let mut len = socklen(value.len());
    // SAFETY: `value` has the `len` bytes that the kernel may write, and the kernel accesses no other memory, because the
    // structure contains no address.
    let result = unsafe {
        let to = value.as_mut_ptr().cast::<c_void>();
        libc::getsockopt(fd.as_fd().as_raw_fd(), level, name, to, &raw mut len)
    };
    check(result)?;
    if len < socklen(value.len()) {
        let why = format!("socket option {name} has {len} bytes, expected {}", value.len());
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    Ok(())
}

/// Writes a socket option.
pub(super) fn write_structure(fd: &impl AsFd, structure: Structure, value: &[u8]) -> io::Result<()> {
    let (level, name) = structure.option();
    // SAFETY: `value` has the bytes that the kernel reads, and the kernel accesses no other memory, because the structure
    // contains no address.
    check(unsafe {
        let from = value.as_ptr().cast::<c_void>();
        libc::setsockopt(fd.as_fd().as_raw_fd(), level, name, from, socklen(value.len()))
    })
}

/// Returns the number of the network namespace of a socket. Needs Linux 5.14.
pub(super) fn network_namespace(fd: &impl AsFd) -> io::Result<u64> {
    let mut number = [0; 8];
    read_structure(fd, Structure::NetworkNamespace, &mut number)?;
    Ok(u64::from_ne_bytes(number))
}

/// A part of the send queue of a TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendQueue {
    /// All sequence numbers that are not acknowledged (SIOCOUTQ).
    Unacknowledged,
    /// Those that were never sent (SIOCOUTQNSD).
    Unsent,
}

/// Returns how many sequence numbers a part of the send queue has. A FIN counts as one.
pub(super) fn send_queue_len(fd: &impl AsFd, part: SendQueue) -> io::Result<usize> {
    let request: c_ulong = match part {
        SendQueue::Unacknowledged => 0x5411,
        SendQueue::Unsent => 0x894b,
    };
    let mut len: c_int = 0;
    // SAFETY: both requests write one integer of type `int` to the address (tcp(7)).
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request as _, &raw mut len) };
    check(result)?;
    Ok(usize::try_from(len).unwrap_or_default())
}

/// Sends a frame, with its Ethernet header, over a packet socket to an interface (packet(7)).
pub(super) fn send_frame(fd: &impl AsFd, interface: u32, frame: &[u8]) -> io::Result<()> {
    // SAFETY: `sockaddr_ll` has only integers, for which zero is valid.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = super::nlmsg::bits(libc::AF_PACKET);
    to.sll_ifindex = interface.cast_signed();
    let (len, fd) = (socklen(size_of::<libc::sockaddr_ll>()), fd.as_fd().as_raw_fd());
    // SAFETY: the kernel reads `frame` and the `len` bytes of `to`, and both outlive the call.
    let sent = unsafe {
        let to = (&raw const to).cast::<libc::sockaddr>();
        libc::sendto(fd, frame.as_ptr().cast::<c_void>(), frame.len(), 0, to, len)
    };
    if usize::try_from(sent) == Ok(frame.len()) { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Converts the result of a call that returns 0 or −1.
fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Converts the length of a slice to the type of the C library. All slices here are short.
fn socklen(len: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(len).unwrap_or(libc::socklen_t::MAX)
}
