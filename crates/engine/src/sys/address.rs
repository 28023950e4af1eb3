//! IP addresses of interfaces: lists, adds and removes them with rtnetlink(7), and asks whether the kernel answers for one.

use super::netlink::{DumpProgress, DumpRequest, Netlink};
use super::nlmsg::{Attributes, DONE, ERROR, HEADER, Messages, bits, error, u32_at};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Size of `struct ifaddrmsg`.
const ADDRESS: usize = 8;
/// Size of `struct ifinfomsg`.
const LINK: usize = 16;
/// Size of `struct rtmsg`.
const ROUTE: usize = 12;
/// Size of the buffer for an answer, which is far shorter.
const ANSWER: usize = 4096;
/// Hardware type of Ethernet (`ARPHRD_ETHER`).
const ETHERNET: u16 = 1;
/// Attributes of an address that can be set: IFA_ADDRESS, IFA_LOCAL, IFA_LABEL, IFA_BROADCAST, IFA_CACHEINFO (its
/// lifetimes), IFA_RT_PRIORITY and IFA_PROTO. IFA_FLAGS is added apart.
const SETTABLE: [u16; 7] =
    [libc::IFA_ADDRESS, libc::IFA_LOCAL, libc::IFA_LABEL, libc::IFA_BROADCAST, libc::IFA_CACHEINFO, 9, 11];
/// Errors of a route lookup which mean that no route leads to the address.
const NO_ROUTE: [i32; 4] = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL];

/// How long [`Assigned::add`] waits for the route of an address.
const ROUTE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between its checks.
const ROUTE_INTERVAL: Duration = Duration::from_micros(100);

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Assigned {
    pub(super) ip: IpAddr,
    pub(super) prefix_len: u8,
    /// Index of the interface.
    pub(super) interface: u32,
    /// Whether the kernel may remove it together with the primary address of its subnet.
    pub(super) is_secondary: bool,
    /// A `struct ifaddrmsg` with attributes that adds the address as it was.
    message: Vec<u8>,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) name: String,
    /// Whether it is administratively up.
    pub(super) is_up: bool,
    /// The hardware address, if it is an Ethernet interface.
    pub(super) ethernet: Option<[u8; 6]>,
}

impl Assigned {
    /// Returns an address that is not assigned yet, with the attributes that the kernel chooses.
    pub(super) fn new(ip: IpAddr, prefix_len: u8, interface: u32) -> Self {
        let mut message = header(ip, prefix_len, 0, interface);
        for kind in [libc::IFA_LOCAL, libc::IFA_ADDRESS] {
            put_attribute(&mut message, kind, &octets(ip));
        }
        put_flags(&mut message, ip, 0);
        Self { ip, prefix_len, interface, is_secondary: false, message }
    }

