//! A probe: asks a candidate TCP port whether the listener of an RDMA port is there, for `search.rs`.

use super::context::CmContext;
use super::exchange::{Exchange, ROOM};
use super::handshake::{Handshake, Step, Target};
use crate::sys::socket::TcpLink;
use crate::sys::tcp::connect;
use crate::verbs::error::ConnectError;
use ironwarp_rnic::connect::{Initiator, MpaMode, Reply};
use ironwarp_rnic::link::Link;
use ironwarp_wire::Parse;
use ironwarp_wire::private::{CmHeader, CmKind, RdmaPort};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a candidate may take to answer. Long enough for two lost SYNs, which the kernel sends again after one and
/// after three seconds, and for a listener on a busy machine.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// The search that a probe belongs to.
pub(super) trait Searcher: Send + Sync + fmt::Debug {
    /// Returns whether this end may send a probe to a candidate, which must belong to a trusted user.
    fn trusts(&self, link: &TcpLink) -> bool;

    /// Reports the result of a probe: whether the listener is at the candidate. A candidate that did not answer is not
    /// the listener.
    fn on_probed(self: Arc<Self>, candidate: u16, is_listener: bool);

    /// Returns the target to report a panic to.
    fn as_target(self: Arc<Self>) -> Arc<dyn Target>;
}

/// A TCP port at which the listener of an RDMA port may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// The RDMA port.
    pub(super) port: RdmaPort,
    /// The address to probe.
    pub(super) at: SocketAddr,
    /// The local address; `None` lets the kernel choose.
    pub(super) from: Option<SocketAddr>,
}

/// Asks a candidate whether the listener of an RDMA port is there.
#[derive(Debug)]
pub(super) struct Probe {
    /// The search that the result is reported to.
    search: Arc<dyn Searcher>,
    candidate: Candidate,
    link: Arc<TcpLink>,
    /// Parses the reply to the MPA Request that the probe sends.
    initiator: Initiator,
    /// When the probe ends without an answer.
    deadline: Instant,
    /// The MPA Request to send, and the bytes received.
    exchange: Exchange,
    /// The TCP connection is established, and the candidate is trusted.
    connected: bool,
}

impl Probe {
    /// Begins to connect to a candidate, without waiting. [`progress`](Handshake::progress) sends the MPA Request when
    /// the TCP connection is established.
    pub(super) fn new(
        ctx: &CmContext,
        search: Arc<dyn Searcher>,
        candidate: Candidate,
    ) -> Result<Box<Self>, ConnectError> {
        let header = CmHeader::for_port(CmKind::Probe, candidate.port).emit();
        // A listener of Ironwarp rejects every probe, so the mode and the terms never take effect.
        let initiator = Initiator::new(MpaMode::default(), ctx.terms(None, None), &header)?;
        let link = connect(candidate.at, candidate.from, 0, &ctx.keepalive())?.with_tap(ctx.dial_tap());
        Ok(Box::new(Self {
            search,
            candidate,
            link: Arc::new(link),
            exchange: Exchange::to_send(initiator.request()),
            initiator,
            deadline: Instant::now() + PROBE_TIMEOUT.min(ctx.config().startup),
            connected: false,
        }))
    }

    /// Closes the connection, and reports the result to the search.
    fn finish(&self, is_listener: bool) {
        self.link.abort();
        Arc::clone(&self.search).on_probed(self.candidate.at.port(), is_listener);
    }

    /// Continues as far as possible without waiting. Returns whether the listener is at the candidate, once that is
    /// known.
    fn advance(&mut self) -> Result<Option<bool>, ConnectError> {
        if !self.connected {
            self.connected = self.link.is_connected()?;
            if !self.connected {
                return Ok(None);
            }
            // TCP connects a socket to itself if nothing listens, and the kernel chose the candidate as local port.
            let is_connected_to_itself = self.link.local_addr()? == self.link.peer_addr()?;
            if is_connected_to_itself || !self.search.trusts(&self.link) {
                return Ok(Some(false));
            }
        }
        if !self.exchange.send(&self.link)? {
            return Ok(None);
        }
        loop {
            match self.initiator.parse_reply(&self.exchange.read) {
                // The answer to a probe is a rejection, whose private data tells whether the listener is here.
                Ok(Parse::Done(Reply::Rejected { private_data, .. })) => {
                    let expected = CmHeader::for_port(CmKind::Listening, self.candidate.port);
                    let is_listener = CmHeader::parse(&private_data)
                        .is_ok_and(|(found, _)| (found.kind, found.port) == (expected.kind, expected.port));
                    return Ok(Some(is_listener));
                }
                Ok(Parse::Done(Reply::Accepted { .. })) | Err(_) => return Ok(Some(false)),
                Ok(Parse::Need(_)) => {}
            }
            if !self.exchange.receive(&self.link, ROOM)? {
                return Ok(None);
            }
        }
    }
}

impl Handshake for Probe {
    fn link(&self) -> &Arc<TcpLink> {
        &self.link
    }

    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        Some((self.candidate.at, self.link.local_addr().ok()?))
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn target(&self) -> Arc<dyn Target> {
        Arc::clone(&self.search).as_target()
    }

    fn progress(mut self: Box<Self>) -> Step {
        match self.advance() {
            Ok(None) => return Step::Wait(self),
            Ok(Some(is_listener)) => self.finish(is_listener),
            Err(_) => self.finish(false),
        }
        Step::Done
    }

    fn fail(self: Box<Self>, _error: ConnectError) {
        self.finish(false);
    }
}
