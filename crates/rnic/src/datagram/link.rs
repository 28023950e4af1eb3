//! What carries datagrams: UDP sockets in the engine, a queue in tests. It does not block, and promises nothing.
//!
//! Both halves of a queue pair use it at the same time, one sends and one receives, so all methods take `&self`.

use crate::gid::Gid;
use std::fmt;

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is on its way.
    Taken,
    /// There is no room for it now. The driver calls again when there may be.
    Full,
    /// The network has no way for it, or did not want it. Nobody is told, as nobody is when it is lost further on.
    Lost,
}

/// A datagram that came, and where from. All of it is the network's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The sender's address.
    pub from: Gid,
    /// The sender's UDP port.
    pub port: u16,
    /// The address of ours that it was sent to.
    pub to: Gid,
    /// How many bytes it has; more than fit if it was longer, as far as was seen.
    pub len: usize,
}

/// The sockets of one connectionless queue pair: the same port at each of its addresses.
pub trait DatagramLink: Send + Sync + fmt::Debug {
    /// Whether a datagram can go from this address of ours to that one.
    fn has_path(&self, from: Gid, to: Gid) -> bool;

    /// Sends one datagram from an address of ours to the port of another.
    fn send(&self, from: Gid, to: (Gid, u16), bytes: &[u8]) -> Sent;

    /// Receives one datagram; what does not fit is cut off. `None`: there is none.
    fn recv(&self, into: &mut [u8]) -> Option<Arrived>;

    /// A half has work that nobody took on: [`DatagramQp::drive`](super::DatagramQp::drive) is to be called soon.
    fn call_again(&self);
}
