//! The traits by which poll sets and steering use the sockets of queue pairs. Connections and connectionless queue
//! pairs implement them.

use super::class::{Class, Processors};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::qp::{Qp, Ready};
use ironwarp_rnic::queue::Cq;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

/// The thread that serves a poll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServedBy {
    /// The lane's thread.
    Lane,
    /// A thread of the program that polls or waits.
    Program,
}

/// A socket of a queue pair, in a poll set.
pub(crate) trait Member: AsFd + Send + Sync + fmt::Debug {
    /// Returns the queue pair of a connection. The poll set has it send the acknowledgements it owes. `None` for
    /// datagrams, which are never acknowledged.
    fn qp(&self) -> Option<&Arc<Qp>> {
        None
    }

    /// Receives from and sends to the socket, as far as `ready` says that it can. Returns the queue pair if it may owe
    /// an acknowledgement now.
    ///
    /// Called by the poll set, on the lane's thread or a thread of the program. An implementation must not block. The
    /// socket is edge-triggered: work that is left must be driven without another event.
    fn serve(&self, ready: Ready, by: ServedBy) -> Option<&Arc<Qp>>;

    /// Returns whether bytes were received since the last call.
    fn take_received(&self) -> bool {
        true
    }

    /// Begins to close, because the adapter is being closed. Returns whether the socket stays in the set until its peer
    /// has closed, too; if not, the poll set removes it. Called on the lane's thread.
    fn disconnect(self: Arc<Self>) -> bool;

    /// Ends at once and flushes all posted requests, because the adapter has stopped. Called on the lane's thread.
    fn abort(&self);

    /// Returns how the stream travels, in words, and the number of bytes sent and received in shared memory.
    fn route(&self) -> (String, (u64, u64)) {
        Default::default()
    }

    /// Begins to leave shared memory for good (requirement X2). Returns false if it is in use and the peer cannot leave it.
    fn leave_shared_memory(self: Arc<Self>) -> bool {
        true
    }

    /// Returns whether the stream has nothing in shared memory.
    fn has_left_shared_memory(&self) -> bool {
        true
    }

    /// Blocks or unblocks the socket, if its port was taken down or up (requirement X3). Must be called while no thread
    /// changes the state of a port.
    fn apply_port_state(self: Arc<Self>) {}

    /// Returns what steering can move to another lane, with this socket and perhaps others; `None` if it cannot.
    fn movable(self: Arc<Self>) -> Option<Arc<dyn Movable>> {
        None
    }
}

/// Properties of a completion queue that decide which lane serves its queue pairs, before their addresses do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// The class of its completion handler.
    pub(crate) class: Class,
    /// Its completion vector, which is the number of a lane. `None` if the program did not give one.
    pub(crate) vector: Option<usize>,
    /// The processors of its completion handler, which limit the lanes (requirement N5).
    pub(crate) processors: Processors,
}

/// A connection, or a connectionless queue pair, that steering can move between lanes. Steering calls these methods, on
/// any thread.
pub(crate) trait Movable: Send + Sync + fmt::Debug {
    /// Returns the number of its queue pair, for the log.
    fn qpn(&self) -> u32;

    /// Returns the number of the lane that serves it while the program does not.
    fn lane(&self) -> usize;

    /// Returns whether its receives complete on this completion queue.
    fn receives_on(&self, cq: &Arc<Cq>) -> bool;

    /// Returns the placement of the completion queue for its receives.
    fn placement(&self) -> Placement;

    /// Returns the addresses of the peer and of this end, which steering hashes; `None` if it is closed.
    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)>;

    /// Returns how many times it was served since the last call. Approximate: rebalancing compares connections by it.
    fn take_serve_count(&self) -> u64;

    /// Moves it to another lane while traffic flows. Returns false if it is closed. After an error it stays on its
    /// lane, or is closed if that failed, too.
    fn move_to(self: Arc<Self>, lane: usize) -> io::Result<bool>;

    /// Ends it at once with this error, without telling the peer why.
    fn abort(&self, error: QpError);
}
