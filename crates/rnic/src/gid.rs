//! GIDs: the addresses of manually connected queue pairs and of datagrams. The engine lists the GIDs of this host and
//! dials those of others; a GRH contains the GIDs of sender and receiver.

use std::fmt;
use std::net::{AddrParseError, IpAddr, Ipv6Addr};
use std::str::FromStr;

/// The 16-byte address of a port: an IPv6 address, or an IPv4 address as `::ffff:a.b.c.d`.
///
/// GIDs are ordered as bytes. Both ends see the same order, which determines the end that dials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid([u8; 16]);

impl Gid {
    /// The GID of no address: a GID table has it in entries whose address was removed.
    pub const ZERO: Self = Self([0; 16]);

    /// Creates a GID from its bytes, in network order.
    ///
    /// ```
    /// # use ironwarp_rnic::gid::Gid;
    /// let gid: Gid = "10.1.2.3".parse()?;
    /// assert_eq!(Gid::from_bytes(gid.to_bytes()), gid);
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes, in network order.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Returns the IP address. `None` if the GID is [`ZERO`](Self::ZERO).
    pub fn ip(self) -> Option<IpAddr> {
        (self != Self::ZERO).then(|| Ipv6Addr::from(self.0).to_canonical())
    }

    /// Returns whether the address is an IPv6 address in fe80::/10, which is meaningful only together with an
    /// interface.
    pub fn is_link_local(self) -> bool {
        Ipv6Addr::from(self.0).is_unicast_link_local()
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self(ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => Self(ip.octets()),
        }
    }
}

impl FromStr for Gid {
    type Err = AddrParseError;

    /// Parses an IPv4 or IPv6 address, including the form that [`Display`](fmt::Display) writes.
    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        text.parse::<IpAddr>().map(Self::from)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_versions_become_gids_and_back() {
        for (text, shown) in [("10.1.2.3", "::ffff:10.1.2.3"), ("fe80::1", "fe80::1"), ("::1", "::1")] {
            let gid: Gid = text.parse().unwrap();
            assert_eq!(gid.to_string(), shown);
            assert_eq!(shown.parse(), Ok(gid));
            assert_eq!(gid.ip(), Some(text.parse().unwrap()));
            assert_eq!(Gid::from_bytes(gid.to_bytes()), gid);
        }
        assert_eq!(Gid::ZERO.ip(), None);
    }

    #[test]
    fn gids_are_ordered_as_their_bytes() {
        let gid = |text: &str| text.parse::<Gid>().unwrap();
        assert!(gid("127.0.0.2") < gid("127.0.0.3"));
        assert!(gid("9.255.255.255") < gid("10.0.0.0"));
        assert!(gid("::1") < gid("127.0.0.1"), "::1 is less than ::ffff:0:0/96");
        assert!(gid("255.255.255.255") < gid("fd00::2"));
    }
}