    /// Adds the address, and waits until packets for it are delivered. Fails with EEXIST if the interface has the address.
    ///
    /// IPv6 addresses are added without duplicate address detection (RFC 4862 §5.4), which takes a second: callers know that
    /// the other host has removed the address.
    pub(super) fn add(&self, socket: &Netlink) -> io::Result<()> {
        let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        acknowledged(socket, libc::RTM_NEWADDR, flags, &self.message)?;
        // The kernel adds the route of an IPv6 address in a thread of its own, usually within microseconds.
        let deadline = Instant::now() + ROUTE_TIMEOUT;
        while !has_local_route(socket, self.ip)? {
            if Instant::now() > deadline {
                let why =
                    format!("no local route for {} after {ROUTE_TIMEOUT:?}: is its interface up?", self.ip);
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            std::thread::sleep(ROUTE_INTERVAL);
        }
        Ok(())
    }

    /// Removes the address.
    pub(super) fn remove(&self, socket: &Netlink) -> io::Result<()> {
        let mut message = header(self.ip, self.prefix_len, 0, self.interface);
        put_attribute(&mut message, libc::IFA_LOCAL, &octets(self.ip));
        acknowledged(socket, libc::RTM_DELADDR, libc::NLM_F_ACK, &message)
    }

    /// Returns whether another address is in the same IPv4 subnet of the same interface.
    pub(super) fn shares_subnet_with(&self, other: &Self) -> bool {
        let (IpAddr::V4(ip), IpAddr::V4(of_other)) = (self.ip, other.ip) else { return false };
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_len.min(32))).unwrap_or(0);
        (self.interface, self.prefix_len) == (other.interface, other.prefix_len)
            && u32::from(ip) & mask == u32::from(of_other) & mask
    }

    /// Parses the body of a RTM_NEWADDR message; `None` if it is not an IP address.
    fn parse(body: &[u8]) -> Option<Self> {
        let &[family, prefix_len, flags, scope, ..] = body else { return None };
        let interface = u32_at(body, 4)?;
        let attributes = Attributes::behind(body, ADDRESS);
        // Of an interface between two points, IFA_ADDRESS is the other end.
        let own = attributes.find(libc::IFA_LOCAL).or_else(|| attributes.find(libc::IFA_ADDRESS))?;
        let ip = ip_from(family, own)?;
        let flags = attributes.number(libc::IFA_FLAGS).unwrap_or(flags.into());
        let mut message = header(ip, prefix_len, scope, interface);
        for (kind, value) in attributes.filter(|(kind, _)| SETTABLE.contains(kind)) {
            put_attribute(&mut message, kind, value);
        }
        put_flags(&mut message, ip, flags);
        let is_secondary = ip.is_ipv4() && flags & libc::IFA_F_SECONDARY != 0;
        Some(Self { ip, prefix_len, interface, is_secondary, message })
    }
}

/// Lists the addresses of all interfaces, in the network namespace of this thread.
pub(super) fn list_addresses() -> io::Result<Vec<Assigned>> {
    list(DumpRequest::Addresses, libc::RTM_NEWADDR, Assigned::parse)
}

/// Lists the interfaces in the network namespace of this thread.
pub(super) fn list_interfaces() -> io::Result<Vec<Interface>> {
    list(DumpRequest::Links, libc::RTM_NEWLINK, |body| {
        let attributes = Attributes::behind(body, LINK);
        let name = attributes.find(libc::IFLA_IFNAME)?.split(|&byte| byte == 0).next()?;
        let hardware = attributes.find(libc::IFLA_ADDRESS).and_then(|address| address.try_into().ok());
        let is_ethernet = super::nlmsg::u16_at(body, 2)? == ETHERNET;
        Some(Interface {
            index: u32_at(body, 4)?,
            name: String::from_utf8_lossy(name).into_owned(),
            is_up: u32_at(body, 8)? & libc::IFF_UP.cast_unsigned() != 0,
            ethernet: hardware.filter(|_| is_ethernet),
        })
    })
}

/// Returns whether an address belongs to the host, in the network namespace of `socket`: the kernel has a local route for it, or
/// will have one. Routes of type "local" may cover whole subnets, whose addresses no interface has.
pub(super) fn is_local(socket: &Netlink, ip: IpAddr) -> io::Result<bool> {
    // The kernel adds the route of an IPv6 address some time after the address.
    Ok(has_local_route(socket, ip)? || ip.is_ipv6() && is_assigned(socket, ip)?)
}

/// Returns whether the kernel delivers packets for an address to its own sockets.
pub(super) fn has_local_route(socket: &Netlink, ip: IpAddr) -> io::Result<bool> {
    let mut body = vec![0; ROUTE];
    (body[0], body[1]) = (family(ip), if ip.is_ipv4() { 32 } else { 128 });
    put_attribute(&mut body, libc::RTA_DST, &octets(ip));
    let kind =
        get(socket, libc::RTM_GETROUTE, &body, libc::RTM_NEWROUTE, &NO_ROUTE, |body| body.get(7).copied())?;
    Ok(kind == Some(libc::RTN_LOCAL))
}

/// Returns whether any interface has an IPv6 address. Kernels do not answer this for IPv4.
fn is_assigned(socket: &Netlink, ip: IpAddr) -> io::Result<bool> {
    let mut body = header(ip, 0, 0, 0);
    put_attribute(&mut body, libc::IFA_ADDRESS, &octets(ip));
    let found =
        get(socket, libc::RTM_GETADDR, &body, libc::RTM_NEWADDR, &[libc::EADDRNOTAVAIL], |_| Some(()))?;
    Ok(found.is_some())
}

