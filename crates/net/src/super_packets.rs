//! Limits the super-packets of an interface, which only netlink can.

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, send, socket};
use std::io;

/// Longest super-packet. With its headers, it fits into one segment on the wire, which costs less than a long and a short one.
const MAX_SUPER_PACKET: u32 = 64_000;

// Numbers of linux/netlink.h, linux/rtnetlink.h and linux/if_link.h.
const RTM_NEWLINK: u16 = 16;
const NLM_F_REQUEST_ACK: u16 = 1 | 4;
const IFLA_IFNAME: u16 = 3;
const IFLA_GSO_MAX_SIZE: u16 = 41;
/// Length of `struct nlmsghdr`, and of `struct ifinfomsg`.
const HEADER: usize = 16;

/// Limits the super-packets that the kernel passes through an interface. Needs the right to configure it.
pub(crate) fn limit(interface: &str) -> io::Result<()> {
    let mut body = vec![0; HEADER];
    add(&mut body, IFLA_IFNAME, &[interface.as_bytes(), &[0]].concat());
    add(&mut body, IFLA_GSO_MAX_SIZE, &MAX_SUPER_PACKET.to_ne_bytes());
    let mut request = Vec::new();
    request.extend(u32::try_from(HEADER + body.len()).map_err(io::Error::other)?.to_ne_bytes());
    request.extend(RTM_NEWLINK.to_ne_bytes());
    request.extend(NLM_F_REQUEST_ACK.to_ne_bytes());
    request.extend([0; 8]); // sequence number and port, which the answer repeats
    request.extend(body);
    let socket = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    send(&socket, &request, SendFlags::empty())?;
    let mut answer = [0; 1024];
    recv(&socket, &mut answer, RecvFlags::empty())?;
    // A `struct nlmsgerr`, whose first field is a negative error, or 0.
    match i32::from_ne_bytes([16, 17, 18, 19].map(|at| answer[at])) {
        0 => Ok(()),
        error => Err(Errno::from_raw_os_error(-error).into()),
    }
}

/// Adds a `struct rtattr`, and fills it up to a multiple of four.
fn add(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(4 + value.len()).expect("a short attribute");
    message.extend(len.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}
