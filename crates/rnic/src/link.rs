//! What carries a stream's bytes: the kernel's TCP in the engine, a queue in the simulator. Neither blocks.
//!
//! Both halves of a stream use the link at the same time, one sends and one receives, so all methods take `&self`.

use crate::host::Span;
use std::fmt;

/// What is sent: bytes of the adapter's own, or the program's memory where it lies.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// Headers, checksums, small payloads.
    Own(&'a [u8]),
    /// Payload that is not copied on its way to the kernel. Whoever calls holds a guard on it.
    Host(Span),
}

impl Piece<'_> {
    /// How many bytes it has.
    pub fn len(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.len(),
            Self::Host(span) => span.len,
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why nothing was sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// Not now. The driver calls again when it may have changed.
    WouldBlock,
    /// The peer sent all it had to send, and said so (FIN). Only from `recv`.
    Ended,
    /// The connection is gone; the number is the operating system's (errno).
    Lost(i32),
    /// The first byte that was due is in memory that is not there, or is write-protected. Nothing was moved.
    Unmapped,
}

/// One connection.
pub trait Link: Send + Sync + fmt::Debug {
    /// Sends from the front of `pieces`, and returns how many bytes were taken, at least one.
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError>;

    /// Receives into `host`, span after span, and what comes behind into `own`; returns how many bytes came, at least one.
    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError>;

    /// How many bytes have arrived and can be received now, as far as the link knows.
    fn arrived(&self) -> usize;

    /// Why the connection is gone, if it is: for whoever does not receive at the moment. Told once.
    fn lost(&self) -> Option<i32> {
        None
    }

    /// Whether a receive that came back with less than it had room for has found all that was there, and what comes later is told
    /// anew. Then nobody has to ask again just to hear that there is nothing, but for the end, which may have been told before.
    fn tells_of_more(&self) -> bool {
        false
    }

    /// Nothing more will be sent: the peer is told once it has received all that was.
    fn finish(&self);

    /// Ends the connection at once, in both directions; nothing that is still on its way need arrive.
    fn abort(&self);

    /// How many bytes the path carries in one segment (TCP's EMSS): no FPDU to a stranger is larger.
    fn segment_size(&self) -> usize;
}
