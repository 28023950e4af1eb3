//! What a poll set, and steering, know of the sockets in it: traits that connections and connectionless queue pairs implement.

use super::class::Class;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::qp::{Qp, Ready};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Who serves a poll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServedBy {
    Lane,
    Program,
}

/// A socket in a poll set.
pub(crate) trait Member: AsFd + Send + Sync + fmt::Debug {
    /// The queue pair of a connection, which may owe acknowledgements.
    fn qp(&self) -> Option<&Arc<Qp>> {
        None
    }

    /// Moves what the socket has. Returns the queue pair if it may owe an acknowledgement now.
    fn serve(&self, ready: Ready, by: ServedBy) -> Option<&Arc<Qp>>;

    /// The adapter is closing. Returns whether the socket stays in the set until its peer has closed, too.
    fn disconnect(self: Arc<Self>) -> bool;

    /// The adapter has stopped: what was posted is flushed.
    fn abort(&self);

    /// The connection, if steering may move it to another lane.
    fn movable(self: Arc<Self>) -> Option<Arc<dyn Movable>> {
        None
    }
}

/// What decides which lane serves a connection, besides its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) class: Class,
    /// The completion vector of its completion queue: the lane that the program asked for.
    pub(crate) vector: Option<usize>,
}

/// A connection, as steering sees it.
pub(crate) trait Movable: Send + Sync + fmt::Debug {
    /// The number of its queue pair.
    fn qpn(&self) -> u32;

    /// The lane that serves it.
    fn lane(&self) -> usize;

    fn placement(&self) -> Placement;

    /// The address of the peer, and its own; `None` if it is closed.
    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)>;

    /// Number of times it was served since this was last called.
    fn take_serve_count(&self) -> u64;

    /// Moves it to another lane. Returns false if it is closed.
    fn move_to(self: Arc<Self>, lane: usize) -> io::Result<bool>;

    /// Ends it at once.
    fn abort(&self, error: QpError);
}
