//! Listeners: sockets at which peers connect, on a lane.

use super::context::CmContext;
use super::handshakes::Handshakes;
use super::incoming::Incoming;
use super::listener::{ListenerConfig, ListenerSocket};
use crate::notify::channel::{EventChannel, EventSink};
use crate::steering::Steering;
use crate::sys::reserve::Reservation;
use crate::sys::tcp::{Bound, Listener as Socket, RdmaBinding};
use crate::verbs::function::{Function, StopListening};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::event::AsyncEvent;
use ironwarp_rnic::sync::lock;
use ironwarp_wire::private::{PortSpace, RdmaPort};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};

/// Maximum backlog of a listener, and its default: that of the kernel's connection manager
/// (`net.rdma_ucm.max_backlog`).
pub const MAX_BACKLOG: usize = 1024;

/// A listener with a channel of incoming connections.
#[derive(Debug)]
pub struct Listener {
    listening: Listening,
    channel: Arc<EventChannel<Incoming>>,
}

/// A listener that passes incoming connections to a sink. Dropping it stops listening.
#[derive(Debug)]
pub struct Listening {
    opened: Arc<Opened>,
    binding: Option<RdmaBinding>,
    ctx: Weak<CmContext>,
}

/// The part of a listener that its function can stop.
#[derive(Debug)]
struct Opened {
    /// The socket, which [`Listening::move_aside`] replaces.
    socket: Mutex<Arc<ListenerSocket>>,
    handshakes: Arc<Handshakes>,
}

impl StopListening for Opened {
    fn stop(&self) {
        let socket = lock(&self.socket);
        socket.stop();
        self.handshakes.remove_listener(&socket);
    }
}

impl Listener {
    /// Listens at an address; port 0 lets the kernel choose.
    pub(crate) fn new(ctx: &Arc<CmContext>, function: &Function, at: SocketAddr) -> io::Result<Self> {
        let channel = EventChannel::of_adapter(function.end())?;
        let sink = Arc::<EventChannel<Incoming>>::clone(&channel);
        Ok(Self { listening: Listening::new(ctx, function, at, sink, MAX_BACKLOG)?, channel })
    }

    /// Returns the address of the socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listening.local_addr()
    }

    /// Returns the channel of incoming connections, in order of arrival.
    pub fn incoming(&self) -> &Arc<EventChannel<Incoming>> {
        &self.channel
    }
}

impl Listening {
    /// Listens at an address. Up to `backlog` connections wait in the sink for a decision, or fewer if the process may
    /// have few descriptors. For each further one, the oldest connection of the peer with the most connections is
    /// rejected.
    pub(crate) fn new(
        ctx: &Arc<CmContext>,
        function: &Function,
        at: SocketAddr,
        sink: Arc<dyn EventSink<Incoming>>,
        backlog: usize,
    ) -> io::Result<Self> {
        let socket = Socket::new(ctx.logical().listen_address(at)?, &ctx.keepalive())?;
        let own = socket.local_addr().ok().map(|at| stream_port(at.port()));
        let config = listener_config(ctx, function.device(), sink, own, backlog);
        let this = Self::start(ctx, socket, None, ListenerConfig { for_all_devices: false, ..config })?;
        Ok(this.of(function))
    }

    /// Listens at an address that was bound before, for all logical devices.
    pub(crate) fn at_bound(
        ctx: &Arc<CmContext>,
        function: &Function,
        bound: Bound,
        sink: Arc<dyn EventSink<Incoming>>,
        backlog: usize,
    ) -> io::Result<Self> {
        let (socket, binding) = bound.listen_with_rdma_binding(&ctx.keepalive())?;
        let own = || socket.local_addr().ok().map(|at| stream_port(at.port()));
        let port = binding.as_ref().map(RdmaBinding::port).or_else(own);
        let config = listener_config(ctx, function.device(), sink, port, backlog);
        Ok(Self::start(ctx, socket, binding, config)?.of(function))
    }

    /// Has the listener end with its function.
    fn of(self, function: &Function) -> Self {
        let opened: Weak<dyn StopListening> = Arc::<Opened>::downgrade(&self.opened);
        function.add_listener(opened);
        self
    }

