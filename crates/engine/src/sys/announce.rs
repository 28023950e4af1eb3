//! Announces that an IP address has moved to this host, so that neighbours send to its hardware address from now on: a
//! gratuitous ARP request for IPv4 (RFC 5227 §3), an unsolicited neighbour advertisement for IPv6 (RFC 4861 §7.2.6).
//!
//! The kernel would announce an address only when its interface comes up, not when the address is added.

use super::fork::Fd;
use super::raw::send_frame;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sockopt};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV6};

/// The hardware address of all hosts of a link.
const BROADCAST: [u8; 6] = [0xff; 6];
/// The address of all IPv6 nodes of a link (RFC 4291 §2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Hop limit that neighbours require: it proves that no router has forwarded the message (RFC 4861 §7.1.2).
const HOPS: u32 = 255;

/// Announces an address of an Ethernet interface.
#[derive(Debug)]
pub(super) struct Announcer {
    fd: Fd,
    ip: IpAddr,
    /// Index of the interface.
    interface: u32,
    ethernet: [u8; 6],
}

impl Announcer {
    /// Opens the socket for announcements, which needs CAP_NET_RAW. The address need not be assigned yet.
    pub(super) fn open(ip: IpAddr, interface: u32, ethernet: [u8; 6]) -> io::Result<Self> {
        let fd = match ip {
            IpAddr::V4(_) => open_packet_socket()?,
            IpAddr::V6(_) => {
                let fd = open(AddressFamily::INET6, Some(ipproto::ICMPV6))?;
                sockopt::set_ipv6_multicast_hops(&fd, HOPS)?;
                fd
            }
        };
        Ok(Self { fd, ip, interface, ethernet })
    }

    /// Sends one announcement. The address must be assigned.
    pub(super) fn announce(&self) -> io::Result<()> {
        match self.ip {
            IpAddr::V4(ip) => send_frame(&self.fd, self.interface, &arp_request(ip, self.ethernet)),
            IpAddr::V6(ip) => {
                let from = SocketAddrV6::new(ip, 0, 0, self.interface);
                rustix::net::bind(&self.fd, &from)?;
                let to = SocketAddrV6::new(ALL_NODES, 0, 0, self.interface);
                let message = neighbour_advertisement(ip, self.ethernet);
                rustix::net::sendto(&self.fd, &message, SendFlags::empty(), &to)?;
                Ok(())
            }
        }
    }
}

/// Opens a packet socket that receives nothing.
pub(super) fn open_packet_socket() -> io::Result<Fd> {
    open(AddressFamily::PACKET, None)
}

fn open(family: AddressFamily, protocol: Option<rustix::net::Protocol>) -> io::Result<Fd> {
    Ok(Fd::open(|| rustix::net::socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, protocol))?)
}

/// Encodes an ARP announcement with its Ethernet header: a request of `ip` for itself (RFC 826, RFC 5227 §3).
fn arp_request(ip: Ipv4Addr, ethernet: [u8; 6]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(42);
    frame.extend_from_slice(&BROADCAST);
    frame.extend_from_slice(&ethernet);
    frame.extend_from_slice(&[0x08, 0x06]); // the protocol of the frame: ARP
    frame.extend_from_slice(&[0, 1, 0x08, 0x00, 6, 4, 0, 1]); // Ethernet, IPv4, lengths of both addresses, request
    frame.extend_from_slice(&ethernet);
    frame.extend_from_slice(&ip.octets());
    frame.extend_from_slice(&[0; 6]); // who has it is the question
    frame.extend_from_slice(&ip.octets());
    frame
}

/// Encodes a neighbour advertisement with the flag Override, so that neighbours replace what they know (RFC 4861 §4.4). The
/// kernel adds the checksum.
fn neighbour_advertisement(ip: Ipv6Addr, ethernet: [u8; 6]) -> Vec<u8> {
    let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0]; // type, code, checksum, flags
    message.extend_from_slice(&ip.octets());
    message.extend_from_slice(&[2, 1]); // option: target link-layer address, of eight bytes
    message.extend_from_slice(&ethernet);
    message
}
