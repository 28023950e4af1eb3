//! Addresses of C, and which address of this host leads to another.
#![expect(unsafe_code, reason = "addresses of C are unions of sorts")]

use crate::abi::{Zeroed, rdma_sockaddr};
use crate::errno::Errno;
use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};

// SAFETY: structures of integers.
unsafe impl Zeroed for rdma_sockaddr {}

/// The address that C gave. Families other than IP's are not known here.
///
/// # Safety
/// `addr` is NULL, or as long as its family says.
pub(super) unsafe fn from_c(addr: *const libc::sockaddr) -> Result<SocketAddr, Errno> {
    if addr.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's word; the family is at the start of every kind.
    match c_int::from(unsafe { (*addr).sa_family }) {
        libc::AF_INET => {
            // SAFETY: as above.
            let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Ok(SocketAddrV6::new(ip, port, u32::from_be(v6.sin6_flowinfo), v6.sin6_scope_id).into())
        }
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// The address, as C has it.
pub(super) fn to_c(addr: SocketAddr) -> rdma_sockaddr {
    let mut c = rdma_sockaddr::zeroed();
    match addr {
        SocketAddr::V4(v4) => {
            c.sin = libc::sockaddr_in {
                sin_family: family(libc::AF_INET),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
        }
        SocketAddr::V6(v6) => {
            c.sin6 = libc::sockaddr_in6 {
                sin6_family: family(libc::AF_INET6),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo().to_be(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
        }
    }
    c
}

fn family(family: c_int) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).unwrap_or_default()
}

/// How long an address of C is.
pub(super) fn c_len(addr: &SocketAddr) -> usize {
    match addr {
        SocketAddr::V4(_) => size_of::<libc::sockaddr_in>(),
        SocketAddr::V6(_) => size_of::<libc::sockaddr_in6>(),
    }
}

/// The same address, in IPv4's form if it is IPv4 in IPv6.
pub(super) fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(v4.into(), v6.port()),
            None => addr,
        },
        SocketAddr::V4(_) => addr,
    }
}

/// The unspecified address of the same version, with port 0.
pub(super) fn unspecified(like: &SocketAddr) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// The address of this host from which the routes lead to `to`, or why none does. Its port is 0.
pub(super) fn source_for(to: SocketAddr) -> Result<SocketAddr, Errno> {
    let probe = UdpSocket::bind(unspecified(&to))?;
    // Nothing is sent: a datagram socket only looks up its route. Port 0 would not be accepted by every kernel.
    let mut at = to;
    if at.port() == 0 {
        at.set_port(1);
    }
    probe.connect(at)?;
    let mut from = probe.local_addr()?;
    from.set_port(0);
    Ok(from)
}
