//! Link types: what a recorded packet begins with.

/// The kind of header that a packet begins with, as numbered in <https://www.tcpdump.org/linktypes.html>.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkType(pub u32);

impl LinkType {
    /// BSD loopback: the address family in four bytes in host byte order, then IP.
    pub const NULL: Self = Self(0);
    /// Ethernet.
    pub const ETHERNET: Self = Self(1);
    /// IP without a link header.
    pub const RAW: Self = Self(101);
    /// OpenBSD loopback: like [`NULL`](Self::NULL), in network byte order.
    pub const LOOP: Self = Self(108);
    /// Linux "cooked" capture of the interface "any", older version.
    pub const SLL: Self = Self(113);
    /// IPv4 without a link header.
    pub const IPV4: Self = Self(228);
    /// IPv6 without a link header.
    pub const IPV6: Self = Self(229);
    /// Linux "cooked" capture version 2 of the interface "any", current version.
    pub const SLL2: Self = Self(276);

    /// Converts the field of a file header, whose upper half has other uses.
    pub(crate) fn from_wire(field: i32) -> Self {
        Self(field.cast_unsigned() & 0xffff)
    }
}
