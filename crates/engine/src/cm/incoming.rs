//! A connection that a peer has begun, and that the program accepts or rejects.

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

/// The RDMA port that a Request names in a header before the private data. The Reply confirms it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestedPort {
    pub(super) port: RdmaPort,
    /// Length of the header in bytes.
    pub(super) header_len: usize,
}

/// The decision on a connection that a peer has begun.
#[derive(Debug)]
pub(super) struct Decision {
    /// The private data of the Reply.
    pub(super) private_data: Box<[u8]>,
    /// The target of an accepted connection; `None` if the connection is rejected.
    pub(super) target: Option<AcceptTarget>,
}

/// The target of an accepted connection, and the terms on which it is accepted.
#[derive(Debug)]
pub(super) struct AcceptTarget {
    pub(super) target: Arc<dyn Target>,
    pub(super) terms: Terms,
    pub(super) traffic_class: u8,
    /// Passed to the target once the Reply is sent.
    pub(super) established: Established,
}

/// The handshakes of a lane, as the receiver of decisions.
pub(super) trait Decide: Send + Sync + fmt::Debug {
    /// Applies the decision to the handshake with this token. Called on the lane's thread.
    fn decide(&self, token: u64, decision: Decision);
}

/// A peer that wants to connect, and waits for [`accept`](Self::accept) or [`reject`](Self::reject). Dropping it
/// rejects it.
#[derive(Debug)]
pub struct Incoming {
    /// The lane of the handshake.
    pub(super) lane: Arc<LaneHandle>,
    pub(super) handshakes: Weak<dyn Decide>,
    /// Identifies the handshake on its lane.
    pub(super) token: u64,
    pub(super) request: Request,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    /// The RDMA port that the Request names, if any.
    pub(super) requested_port: Option<RequestedPort>,
    pub(super) traffic_class: u8,
    /// The connection was accepted or rejected. Otherwise dropping it rejects it.
    pub(super) decided: bool,
}

impl Decision {
    /// Reports the failure of the handshake to the target, if the connection was accepted.
    pub(super) fn fail(self, error: ConnectError) {
        if let Some(AcceptTarget { target, .. }) = self.target {
            target.on_failed(error);
        }
    }
}

impl Incoming {
    /// Returns the private data of the remote program.
    pub fn private_data(&self) -> &[u8] {
        let header = self.requested_port.map_or(0, |requested| requested.header_len);
        self.request.private_data().get(header..).unwrap_or_default()
    }

    /// Returns the read depths of the peer. Its IRD limits the ORD of this end, and the IRD of this end should be at
    /// least its ORD.
    pub fn depths(&self) -> Depths {
        self.request.peer()
    }

    /// Returns the remote address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the address to which the peer connected, with the RDMA port if the Request names one.
    pub fn local(&self) -> SocketAddr {
        with_port(
            self.local,
            self.requested_port.map_or(self.local.port(), |requested| requested.port.number),
        )
    }

    /// Sets the traffic class of this end's packets, for [`accept`](Self::accept). Defaults to 0.
    #[must_use]
    pub fn traffic_class(mut self, class: u8) -> Self {
        self.traffic_class = class;
        self
    }

    /// Accepts the connection for a queue pair. An event of the queue pair reports the result.
    pub fn accept(
        self,
        pair: &Arc<QueuePair>,
        terms: Terms,
        private_data: &[u8],
    ) -> Result<(), ConnectError> {
        self.accept_for(Arc::<QueuePair>::clone(pair), terms, private_data)
    }

    /// Accepts the connection for a target: a queue pair, or an attempt to connect one manually.
    pub(super) fn accept_for(
        mut self,
        target: Arc<dyn Target>,
        terms: Terms,
        private_data: &[u8],
    ) -> Result<(), ConnectError> {
        let reply = reply_data(self.requested_port, private_data);
        let (_, agreed) = self.request.accept(terms, &reply)?;
        self.decided = true;
        let private_data = self.private_data().into();
        let established = Established { private_data, agreed, peer: self.peer, local: self.local };
        let target = Some(AcceptTarget { target, terms, traffic_class: self.traffic_class, established });
        self.submit_decision(Decision { private_data: reply.into(), target });
        Ok(())
    }

    /// Rejects the connection.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), ConnectError> {
        let reply = reply_data(self.requested_port, private_data);
        self.request.reject(&reply)?;
        self.decided = true;
        self.submit_decision(Decision { private_data: reply.into(), target: None });
        Ok(())
    }

    /// Rejects a peer that connects manually, with a refusal that contains the reason.
    pub(super) fn refuse(self, reason: Reason) {
        let hello = Hello::parse(self.private_data()).ok();
        let (to, from) = hello.map_or((0, 0), |hello| (hello.source, hello.destination));
        self.reject_with(&Hello::new(HelloKind::Refusal(reason), to, from));
    }

    /// Rejects a peer that connects manually, with a challenge or a refusal.
    pub(super) fn reject_with(self, reply: &Hello) {
        let reply = reply.emit().expect("numbers of 24 bits, as parsed");
        if let Err(error) = self.reject(&reply) {
            tracing::debug!(%error, "failed to reject a peer");
        }
    }

    /// Rejects the connection, and waits until the lane has sent the Reply. For programs that may exit right
    /// afterwards: after [`reject`](Self::reject), the process could end before the lane sends. Fails with
    /// [`ConnectError::TimedOut`] if the timeout expires first, or if the lane has ended.
    pub fn reject_and_wait(self, private_data: &[u8], timeout: Duration) -> Result<(), ConnectError> {
        let lane = Arc::clone(&self.lane);
        self.reject(private_data)?;
        let (done, waiting) = mpsc::channel();
        // The lane makes calls in order: `reject` has submitted the call that sends the Reply before this one.
        lane.call(move || {
            let _ = done.send(()); // fails if the timeout has expired
        });
        waiting.recv_timeout(timeout).map_err(|_| ConnectError::TimedOut)
    }

    /// Passes a decision to the handshake, on its lane.
    fn submit_decision(&self, decision: Decision) {
        let (handshakes, token) = (Weak::clone(&self.handshakes), self.token);
        self.lane.call(move || match handshakes.upgrade() {
            Some(handshakes) => handshakes.decide(token, decision),
            None => decision.fail(ConnectError::Closed),
        });
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.decided {
            self.submit_decision(Decision {
                private_data: reply_data(self.requested_port, &[]).into(),
                target: None,
            });
        }
    }
}

/// Returns the private data of a Reply: that of the program, after a header with the RDMA port if the Request names
/// one.
pub(super) fn reply_data(requested_port: Option<RequestedPort>, private_data: &[u8]) -> Cow<'_, [u8]> {
    match requested_port {
        Some(RequestedPort { port, .. }) => {
            [&CmHeader::for_port(CmKind::Port, port).emit()[..], private_data].concat().into()
        }
        None => private_data.into(),
    }
}
