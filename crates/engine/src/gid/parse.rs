//! Reads the interfaces, addresses and default routes of the host from rtnetlink messages. The lengths in the messages
//! are not trusted (`sys/nlmsg.rs`).

use crate::sys::netlink::{DumpProgress, DumpRequest, Netlink};
use crate::sys::nlmsg::{Attributes, DONE, ERROR, Messages, bits, error, u32_at};
use std::io;
use std::net::IpAddr;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// MTU in bytes; zero if the kernel does not tell.
    pub(crate) mtu: u32,
    /// Whether it is administratively up.
    pub(crate) up: bool,
    /// Whether it has a carrier, or needs none.
    pub(crate) running: bool,
    pub(crate) loopback: bool,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// Index of the interface.
    pub(crate) interface: u32,
    pub(crate) ip: IpAddr,
}

/// A default route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// Index of the interface.
    pub(crate) interface: u32,
    /// Its preferred source address, if it has one.
    pub(crate) source: Option<IpAddr>,
    /// Its priority: the route with the lowest metric is used.
    pub(crate) metric: u32,
    pub(crate) ipv6: bool,
}

/// The interfaces, addresses and default routes of the host at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NetworkState {
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) addresses: Vec<Address>,
    pub(crate) routes: Vec<Route>,
}

impl NetworkState {
    /// Reads the current state from the kernel.
    pub(crate) fn read() -> io::Result<Self> {
        let dump = |request| Netlink::dump(request, Self::default, Self::add_datagram);
        let interfaces = dump(DumpRequest::Links)?.interfaces;
        let addresses = dump(DumpRequest::Addresses)?.addresses;
        let routes = dump(DumpRequest::Routes)?.routes;
        Ok(Self { interfaces, addresses, routes })
    }

    /// Adds the contents of one datagram of a dump. Returns whether more datagrams follow, or the dump must be repeated
    /// because the state has changed meanwhile. Returns an error if the kernel reports one.
    pub(crate) fn add_datagram(&mut self, datagram: &[u8]) -> io::Result<DumpProgress> {
        let mut interrupted = false;
        for message in Messages(datagram) {
            interrupted |= message.flags & bits(libc::NLM_F_DUMP_INTR) != 0;
            match message.kind {
                libc::RTM_NEWLINK => self.interfaces.extend(parse_interface(message.body)),
                libc::RTM_NEWADDR => self.addresses.extend(parse_address(message.body)),
                libc::RTM_NEWROUTE => self.routes.extend(parse_route(message.body)),
                DONE => {
                    return Ok(if interrupted { DumpProgress::Interrupted } else { DumpProgress::Complete });
                }
                ERROR => return Err(error(message.body)),
                _ => {}
            }
        }
        Ok(if interrupted { DumpProgress::Interrupted } else { DumpProgress::Partial })
    }

    /// Returns the default route with the lowest metric, one of IPv4 if there is any.
    pub(crate) fn default_route(&self) -> Option<&Route> {
        self.routes.iter().min_by_key(|route| (route.ipv6, route.metric))
    }
}

/// Parses an interface: `struct ifinfomsg`, with the index at offset 4 and the flags at 8, then attributes.
fn parse_interface(body: &[u8]) -> Option<Interface> {
    let (index, flags) = (u32_at(body, 4)?, u32_at(body, 8)?);
    let attributes = Attributes::behind(body, 16);
    let name = attributes.find(libc::IFLA_IFNAME)?;
    let name = name.strip_suffix(&[0]).unwrap_or(name);
    let has = |flag: libc::c_int| flags & flag.cast_unsigned() != 0;
    Some(Interface {
        index,
        name: String::from_utf8_lossy(name).into_owned(),
        mtu: attributes.number(libc::IFLA_MTU).unwrap_or_default(),
        up: has(libc::IFF_UP),
        running: has(libc::IFF_LOWER_UP),
        loopback: has(libc::IFF_LOOPBACK),
    })
}

/// Parses an address: `struct ifaddrmsg`, with the family at offset 0, flags at 2 and the interface's index at 4, then
/// attributes. Returns `None` for an address that cannot be bound.
fn parse_address(body: &[u8]) -> Option<Address> {
    let (family, interface) = (*body.first()?, u32_at(body, 4)?);
    let attributes = Attributes::behind(body, 8);
    // An attribute has 32 bits of flags. Old kernels do not send it, and have only the 8 bits in the structure.
    let flags = attributes.number(libc::IFA_FLAGS).unwrap_or(u32::from(*body.get(2)?));
    let has = |flag: u32| flags & flag != 0;
    // Duplicate address detection has failed or is not done: a socket cannot be bound to the address.
    if has(libc::IFA_F_DADFAILED) || has(libc::IFA_F_TENTATIVE) && !has(libc::IFA_F_OPTIMISTIC) {
        return None;
    }
    // On a point-to-point interface, IFA_ADDRESS is the remote address.
    let local = attributes.find(libc::IFA_LOCAL).or_else(|| attributes.find(libc::IFA_ADDRESS))?;
    Some(Address { interface, ip: parse_ip(family, local)? })
}

/// Parses a route: `struct rtmsg` (family, lengths of destination and source, TOS, table, protocol, scope, type,
/// flags), then attributes. Returns `None` for all but default routes of the main table.
fn parse_route(body: &[u8]) -> Option<Route> {
    let &[family, destination, _, _, table, _, _, kind, ..] = body else { return None };
    let attributes = Attributes::behind(body, 12);
    let table = attributes.number(libc::RTA_TABLE).unwrap_or(u32::from(table));
    if destination != 0 || table != u32::from(libc::RT_TABLE_MAIN) || kind != libc::RTN_UNICAST {
        return None;
    }
    // A multipath route has a list of `struct rtnexthop`, with the interface's index at offset 4. The first one is as
    // good as any.
    let first_hop = || u32_at(attributes.find(libc::RTA_MULTIPATH)?, 4);
    Some(Route {
        interface: attributes.number(libc::RTA_OIF).or_else(first_hop)?,
        source: attributes.find(libc::RTA_PREFSRC).and_then(|source| parse_ip(family, source)),
        metric: attributes.number(libc::RTA_PRIORITY).unwrap_or_default(),
        ipv6: i32::from(family) == libc::AF_INET6,
    })
}

/// Parses an address of this family; `None` if the family is unknown or the length is wrong.
fn parse_ip(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        libc::AF_INET6 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => None,
    }
}