    /// Listens at a reserved port, for the manually connected queue pairs whose numbers contain it.
    pub(super) fn at_reserved_port(
        ctx: &Arc<CmContext>,
        reservation: &Reservation,
        at: SocketAddr,
        sink: Arc<dyn EventSink<Incoming>>,
    ) -> io::Result<Self> {
        let socket = Socket::at_reserved_port(reservation, at, &ctx.keepalive())?;
        let device = ctx.steering().device();
        Self::start(ctx, socket, None, listener_config(ctx, device, sink, None, MAX_BACKLOG))
    }

    /// Adds a socket that listens to the default lane.
    fn start(
        ctx: &Arc<CmContext>,
        socket: Socket,
        binding: Option<RdmaBinding>,
        config: ListenerConfig,
    ) -> io::Result<Self> {
        let socket = Arc::new(ListenerSocket::new(socket, config));
        socket.apply_port_state();
        let handshakes = ctx.handshakes(ctx.steering().default_lane()?);
        handshakes.add_listener(&socket);
        let opened = Arc::new(Opened { socket: Mutex::new(socket), handshakes });
        Ok(Self { opened, binding, ctx: Arc::downgrade(ctx) })
    }

    /// Returns the address of the socket. Its TCP port may differ from the RDMA port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        lock(&self.opened.socket).local_addr()
    }

    /// Moves the listener of an RDMA port from the TCP port of the same number to a candidate, so that others can use
    /// that TCP port as soon as this returns. Handshakes continue. Connections that were not accepted yet are reset,
    /// and their peers search the candidates.
    ///
    /// Returns false if the listener was not at that TCP port.
    pub fn move_aside(&self) -> io::Result<bool> {
        let mut socket = lock(&self.opened.socket);
        let local = socket.local_addr()?;
        let Some(binding) = self.binding.as_ref().filter(|binding| binding.can_leave(local.port())) else {
            return Ok(false);
        };
        let Some(ctx) = self.ctx.upgrade() else { return Ok(false) };
        let aside = binding.listen_at_candidate(&ctx.keepalive())?;
        let moved = Arc::new(ListenerSocket::new(aside, socket.config.clone()));
        self.opened.handshakes.add_listener(&moved);
        let before = std::mem::replace(&mut *socket, moved);
        before.close_now()?;
        self.opened.handshakes.remove_listener(&before);
        Ok(true)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.opened.stop();
    }
}

/// Passes incoming connections to the sink of a listener, and raises a channel event for each (requirement I6). The event
/// belongs to the lane that the addresses select, although another one may have the handshake.
#[derive(Debug)]
struct ReportedSink {
    sink: Arc<dyn EventSink<Incoming>>,
    /// Weak, because lanes hold the listener.
    steering: Weak<Steering>,
    /// The device of the function that the listener belongs to.
    device: Weak<Device>,
}

impl EventSink<Incoming> for ReportedSink {
    fn send(&self, incoming: Incoming) {
        let (peer, local, port) = (incoming.peer, incoming.local, incoming.local().port());
        self.sink.send(incoming); // first: a program that takes the event finds the connection
        if let Some(steering) = self.steering.upgrade()
            && let Some(device) = self.device.upgrade()
            && let Ok(lane) = steering.lane_by_addresses(peer, local)
        {
            let event = AsyncEvent::ConnectionRequest(port.into());
            device.raise_from(lane.handle().event_lane(), event);
        }
    }

    fn revoke(&self, is_gone: &dyn Fn(&Incoming) -> bool) {
        self.sink.revoke(is_gone);
    }

    fn on_closed(&self) {
        self.sink.on_closed();
    }
}

/// Returns the settings of a listener. Without the private extensions it has no RDMA port.
fn listener_config(
    ctx: &CmContext,
    device: &Arc<Device>,
    sink: Arc<dyn EventSink<Incoming>>,
    port: Option<RdmaPort>,
    backlog: usize,
) -> ListenerConfig {
    let steering = Arc::downgrade(ctx.steering());
    ListenerConfig {
        sink: Arc::new(ReportedSink { sink, steering, device: Arc::downgrade(device) }),
        port: port.filter(|_| ctx.config().private),
        device: Arc::clone(ctx.logical()),
        for_all_devices: true,
        backlog: backlog.clamp(1, MAX_BACKLOG),
        startup: ctx.config().startup,
        capture: ctx.capture().cloned(),
        adapter: ctx.open_marker(),
    }
}

/// Returns the RDMA port of a listener at a TCP port that the program named: the stream port of the same number.
fn stream_port(number: u16) -> RdmaPort {
    RdmaPort { space: PortSpace::Stream, number }
}
