//! What fuzz targets reach of private modules.

use crate::gid::parse::Found;

/// Reads a datagram of rtnetlink as if the kernel had sent it, and returns how many things it found.
pub fn netlink(datagram: &[u8]) -> usize {
    let mut found = Found::default();
    let _ = found.take(datagram);
    let _ = found.default_route();
    found.interfaces.len() + found.addresses.len() + found.routes.len()
}
