//! A connection that a peer has begun, while the program decides on it.

use super::handshake::Target;
use crate::reactor::handle::LaneHandle;
use crate::sys::tcp::with_port;
use crate::verbs::error::ConnectError;
use crate::verbs::event::Established;
use crate::verbs::queue_pair::QueuePair;
use ironwarp_rnic::connect::{Depths, Incoming as Request, Terms};
use ironwarp_wire::private::{CmHeader, CmKind, Hello, HelloKind, RdmaPort, Reason};
use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

/// What a Request says of the RDMA port that it is for, which its Reply confirms.
#[derive(Clone, Copy, Debug)]
pub(super) struct AskedPort {
    pub(super) port: RdmaPort,
    /// Length of the header before the private data.
    pub(super) header: usize,
}

/// What the program decided on a connection.
#[derive(Debug)]
pub(super) struct Decision {
    pub(super) private_data: Box<[u8]>,
    /// The queue pair that takes the connection; `None` if it is rejected.
    pub(super) target: Option<AcceptTarget>,
}

/// What takes an accepted connection.
#[derive(Debug)]
pub(super) struct AcceptTarget {
    pub(super) target: Arc<dyn Target>,
    pub(super) terms: Terms,
    pub(super) established: Established,
}

/// The handshakes of a lane, as a decision reaches them.
pub(super) trait Decide: Send + Sync + fmt::Debug {
    /// Applies the decision to the handshake with this token. Called on the lane's thread.
    fn decide(&self, token: u64, decision: Decision);
}

/// A peer that wants to connect, and waits for [`accept`](Self::accept) or [`reject`](Self::reject). Dropping it rejects it.
#[derive(Debug)]
pub struct Incoming {
    pub(super) lane: Arc<LaneHandle>,
    pub(super) handshakes: Weak<dyn Decide>,
    pub(super) token: u64,
    pub(super) request: Request,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) asked: Option<AskedPort>,
    pub(super) decided: bool,
}

impl Decision {
    /// The handshake is gone, or failed.
    pub(super) fn failed(self, error: ConnectError) {
        if let Some(AcceptTarget { target, .. }) = self.target {
            target.failed(error);
        }
    }
}

impl Incoming {
    /// Returns the private data of the remote program.
    pub fn private_data(&self) -> &[u8] {
        let header = self.asked.map_or(0, |asked| asked.header);
        self.request.private_data().get(header..).unwrap_or_default()
    }

    /// Returns the read depths of the peer: its IRD limits the ORD of this end, its ORD is what the IRD of this end should hold.
    pub fn depths(&self) -> Depths {
        self.request.peer()
    }

    /// Returns the remote address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the address to which the peer connected. Its port is the one that the remote program asked for.
    pub fn local(&self) -> SocketAddr {
        with_port(self.local, self.asked.map_or(self.local.port(), |asked| asked.port.number))
    }

    /// Connects a queue pair to the peer. An event of the queue pair reports the result.
    pub fn accept(
        self,
        pair: &Arc<QueuePair>,
        terms: Terms,
        private_data: &[u8],
    ) -> Result<(), ConnectError> {
        self.accept_for(Arc::<QueuePair>::clone(pair), terms, private_data)
    }

    /// Accepts the connection for a queue pair, or for an attempt to connect one manually.
    pub(super) fn accept_for(
        mut self,
        target: Arc<dyn Target>,
        terms: Terms,
        private_data: &[u8],
    ) -> Result<(), ConnectError> {
        let reply = reply_data(self.asked, private_data);
        let (_, agreed) = self.request.accept(terms, &reply)?;
        self.decided = true;
        let private_data = self.private_data().into();
        let established = Established { private_data, agreed, peer: self.peer, local: self.local };
        let target = Some(AcceptTarget { target, terms, established });
        self.submit(Decision { private_data: reply.into(), target });
        Ok(())
    }

    /// Rejects the connection.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), ConnectError> {
        let reply = reply_data(self.asked, private_data);
        self.request.reject(&reply)?;
        self.decided = true;
        self.submit(Decision { private_data: reply.into(), target: None });
        Ok(())
    }

    /// Refuses a manually connected peer, and tells it why.
    pub(super) fn refuse(self, reason: Reason) {
        let asked = Hello::parse(self.private_data()).ok();
        let (to, from) = asked.map_or((0, 0), |hello| (hello.source, hello.destination));
        self.reject_with(&Hello::new(HelloKind::Refusal(reason), to, from));
    }

    /// Rejects a manually connected peer with a challenge or a refusal.
    pub(super) fn reject_with(self, reply: &Hello) {
        let reply = reply.emit().expect("numbers of 24 bits, as parsed");
        if let Err(error) = self.reject(&reply) {
            tracing::debug!(%error, "failed to reject a peer");
        }
    }

    /// Rejects the connection, and waits until the peer's socket has the answer, but not longer than this: a process that ends
    /// right after it would take the answer with it.
    pub fn reject_and_wait(self, private_data: &[u8], timeout: Duration) -> Result<(), ConnectError> {
        let lane = Arc::clone(&self.lane);
        self.reject(private_data)?;
        let (done, waiting) = mpsc::channel();
        lane.call(move || {
            let _ = done.send(()); // or the caller waits no longer
        });
        waiting.recv_timeout(timeout).map_err(|_| ConnectError::TimedOut)
    }

    fn submit(&self, decision: Decision) {
        let (handshakes, token) = (Weak::clone(&self.handshakes), self.token);
        self.lane.call(move || match handshakes.upgrade() {
            Some(handshakes) => handshakes.decide(token, decision),
            None => decision.failed(ConnectError::Closed),
        });
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.decided {
            self.submit(Decision { private_data: reply_data(self.asked, &[]).into(), target: None });
        }
    }
}

/// The private data of a Reply: the program's, behind the RDMA port if the Request names it.
pub(super) fn reply_data(asked: Option<AskedPort>, private_data: &[u8]) -> Cow<'_, [u8]> {
    match asked {
        Some(AskedPort { port, .. }) => {
            [&CmHeader::for_port(CmKind::Port, port).emit()[..], private_data].concat().into()
        }
        None => private_data.into(),
    }
}
