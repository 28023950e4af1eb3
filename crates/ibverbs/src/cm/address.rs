//! Conversions of addresses, and the choice of the source address for a destination.

use crate::abi::{Zeroed, ibv_ah_attr, ibv_gid};
use crate::objects::device::{logical_device_at, logical_devices};
use crate::support::errno::Errno;
use ironwarp_engine::gid::Gid;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Converts an IPv4-mapped IPv6 address to IPv4. Returns other addresses unchanged.
pub(super) fn to_canonical(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(v4.into(), v6.port()),
            None => addr,
        },
        SocketAddr::V4(_) => addr,
    }
}

/// The unspecified address of the same family as `like`, with port 0.
fn unspecified(like: &SocketAddr) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// Returns the address from which a device reaches `to`, with port 0: the source of the kernel's route, if a device has
/// that address, else `to` itself, if a device has that, else one of the first device that has an address of the same IP
/// version. ENODEV if there is none.
pub(super) fn source_for(to: SocketAddr) -> Result<SocketAddr, Errno> {
    let route = route_source(to)?;
    if logical_device_at(route.ip()).is_some() {
        return Ok(route);
    }
    if logical_device_at(to.ip()).is_some() {
        return Ok(SocketAddr::new(to.ip(), 0));
    }
    let source = logical_devices().iter().find_map(|device| device.source_for(to.ip()).ok().flatten());
    source.ok_or_else(|| {
        Errno(libc::ENODEV).because(format_args!("no device has an address to reach {to} from"))
    })
}

/// Returns the address of this host that the kernel's route to `to` uses as its source. The port is 0.
fn route_source(to: SocketAddr) -> Result<SocketAddr, Errno> {
    let socket = UdpSocket::bind(unspecified(&to))?;
    // Connecting a datagram socket only looks up the route, and sends nothing. Not every kernel accepts port 0.
    let mut at = to;
    if at.port() == 0 {
        at.set_port(1);
    }
    socket.connect(at)?;
    let mut from = socket.local_addr()?;
    from.set_port(0);
    Ok(from)
}

/// Returns the address handle attributes of the path from an address of this host to a peer.
pub(super) fn address_handle(local: IpAddr, remote: IpAddr, traffic_class: u8) -> Result<ibv_ah_attr, Errno> {
    let owner = logical_device_at(local).ok_or(Errno(libc::ENODEV))?;
    // With the default device, an address such as 127.0.0.2 is not in the GID table. The first entry belongs to this
    // host as well.
    let own = owner.find_gid(Gid::from(local))?;
    let (port, index) = own.map_or((1, 0), |(port, entry)| (port.number(), entry.index));
    let mut attr = ibv_ah_attr::zeroed();
    attr.grh.dgid = ibv_gid { raw: Gid::from(remote).to_bytes() };
    attr.grh.sgid_index = u8::try_from(index).map_err(|_| Errno::INVALID)?;
    attr.grh.hop_limit = 64;
    attr.grh.traffic_class = traffic_class;
    attr.is_global = 1;
    attr.port_num = port;
    Ok(attr)
}
