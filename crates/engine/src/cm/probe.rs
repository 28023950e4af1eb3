//! Asking a candidate port whether the listener of an RDMA port is there (`search.rs`).

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

/// How long a candidate may take to answer. One SYN may be lost: it is sent again after a second.
const PROBE_TIME: Duration = Duration::from_secs(2);

/// The search that a probe belongs to.
pub(super) trait Searcher: Send + Sync + fmt::Debug {
    /// Whether this end may talk to a candidate.
    fn trusts(&self, link: &TcpLink) -> bool;

    /// A candidate has answered, or not in time. `here`: the listener is there.
    fn probed(self: Arc<Self>, candidate: u16, here: bool);

    fn as_target(self: Arc<Self>) -> Arc<dyn Target>;
}

/// What to ask, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) port: RdmaPort,
    pub(super) at: SocketAddr,
    pub(super) from: Option<SocketAddr>,
}

/// Asks a candidate whether the listener of an RDMA port is there.
#[derive(Debug)]
pub(super) struct Probe {
    search: Arc<dyn Searcher>,
    candidate: Candidate,
    link: Arc<TcpLink>,
    initiator: Initiator,
    deadline: Instant,
    exchange: Exchange,
    connected: bool,
}

impl Probe {
    pub(super) fn new(
        ctx: &CmContext,
        search: Arc<dyn Searcher>,
        candidate: Candidate,
    ) -> Result<Box<Self>, ConnectError> {
        let header = CmHeader::for_port(CmKind::Probe, candidate.port).emit();
        let initiator = Initiator::new(MpaMode::default(), ctx.terms(None, None), &header)?;
        let link = connect(candidate.at, candidate.from, &ctx.keepalive())?.with_tap(ctx.dial_tap());
        Ok(Box::new(Self {
            search,
            candidate,
            link: Arc::new(link),
            exchange: Exchange::to_send(initiator.request()),
            initiator,
            deadline: Instant::now() + PROBE_TIME.min(ctx.config().startup),
            connected: false,
        }))
    }

    fn ended(&self, here: bool) {
        self.link.abort();
        Arc::clone(&self.search).probed(self.candidate.at.port(), here);
    }

    /// Whether the listener is there, once that is known.
    fn step(&mut self) -> Result<Option<bool>, ConnectError> {
        if !self.connected {
            self.connected = self.link.is_connected()?;
            if !self.connected {
                return Ok(None);
            }
            if self.link.local_addr()? == self.link.peer_addr()? || !self.search.trusts(&self.link) {
                return Ok(Some(false));
            }
        }
        if !self.exchange.send(&self.link)? {
            return Ok(None);
        }
        loop {
            match self.initiator.parse_reply(&self.exchange.read) {
                Ok(Parse::Done(Reply::Rejected { private_data, .. })) => {
                    let here = CmHeader::for_port(CmKind::Listening, self.candidate.port);
                    let said =
                        CmHeader::parse(&private_data).ok().map(|(header, _)| (header.kind, header.port));
                    return Ok(Some(said == Some((here.kind, here.port))));
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
        match self.step() {
            Ok(None) => return Step::Wait(self),
            Ok(Some(here)) => self.ended(here),
            Err(_) => self.ended(false),
        }
        Step::Done
    }

    fn failed(self: Box<Self>, _error: ConnectError) {
        self.ended(false);
    }
}
