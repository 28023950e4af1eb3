//! Listening for connections.

use super::context::CmContext;
use super::handshakes::Handshakes;
use super::incoming::Incoming;
use super::listener::{ListenerConfig, ListenerSocket};
use crate::notify::channel::{EventChannel, EventSink};
use crate::sys::reserve::Reservation;
use crate::sys::tcp::{Bound, Listener as Socket, RdmaBinding};
use ironwarp_rnic::sync::lock;
use ironwarp_wire::private::{PortSpace, RdmaPort};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Largest backlog of a listener, and the default: the same as of the kernel's connection manager (`net.rdma_ucm.max_backlog`).
pub const MAX_BACKLOG: usize = 1024;

/// A port at which peers connect.
#[derive(Debug)]
pub struct Listener {
    listening: Listening,
    channel: Arc<EventChannel<Incoming>>,
}

/// A listening socket. Dropping it stops listening.
#[derive(Debug)]
pub struct Listening {
    socket: Mutex<Arc<ListenerSocket>>,
    handshakes: Arc<Handshakes>,
    binding: Option<RdmaBinding>,
    ctx: Weak<CmContext>,
}

impl Listener {
    /// Listens at an address; port 0 lets the kernel choose.
    pub(crate) fn new(ctx: &Arc<CmContext>, at: SocketAddr) -> io::Result<Self> {
        let channel = EventChannel::new()?;
        let sink = Arc::<EventChannel<Incoming>>::clone(&channel);
        Ok(Self { listening: Listening::new(ctx, at, sink, MAX_BACKLOG)?, channel })
    }

    /// Returns the address at which it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listening.local_addr()
    }

    /// Returns the channel of incoming connections, in order of arrival.
    pub fn incoming(&self) -> &Arc<EventChannel<Incoming>> {
        &self.channel
    }
}

impl Listening {
    /// Listens at an address. Up to `backlog` connections wait in the sink for a decision, or fewer if the process may not have many
    /// descriptors; beyond that, the oldest of the peer with the most is rejected for each new one.
    pub(crate) fn new(
        ctx: &Arc<CmContext>,
        at: SocketAddr,
        sink: Arc<dyn EventSink<Incoming>>,
        backlog: usize,
    ) -> io::Result<Self> {
        let socket = Socket::new(at, &ctx.keepalive())?;
        let own = socket.local_addr().ok().map(|at| stream_port(at.port()));
        Self::start(ctx, socket, None, config(ctx, sink, own, backlog))
    }

    /// Listens at an address that was bound before.
    pub(crate) fn bound(
        ctx: &Arc<CmContext>,
        bound: Bound,
        sink: Arc<dyn EventSink<Incoming>>,
        backlog: usize,
    ) -> io::Result<Self> {
        let (socket, binding) = bound.listen_with_rdma_binding(&ctx.keepalive())?;
        let own = || socket.local_addr().ok().map(|at| stream_port(at.port()));
        let port = binding.as_ref().map(RdmaBinding::port).or_else(own);
        let config = config(ctx, sink, port, backlog);
        Self::start(ctx, socket, binding, config)
    }

    /// Listens for the manually connected queue pairs of a port.
    pub(super) fn reserved(
        ctx: &Arc<CmContext>,
        reservation: &Reservation,
        at: SocketAddr,
        sink: Arc<dyn EventSink<Incoming>>,
    ) -> io::Result<Self> {
        let socket = Socket::at_reserved_port(reservation, at, &ctx.keepalive())?;
        Self::start(ctx, socket, None, config(ctx, sink, None, MAX_BACKLOG))
    }

    fn start(
        ctx: &Arc<CmContext>,
        socket: Socket,
        binding: Option<RdmaBinding>,
        config: ListenerConfig,
    ) -> io::Result<Self> {
        let socket = Arc::new(ListenerSocket::new(socket, config));
        let handshakes = ctx.handshakes(ctx.steering().default_lane()?);
        handshakes.listen(&socket);
        Ok(Self { socket: Mutex::new(socket), handshakes, binding, ctx: Arc::downgrade(ctx) })
    }

    /// Returns the address of the socket. The port of an RDMA port may have another number.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        lock(&self.socket).local_addr()
    }

    /// Leaves the TCP port of an RDMA port's own number to others, if it listens there: from then on it listens at a candidate. When this
    /// returns, the address is free. Handshakes go on; connections that were not accepted yet are reset, and their peers search the
    /// candidates.
    ///
    /// Returns whether it had the port.
    pub fn move_aside(&self) -> io::Result<bool> {
        let mut socket = lock(&self.socket);
        let local = socket.local_addr()?;
        let Some(binding) = self.binding.as_ref().filter(|binding| binding.can_leave(local.port())) else {
            return Ok(false);
        };
        let Some(ctx) = self.ctx.upgrade() else { return Ok(false) };
        let aside = binding.listen_at_candidate(&ctx.keepalive())?;
        let moved = Arc::new(ListenerSocket::new(aside, socket.config.clone()));
        self.handshakes.listen(&moved);
        let before = std::mem::replace(&mut *socket, moved);
        before.leave()?;
        self.handshakes.unlisten(&before);
        Ok(true)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let socket = self.socket.get_mut().unwrap_or_else(PoisonError::into_inner);
        socket.stop();
        self.handshakes.unlisten(socket);
    }
}

/// Without private extensions, a listener has no RDMA port.
fn config(
    ctx: &CmContext,
    sink: Arc<dyn EventSink<Incoming>>,
    port: Option<RdmaPort>,
    backlog: usize,
) -> ListenerConfig {
    ListenerConfig {
        sink,
        port: port.filter(|_| ctx.config().private),
        backlog: backlog.clamp(1, MAX_BACKLOG),
        startup: ctx.config().startup,
        capture: ctx.capture().cloned(),
        adapter: ctx.alive(),
    }
}

/// A listener that is not for an RDMA port is for that of its TCP port.
fn stream_port(number: u16) -> RdmaPort {
    RdmaPort { space: PortSpace::Stream, number }
}
