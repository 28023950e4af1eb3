//! The transport for datagrams: UDP sockets in the engine, a queue in tests. It never blocks, and may lose
//! datagrams.
//!
//! The two halves of a queue pair use it concurrently, one to send and one to receive, so all methods take
//! `&self`.

use crate::gid::Gid;
use std::fmt;

/// The result of sending a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The datagram was sent.
    Taken,
    /// The link has no room for it now. The driver calls again when there may be.
    Full,
    /// The host has no route for it, or refused it. The program is not told, just as when it is lost further
    /// on.
    Lost,
}

/// A received datagram and its addresses, as reported by the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The sender's address.
    pub from: Gid,
    /// The sender's UDP port.
    pub port: u16,
    /// The local address that it was sent to.
    pub to: Gid,
    /// Its length in bytes. Exceeds the buffer if the datagram was cut off.
    pub len: usize,
}

/// The sockets of one connectionless queue pair: the same port at each of its addresses.
pub trait DatagramLink: Send + Sync + fmt::Debug {
    /// Whether a datagram can be sent from this local address to that remote one.
    fn has_path(&self, from: Gid, to: Gid) -> bool;

    /// Sends one datagram from a local address to a remote address and port.
    fn send(&self, from: Gid, to: (Gid, u16), bytes: &[u8]) -> Sent;

    /// Receives one datagram, cutting off what does not fit. Returns `None` if there is none.
    fn recv(&self, into: &mut [u8]) -> Option<Arrived>;

    /// Called when a half has work left that no thread handles:
    /// [`DatagramQp::drive`](super::DatagramQp::drive) must be called soon.
    fn schedule(&self);
}
