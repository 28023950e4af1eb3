//! The interface through which datagrams are sent and received: UDP sockets in the engine, a queue in tests. A link
//! never blocks, and may lose datagrams.
//!
//! The two halves of a queue pair use the link concurrently, one to send and one to receive, so all methods take
//! `&self`.

use crate::gid::Gid;
use std::fmt;
use std::time::Duration;

/// The result of sending a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The datagram was sent.
    Taken,
    /// The link has no room now. [`DatagramQp::drive`](super::DatagramQp::drive) will be called when there is room.
    Full,
    /// The host has no route for the datagram, or refused it. The program is not notified, as with a datagram that
    /// the network loses.
    Lost,
}

/// Where a datagram is sent to, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendTo {
    /// The receiver's address.
    pub gid: Gid,
    /// The receiver's UDP port.
    pub port: u16,
    /// The traffic class of the packet (requirement M16).
    pub traffic_class: u8,
}

/// A received datagram and its addresses, as reported by the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The sender's address.
    pub from: Gid,
    /// The sender's UDP port.
    pub port: u16,
    /// The local address that the datagram was sent to.
    pub to: Gid,
    /// Number of bytes stored in the buffer. A datagram that fills the buffer may have been truncated.
    pub len: usize,
}

/// The sockets of one connectionless queue pair: one per local address, all with the same port.
pub trait DatagramLink: Send + Sync + fmt::Debug {
    /// Returns whether a datagram can be sent from a local address to a remote address.
    fn has_path(&self, from: Gid, to: Gid) -> bool;

    /// Sends one datagram from a local address.
    fn send(&self, from: Gid, to: SendTo, bytes: &[u8]) -> Sent;

    /// Receives one datagram, truncated if it does not fit into the buffer. Returns `None` if there is none.
    fn recv(&self, into: &mut [u8]) -> Option<Arrived>;

    /// Returns the number of the lane that events belong to (requirements I7, I8): those of a received datagram to the
    /// lane that the hash of its addresses selects, others to the lane that serves the link. Zero if there are no lanes.
    fn lane(&self, _arrived: Option<&Arrived>) -> u16 {
        0
    }

    /// Makes another thread call [`DatagramQp::resume`](super::DatagramQp::resume) soon. Called when work is left that
    /// the calling thread must not do: its turn is over, it has other queue pairs to resume, or the queue pair has
    /// failed.
    fn schedule(&self);

    /// Returns the time since an arbitrary start. Used only by queue pairs that acknowledge datagrams.
    fn now(&self) -> Duration;

    /// Makes another thread call [`DatagramQp::resume`](super::DatagramQp::resume) when this much time has passed on the
    /// clock of [`now`](Self::now), and not earlier. Used only by queue pairs that acknowledge datagrams.
    fn schedule_after(&self, after: Duration);
}
