//! A relay between Ironwarp and QEMU that makes the segments of the path small.
//!
//! QEMU terminates the guest's TCP connections and opens others on loopback. Their segments are larger than any FPDU,
//! so nothing would show whether Ironwarp respects the segment size. TCP sends no segment larger than half the largest
//! window that its peer offered; the relay has small receive buffers, and so offers small windows.

use ironwarp_testkit::relay::forward;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketType, connect, socket};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Size of the receive buffers. Linux makes a window of at most twice that, so no segment is larger than this.
pub(crate) const SEGMENT: usize = 8192;

/// The side of the relay on which Ironwarp is. Only there the buffers are small: under load, Linux fills small buffers
/// in bursts, with pauses of 200 ms and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ironwarp {
    Connects,
    Listens,
}

/// Relays all connections to the returned address to `to`, until the process ends.
pub(crate) fn relay(ironwarp: Ironwarp, to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    if ironwarp == Ironwarp::Connects {
        set_socket_recv_buffer_size(&listener, SEGMENT).unwrap();
    }
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for one in listener.incoming() {
            let one = one.unwrap();
            let other = connected(ironwarp, to)
                .unwrap_or_else(|error| panic!("the relay cannot connect to {to}: {error}"));
            forward(&one, &other).unwrap();
        }
    });
    address
}

fn connected(ironwarp: Ironwarp, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    if ironwarp == Ironwarp::Listens {
        set_socket_recv_buffer_size(&socket, SEGMENT)?;
    }
    connect(&socket, &to)?;
    Ok(socket.into())
}
