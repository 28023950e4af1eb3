//! Traits of a handshake that this end begins, and of the queue pair that a handshake connects. `handshakes.rs` runs
//! the handshakes.

use crate::sys::socket::TcpLink;
use crate::verbs::error::ConnectError;
use crate::verbs::event::Established;
use crate::verbs::queue_pair::QueuePair;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// A handshake that this end begins. All methods are called on a lane's thread.
pub(crate) trait Handshake: Send + fmt::Debug {
    /// Returns the link of the handshake.
    fn link(&self) -> &Arc<TcpLink>;

    /// Returns the remote and the local address, which select the lane; `None` if they are unknown.
    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)>;

    /// Returns when the handshake fails if it is not done.
    fn deadline(&self) -> Instant;

    /// Returns the target, to report a panic to.
    fn target(&self) -> Arc<dyn Target>;

    /// Continues as far as possible without waiting.
    fn progress(self: Box<Self>) -> Step;

    /// Ends the handshake, and reports the error to the target.
    fn fail(self: Box<Self>, error: ConnectError);
}

/// The result of [`Handshake::progress`].
#[derive(Debug)]
pub(crate) enum Step {
    /// The handshake has ended, and its target knows.
    Done,
    /// The handshake waits for its socket.
    Wait(Box<dyn Handshake>),
    /// The handshake has ended, and this one begins in its place, on another socket.
    Restart(Box<dyn Handshake>),
}

/// The receiver of a handshake's result: a queue pair, or an attempt to connect one.
pub(crate) trait Target: Send + Sync + fmt::Debug {
    /// Starts the stream on a link whose handshake is done. `early` are the bytes that were received after the
    /// handshake.
    fn start(
        self: Arc<Self>,
        link: &Arc<TcpLink>,
        established: Established,
        early: Vec<u8>,
    ) -> Result<(), ConnectError>;

    /// Reports that the handshake failed. The target may begin another one.
    fn on_failed(self: Arc<Self>, error: ConnectError);

    /// Reports that the handshake failed in a way that another one would, too, for example by a panic. The target must
    /// not begin another one.
    fn abandon(self: Arc<Self>, error: ConnectError);

    /// Returns whether the accepting end waits for the first FPDU before it starts the stream.
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

    fn on_failed(self: Arc<Self>, error: ConnectError) {
        self.connect_failed(error);
    }

    fn abandon(self: Arc<Self>, error: ConnectError) {
        self.connect_failed(error);
    }
}
