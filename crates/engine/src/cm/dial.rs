//! A handshake that this end begins: it connects, sends the Request and receives the Reply.

use super::context::CmContext;
use super::exchange::{Exchange, ROOM};
use super::handshake::{Handshake, Step, Target};
use crate::sys::socket::TcpLink;
use crate::sys::tcp::connect;
use crate::verbs::error::ConnectError;
use crate::verbs::event::Established;
use crate::verbs::queue_pair::QueuePair;
use ironwarp_rnic::connect::{Initiator, MpaMode, Reply, Terms};
use ironwarp_rnic::link::Link;
use ironwarp_wire::Parse;
use ironwarp_wire::private::PortSpace;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Options of a connection.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// The address to connect from. Defaults to the kernel's choice.
    pub from: Option<SocketAddr>,
    /// Private data for the remote program. siw and Chelsio's driver take up to 252 bytes, the RFC allows 508.
    pub private_data: Vec<u8>,
    /// Maximum number of remote reads to hold. Defaults to the adapter's setting.
    pub ird: Option<u16>,
    /// Maximum number of outstanding reads. Defaults to the adapter's setting.
    pub ord: Option<u16>,
    /// The MPA mode.
    pub mode: MpaMode,
    /// The RDMA port space of the port. Its listener need not be at the TCP port of the same number. `None` dials the
    /// TCP port itself.
    pub port_space: Option<PortSpace>,
    /// The traffic class of this end's packets (requirement M16).
    pub traffic_class: u8,
}

/// The address to dial, and the contents of the Request.
#[derive(Clone, Debug)]
pub(crate) struct DialRequest {
    pub(crate) to: SocketAddr,
    /// The local address; `None` lets the kernel choose.
    pub(crate) from: Option<SocketAddr>,
    pub(crate) mode: MpaMode,
    pub(crate) terms: Terms,
    pub(crate) private_data: Box<[u8]>,
    pub(crate) traffic_class: u8,
}

/// A [`Target`] that this end dials for. It can refuse the peer.
pub(crate) trait DialTarget: Target {
    /// Returns whether the target still needs this connection.
    fn is_wanted(&self) -> bool {
        true
    }

    /// Checks the peer of the TCP connection before the Request is sent.
    fn check_peer(&self, _link: &TcpLink) -> Result<(), ConnectError> {
        Ok(())
    }

    /// Checks the Reply to a Request with the private data `sent`. Returns the Reply, without what only this layer
    /// needs.
    fn check_reply(&self, _link: &TcpLink, _sent: &[u8], reply: Reply) -> Result<Reply, ConnectError> {
        Ok(reply)
    }

    /// Chooses this connection, which the peer has accepted. Returns false if another one was chosen: then this one is
    /// aborted.
    fn claim(&self) -> bool {
        true
    }

    /// Reports that the peer closed instead of replying, as a peer that knows only MPA revision 1 does. Returns whether
    /// to dial it again with revision 1.
    fn on_no_reply(self: Arc<Self>) -> bool {
        true
    }

    /// Converts the reference.
    fn as_target(self: Arc<Self>) -> Arc<dyn Target>;
}

impl DialTarget for QueuePair {
    fn as_target(self: Arc<Self>) -> Arc<dyn Target> {
        self
    }
}

/// A handshake that this end begins.
#[derive(Debug)]
pub(crate) struct Dial {
    ctx: Weak<CmContext>,
    target: Arc<dyn DialTarget>,
    request: DialRequest,
    link: Arc<TcpLink>,
    initiator: Initiator,
    deadline: Instant,
    exchange: Exchange,
    /// The TCP connection is established. The target checks the peer as soon as this becomes true.
    connected: bool,
}

impl Dial {
    /// Begins to connect, without waiting.
    pub(crate) fn new(
        ctx: &Arc<CmContext>,
        target: Arc<dyn DialTarget>,
        request: DialRequest,
    ) -> Result<Box<Self>, ConnectError> {
        let initiator = Initiator::new(request.mode, request.terms, &request.private_data)?;
        ctx.logical().check_up(request.from.map(|from| from.ip()))?;
        let link = connect(request.to, request.from, request.traffic_class, &ctx.keepalive())?
            .with_tap(ctx.dial_tap());
        Ok(Box::new(Self {
            ctx: Arc::downgrade(ctx),
            target,
            request,
            link: Arc::new(link),
            exchange: Exchange::to_send(initiator.request()),
            initiator,
            deadline: Instant::now() + ctx.config().startup,
            connected: false,
        }))
    }

