//! Reads and writes the C addresses that the program passes to calls.
#![expect(unsafe_code, reason = "structures of C")]

use crate::support::errno::Errno;
use crate::support::sockaddr;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};

/// Reads a C address that the program passes for a socket of `family`, AF_INET or AF_INET6. EAFNOSUPPORT if the address
/// is of another family, EINVAL if it is NULL or too short.
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
    // SAFETY: not NULL, and long enough for the family, as just checked.
    let found = c_int::from(unsafe { (&raw const (*addr).sa_family).read_unaligned() });
    if found != family {
        return Err(Errno(libc::EAFNOSUPPORT));
    }
    let needed = if family == libc::AF_INET6 {
        size_of::<libc::sockaddr_in6>()
    } else {
        size_of::<libc::sockaddr_in>()
    };
    if len < needed {
        return Err(Errno::INVALID);
    }
    // SAFETY: as long as its family requires, as just checked.
    unsafe { sockaddr::from_c(addr) }
}

/// Writes `address` to the C structure `addr`, converted to `family`, as getsockname(2) does: truncates it to `*len`
/// bytes, and sets `*len` to the full length. Does nothing if a pointer is NULL. Called by calls that return an address
/// to the program.
///
/// # Safety
/// `len` is NULL or valid, and `addr` is NULL or has as many bytes as `len` says.
pub(super) unsafe fn write(
    address: SocketAddr,
    family: c_int,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) {
    if addr.is_null() || len.is_null() {
        return;
    }
    let address = for_family(address, family);
    let (c, size) = (sockaddr::to_c(address), sockaddr::c_len(&address));
    // SAFETY: `len` is valid, and `addr` has that many bytes, by the caller's contract. No more than `size` bytes are
    // read from `c`.
    unsafe {
        std::ptr::copy_nonoverlapping(
            (&raw const c).cast::<u8>(),
            addr.cast::<u8>(),
            size.min(*len as usize),
        );
        *len = libc::socklen_t::try_from(size).unwrap_or(0); // at most 28, which fits
    }
}

/// Converts between IPv4 and IPv4-mapped IPv6 addresses, as the family requires. Returns other addresses unchanged.
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

    fn round_trip(text: &str, family: c_int) -> String {
        // SAFETY: the structure has only integers, for which zeros are valid.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut len = libc::socklen_t::try_from(size_of_val(&storage)).unwrap();
        let addr = (&raw mut storage).cast::<libc::sockaddr>();
        // SAFETY: a local structure of `len` bytes.
        let read = unsafe {
            write(text.parse().unwrap(), family, addr, &raw mut len);
            read(addr, len, family)
        };
        read.unwrap().to_string()
    }

    #[test]
    fn addresses_round_trip_through_c() {
        assert_eq!(round_trip("10.1.2.3:7471", libc::AF_INET), "10.1.2.3:7471");
        assert_eq!(round_trip("[fe80::1%3]:80", libc::AF_INET6), "[fe80::1%3]:80");
        assert_eq!(round_trip("10.1.2.3:1", libc::AF_INET6), "[::ffff:10.1.2.3]:1");
        assert_eq!(round_trip("[::ffff:10.1.2.3]:1", libc::AF_INET), "10.1.2.3:1");
    }

    #[test]
    fn short_null_and_foreign_addresses_are_rejected() {
        // SAFETY: the structure has only integers, for which zeros are valid.
        let mut v4: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        v4.sin_family = libc::AF_INET.try_into().unwrap();
        let addr = (&raw const v4).cast::<libc::sockaddr>();
        // SAFETY: NULL, or a local structure of at least the given length.
        unsafe {
            assert_eq!(read(std::ptr::null(), 16, libc::AF_INET), Err(Errno::INVALID));
            assert_eq!(read(addr, 1, libc::AF_INET), Err(Errno::INVALID));
            assert_eq!(read(addr, 8, libc::AF_INET), Err(Errno::INVALID));
            assert_eq!(read(addr, 16, libc::AF_INET6), Err(Errno(libc::EAFNOSUPPORT)));
            assert!(read(addr, 16, libc::AF_INET).is_ok());
        }
    }
}
