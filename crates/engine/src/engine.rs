//! One per adapter: the device, its lanes, and what is connected.

use crate::byhand::{Key, cluster_key};
use crate::capture::Capture;
use crate::connection::Connection;
use crate::control::ControlQueue;
use crate::cq::CompletionQueue;
use crate::event::{ConnectError, Established, EventChannel, EventFdWake, Watcher};
use crate::event_queues::EventQueues;
use crate::gid::monitor::Monitor;
use crate::gid::{PortChange, PortWatcher};
use crate::handler::{AsyncEventQueue, CompletionHandler, LaneTimer};
use crate::lane::{Call, Due, Job, Lane};
use crate::pair::{QueuePair, QueuePairAttributes};
use crate::port::Port;
use crate::qpn::Numbers;
use crate::search::Search;
use crate::set::{Set, lock};
use crate::setup::{Desk, Dial, Incoming, ListenerCore, Setup};
use crate::steering::Steering;
use crate::sys::memory::ProgramMemory;
use crate::sys::random::random;
use crate::sys::reserve::{Kind, Reservation};
use crate::sys::setup::{Bound, Keepalive, Listener as ListeningSocket, Place};
use crate::sys::socket::TcpLink;
use ironwarp_rnic::config::{Config, PortPolicy};
use ironwarp_rnic::connect::{Setup as Way, Terms};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::Fault;
use ironwarp_rnic::event::{AsyncEvent, Routing};
use ironwarp_rnic::host::Host;
use ironwarp_rnic::memory::{Domain, TagCipher};
use ironwarp_rnic::queue::{Moderation, SharedReceiveQueue, XrcDomain};
use ironwarp_wire::private::PortSpace;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The kernel asks so often for a sign of life, and so long between, before it gives a peer up.
const PROBES: u32 = 6;
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// The number of the only port.
const PORT: u32 = 1;

/// Largest backlog of a listener, and that of one for which none is given: as the kernel's connection manager has it
/// (`net.rdma_ucm.max_backlog`).
pub const MAX_BACKLOG: usize = 1024;

/// An adapter at work.
#[derive(Debug)]
pub struct Engine {
    device: Arc<Device>,
    /// Its asynchronous events, once somebody asked for them.
    events: Mutex<Option<Arc<AsyncEventQueue>>>,
    steering: Arc<Steering>,
    event_queues: Arc<EventQueues>,
    numbers: Arc<Numbers>,
    cluster_key: Option<Key>,
    next_cq: AtomicU32,
    next_srq: AtomicU32,
    next_qp: AtomicU32,
    capture: Option<Arc<Capture>>,
}

/// What a connection is to be like.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// The address to connect from.
    pub from: Option<SocketAddr>,
    /// For the peer's program. siw and Chelsio's driver take up to 252 bytes, the RFC allows 508.
    pub private_data: Vec<u8>,
    /// How many of the peer's Reads to hold; the adapter's setting if not given.
    pub ird: Option<u16>,
    /// How many Reads to have outstanding; the adapter's setting if not given.
    pub ord: Option<u16>,
    /// The way to set it up.
    pub way: Way,
    /// The port is one of the connection manager's, in this space: its listener need not be at the TCP port of the same number.
    pub port_space: Option<PortSpace>,
}

/// What the lanes did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// How often a lane's thread woke.
    pub lane_wakes: u64,
    /// How many lanes there are.
    pub lanes: usize,
}

/// A port at which peers connect.
#[derive(Debug)]
pub struct Listener {
    listening: Listening,
    channel: Arc<EventChannel<Incoming>>,
}

/// A listening socket, until this is dropped.
#[derive(Debug)]
pub struct Listening {
    core: Mutex<Arc<ListenerCore>>,
    lane: Arc<Lane>,
    place: Option<Place>,
}

