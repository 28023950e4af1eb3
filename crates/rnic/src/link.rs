//! The transport of a stream's bytes: TCP in the engine, a queue in the simulator. Neither blocks.
//!
//! Both halves of a stream use the link at the same time, one to send and one to receive, so all methods take
//! `&self`.

use crate::host::Span;
use std::fmt;

/// Bytes to send: of the adapter, or in the program's memory.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// Headers, checksums and small payloads.
    Own(&'a [u8]),
    /// Payload that is not copied on its way to the kernel. The caller holds a guard on it.
    Host(Span),
}

impl Piece<'_> {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.len(),
            Self::Host(span) => span.len,
        }
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why nothing was sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// Not now. The driver calls again when this may have changed.
    WouldBlock,
    /// The peer has sent all it had to send (FIN). Only from `recv`.
    Ended,
    /// The connection is lost, with this errno.
    Lost(i32),
    /// The first byte is in memory that is not mapped, or write-protected. Nothing was transferred.
    Unmapped,
}

/// A connection.
pub trait Link: Send + Sync + fmt::Debug {
    /// Sends from the front of `pieces`. Returns the number of bytes taken, at least one.
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError>;

    /// Receives into `host`, span after span, and then into `own`. Returns the number of bytes received, at least
    /// one.
    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError>;

    /// Number of bytes that have arrived and can be received now, as far as the link knows.
    fn arrived(&self) -> usize;

    /// Why the connection is lost, if it is: for a half that does not receive at the moment. Reported once.
    fn lost(&self) -> Option<i32> {
        None
    }

    /// Whether a receive that returned less than it had room for has received all there was, and the arrival of
    /// more is reported again. Then there is no need to ask again, except for the end of the stream, which may
    /// have been reported before.
    fn is_empty_after_short_recv(&self) -> bool {
        false
    }

    /// Ends sending: the peer is told after it has received all that was sent.
    fn finish(&self);

    /// Ends the connection at once, in both directions; bytes in flight may be lost.
    fn abort(&self);

    /// Number of bytes that the path carries in one segment (TCP's EMSS): no FPDU to a peer other than Ironwarp
    /// is larger.
    fn segment_size(&self) -> usize;
}

/// What the link reports to a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// There may be bytes to receive.
    pub readable: bool,
    /// There may be room to send.
    pub writable: bool,
    /// The peer will send no more, or the connection is lost.
    pub ended: bool,
}
