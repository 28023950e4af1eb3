//! The interface to the transport of a stream's bytes: TCP in the engine, byte queues in the simulator. No call blocks.
//!
//! A link may have a second [route](Route), shared memory. Each direction of a stream begins on TCP, and its sender may
//! switch it between the routes at every FPDU boundary.
//!
//! Both halves of a stream use the link at the same time, one to send and one to receive, so all methods take
//! `&self`.

use crate::host::Span;
pub use ironwarp_wire::private::Route;
use std::fmt;
use std::sync::Arc;

/// A contiguous range of bytes to send.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// Bytes of the adapter: headers, checksums and small payloads.
    Own(&'a [u8]),
    /// Payload in the program's memory. The caller holds a guard on it.
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

/// Why a call sent or received nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// Nothing can be sent or received now. The driver calls again when the link reports a change.
    WouldBlock,
    /// The peer has closed its sending direction (FIN). Only from `recv`.
    Ended,
    /// The connection is lost, with this errno.
    Lost(i32),
    /// The first byte is in memory that is not mapped, or write-protected. Nothing was transferred.
    Unmapped,
}

/// A connection that carries bytes in both directions.
pub trait Link: Send + Sync + fmt::Debug {
    /// Sends from the front of `pieces`. Returns the number of bytes taken, at least one.
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError>;

    /// Receives into `host`, span after span, and then into `own`. Returns the number of bytes received, at least
    /// one.
    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError>;

    /// Returns the number of bytes that have arrived by all routes and were not received, as far as the link knows.
    fn arrived(&self) -> usize;

    /// Returns the errno of a lost connection, once. For a half that does not call [`recv`](Self::recv) at the moment.
    fn lost(&self) -> Option<i32> {
        None
    }

    /// Whether the link is empty after a call of [`recv`](Self::recv) that returned fewer bytes than it had room for,
    /// and reports the arrival of more bytes. Then there is no need to call again, except to find the end of the
    /// connection, which may have been reported before.
    fn is_empty_after_short_recv(&self) -> bool {
        false
    }

    /// Called by the tx half when the link has taken all of a switch signal: everything that is sent from now on goes by
    /// `route`.
    fn switch_send(&self, route: Route) {
        let _ = route;
    }

    /// Called by the rx half when it has parsed a switch signal: everything that is received from now on comes by
    /// `route`. `unread` holds the bytes after the signal, which were received by the former route. The link returns
    /// them first, before others of the former route, when that route is used again. Returns false if the link has no
    /// such route, which ends the stream.
    ///
    /// A stream that has failed follows no more switches. The end of the connection must therefore be reported whatever
    /// the route is.
    fn switch_recv(&self, route: Route, unread: &[u8]) -> bool {
        let _ = (route, unread);
        false
    }

    /// Closes the sending direction. The peer learns of it after it has received everything that was sent.
    fn finish(&self);

    /// Ends the connection at once, in both directions. Bytes in flight may be lost.
    fn abort(&self);

    /// Returns the number of bytes that the path carries in one segment (TCP's EMSS). FPDUs to a standard peer are not
    /// larger.
    fn segment_size(&self) -> usize;

    /// Passes all further bytes to `link`, if this link passes bytes to another one. Returns false if it does not: see
    /// [`Qp::replace_link`](crate::qp::Qp::replace_link).
    #[doc(hidden)]
    fn replace_inner(&self, link: &Arc<dyn Link>) -> bool {
        let _ = link;
        false
    }

    /// Returns the real link if this one only takes its place while the port is down, and whether its sending direction
    /// is to be closed then: see [`Qp::set_link_blocked`](crate::qp::Qp::set_link_blocked).
    #[doc(hidden)]
    fn unblocked(&self) -> Option<(Arc<dyn Link>, bool)> {
        None
    }
}

/// Puts another link in place of the real one, behind those that only pass bytes on.
pub fn replace_link(link: &mut Arc<dyn Link>, new: &Arc<dyn Link>) {
    if !link.replace_inner(new) {
        *link = Arc::clone(new);
    }
}

/// The readiness that a link reports to a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// There may be bytes to receive.
    pub readable: bool,
    /// There may be room to send.
    pub writable: bool,
    /// The peer has closed its sending direction, or the connection is lost.
    pub ended: bool,
}

/// Returns the pieces that hold the first `len` bytes. The last of them may be shortened.
pub fn first_pieces<'a>(pieces: &[Piece<'a>], len: usize) -> Vec<Piece<'a>> {
    take_first(pieces, len, shorten_piece)
}

/// Returns the spans that hold the first `len` bytes. The last of them may be shortened.
pub fn first_spans(spans: &[Span], len: usize) -> Vec<Span> {
    take_first(spans, len, shorten_span)
}

/// Returns the elements with the first `left` bytes of `all`. `shorten` shortens an element to a maximum length, and
/// returns its length.
fn take_first<T: Copy>(all: &[T], mut left: usize, shorten: impl Fn(T, usize) -> (T, usize)) -> Vec<T> {
    let mut short = Vec::new();
    for &one in all {
        let (one, len) = shorten(one, left);
        short.push(one);
        left -= len;
        if left == 0 {
            break;
        }
    }
    short
}

/// Shortens a piece to at most `max_len` bytes, and returns its length, too.
fn shorten_piece(piece: Piece<'_>, max_len: usize) -> (Piece<'_>, usize) {
    let piece = match piece {
        Piece::Own(bytes) => Piece::Own(&bytes[..bytes.len().min(max_len)]),
        Piece::Host(span) => Piece::Host(shorten_span(span, max_len).0),
    };
    (piece, piece.len())
}

/// Shortens a span to at most `max_len` bytes, and returns its length, too.
fn shorten_span(span: Span, max_len: usize) -> (Span, usize) {
    let len = span.len.min(max_len);
    (Span { len, ..span }, len)
}