impl Engine {
    /// An adapter with these settings. Its lanes start when they are first needed.
    pub fn new(config: Config) -> io::Result<Arc<Self>> {
        let host: Arc<dyn Host> = Arc::new(ProgramMemory::new()?);
        let cluster_key = cluster_key(&config)?;
        let capture = Capture::of(&config, &host);
        let device = Device::new(config, host, TagCipher::new(random()?));
        let event_queues = Arc::<EventQueues>::default();
        let steering = Steering::new(&device, &event_queues)?;
        device.routing().set_map(Routing::new(steering.lanes()).map()); // of the lanes that there are
        Ok(Arc::new(Self {
            steering,
            device,
            event_queues,
            events: Mutex::default(),
            numbers: Numbers::new(),
            cluster_key,
            next_cq: AtomicU32::new(1),
            next_srq: AtomicU32::new(1),
            next_qp: AtomicU32::new(0),
            capture,
        }))
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Where its traffic is written, if somebody wants it.
    pub(crate) fn capture(&self) -> Option<&Arc<Capture>> {
        self.capture.as_ref()
    }

    /// What queue pairs connected by GID and number must prove to know.
    pub(crate) fn cluster_key(&self) -> Option<&Key> {
        self.cluster_key.as_ref()
    }

    /// Its settings.
    pub fn config(&self) -> &Config {
        self.device.config()
    }

    /// What the lanes did so far.
    pub fn statistics(&self) -> Statistics {
        let lanes = self.steering.running();
        Statistics { lane_wakes: lanes.iter().map(|lane| lane.wakes()).sum(), lanes: lanes.len() }
    }

    /// Its lanes, and which of them serves what.
    pub fn steering(&self) -> &Arc<Steering> {
        &self.steering
    }

    pub(crate) fn event_queues(&self) -> &EventQueues {
        &self.event_queues
    }

    // --- Notification ---

    /// A completion handler (*Set Completion Handler*, requirement N2).
    pub fn create_handler(&self) -> io::Result<Arc<CompletionHandler>> {
        let wake = EventFdWake::new()?;
        let handler = self.device.create_handler(Box::new(wake.clone())).map_err(io::Error::other)?;
        let handler = CompletionHandler::new(handler, wake);
        self.know_handler(&handler);
        Ok(handler)
    }

    /// A completion handler for one completion queue, which does not count among those that there can be.
    pub fn create_private_handler(&self) -> io::Result<Arc<CompletionHandler>> {
        let wake = EventFdWake::new()?;
        let handler = self.device.create_private_handler(Box::new(wake.clone()));
        Ok(CompletionHandler::new(handler, wake))
    }

    /// The consumer of a handler is woken at most once in each `interval`; zero: whenever there is an event (requirement I10).
    pub fn moderate(&self, handler: &CompletionHandler, interval: Duration) -> io::Result<()> {
        handler.moderate(interval, self.steering.default_lane()?);
        Ok(())
    }

    /// The event of a completion queue waits until `count` completions have come for it, or until `period` has passed since the first
    /// (requirement I10). A count of one or less: for nothing. A period of zero: as long as it takes.
    pub fn moderate_cq(&self, cq: &CompletionQueue, count: usize, period: Duration) -> io::Result<()> {
        let moderation = match count {
            0 | 1 => None,
            _ => Some(Moderation {
                count,
                period,
                timer: LaneTimer::new(self.steering.default_lane()?, cq.cq()),
            }),
        };
        cq.cq().moderate(moderation);
        Ok(())
    }

    /// What happens to objects of the adapter outside of any request.
    pub fn async_events(&self) -> io::Result<Arc<AsyncEventQueue>> {
        let mut events = lock(&self.events);
        if events.is_none() {
            *events = Some(AsyncEventQueue::open(self.device.events())?);
            // A sandbox may forbid to ask the kernel for its interfaces. All other events come.
            if let Err(error) = self.raise_port_events() {
                tracing::warn!(%error, "changes of the port will not be told");
            }
        }
        Ok(events.as_ref().map(Arc::clone).expect("it was just made"))
    }

    /// A completion queue for `capacity` completions, with no handler.
    pub fn create_cq(&self, capacity: usize) -> io::Result<Arc<CompletionQueue>> {
        self.new_cq(capacity, None)
    }

    /// The same, whose queue pairs are served by this lane and stay there (requirement N5).
    pub fn create_cq_on(&self, capacity: usize, lane: usize) -> io::Result<Arc<CompletionQueue>> {
        self.steering.name(lane).map_err(io::Error::other)?;
        self.new_cq(capacity, Some(lane))
    }

    /// The same, for an interface that has no way to name none: lane 0 is meant once another completion queue of the adapter has named a
    /// lane. A program that never does has its connections on all.
    pub fn create_cq_by_default(&self, capacity: usize) -> io::Result<Arc<CompletionQueue>> {
        self.new_cq(capacity, Some(0))
    }

    fn new_cq(&self, capacity: usize, vector: Option<usize>) -> io::Result<Arc<CompletionQueue>> {
        let number = self.next_cq.fetch_add(1, Ordering::Relaxed);
        CompletionQueue::new(number, capacity, self.device.events(), &self.steering, vector)
    }

    /// A control queue for `depth` operations, which complete on `cq` (requirement X6).
    pub fn create_control_queue(&self, depth: usize, cq: &Arc<CompletionQueue>) -> io::Result<ControlQueue> {
        ControlQueue::start(self.numbers.plain()?, depth, cq)
    }

    // --- Queue pairs ---

    /// A queue pair. If it is brought up by hand, or reachable, its number tells where it is: there is a port in it.
    pub fn create_qp(self: &Arc<Self>, attributes: QueuePairAttributes) -> io::Result<Arc<QueuePair>> {
        let number = match attributes.by_hand || attributes.reachable {
            true => self.numbers.with_port(|| {
                let reservation = Reservation::new(Kind::Stream, self.config().ports)?;
                Ok(Port::new(reservation, Arc::downgrade(self)))
            })?,
            false => self.numbers.plain()?,
        };
        let place = self.next_qp.fetch_add(1, Ordering::Relaxed);
        Ok(QueuePair::new(number, place, &self.device, attributes))
    }

    /// A shared receive queue for `depth` receives of up to `max_sges` buffers in `domain`.
    pub fn create_srq(&self, domain: Domain, (depth, max_sges): (usize, usize)) -> Arc<SharedReceiveQueue> {
        SharedReceiveQueue::new(self.next_srq(), &self.device, domain, (depth, max_sges), None)
    }

    /// A shared receive queue that senders name by its number (XRC), and whose receives complete on `cq`.
    pub fn create_xrc_srq(
        &self,
        domain: Domain,
        (depth, max_sges): (usize, usize),
        xrc: &XrcDomain,
        cq: &CompletionQueue,
    ) -> Arc<SharedReceiveQueue> {
        let cq = Some(Arc::clone(cq.cq()));
        let srq = SharedReceiveQueue::new(self.next_srq(), &self.device, domain, (depth, max_sges), cq);
        xrc.add(&srq);
        srq
    }

    fn next_srq(&self) -> u32 {
        self.next_srq.fetch_add(1, Ordering::Relaxed)
    }

    /// Begins to connect a queue pair; it tells when that is done.
    pub fn connect(
        self: &Arc<Self>,
        pair: &Arc<QueuePair>,
        to: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<(), ConnectError> {
        if let Some(space) = options.port_space
            && self.config().port_policy() != PortPolicy::Tcp
        {
            return Search::begin(self, pair, to, (space, options));
        }
        let terms = self.terms(options.ird, options.ord);
        let dial = Dial::new(self, pair, (to, options.from), (options.way, terms), &options.private_data)?;
        Ok(self.begin_setup(Box::new(Setup::Dial(dial)))?)
    }

    /// Listens at an address; port 0 lets the kernel choose.
    pub fn listen(self: &Arc<Self>, at: SocketAddr) -> io::Result<Listener> {
        let channel = EventChannel::new()?;
        let program = Arc::<EventChannel<Incoming>>::clone(&channel);
        let listening = self.listen_and_tell(at, program, MAX_BACKLOG)?;
        Ok(Listener { listening, channel })
    }

    /// Listens at an address, and tells `program` who wants to connect. As many as `backlog` may wait for its decision, or fewer if the
    /// process may not have many descriptors; then the oldest of the peer with the most is rejected for each that comes.
    pub fn listen_and_tell(
        self: &Arc<Self>,
        at: SocketAddr,
        program: Arc<dyn Watcher<Incoming>>,
        backlog: usize,
    ) -> io::Result<Listening> {
        let socket = ListeningSocket::new(at, &self.keepalive())?;
        self.attend((socket, None), Desk::Program(program), backlog)
    }

    /// Listens for the queue pairs of a port.
    pub(crate) fn listen_for(
        self: &Arc<Self>,
        (reservation, at): (&Reservation, SocketAddr),
        port: &Arc<Port>,
    ) -> io::Result<Listening> {
        let socket = ListeningSocket::reserved(reservation, at, &self.keepalive())?;
        self.attend((socket, None), Desk::Port(Arc::downgrade(port)), MAX_BACKLOG)
    }

    /// The same, at an address that was taken before.
    pub fn listen_at(
        self: &Arc<Self>,
        bound: Bound,
        program: Arc<dyn Watcher<Incoming>>,
        backlog: usize,
    ) -> io::Result<Listening> {
        self.attend(bound.listen_in_place(&self.keepalive())?, Desk::Program(program), backlog)
    }

    fn attend(
        self: &Arc<Self>,
        (socket, place): (ListeningSocket, Option<Place>),
        desk: Desk,
        backlog: usize,
    ) -> io::Result<Listening> {
        let port = place.as_ref().map(Place::port);
        let core = Arc::new(ListenerCore::new(self, (socket, port), desk, backlog.clamp(1, MAX_BACKLOG)));
        let lane = self.steering.default_lane()?;
        lane.submit(Job::Listen(Arc::clone(&core)));
        Ok(Listening { core: Mutex::new(core), lane, place })
    }

    /// Calls on a lane's thread at this time, or soon after. What is called must not block.
    pub fn call_at(&self, at: Instant, call: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.submit(Job::Remind(at, Due::Call(Call(Box::new(call)))))
    }

    /// Tells of changes to the port and its GIDs from now on, until the adapter is gone.
    pub fn watch_port(&self, watcher: Arc<dyn PortWatcher>) -> io::Result<()> {
        let monitor = Arc::new(Monitor::new(watcher)?);
        self.submit(Job::Attend(monitor))
    }

    /// The same, as asynchronous events.
    pub fn raise_port_events(&self) -> io::Result<()> {
        self.watch_port(Arc::new(PortEvents(Arc::clone(&self.device))))
    }

    /// What this adapter agrees to, with these depths or its own.
    pub fn terms(&self, ird: Option<u16>, ord: Option<u16>) -> Terms {
        let config = self.config();
        let ird = ird.unwrap_or(config.ird);
        let ord = ord.unwrap_or(config.ord);
        Terms { ird, max_ird: ird.max(config.ird), ord, crc: config.crc, markers: config.markers }
    }

    pub(crate) fn keepalive(&self) -> Keepalive {
        let idle = self.config().keepalive;
        Keepalive {
            idle,
            interval: PROBE_INTERVAL,
            probes: PROBES,
            unacknowledged: idle + PROBE_INTERVAL * PROBES,
        }
    }

    /// The startup is done: the stream begins.
    pub(crate) fn begin(
        &self,
        link: &Arc<TcpLink>,
        pair: &Arc<QueuePair>,
        established: Established,
        early: Vec<u8>,
    ) -> Result<(), ConnectError> {
        let connection = Connection::begin(self, link, pair, established, early)?;
        connection.drive();
        if self.device.events().is_stopped() {
            connection.cut(Fault::Stopped);
        }
        if pair.is_given_up() {
            connection.disconnect();
        }
        Ok(())
    }

    /// The set of sockets for a connection between these addresses, whose completions go to these queues: that of the queue for
    /// receives, on the lane that its class has, or that the program named for it, or that it is steered to. The other one looks at it, too.
    pub(crate) fn set_for(
        &self,
        (receive_cq, send_cq): (&CompletionQueue, &CompletionQueue),
        (peer, local): (SocketAddr, SocketAddr),
    ) -> io::Result<Arc<Set>> {
        let set = receive_cq.set_on(&self.steering.lane_for(receive_cq, peer, local)?)?;
        send_cq.add_set(&set);
        Ok(set)
    }

    /// Begins to make a connection, on the lane that it is steered to.
    pub(crate) fn begin_setup(&self, setup: Box<Setup>) -> io::Result<()> {
        let lane = match setup.addresses() {
            Some((peer, local)) => self.steering.lane_of(peer, local)?,
            None => self.steering.default_lane()?,
        };
        lane.submit(Job::Begin(setup));
        Ok(())
    }

    /// Gives the default lane something to do.
    pub(crate) fn submit(&self, job: Job) -> io::Result<()> {
        self.steering.default_lane()?.submit(job);
        Ok(())
    }
}

/// Changes of the port, as asynchronous events.
#[derive(Debug)]
struct PortEvents(Arc<Device>);

impl PortWatcher for PortEvents {
    fn port_changed(&self, change: PortChange) {
        self.0.raise(match change {
            PortChange::Active => AsyncEvent::PortActive(PORT),
            PortChange::Error => AsyncEvent::PortError(PORT),
            PortChange::Gids => AsyncEvent::GidChange(PORT),
        });
    }
}

impl Drop for Engine {
    /// Closing loses nothing: connections that are being closed have the time that the settings give them.
    fn drop(&mut self) {
        self.steering.stop(self.config().close);
        // What was accepted is complete or flushed.
        self.device.shut_down();
    }
}

impl Listener {
    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listening.local_addr()
    }

    /// Who wants to connect, in order of arrival.
    pub fn incoming(&self) -> &Arc<EventChannel<Incoming>> {
        &self.channel
    }
}

impl Listening {
    /// The socket's address. If it is for an RDMA port, that may have another number.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        lock(&self.core).local_addr()
    }

    /// Leaves the TCP port of an RDMA port's own number to others, if it listens there: from then on it listens at a candidate. When this
    /// returns, the address is free. Connections that the lane has accepted go on; others are reset, and look for the candidates.
    ///
    /// Returns whether it had the port.
    pub fn move_aside(&self) -> io::Result<bool> {
        let mut core = lock(&self.core);
        let local = core.local_addr()?;
        let Some(place) = self.place.as_ref().filter(|place| place.is_at(local.port())) else {
            return Ok(false);
        };
        let Some(engine) = core.engine.upgrade() else { return Ok(false) };
        let moved = Arc::new(core.moved_to(&engine, place.listen_aside(&engine.keepalive())?));
        self.lane.submit(Job::Listen(Arc::clone(&moved)));
        let before = std::mem::replace(&mut *core, moved);
        before.leave()?;
        self.lane.submit(Job::Unlisten(before));
        Ok(true)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let core = self.core.get_mut().unwrap_or_else(PoisonError::into_inner);
        core.stop();
        self.lane.submit(Job::Unlisten(Arc::clone(core)));
    }
}
