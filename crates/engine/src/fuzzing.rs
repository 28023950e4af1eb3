//! Entry points for fuzz targets of private modules.

use crate::gid::parse::NetworkState;
use crate::sys::sock_diag;
use std::net::SocketAddr;

/// Reads a datagram of rtnetlink as if the kernel had sent it, and returns how many interfaces, addresses and routes it found.
pub fn rtnetlink(datagram: &[u8]) -> usize {
    let mut found = NetworkState::default();
    let _ = found.add_datagram(datagram);
    let _ = found.default_route();
    found.interfaces.len() + found.addresses.len() + found.routes.len()
}

/// Reads a datagram of sock_diag as if the kernel had sent it, and returns the user who owns the socket.
pub fn socket_owner(datagram: &[u8], local: SocketAddr, peer: SocketAddr) -> Option<u32> {
    sock_diag::parse(datagram, local, peer).ok().flatten()
}

/// Reads a frame of a move between hosts, and checks that it survives encoding and decoding. Returns whether it is one.
pub fn host_frame(frame: &[u8]) -> bool {
    crate::hand_over::host::check_frame(frame)
}
