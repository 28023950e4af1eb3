//! Ports of the connection manager, which are separate from TCP ports: a program may listen on TCP port N and on RDMA port N,
//! as with a hardware adapter. An RDMA port listens on the TCP port of the same number or, if that is in use, on a candidate.

use core::fmt;

/// The first TCP port that can be a candidate. From here on there are no registered ports, nor, by Linux's default, ports of
/// outgoing connections (32768 to 60999).
const FIRST_CANDIDATE: u16 = 0xf000;
/// Number of candidates of an RDMA port.
const CANDIDATES: u16 = 4;
/// Distance between two candidates.
const STRIDE: u16 = 1024;

/// A port of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RdmaPort {
    /// The port space.
    pub space: PortSpace,
    /// The port number.
    pub number: u16,
}

/// A port space. The same number in two spaces is two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PortSpace {
    /// Connections (RDMA_PS_TCP, RDMA_PS_IB).
    Stream = 1,
    /// Connectionless queue pairs (RDMA_PS_UDP, RDMA_PS_IPOIB).
    Datagram = 2,
}

impl RdmaPort {
    /// Returns the TCP ports on which this port may listen if its own number is in use, in order of preference.
    ///
    /// Adjacent ports share no candidates. Ports that are congruent modulo 1024 share all of them, in a different order.
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

    /// Returns `None` for an unknown port space.
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
        let suffix = match self.space {
            PortSpace::Stream => "",
            PortSpace::Datagram => " (datagram)",
        };
        write!(f, "RDMA port {}{suffix}", self.number)
    }
}
