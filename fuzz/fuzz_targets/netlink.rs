//! Netlink datagrams with arbitrary bytes. They come from the kernel, but their lengths are not trusted.
#![no_main]

use ironwarp_engine::fuzzing::{rtnetlink, socket_owner};
use libfuzzer_sys::fuzz_target;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Sizes of `struct nlmsghdr` and of `struct inet_diag_msg` after it.
const HEADER: usize = 16;
const ANSWER: usize = 72;

// The first byte selects the protocol.
fuzz_target!(|bytes: &[u8]| {
    let [protocol, datagram @ ..] = bytes else { return };
    let ip = match protocol % 3 {
        0 => return assert!(rtnetlink(datagram) <= datagram.len() / HEADER),
        1 => IpAddr::from(Ipv4Addr::LOCALHOST),
        _ => IpAddr::from(Ipv6Addr::LOCALHOST),
    };
    let owner = socket_owner(datagram, SocketAddr::new(ip, 1), SocketAddr::new(ip, 2));
    assert!(owner.is_none() || datagram.len() >= HEADER + ANSWER);
});
