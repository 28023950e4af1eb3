//! Addresses of C.
#![expect(unsafe_code, reason = "structures of C")]

use crate::errno::Errno;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Reads an address of the program's, which must be of this family.
///
/// # Safety
/// `addr` is NULL or has `len` bytes.
pub(super) unsafe fn read(
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
    family: c_int,
) -> Result<SocketAddr, Errno> {
    let len = len as usize;
    if addr.is_null() || len < size_of::<libc::sa_family_t>() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the family is there, as just checked.
    let its = c_int::from(unsafe { (&raw const (*addr).sa_family).read_unaligned() });
    if its != family {
        return Err(Errno(libc::EAFNOSUPPORT));
    }
    match family {
        libc::AF_INET if len >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: all of it is there.
            let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = u32::from_be(v4.sin_addr.s_addr).into();
            Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 if len >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: all of it is there.
            let v6 = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = v6.sin6_addr.s6_addr.into();
            Ok(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => Err(Errno::INVALID),
    }
}

/// Tells the program an address, as a socket of this family has it: as much as there is room for.
///
/// # Safety
/// `addr` is NULL, or the program's with as many bytes as `len` says.
pub(super) unsafe fn write(
    address: SocketAddr,
    family: c_int,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) {
    if addr.is_null() || len.is_null() {
        return;
    }
    let put = |bytes: *const u8, size: usize| {
        // SAFETY: the caller's word; no more than there is room for.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes, addr.cast::<u8>(), size.min(*len as usize));
            *len = libc::socklen_t::try_from(size).unwrap_or(0);
        }
    };
    match for_family(address, family) {
        SocketAddr::V4(v4) => {
            let c = libc::sockaddr_in {
                sin_family: family_of(libc::AF_INET),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            put((&raw const c).cast(), size_of_val(&c));
        }
        SocketAddr::V6(v6) => {
            let c = libc::sockaddr_in6 {
                sin6_family: family_of(libc::AF_INET6),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            put((&raw const c).cast(), size_of_val(&c));
        }
    }
}

fn family_of(family: c_int) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).unwrap_or(0)
}

/// An IPv4 address is a mapped one to a socket of IPv6.
fn for_family(address: SocketAddr, family: c_int) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if family == libc::AF_INET6 => {
            SocketAddr::new(ip.to_ipv6_mapped().into(), address.port())
        }
        IpAddr::V6(ip) if family == libc::AF_INET => {
            ip.to_ipv4_mapped().map_or(address, |ip| SocketAddr::new(ip.into(), address.port()))
        }
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(text: &str, family: c_int) -> String {
        // SAFETY: large enough for both, and nothing but numbers.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut len = libc::socklen_t::try_from(size_of_val(&storage)).unwrap();
        let addr = (&raw mut storage).cast::<libc::sockaddr>();
        // SAFETY: ours, and as long as said.
        let read = unsafe {
            write(text.parse().unwrap(), family, addr, &raw mut len);
            read(addr, len, family)
        };
        read.unwrap().to_string()
    }

    #[test]
    fn addresses_go_to_c_and_come_back() {
        assert_eq!(there_and_back("10.1.2.3:7471", libc::AF_INET), "10.1.2.3:7471");
        assert_eq!(there_and_back("[fe80::1%3]:80", libc::AF_INET6), "[fe80::1%3]:80");
        assert_eq!(there_and_back("10.1.2.3:1", libc::AF_INET6), "[::ffff:10.1.2.3]:1");
        assert_eq!(there_and_back("[::ffff:10.1.2.3]:1", libc::AF_INET), "10.1.2.3:1");
    }

    #[test]
    fn what_is_short_null_or_of_another_family_is_refused() {
        // SAFETY: nothing but numbers.
        let mut v4: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        v4.sin_family = family_of(libc::AF_INET);
        let addr = (&raw const v4).cast::<libc::sockaddr>();
        // SAFETY: as long as said.
        unsafe {
            assert_eq!(read(std::ptr::null(), 16, libc::AF_INET), Err(Errno::INVALID));
            assert_eq!(read(addr, 1, libc::AF_INET), Err(Errno::INVALID));
            assert_eq!(read(addr, 8, libc::AF_INET), Err(Errno::INVALID));
            assert_eq!(read(addr, 16, libc::AF_INET6), Err(Errno(libc::EAFNOSUPPORT)));
            assert!(read(addr, 16, libc::AF_INET).is_ok());
        }
    }
}
