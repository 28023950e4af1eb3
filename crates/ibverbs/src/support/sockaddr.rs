//! Conversion of socket addresses from and to C.
#![expect(unsafe_code, reason = "the family of a C address determines its type")]

use crate::abi::{Zeroed, rdma_sockaddr};
use crate::support::errno::Errno;
use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

// SAFETY: every member of the union is a structure of integers, for which zero bytes are valid.
unsafe impl Zeroed for rdma_sockaddr {}

/// Converts a socket address from C. Fails with EINVAL if `addr` is NULL, and with EAFNOSUPPORT if the family is
/// neither IPv4 nor IPv6. The flow information of IPv6 is not swapped: both `sin6_flowinfo` and the standard library
/// have it in network byte order.
///
/// # Safety
/// `addr` is NULL, or points to an address of the length that its family requires. It need not be aligned.
pub(crate) unsafe fn from_c(addr: *const libc::sockaddr) -> Result<SocketAddr, Errno> {
    if addr.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: `addr` is not NULL, and every address begins with its family, by the caller's contract.
    match c_int::from(unsafe { (&raw const (*addr).sa_family).read_unaligned() }) {
        libc::AF_INET => {
            // SAFETY: an address of this family is a `sockaddr_in`, by the caller's contract.
            let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family is a `sockaddr_in6`, by the caller's contract.
            let v6 = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Ok(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Converts a socket address to C.
pub(crate) fn to_c(addr: SocketAddr) -> rdma_sockaddr {
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
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
        }
    }
    c
}

/// Narrows a family to the type that C addresses have for it.
fn family(family: c_int) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).unwrap_or_default()
}

/// Returns the length of the C form of `addr`, in bytes.
pub(crate) fn c_len(addr: &SocketAddr) -> usize {
    match addr {
        SocketAddr::V4(_) => size_of::<libc::sockaddr_in>(),
        SocketAddr::V6(_) => size_of::<libc::sockaddr_in6>(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(addr: SocketAddr) -> SocketAddr {
        let c = to_c(addr);
        // SAFETY: a local structure, which is long enough for both families.
        unsafe { from_c((&raw const c).cast()) }.unwrap()
    }

    #[test]
    fn every_field_survives_the_conversion_to_c_and_back() {
        let v6 = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 7471, 0x0102_0304, 5);
        assert_eq!(round_trip(v6.into()), v6.into());
        let v4 = SocketAddrV4::new(Ipv4Addr::new(10, 1, 2, 3), 7471);
        assert_eq!(round_trip(v4.into()), v4.into());
    }

    /// The standard library passes `flowinfo` to the kernel as it is, so a program's value must not be swapped.
    #[test]
    fn flow_information_keeps_its_byte_order() {
        let network_order = 0x000a_bcde_u32.to_be();
        let c = to_c(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 1, network_order, 0).into());
        // SAFETY: written as an IPv6 address just now.
        assert_eq!(unsafe { c.sin6 }.sin6_flowinfo, network_order);
    }
}
