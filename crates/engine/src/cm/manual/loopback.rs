//! Connects a queue pair to itself, by one socket that is connected to itself and receives what it sends. The stream
//! starts without a handshake: there is no other end to agree with.

use crate::cm::context::CmContext;
use crate::cm::dial::DialTarget;
use crate::cm::handshake::{Handshake, Step, Target};
use crate::sys::socket::TcpLink;
use crate::sys::tcp::connect_to_itself;
use crate::verbs::error::ConnectError;
use crate::verbs::event::Established;
use ironwarp_rnic::connect::{Agreed, Depths, MpaMode, Role, Rtr, Terms};
use ironwarp_rnic::link::Link;
use ironwarp_wire::mpa::Framing;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// A queue pair that is being connected to itself.
#[derive(Debug)]
pub(super) struct SelfConnect {
    ctx: Weak<CmContext>,
    target: Arc<dyn DialTarget>,
    terms: Terms,
    link: Arc<TcpLink>,
    deadline: Instant,
}

impl SelfConnect {
    /// Begins to connect a socket at this address to itself.
    pub(super) fn new(
        ctx: &Arc<CmContext>,
        target: Arc<dyn DialTarget>,
        terms: Terms,
        at: SocketAddr,
    ) -> io::Result<Box<Self>> {
        let link = Arc::new(connect_to_itself(at, &ctx.keepalive())?);
        let deadline = Instant::now() + ctx.config().startup;
        Ok(Box::new(Self { ctx: Arc::downgrade(ctx), target, terms, link, deadline }))
    }

    /// Starts the stream, with the parameters that two ends with the same terms would agree on.
    fn start(&self) -> Result<(), ConnectError> {
        if self.ctx.strong_count() == 0 {
            return Ok(()); // the adapter is closed
        }
        let Terms { ird, ord, crc, .. } = self.terms;
        let framing = Framing { crc, markers: false };
        let ord = ord.min(ird);
        // The only end is the initiator: it sends the first message, and receives it.
        let role = Role::Initiator { rtr: Some(Rtr::Write) };
        let mut agreed = Agreed::symmetric(role, MpaMode::PeerToPeer, framing, ird, ord);
        agreed.peer = Depths { ird: Some(ird), ord: Some(ord) };
        let (peer, local) = (self.link.peer_addr()?, self.link.local_addr()?);
        let established = Established { private_data: Box::default(), agreed, peer, local };
        if !self.target.claim() {
            self.link.abort();
            return Ok(());
        }
        Arc::clone(&self.target).start(&self.link, established, Vec::new())
    }
}

impl Handshake for SelfConnect {
    fn link(&self) -> &Arc<TcpLink> {
        &self.link
    }

    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        Some((self.link.peer_addr().ok()?, self.link.local_addr().ok()?))
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn target(&self) -> Arc<dyn Target> {
        Arc::clone(&self.target).as_target()
    }

    fn progress(self: Box<Self>) -> Step {
        match self.link.is_connected() {
            Ok(false) => return Step::Wait(self),
            Ok(true) => {
                if let Err(error) = self.start() {
                    self.fail(error);
                }
            }
            Err(error) => self.fail(error.into()),
        }
        Step::Done
    }

    /// Abandons the attempt: another try would fail, too, because there is no other end that may be ready later.
    fn fail(self: Box<Self>, error: ConnectError) {
        self.target.abandon(error);
    }
}
