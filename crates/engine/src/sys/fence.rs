//! The fence of a connection that moves to another host (requirement X2): its address.
//!
//! A host that has an address, but no socket for a segment that arrives there, answers with a reset, and the connection is
//! lost. So the source removes the address before its sockets go ([`Fence::raise`]), and the destination adds it after
//! its sockets are there ([`Destination::take_address`]). Meanwhile segments of the peer are dropped, and sent again.
//!
//! Needs CAP_NET_ADMIN and CAP_NET_RAW in the network namespace of the address.

use super::address::{Assigned, Interface, is_local, list_addresses, list_interfaces};
use super::announce::{Announcer, open_packet_socket};
use super::denied::Denied;
use super::netlink::Netlink;
use super::raw::network_namespace;
use rustix::fd::AsFd;
use std::io;
use std::net::{IpAddr, SocketAddr};

#[cfg(test)]
mod tests;

/// Why an address cannot be fenced, or cannot be taken over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// The process lacks a capability.
    #[error(
        "not permitted to {action}: run as root, or grant CAP_NET_ADMIN and CAP_NET_RAW in the network namespace of the \
         address"
    )]
    NotPermitted {
        /// What was attempted.
        action: &'static str,
    },
    /// The address has a meaning on this host or link only.
    #[error(
        "{0} cannot move to another host: use an address that is neither loopback, link-local nor multicast"
    )]
    NotMovable(IpAddr),
    /// No interface has the address.
    #[error("{0} is not assigned to any interface of this network namespace")]
    NotAssigned(IpAddr),
    /// Several interfaces have the address.
    #[error("{ip} is assigned to several interfaces ({interfaces}): remove it from all but one")]
    AssignedTwice {
        /// The address.
        ip: IpAddr,
        /// Names of the interfaces.
        interfaces: String,
    },
    /// The kernel would remove other addresses as well.
    #[error(
        "removing {ip} from {interface} would also remove {other}, which is secondary to it: set \
         net.ipv4.conf.{interface}.promote_secondaries to 1"
    )]
    RemovesOthers {
        /// The address.
        ip: IpAddr,
        /// An address that would be removed as well.
        other: IpAddr,
        /// Name of the interface.
        interface: String,
    },
    /// This host still answers for the address.
    #[error("{ip} is still an address of this host ({found}): remove it, or its peers get a reset")]
    StillLocal {
        /// The address.
        ip: IpAddr,
        /// Where it was found.
        found: String,
    },
    /// The interface does not exist.
    #[error(
        "interface {interface} does not exist in this network namespace: nothing is known about its addresses"
    )]
    InterfaceGone {
        /// Name of the interface.
        interface: String,
    },
    /// The interface of the destination is down.
    #[error("interface {interface} is down, and receives nothing: set it up")]
    InterfaceDown {
        /// Name of the interface.
        interface: String,
    },
    /// The address was removed in another network namespace.
    #[error("{ip} was fenced in another network namespace: whether this one answers for it is not proven")]
    OtherNamespace {
        /// The address.
        ip: IpAddr,
    },
    /// The socket has another local address.
    #[error("the socket has the local address {local}, the fence is for {ip}")]
    OtherAddress {
        /// The fenced address.
        ip: IpAddr,
        /// The local address of the socket.
        local: SocketAddr,
    },
    /// A system call failed.
    #[error("failed to {action}: {source}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
}

impl FenceError {
    /// Returns a function that converts the error of an action.
    pub(super) fn during(action: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| match source.kind() {
            // The error of a sandbox says what to do itself.
            io::ErrorKind::PermissionDenied if Denied::find(&source).is_none() => {
                Self::NotPermitted { action }
            }
            _ => Self::Io { action, source },
        }
    }
}

/// An address that was removed from its interface, and can be put back. While this value exists, connections of the address
/// can be dumped. Its methods work in the network namespace of the address, whatever that of the thread is. Dropping it waits
/// for the kernel for some milliseconds, as closing a packet socket does.
#[derive(Debug)]
pub struct Fence {
    address: Assigned,
    interface: Interface,
    /// In the network namespace of the address.
    socket: Netlink,
    /// The number of that network namespace.
    namespace: u64,
    /// `None` if the interface has no neighbours to tell.
    announcer: Option<Announcer>,
}