    /// Continues as far as possible without waiting. Returns whether the handshake is done.
    fn advance(&mut self) -> Result<bool, ConnectError> {
        if !self.target.is_wanted() {
            return Err(ConnectError::GivenUp);
        }
        if !self.connected {
            self.connected = self.link.is_connected()?;
            if !self.connected {
                return Ok(false);
            }
            if self.link.local_addr()? == self.link.peer_addr()? {
                // There is no listener, but the kernel gave this socket the port that it dials: the socket connected to
                // itself.
                self.link.abort();
                return Err(io::Error::from(rustix::io::Errno::CONNREFUSED).into());
            }
            self.target.check_peer(&self.link)?;
        }
        if !self.exchange.send(&self.link)? {
            return Ok(false);
        }
        loop {
            match self.initiator.parse_reply(&self.exchange.read) {
                Ok(Parse::Done(reply)) => return self.handle_reply(reply).map(|()| true),
                Ok(Parse::Need(_)) => {}
                Err(error) => {
                    self.exchange.send_cause(&self.link, error.terminate());
                    return Err(error.into());
                }
            }
            if !self.exchange.receive(&self.link, ROOM)? {
                return Ok(false);
            }
        }
    }

    /// Starts the stream if the peer has accepted. A rejection is an error.
    fn handle_reply(&mut self, reply: Reply) -> Result<(), ConnectError> {
        let reply = self.target.check_reply(&self.link, &self.request.private_data, reply)?;
        let (agreed, private_data, consumed) = match reply {
            Reply::Accepted { agreed, private_data, consumed } => (agreed, private_data, consumed),
            Reply::Rejected { peer, private_data } => {
                return Err(ConnectError::Rejected { private_data, depths: peer });
            }
        };
        if self.ctx.strong_count() == 0 {
            return Ok(()); // the adapter is closed
        }
        if !self.target.claim() {
            self.link.abort();
            return Ok(());
        }
        let early = self.exchange.read.split_off(consumed);
        let (peer, local) = (self.link.peer_addr()?, self.link.local_addr()?);
        let established = Established { private_data, agreed, peer, local };
        Arc::clone(&self.target).start(&self.link, established, early)
    }

    /// Dials again with MPA revision 1 if the peer may know no other: such a peer closes when it receives revision 2
    /// (RFC 6581 §10). Otherwise reports the error to the target.
    fn retry_or_fail(self: Box<Self>, error: ConnectError) -> Step {
        let reset = match &error {
            ConnectError::Closed => true,
            ConnectError::System(error) => error.kind() == io::ErrorKind::ConnectionReset,
            _ => false,
        };
        let unanswered = self.connected && self.exchange.read.is_empty();
        let may_retry = reset && unanswered && self.request.mode != MpaMode::Unenhanced;
        if !may_retry || !Arc::clone(&self.target).on_no_reply() {
            self.fail(error);
            return Step::Done;
        }
        let Some(ctx) = self.ctx.upgrade() else { return Step::Done };
        let Self { target, request, deadline, .. } = *self;
        let request = DialRequest { mode: MpaMode::Unenhanced, ..request };
        let peer = request.to;
        match Self::new(&ctx, Arc::clone(&target), request) {
            Ok(mut dial) => {
                tracing::debug!(%peer, "no answer to MPA revision 2, trying revision 1");
                dial.deadline = deadline;
                Step::Restart(dial)
            }
            Err(error) => {
                target.on_failed(error);
                Step::Done
            }
        }
    }
}

impl Handshake for Dial {
    fn link(&self) -> &Arc<TcpLink> {
        &self.link
    }

    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        // Not the peer address of the link, which is unknown until it is connected.
        Some((self.request.to, self.link.local_addr().ok()?))
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn target(&self) -> Arc<dyn Target> {
        Arc::clone(&self.target).as_target()
    }

    fn progress(mut self: Box<Self>) -> Step {
        match self.advance() {
            Ok(true) => Step::Done,
            Ok(false) => Step::Wait(self),
            Err(error) => self.retry_or_fail(error),
        }
    }

    fn fail(self: Box<Self>, error: ConnectError) {
        self.target.on_failed(error);
    }
}
