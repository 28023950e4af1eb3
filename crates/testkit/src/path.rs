//! TCP connections with a chosen segment size, and statistics of connections, which the standard library does not
//! offer.
#![expect(unsafe_code, reason = "socket options without a safe wrapper")]

use rustix::net::sockopt;
use std::ffi::c_int;
use std::io;
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// The segment size of an Ethernet path: 1500 bytes minus the IPv4 and TCP headers.
pub const ETHERNET: c_int = 1460;

/// Maximum time to wait for a connection.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns a listener on loopback whose connections have the segment size of Ethernet.
pub fn listener() -> TcpListener {
    listener_with(ETHERNET)
}

/// Returns a listener on loopback whose connections have TCP segments of this size, in bytes.
pub fn listener_with(size: c_int) -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    set_segment_size(&listener, size); // the kernel announces it in each SYN-ACK
    // A client that does not connect must not block the test.
    sockopt::set_socket_timeout(&listener, sockopt::Timeout::Recv, Some(TIMEOUT)).unwrap();
    listener
}

/// Connects to an address on loopback, with the segment size of Ethernet.
pub fn dial(to: SocketAddr) -> TcpStream {
    dial_with(to, ETHERNET)
}

/// Connects to an address on loopback, with TCP segments of this size, in bytes.
pub fn dial_with(to: SocketAddr, size: c_int) -> TcpStream {
    let SocketAddr::V4(to) = to else { panic!("{to} is not on this host's loopback") };
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
    let socket = socket.unwrap();
    set_segment_size(&socket, size);
    rustix::net::connect(&socket, &SocketAddrV4::new(*to.ip(), to.port())).unwrap();
    socket.into()
}

/// Sets the maximum segment size of a socket, in bytes.
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

/// Returns the number of data segments received from the peer: `tcpi_data_segs_in` of `struct tcp_info`.
pub fn segments_received(socket: &TcpStream) -> u32 {
    /// Offset of the field in the structure.
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
    assert!(len as usize >= AT + 4, "struct tcp_info is too short: {len} bytes");
    u32::from_ne_bytes(info[AT..AT + 4].try_into().unwrap())
}
