//! Ports of the connection manager, which are not TCP's: a program may listen at TCP port N and at RDMA port N, as with an adapter
//! in hardware. The listener of an RDMA port is at the TCP port of the same number or, if that is taken, at a candidate.

use core::fmt;

/// The first TCP port that can be a candidate. Behind it are neither registered ports nor, under Linux's default, those of outgoing
/// connections (32768 to 60999).
const FIRST_CANDIDATE: u16 = 0xf000;
/// Number of candidates of an RDMA port.
const CANDIDATES: u16 = 4;
/// Distance between two of them.
const STRIDE: u16 = 1024;

/// A port of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RdmaPort {
    /// Which of the spaces it is in.
    pub space: PortSpace,
    /// Its number.
    pub number: u16,
}

/// A space of port numbers. The same number in two spaces is two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PortSpace {
    /// Of connections (RDMA_PS_TCP, RDMA_PS_IB).
    Stream = 1,
    /// Of connectionless queue pairs (RDMA_PS_UDP, RDMA_PS_IPOIB).
    Datagram = 2,
}

impl RdmaPort {
    /// The TCP ports at which its listener may be if it is not at the TCP port of this number, in the order in which they are taken.
    ///
    /// Neighbours have none in common. Ports that are congruent modulo 1024 have the same ones in another order.
    ///
    /// ```
    /// # use ironwarp_wire::private::{PortSpace, RdmaPort};
    /// let valkey = RdmaPort { space: PortSpace::Stream, number: 6379 };
    /// assert_eq!(valkey.candidates().collect::<Vec<_>>(), [63723, 64747, 61675, 62699]);
    /// ```
    pub fn candidates(self) -> impl Iterator<Item = u16> {
        let place = move |row| FIRST_CANDIDATE + self.number % STRIDE + STRIDE * (row % CANDIDATES);
        let first = self.number / STRIDE;
        (first..first + CANDIDATES).map(place).filter(move |candidate| *candidate != self.number)
    }

    pub(super) fn to_bytes(self) -> [u8; 4] {
        let [high, low] = self.number.to_be_bytes();
        [high, low, self.space as u8, 0]
    }

    /// `None`: a space that this end does not know.
    pub(super) const fn from_bytes([high, low, space, _]: [u8; 4]) -> Option<Self> {
        let space = match space {
            1 => PortSpace::Stream,
            2 => PortSpace::Datagram,
            _ => return None,
        };
        Some(Self { space, number: u16::from_be_bytes([high, low]) })
    }
}

impl fmt::Display for RdmaPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = match self.space {
            PortSpace::Stream => "",
            PortSpace::Datagram => " of datagrams",
        };
        write!(f, "RDMA port {}{of}", self.number)
    }
}