/// Requests one object, and parses the body of the answer, which has the kind `answer_kind`. Returns `None` if the kernel reports
/// one of the errors `none`.
fn get<T>(
    socket: &Netlink,
    kind: u16,
    body: &[u8],
    answer_kind: u16,
    none: &[i32],
    parse: impl Fn(&[u8]) -> Option<T>,
) -> io::Result<Option<T>> {
    let mut answer = [0; ANSWER];
    let len = socket.exchange(&message(kind, 0, body), &mut answer)?;
    match Messages(&answer[..len]).next() {
        Some(found) if found.kind == answer_kind => parse(found.body).map(Some).ok_or_else(malformed),
        Some(found) if found.kind == ERROR => match error(found.body) {
            error if error.raw_os_error().is_some_and(|errno| none.contains(&errno)) => Ok(None),
            error => Err(error),
        },
        _ => Err(malformed()),
    }
}

/// Requests a dump, and parses the bodies of its messages of one kind.
fn list<T>(request: DumpRequest, kind: u16, parse: impl Fn(&[u8]) -> Option<T>) -> io::Result<Vec<T>> {
    Netlink::dump(request, Vec::new, |found, datagram| {
        let mut interrupted = false;
        for message in Messages(datagram) {
            interrupted |= message.flags & bits(libc::NLM_F_DUMP_INTR) != 0;
            match message.kind {
                DONE if interrupted => return Ok(DumpProgress::Interrupted),
                DONE => return Ok(DumpProgress::Complete),
                ERROR => return Err(error(message.body)),
                found_kind if found_kind == kind => found.extend(parse(message.body)),
                _ => {}
            }
        }
        Ok(if interrupted { DumpProgress::Interrupted } else { DumpProgress::Partial })
    })
}

/// Sends a request, and returns the result that the kernel reports.
fn acknowledged(socket: &Netlink, kind: u16, flags: i32, body: &[u8]) -> io::Result<()> {
    let mut answer = [0; ANSWER];
    let len = socket.exchange(&message(kind, flags, body), &mut answer)?;
    let found = Messages(&answer[..len]).next().filter(|found| found.kind == ERROR).ok_or_else(malformed)?;
    match u32_at(found.body, 0) {
        Some(0) => Ok(()),
        _ => Err(error(found.body)),
    }
}

/// Encodes a request: a `struct nlmsghdr` and its body.
fn message(kind: u16, flags: i32, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(HEADER + body.len()).unwrap_or_default(); // always fits
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend_from_slice(&len.to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&bits(libc::NLM_F_REQUEST | flags).to_ne_bytes());
    bytes.extend_from_slice(&[0; 8]); // sequence number and port ID of the sender, which are not used
    bytes.extend_from_slice(body);
    bytes
}

/// Encodes a `struct ifaddrmsg`. Its flags are in an attribute, which has room for all of them.
fn header(ip: IpAddr, prefix_len: u8, scope: u8, interface: u32) -> Vec<u8> {
    let mut bytes = vec![family(ip), prefix_len, 0, scope];
    bytes.extend_from_slice(&interface.to_ne_bytes());
    bytes
}

/// Appends the attribute with the flags of an address. Those that only the kernel sets are ignored by the kernel.
fn put_flags(message: &mut Vec<u8>, ip: IpAddr, flags: u32) {
    let no_detection = if ip.is_ipv6() { libc::IFA_F_NODAD } else { 0 };
    put_attribute(message, libc::IFA_FLAGS, &(flags | no_detection).to_ne_bytes());
}

/// Appends an attribute to a message whose length is a multiple of four.
fn put_attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(4 + value.len()).unwrap_or_default(); // values are short
    message.extend_from_slice(&len.to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

#[expect(clippy::cast_possible_truncation, reason = "both are small")]
const fn family(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn ip_from(family: u8, octets: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => Some(Ipv4Addr::from(<[u8; 4]>::try_from(octets).ok()?).into()),
        libc::AF_INET6 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(octets).ok()?).into()),
        _ => None,
    }
}

/// Returns the error for an answer that cannot be parsed.
fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed answer of NETLINK_ROUTE")
}
