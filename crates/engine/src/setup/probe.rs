//! Asking a candidate port whether the listener of an RDMA port is there. Before this: `search.rs`, which asks all of them; after: the
//! same, with their answers.

use super::{ROOM, Wire};
use crate::engine::Engine;
use crate::event::ConnectError;
use crate::search::{PROBE_TIME, Search};
use crate::sys::setup::connect;
use crate::sys::socket::TcpLink;
use ironwarp_rnic::connect::{Answer as Reply, Initiator, Setup as Way};
use ironwarp_rnic::link::Link;
use ironwarp_wire::Parse;
use ironwarp_wire::private::{Aside, AsideKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// Asks a candidate whether the listener of an RDMA port is there.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(super) search: Arc<Search>,
    candidate: u16,
    pub(super) link: Arc<TcpLink>,
    pub(super) to: SocketAddr,
    initiator: Initiator,
    pub(super) deadline: Instant,
    wire: Wire,
    connected: bool,
}

impl Probe {
    pub(crate) fn new(
        engine: &Arc<Engine>,
        search: &Arc<Search>,
        (candidate, to): (u16, SocketAddr),
    ) -> Result<Self, ConnectError> {
        let header = Aside::about(AsideKind::Probe, search.port()).emit();
        let initiator = Initiator::new(Way::default(), engine.terms(None, None), &header)?;
        let tap = engine.capture().map(|capture| capture.tap(true));
        let link = Arc::new(connect(to, search.source(), &engine.keepalive())?.tapped(tap));
        let wire = Wire::to_send(initiator.request());
        let deadline = Instant::now() + PROBE_TIME.min(engine.config().startup);
        let search = Arc::clone(search);
        Ok(Self { search, candidate, link, to, initiator, deadline, wire, connected: false })
    }

    pub(super) fn progress(mut self) -> Option<Self> {
        match self.step() {
            Ok(None) => return Some(self),
            Ok(Some(here)) => self.ended(here),
            Err(_) => self.ended(false),
        }
        None
    }

    pub(super) fn ended(&self, here: bool) {
        self.link.abort();
        self.search.probed(self.candidate, here);
    }

    /// Whether the listener is there, once that is known.
    fn step(&mut self) -> Result<Option<bool>, ConnectError> {
        if !self.connected {
            self.connected = self.link.connected()?;
            if !self.connected {
                return Ok(None);
            }
            if self.link.local_addr()? == self.link.peer_addr()? || !self.search.trusts(&self.link, false) {
                return Ok(Some(false));
            }
        }
        if !self.wire.send(&self.link)? {
            return Ok(None);
        }
        loop {
            match self.initiator.reply(&self.wire.read) {
                Ok(Parse::Done(Reply::Rejected { private_data, .. })) => {
                    let here = Aside::about(AsideKind::Here, self.search.port());
                    let said = Aside::parse(&private_data).ok().map(|(header, _)| (header.kind, header.port));
                    return Ok(Some(said == Some((here.kind, here.port))));
                }
                Ok(Parse::Done(Reply::Accepted { .. })) | Err(_) => return Ok(Some(false)),
                Ok(Parse::Need(_)) => {}
            }
            if !self.wire.receive(&self.link, ROOM)? {
                return Ok(None);
            }
        }
    }
}
