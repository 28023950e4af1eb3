//! Interfaces, addresses and routes of the kernel: rtnetlink messages, read without trusting the lengths they state (`sys/nlmsg.rs`).

use crate::sys::netlink::{DumpProgress, DumpRequest, Netlink};
use crate::sys::nlmsg::{Attributes, DONE, ERROR, Messages, bits, error, u32_at};
use std::io;
use std::net::IpAddr;

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mtu: u32,
    /// It is administratively up.
    pub(crate) up: bool,
    /// It has a carrier, or needs none.
    pub(crate) running: bool,
    pub(crate) loopback: bool,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) interface: u32,
    pub(crate) ip: IpAddr,
}

/// A default route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) interface: u32,
    /// Its preferred source address.
    pub(crate) source: Option<IpAddr>,
    pub(crate) metric: u32,
    pub(crate) ipv6: bool,
}

/// Interfaces, addresses and routes at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NetworkState {
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) addresses: Vec<Address>,
    pub(crate) routes: Vec<Route>,
}

impl NetworkState {
    /// Asks the kernel.
    pub(crate) fn read() -> io::Result<Self> {
        let dump = |request| Netlink::dump(request, Self::default, Self::add_datagram);
        let interfaces = dump(DumpRequest::Links)?.interfaces;
        let addresses = dump(DumpRequest::Addresses)?.addresses;
        let routes = dump(DumpRequest::Routes)?.routes;
        Ok(Self { interfaces, addresses, routes })
    }

    /// Adds the contents of one datagram.
    pub(crate) fn add_datagram(&mut self, datagram: &[u8]) -> io::Result<DumpProgress> {
        let mut interrupted = false;
        for message in Messages(datagram) {
            interrupted |= message.flags & bits(libc::NLM_F_DUMP_INTR) != 0;
            match message.kind {
                libc::RTM_NEWLINK => self.interfaces.extend(interface(message.body)),
                libc::RTM_NEWADDR => self.addresses.extend(address(message.body)),
                libc::RTM_NEWROUTE => self.routes.extend(route(message.body)),
                DONE => {
                    return Ok(if interrupted { DumpProgress::Interrupted } else { DumpProgress::Complete });
                }
                ERROR => return Err(error(message.body)),
                _ => {}
            }
        }
        Ok(if interrupted { DumpProgress::Interrupted } else { DumpProgress::Partial })
    }

    /// The default route: that of IPv4 if there is one, with the lowest metric.
    pub(crate) fn default_route(&self) -> Option<&Route> {
        self.routes.iter().min_by_key(|route| (route.ipv6, route.metric))
    }
}

/// `struct ifinfomsg`: family, padding, hardware type; index at 4, flags at 8.
fn interface(body: &[u8]) -> Option<Interface> {
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

/// `struct ifaddrmsg`: family, prefix length, flags, scope; index at 4.
fn address(body: &[u8]) -> Option<Address> {
    let (family, interface) = (*body.first()?, u32_at(body, 4)?);
    let attributes = Attributes::behind(body, 8);
    // 32 bits of flags, if the kernel is new enough to have more than 8.
    let flags = attributes.number(libc::IFA_FLAGS).unwrap_or(u32::from(*body.get(2)?));
    let has = |flag: u32| flags & flag != 0;
    // No socket can be bound to an address that another host may have, too.
    if has(libc::IFA_F_DADFAILED) || has(libc::IFA_F_TENTATIVE) && !has(libc::IFA_F_OPTIMISTIC) {
        return None;
    }
    // On a point-to-point interface the other one is the remote address.
    let ours = attributes.find(libc::IFA_LOCAL).or_else(|| attributes.find(libc::IFA_ADDRESS))?;
    Some(Address { interface, ip: ip(family, ours)? })
}

/// `struct rtmsg`: family, lengths of destination and source, TOS, table, protocol, scope, type; flags. Only default routes of the
/// main table.
fn route(body: &[u8]) -> Option<Route> {
    let &[family, destination, _, _, table, _, _, kind, ..] = body else { return None };
    let attributes = Attributes::behind(body, 12);
    let table = attributes.number(libc::RTA_TABLE).unwrap_or(u32::from(table));
    if destination != 0 || table != u32::from(libc::RT_TABLE_MAIN) || kind != libc::RTN_UNICAST {
        return None;
    }
    // A multipath route: `struct rtnexthop`, with the index at 4; the first is as good as any.
    let first_way = || u32_at(attributes.find(libc::RTA_MULTIPATH)?, 4);
    Some(Route {
        interface: attributes.number(libc::RTA_OIF).or_else(first_way)?,
        source: attributes.find(libc::RTA_PREFSRC).and_then(|source| ip(family, source)),
        metric: attributes.number(libc::RTA_PRIORITY).unwrap_or_default(),
        ipv6: i32::from(family) == libc::AF_INET6,
    })
}

fn ip(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        libc::AF_INET6 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => None,
    }
}
