//! What the kernel knows of a connection and the standard library does not tell. The only file of these tests with `unsafe`.
#![expect(unsafe_code, reason = "options of sockets for which there is no safe function")]
#![allow(dead_code, reason = "each test program uses a part of it")]

use rustix::net::sockopt;
use std::ffi::c_int;
use std::io;
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// The segment size of an Ethernet path: 1500 bytes without the headers of IPv4 and TCP.
pub(crate) const ETHERNET: c_int = 1460;

/// Longer than anything takes to connect.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a card listens whose path has Ethernet's segment size.
pub(crate) fn listener() -> TcpListener {
    listener_with(ETHERNET)
}

/// The same, with segments of this size.
pub(crate) fn listener_with(size: c_int) -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    set_segment_size(&listener, size); // it is told with each SYN that comes from now on
    // Whoever does not come must not hang the test.
    sockopt::set_socket_timeout(&listener, sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
    listener
}

/// A connection over such a path.
pub(crate) fn dial(to: SocketAddr) -> TcpStream {
    dial_with(to, ETHERNET)
}

/// The same, with segments of this size.
pub(crate) fn dial_with(to: SocketAddr, size: c_int) -> TcpStream {
    let SocketAddr::V4(to) = to else { panic!("{to} is not on this host's loopback") };
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
    let socket = socket.unwrap();
    set_segment_size(&socket, size);
    rustix::net::connect(&socket, &SocketAddrV4::new(*to.ip(), to.port())).unwrap();
    socket.into()
}

fn set_segment_size(socket: &impl AsFd, size: c_int) {
    // SAFETY: the option is an int, and the pointer and length are those of one.
    let set = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG,
            (&raw const size).cast(),
            libc::socklen_t::try_from(size_of::<c_int>()).unwrap(),
        )
    };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}

/// In how many segments the peer's bytes have come so far: `tcpi_data_segs_in` of `struct tcp_info`.
pub(crate) fn segments_received(socket: &TcpStream) -> u32 {
    const AT: usize = 152;
    let mut info = [0_u8; 256];
    let mut len = libc::socklen_t::try_from(info.len()).unwrap();
    // SAFETY: the kernel writes at most as many bytes as the array has.
    let got = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    assert_eq!(got, 0, "{}", io::Error::last_os_error());
    assert!(len as usize >= AT + 4, "the kernel tells too little: {len} bytes");
    u32::from_ne_bytes(info[AT..AT + 4].try_into().unwrap())
}
