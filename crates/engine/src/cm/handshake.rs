//! What the registry of handshakes (`handshakes.rs`) knows of those that this end begins, and of what they are for.

use crate::sys::socket::TcpLink;
use crate::verbs::error::ConnectError;
use crate::verbs::event::Established;
use crate::verbs::queue_pair::QueuePair;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// A handshake that this end began. It lives on a lane's thread.
pub(crate) trait Handshake: Send + fmt::Debug {
    fn link(&self) -> &Arc<TcpLink>;

    /// The remote address and the local one, as far as they are known.
    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)>;

    /// When the peer has taken too long.
    fn deadline(&self) -> Instant;

    /// What it is for. It is told if the handshake panics.
    fn target(&self) -> Arc<dyn Target>;

    /// Goes on as far as possible.
    fn progress(self: Box<Self>) -> Step;

    fn failed(self: Box<Self>, error: ConnectError);
}

/// What becomes of a handshake.
#[derive(Debug)]
pub(crate) enum Step {
    /// It is over, and its target knows.
    Done,
    /// It waits for its socket.
    Wait(Box<dyn Handshake>),
    /// It was begun again, on another socket.
    Restart(Box<dyn Handshake>),
}

/// What a connection is made for: a queue pair, or an attempt to connect one.
pub(crate) trait Target: Send + Sync + fmt::Debug {
    /// The handshake is done: starts the stream. `early` is what came behind the handshake.
    fn start(
        self: Arc<Self>,
        link: &Arc<TcpLink>,
        established: Established,
        early: Vec<u8>,
    ) -> Result<(), ConnectError>;

    /// The handshake failed.
    fn failed(self: Arc<Self>, error: ConnectError);

    /// The handshake panicked: there will be no connection, and no other handshake.
    fn abandon(self: Arc<Self>, error: ConnectError);

    /// Whether the end that accepts waits for the first FPDU before it starts the stream.
    fn awaits_first_fpdu(&self) -> bool {
        false
    }
}

impl Target for QueuePair {
    fn start(
        self: Arc<Self>,
        link: &Arc<TcpLink>,
        established: Established,
        early: Vec<u8>,
    ) -> Result<(), ConnectError> {
        self.start_stream(link, established, early)
    }

    fn failed(self: Arc<Self>, error: ConnectError) {
        self.connect_failed(error);
    }

    fn abandon(self: Arc<Self>, error: ConnectError) {
        self.connect_failed(error);
    }
}
