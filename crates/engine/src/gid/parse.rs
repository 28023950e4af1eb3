//! What the kernel says of interfaces, addresses and routes: rtnetlink messages, read without trust in their lengths.
//! `sys/netlink.rs` brings the bytes; `gid/mod.rs` makes a table of what is found.
//!
//! Numbers are in the byte order of the host. Messages and attributes begin at multiples of four.

use crate::sys::netlink::{HEADER, More, Netlink, Question};
use std::io;
use std::net::IpAddr;

/// Bytes of `struct rtattr`.
const ATTRIBUTE: usize = 4;
/// Bits of an attribute's type that say what it is; the others say how it is nested.
const KIND: u16 = 0x3fff;

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mtu: u32,
    /// Somebody wants it to be up.
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
    /// The address that it prefers as a source.
    pub(crate) source: Option<IpAddr>,
    pub(crate) metric: u32,
    pub(crate) ipv6: bool,
}

/// All that there was at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) addresses: Vec<Address>,
    pub(crate) routes: Vec<Route>,
}

impl Found {
    /// Asks the kernel.
    pub(crate) fn now() -> io::Result<Self> {
        let ask = |question| Netlink::ask(question, Self::default, Self::take);
        let interfaces = ask(Question::Links)?.interfaces;
        let addresses = ask(Question::Addresses)?.addresses;
        let routes = ask(Question::Routes)?.routes;
        Ok(Self { interfaces, addresses, routes })
    }

    /// Takes what one datagram tells.
    pub(crate) fn take(&mut self, datagram: &[u8]) -> io::Result<More> {
        let mut interrupted = false;
        for message in Messages(datagram) {
            interrupted |= message.flags & bits(libc::NLM_F_DUMP_INTR) != 0;
            match message.kind {
                libc::RTM_NEWLINK => self.interfaces.extend(interface(message.body)),
                libc::RTM_NEWADDR => self.addresses.extend(address(message.body)),
                libc::RTM_NEWROUTE => self.routes.extend(route(message.body)),
                DONE => return Ok(if interrupted { More::Interrupted } else { More::Done }),
                ERROR => return Err(error(message.body)),
                _ => {}
            }
        }
        Ok(if interrupted { More::Interrupted } else { More::Coming })
    }

    /// The default route: that of IPv4 if there is one, and the one with the lowest metric.
    pub(crate) fn default_route(&self) -> Option<&Route> {
        self.routes.iter().min_by_key(|route| (route.ipv6, route.metric))
    }
}

const DONE: u16 = bits(libc::NLMSG_DONE);
pub(crate) const ERROR: u16 = bits(libc::NLMSG_ERROR);

/// A constant that the headers declare wider than the field that holds it.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the field has 16 bits")]
pub(crate) const fn bits(constant: i32) -> u16 {
    constant as u16
}

/// A message of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) body: &'a [u8],
}

/// The messages of a datagram, as far as their lengths make sense.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Messages<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let len = usize::try_from(u32_at(self.0, 0)?).ok()?;
        let message = self.0.get(..len)?;
        let (kind, flags, body) = (u16_at(message, 4)?, u16_at(message, 6)?, message.get(HEADER..)?);
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind, flags, body })
    }
}

/// The attributes behind a message's own structure, as far as their lengths make sense.
#[derive(Clone, Copy, Debug)]
struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    fn behind(body: &'a [u8], structure: usize) -> Self {
        Self(body.get(structure..).unwrap_or_default())
    }

    /// The value of the first attribute of this kind.
    fn find(self, kind: u16) -> Option<&'a [u8]> {
        let mut all = self;
        all.find_map(|(found, value)| (found == kind).then_some(value))
    }

    fn number(self, kind: u16) -> Option<u32> {
        u32_at(self.find(kind)?, 0)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let len = usize::from(u16_at(self.0, 0)?);
        let kind = u16_at(self.0, 2)? & KIND;
        let value = self.0.get(ATTRIBUTE..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
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
    // No socket can be bound to an address that may be somebody else's, too.
    if has(libc::IFA_F_DADFAILED) || has(libc::IFA_F_TENTATIVE) && !has(libc::IFA_F_OPTIMISTIC) {
        return None;
    }
    // On a point-to-point interface the other one is the peer's.
    let ours = attributes.find(libc::IFA_LOCAL).or_else(|| attributes.find(libc::IFA_ADDRESS))?;
    Some(Address { interface, ip: ip(family, ours)? })
}

/// `struct rtmsg`: family, lengths of destination and source, TOS, table, protocol, scope, type; flags. Default routes of the
/// main table only.
fn route(body: &[u8]) -> Option<Route> {
    let &[family, destination, _, _, table, _, _, kind, ..] = body else { return None };
    let attributes = Attributes::behind(body, 12);
    let table = attributes.number(libc::RTA_TABLE).unwrap_or(u32::from(table));
    if destination != 0 || table != u32::from(libc::RT_TABLE_MAIN) || kind != libc::RTN_UNICAST {
        return None;
    }
    // Over several ways: `struct rtnexthop`, with the index at 4; the first is as good as any.
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

/// `struct nlmsgerr` begins with a negative errno.
pub(crate) fn error(body: &[u8]) -> io::Error {
    let errno = u32_at(body, 0).map_or(libc::EBADMSG, |errno| errno.cast_signed().saturating_neg());
    io::Error::from_raw_os_error(errno)
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let field = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_ne_bytes(field.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(field.try_into().ok()?))
}
