//! RDMA ports, the ports of the connection manager. They are separate from TCP ports, as with a hardware adapter: a
//! program may listen on TCP port N and on RDMA port N. An RDMA port listens at the TCP port of the same number or, if
//! that is in use, at a candidate port.

use core::fmt;

/// The lowest TCP port that can be a candidate. It is above all registered ports, and above the ports that Linux uses
/// for outgoing connections by default (32768 to 60999).
const FIRST_CANDIDATE: u16 = 0xf000;
/// Maximum number of candidates of an RDMA port.
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

/// A port space. The same number in two port spaces names two different ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PortSpace {
    /// Ports for connections (RDMA_PS_TCP, RDMA_PS_IB).
    Stream = 1,
    /// Ports for connectionless queue pairs (RDMA_PS_UDP, RDMA_PS_IPOIB).
    Datagram = 2,
}

impl RdmaPort {
    /// Returns the TCP ports on which this port may listen if its own number is in use, in order of preference.
    ///
    /// Adjacent ports have no candidate in common. Ports that are congruent modulo 1024 have the same candidates; the
    /// first one depends on the port.
    ///
    /// ```
    /// # use ironwarp_wire::private::{PortSpace, RdmaPort};
    /// let valkey = RdmaPort { space: PortSpace::Stream, number: 6379 };
    /// assert_eq!(valkey.candidates().collect::<Vec<_>>(), [63723, 64747, 61675, 62699]);
    /// ```
    pub fn candidates(self) -> impl Iterator<Item = u16> {
        let candidate = move |row| FIRST_CANDIDATE + self.number % STRIDE + STRIDE * (row % CANDIDATES);
        let first = self.number / STRIDE;
        (first..first + CANDIDATES).map(candidate).filter(move |candidate| *candidate != self.number)
    }

    /// Encodes the port.
    pub(super) fn to_bytes(self) -> [u8; 4] {
        let [high, low] = self.number.to_be_bytes();
        [high, low, self.space as u8, 0]
    }

    /// Decodes a port. Returns `None` if the port space is unknown.
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
