//! Listeners: sockets at which peers connect, on a lane.

use super::context::{CmContext, keepalive};
use super::handshakes::Handshakes;
use super::incoming::Incoming;
use super::listener::{ListenerConfig, ListenerSocket};
use crate::config::Config;
use crate::notify::channel::{EventChannel, EventSink};
use crate::steering::Steering;
use crate::sys::reserve::Reservation;
use crate::sys::tcp::{Bound, Listener as Socket, RdmaBinding};
use crate::verbs::function::{Function, MovableListener, StopListening};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::event::AsyncEvent;
use ironwarp_rnic::sync::lock;
use ironwarp_wire::private::{PortSpace, RdmaPort};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
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
pub(super) struct Opened {
    /// The socket, which [`Listening::move_aside`] replaces.
    pub(super) socket: Mutex<Arc<ListenerSocket>>,
    pub(super) handshakes: Arc<Handshakes>,
    /// A number that no other listener has; `None` if the listener cannot move to another process.
    pub(super) number: Option<u32>,
}

impl StopListening for Opened {
    fn stop(&self) {
        let socket = lock(&self.socket);
        socket.stop();
        self.handshakes.remove_listener(&socket);
    }

    fn as_movable(self: Arc<Self>) -> Option<Arc<dyn MovableListener>> {
        self.number.is_some().then_some(self as _)
    }
}

impl Listener {
    /// Listens at an address; port 0 lets the kernel choose.
    pub(crate) fn new(ctx: &Arc<CmContext>, function: &Function, at: SocketAddr) -> io::Result<Self> {
        let channel = EventChannel::of_adapter(function.end())?;
        let sink = Arc::<EventChannel<Incoming>>::clone(&channel);
        let number = Some(next_number());
        Ok(Self { listening: Listening::at(ctx, function, at, sink, MAX_BACKLOG, number)?, channel })
    }

    /// Restores a listener from its socket, at which another process listens. It accepts nothing, and does not affect the
    /// socket, until it is [resumed](MovableListener::resume) (requirement X2).
    pub(crate) fn restore(ctx: &Arc<CmContext>, function: &Function, socket: OwnedFd) -> io::Result<Self> {
        let channel = EventChannel::of_adapter(function.end())?;
        let sink = Arc::<EventChannel<Incoming>>::clone(&channel);
        let socket = Socket::handed_over(socket)?;
        let port = Some(stream_port(socket.local_addr()?.port()));
        let config = listener_config(ctx, function.device(), sink, port, MAX_BACKLOG);
        let socket = ListenerSocket::not_owned(socket, ListenerConfig { for_all_devices: false, ..config });
        let listening = Listening::assemble(ctx, socket, None, Some(next_number()))?.of(function);
        Ok(Self { listening, channel })
    }

    /// Opens the socket of a listener that comes from another host (requirement X2), for [`Engine::load`]. This host may not
    /// have the address yet.
    ///
    /// [`Engine::load`]: crate::Engine::load
    pub fn socket_before_address(config: &Config, at: SocketAddr) -> io::Result<OwnedFd> {
        Socket::before_address(at, &keepalive(config))
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
        Self::at(ctx, function, at, sink, backlog, None)
    }

    /// Listens at an address. A listener with a `number` can move to another process.
    fn at(
        ctx: &Arc<CmContext>,
        function: &Function,
        at: SocketAddr,
        sink: Arc<dyn EventSink<Incoming>>,
        backlog: usize,
        number: Option<u32>,
    ) -> io::Result<Self> {
        let socket = Socket::new(ctx.logical().listen_address(at)?, &ctx.keepalive())?;
        let own = socket.local_addr().ok().map(|at| stream_port(at.port()));
        let config = listener_config(ctx, function.device(), sink, own, backlog);
        let config = ListenerConfig { for_all_devices: false, ..config };
        Ok(Self::start(ctx, socket, None, config, number)?.of(function))
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
        Ok(Self::start(ctx, socket, binding, config, None)?.of(function))
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
        Self::start(ctx, socket, None, listener_config(ctx, device, sink, None, MAX_BACKLOG), None)
    }

    /// Adds a socket that listens to the default lane.
    fn start(
        ctx: &Arc<CmContext>,
        socket: Socket,
        binding: Option<RdmaBinding>,
        config: ListenerConfig,
        number: Option<u32>,
    ) -> io::Result<Self> {
        let socket = ListenerSocket::new(socket, config);
        socket.apply_port_state();
        let this = Self::assemble(ctx, socket, binding, number)?;
        this.opened.handshakes.add_listener(&lock(&this.opened.socket));
        Ok(this)
    }

    /// Creates a listener that no lane serves yet.
    fn assemble(
        ctx: &Arc<CmContext>,
        socket: ListenerSocket,
        binding: Option<RdmaBinding>,
        number: Option<u32>,
    ) -> io::Result<Self> {
        let handshakes = ctx.handshakes(ctx.steering().default_lane()?);
        let opened = Arc::new(Opened { socket: Mutex::new(Arc::new(socket)), handshakes, number });
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

/// Returns a number that no other listener of this process has.
fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the RDMA port of a listener at a TCP port that the program named: the stream port of the same number.
fn stream_port(number: u16) -> RdmaPort {
    RdmaPort { space: PortSpace::Stream, number }
}
