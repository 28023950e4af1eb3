//! A queue pair that is its own peer. One socket does, connected to itself: what it sends, it receives. There is nobody to
//! agree with, so nothing is said before the stream begins.

use super::BringUp;
use crate::engine::Engine;
use crate::event::{ConnectError, Established};
use crate::sys::setup::connect_to_itself;
use crate::sys::socket::TcpLink;
use ironwarp_rnic::connect::{Agreed, Depths, Role, Rtr, Setup as Way, Terms};
use ironwarp_wire::mpa::Framing;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// A queue pair that is being connected to itself.
#[derive(Debug)]
pub(crate) struct ToItself {
    engine: Weak<Engine>,
    up: Arc<BringUp>,
    pub(crate) link: Arc<TcpLink>,
    pub(crate) deadline: Instant,
}

impl ToItself {
    pub(super) fn new(engine: &Arc<Engine>, up: &Arc<BringUp>, at: SocketAddr) -> io::Result<Self> {
        let link = Arc::new(connect_to_itself(at, &engine.keepalive())?);
        let deadline = Instant::now() + engine.config().startup;
        Ok(Self { engine: Arc::downgrade(engine), up: Arc::clone(up), link, deadline })
    }

    /// What it is for.
    pub(crate) fn up(&self) -> Arc<BringUp> {
        Arc::clone(&self.up)
    }

    /// Goes on as far as it can. Returns itself if it has to wait.
    pub(crate) fn progress(self) -> Option<Self> {
        match self.link.connected() {
            Ok(false) => return Some(self),
            Ok(true) => {
                if let Err(error) = self.begin() {
                    self.failed(error);
                }
            }
            Err(error) => self.failed(error.into()),
        }
        None
    }

    fn begin(&self) -> Result<(), ConnectError> {
        let Some(engine) = self.engine.upgrade() else { return Ok(()) };
        let Terms { ird, ord, crc, .. } = self.up.terms();
        let framing = Framing { crc, markers: false };
        let ord = ord.min(ird);
        let agreed = Agreed {
            // It speaks first, and hears it.
            role: Role::Initiator { rtr: Some(Rtr::Write) },
            setup: Way::PeerToPeer,
            send: framing,
            receive: framing,
            ird,
            ord,
            peer: Depths { ird: Some(ird), ord: Some(ord) },
        };
        let (peer, local) = (self.link.peer_addr()?, self.link.local_addr()?);
        let established = Established { private_data: Box::default(), agreed, peer, local };
        self.up.claim();
        self.up.begin(&engine, &self.link, (established, Vec::new()))
    }

    pub(crate) fn failed(&self, error: ConnectError) {
        self.up.fail(error);
    }
}
