//! A relay between Ironwarp and QEMU: makes the path's segments small. Before this: QEMU or Ironwarp, which connects to it;
//! after: the other.
//!
//! QEMU ends the guest's TCP connections and opens others on loopback. These have segments larger than any FPDU, so nothing
//! would show whether Ironwarp keeps to them. TCP sends no segment larger than half the largest window that its peer
//! offered; the relay has small receive buffers and so offers small windows.

use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketType, connect, socket};
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

/// The receive buffers. A window is at most what Linux makes of that, twice as much; so no segment is larger than this.
pub(crate) const SEGMENT: usize = 8192;

/// On which side of a relay Ironwarp is. Only there the buffers are small: under load, Linux fills them by fits and starts,
/// with a fifth of a second and more in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ironwarp {
    Connects,
    Listens,
}

/// Relays all connections to the address it returns to `to`, until the process ends.
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
            for (from, to) in [(&one, &other), (&other, &one)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                thread::spawn(move || pass(&from, &to));
            }
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

/// Passes on what comes, and that no more comes. A connection that is lost ends, too.
fn pass(from: &TcpStream, to: &TcpStream) {
    let (mut reader, mut writer) = (from, to);
    to.set_nodelay(true).unwrap();
    let _ = io::copy(&mut reader, &mut writer);
    let _ = to.shutdown(Shutdown::Write);
}
