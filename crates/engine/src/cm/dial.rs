//! A handshake that this end begins: connect, Request, Reply.

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
    /// The address to connect from.
    pub from: Option<SocketAddr>,
    /// Private data for the remote program. siw and Chelsio's driver take up to 252 bytes, the RFC allows 508.
    pub private_data: Vec<u8>,
    /// Maximum number of remote reads to hold. Defaults to the adapter's setting.
    pub ird: Option<u16>,
    /// Maximum number of outstanding reads. Defaults to the adapter's setting.
    pub ord: Option<u16>,
    /// The MPA mode.
    pub mode: MpaMode,
    /// The port belongs to the connection manager, in this space: its listener need not be at the TCP port of the same number.
    pub port_space: Option<PortSpace>,
}

/// Where to dial, and what to say.
#[derive(Clone, Debug)]
pub(crate) struct DialRequest {
    pub(crate) to: SocketAddr,
    pub(crate) from: Option<SocketAddr>,
    pub(crate) mode: MpaMode,
    pub(crate) terms: Terms,
    pub(crate) private_data: Box<[u8]>,
}

/// What a connection is dialled for. It can refuse the peer.
pub(crate) trait DialTarget: Target {
    /// Whether the connection is still wanted.
    fn is_wanted(&self) -> bool {
        true
    }

    /// The peer has accepted the TCP connection: whether it may be sent the Request.
    fn check_peer(&self, _link: &TcpLink) -> Result<(), ConnectError> {
        Ok(())
    }

    /// Checks the Reply to a Request with this private data, and returns what it means.
    fn check_reply(&self, _link: &TcpLink, _sent: &[u8], reply: Reply) -> Result<Reply, ConnectError> {
        Ok(reply)
    }

    /// The peer has accepted. Returns false if another connection was chosen meanwhile.
    fn claim(&self) -> bool {
        true
    }

    /// The peer closed instead of answering, as one does that knows only MPA revision 1. Returns whether it is dialled again.
    fn falls_back(self: Arc<Self>) -> bool {
        true
    }

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
    connected: bool,
}

impl Dial {
    pub(crate) fn new(
        ctx: &Arc<CmContext>,
        target: Arc<dyn DialTarget>,
        request: DialRequest,
    ) -> Result<Box<Self>, ConnectError> {
        let initiator = Initiator::new(request.mode, request.terms, &request.private_data)?;
        let link = connect(request.to, request.from, &ctx.keepalive())?.with_tap(ctx.dial_tap());
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

    /// Returns whether it is done.
    fn step(&mut self) -> Result<bool, ConnectError> {
        if !self.target.is_wanted() {
            return Err(ConnectError::GivenUp);
        }
        if !self.connected {
            self.connected = self.link.is_connected()?;
            if !self.connected {
                return Ok(false);
            }
            if self.link.local_addr()? == self.link.peer_addr()? {
                // There is no listener, and the kernel chose the same port for this end, which then connected to itself.
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
                Ok(Parse::Done(reply)) => return self.replied(reply).map(|()| true),
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

    fn replied(&mut self, reply: Reply) -> Result<(), ConnectError> {
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

    /// A peer that knows only revision 1 closes when it sees revision 2 (RFC 6581 §10): it is dialled again, with revision 1.
    fn retry_or_fail(self: Box<Self>, error: ConnectError) -> Step {
        let reset = match &error {
            ConnectError::Closed => true,
            ConnectError::System(error) => error.kind() == io::ErrorKind::ConnectionReset,
            _ => false,
        };
        let unanswered = self.connected && self.exchange.read.is_empty();
        let may_retry = reset && unanswered && self.request.mode != MpaMode::Unenhanced;
        if !may_retry || !Arc::clone(&self.target).falls_back() {
            self.failed(error);
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
                target.failed(error);
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
        Some((self.request.to, self.link.local_addr().ok()?)) // whether it is connected yet or not
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn target(&self) -> Arc<dyn Target> {
        Arc::clone(&self.target).as_target()
    }

    fn progress(mut self: Box<Self>) -> Step {
        match self.step() {
            Ok(true) => Step::Done,
            Ok(false) => Step::Wait(self),
            Err(error) => self.retry_or_fail(error),
        }
    }

    fn failed(self: Box<Self>, error: ConnectError) {
        self.target.failed(error);
    }
}