impl Fence {
    /// Removes an address from its interface, in the network namespace of this thread, and [proves](Self::prove) that the
    /// host does not answer for it any more. If that cannot be proven, puts the address back.
    pub fn raise(ip: IpAddr) -> Result<Self, FenceError> {
        let ip = movable(ip)?;
        let addresses = list_addresses().map_err(FenceError::during("list addresses"))?;
        let interfaces = list_interfaces().map_err(FenceError::during("list interfaces"))?;
        let name = |index| interfaces.iter().find(|it| it.index == index).map_or("?", |it| &it.name);
        let address = match &*addresses.iter().filter(|it| it.ip == ip).collect::<Vec<_>>() {
            [] => return Err(FenceError::NotAssigned(ip)),
            [one] => (*one).clone(),
            several => {
                let names: Vec<_> = several.iter().map(|it| name(it.interface)).collect();
                return Err(FenceError::AssignedTwice { ip, interfaces: names.join(", ") });
            }
        };
        let interface = interfaces.iter().find(|it| it.index == address.interface).cloned();
        let interface = interface.ok_or_else(|| FenceError::InterfaceGone { interface: "?".to_owned() })?;
        let other = addresses.iter().find(|other| other.is_secondary && address.shares_subnet_with(other));
        if let Some(other) = other.filter(|_| !address.is_secondary && !promotes_secondaries(&interface.name))
        {
            return Err(FenceError::RemovesOthers { ip, other: other.ip, interface: interface.name });
        }
        let socket = Netlink::for_routing().map_err(FenceError::during("open a netlink socket"))?;
        let namespace = network_namespace(&socket).map_err(FenceError::during("identify the namespace"))?;
        let announcer = open_announcer(&interface, ip)?;
        address.remove(&socket).map_err(FenceError::during("remove an address"))?;
        let fence = Self { address, interface, socket, namespace, announcer };
        match fence.prove() {
            Ok(()) => Ok(fence),
            Err(error) => {
                fence.put_back()?;
                Err(error)
            }
        }
    }

    /// Returns the address.
    pub fn ip(&self) -> IpAddr {
        self.address.ip
    }

    /// Returns the length of the prefix that the address had.
    pub fn prefix_len(&self) -> u8 {
        self.address.prefix_len
    }

    /// Proves that this host does not answer for the address: no interface has it, no route makes it local, and no segment that
    /// arrived before it was removed will be answered. Fails if the interface does not exist any more, or
    /// this thread has changed its network namespace: then the absence of the address proves nothing.
    pub fn prove(&self) -> Result<(), FenceError> {
        let ip = self.ip();
        let here = Netlink::for_routing().map_err(FenceError::during("open a netlink socket"))?;
        self.check_namespace(&here)?;
        let interfaces = list_interfaces().map_err(FenceError::during("list interfaces"))?;
        let is_same = |it: &Interface| (it.index, &it.name) == (self.interface.index, &self.interface.name);
        if !interfaces.iter().any(is_same) {
            return Err(FenceError::InterfaceGone { interface: self.interface.name.clone() });
        }
        let addresses = list_addresses().map_err(FenceError::during("list addresses"))?;
        if let Some(found) = addresses.iter().find(|it| it.ip == ip) {
            let interface = interfaces.iter().find(|it| it.index == found.interface);
            let name = interface.map_or("an interface", |it| &it.name);
            return Err(FenceError::StillLocal { ip, found: format!("assigned to {name}") });
        }
        self.check_gone()?;
        match ip.is_ipv6() {
            true => wait_for_arrived_segments().map_err(FenceError::during("open a packet socket")),
            false => Ok(()),
        }
    }

    /// Fails unless a socket is in the fenced namespace and at the fenced address, and the host still does not answer for it.
    /// Something that configures interfaces may have added the address again.
    pub(super) fn check(&self, socket: &impl AsFd, local: SocketAddr) -> Result<(), FenceError> {
        if local.ip().to_canonical() != self.ip() {
            return Err(FenceError::OtherAddress { ip: self.ip(), local });
        }
        self.check_namespace(socket)?;
        self.check_gone()
    }

    /// Adds the address again, where it was, and announces it. For a source that stays the owner of its connections: they
    /// continue when they leave repair mode.
    pub fn put_back(self) -> Result<(), FenceError> {
        match self.address.add(&self.socket) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {} // somebody has put it back
            added => added.map_err(FenceError::during("add an address"))?,
        }
        announce(self.announcer.as_ref())
    }

    fn check_namespace(&self, socket: &impl AsFd) -> Result<(), FenceError> {
        let found = network_namespace(socket).map_err(FenceError::during("identify the namespace"))?;
        if found == self.namespace { Ok(()) } else { Err(FenceError::OtherNamespace { ip: self.ip() }) }
    }

    fn check_gone(&self) -> Result<(), FenceError> {
        let ip = self.ip();
        match is_local(&self.socket, ip).map_err(FenceError::during("look up a route"))? {
            true => Err(FenceError::StillLocal { ip, found: "it has a local route".to_owned() }),
            false => Ok(()),
        }
    }
}

/// The interface that takes over a fenced address. Everything that can fail is done before the destination commits. Dropping it
/// waits for the kernel for some milliseconds, so do that after the connections have resumed.
#[derive(Debug)]
pub struct Destination {
    address: Assigned,
    socket: Netlink,
    /// `None` if the interface has no neighbours to tell, as a tunnel.
    announcer: Option<Announcer>,
}

impl Destination {
    /// Prepares an interface of this thread's network namespace for an address. Nothing changes yet. Fails if the namespace
    /// has the address already: its sockets must be restored before segments can arrive.
    pub fn prepare(ip: IpAddr, prefix_len: u8, interface: &str) -> Result<Self, FenceError> {
        let ip = movable(ip)?;
        let interfaces = list_interfaces().map_err(FenceError::during("list interfaces"))?;
        let Some(found) = interfaces.into_iter().find(|it| it.name == interface) else {
            return Err(FenceError::InterfaceGone { interface: interface.to_owned() });
        };
        if !found.is_up {
            return Err(FenceError::InterfaceDown { interface: found.name });
        }
        let socket = Netlink::for_routing().map_err(FenceError::during("open a netlink socket"))?;
        if is_local(&socket, ip).map_err(FenceError::during("look up a route"))? {
            return Err(FenceError::StillLocal { ip, found: "at the destination".to_owned() });
        }
        let announcer = open_announcer(&found, ip)?;
        Ok(Self { address: Assigned::new(ip, prefix_len, found.index), socket, announcer })
    }

    /// Adds the address, and announces it. Call this after all sockets of the address were restored, and before they leave
    /// repair mode.
    pub fn take_address(&self) -> Result<(), FenceError> {
        self.address.add(&self.socket).map_err(FenceError::during("add an address"))?;
        self.announce()
    }

    /// Announces the address once more. Announcements can be lost, so RFC 5227 §1.1 and RFC 4861 §10 recommend to repeat them
    /// after a second or two.
    pub fn announce(&self) -> Result<(), FenceError> {
        announce(self.announcer.as_ref())
    }
}

/// Returns the length of the prefix of an address, which can move and which an interface of this thread's network namespace
/// has.
pub fn prefix_len_of(ip: IpAddr) -> Result<u8, FenceError> {
    let ip = movable(ip)?;
    let addresses = list_addresses().map_err(FenceError::during("list addresses"))?;
    let found = addresses.iter().find(|it| it.ip == ip).ok_or(FenceError::NotAssigned(ip))?;
    Ok(found.prefix_len)
}

/// Opens an announcer if the interface has neighbours.
fn open_announcer(interface: &Interface, ip: IpAddr) -> Result<Option<Announcer>, FenceError> {
    let announcer = interface.ethernet.map(|ethernet| Announcer::open(ip, interface.index, ethernet));
    announcer.transpose().map_err(FenceError::during("open a packet socket"))
}

/// Announces an address, if there are neighbours.
fn announce(announcer: Option<&Announcer>) -> Result<(), FenceError> {
    announcer.map_or(Ok(()), Announcer::announce).map_err(FenceError::during("announce an address"))
}

/// Returns an address in canonical form. Fails unless it can move to another host.
fn movable(ip: IpAddr) -> Result<IpAddr, FenceError> {
    let ip = ip.to_canonical();
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    match ip.is_loopback() || ip.is_multicast() || ip.is_unspecified() || is_link_local {
        true => Err(FenceError::NotMovable(ip)),
        false => Ok(ip),
    }
}

/// Returns whether the secondary addresses of an interface stay when their primary address is removed.
fn promotes_secondaries(interface: &str) -> bool {
    ["all", interface].iter().any(|name| {
        let path = format!("/proc/sys/net/ipv4/conf/{name}/promote_secondaries");
        std::fs::read_to_string(path).is_ok_and(|value| value.trim() != "0")
    })
}

/// Waits until all segments that the kernel has routed to local sockets have reached them. A processor may be interrupted
/// between the two. It would then deliver a segment to a socket that is dumped already, and acknowledge it, or, if the socket is
/// gone, answer with a reset.
///
/// Only IPv6 needs this, which takes some milliseconds: over IPv4 the kernel sends nothing from an address that it does not
/// have, neither an acknowledgement nor a reset, so that the peer sends such a segment again.
///
/// Segments are routed and delivered in one read-side critical section of RCU, and closing a packet socket waits until all of
/// those have ended (`synchronize_net` in the kernel's `packet_release`).
fn wait_for_arrived_segments() -> io::Result<()> {
    open_packet_socket().map(drop)
}
