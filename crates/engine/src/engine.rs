//! An adapter: the device, its lanes and its connection management. The facade over all other modules.

use crate::capture::Capture;
use crate::cm::context::CmContext;
use crate::cm::dial::{ConnectOptions, Dial, DialRequest};
use crate::cm::incoming::Incoming;
use crate::cm::listen::{Listener, Listening};
use crate::cm::manual::port::ManualPorts;
use crate::cm::manual::{BringUpError, bring_up};
use crate::cm::proof::cluster_key;
use crate::cm::search::Search;
use crate::config::{Config, PortPolicy};
use crate::gid::monitor::Monitor;
use crate::gid::{PortChange, PortWatcher};
use crate::notify::channel::{EventFdWake, EventSink};
use crate::notify::handler::{AsyncEventQueue, CompletionHandler, LaneTimer};
use crate::reactor::command::Command;
use crate::status::StatusServer;
use crate::steering::Steering;
use crate::sys::memory::ProgramMemory;
use crate::sys::random::random;
use crate::sys::tcp::Bound;
use crate::sys::udp::UdpPort;
use crate::verbs::control::ControlQueue;
use crate::verbs::cq::CompletionQueue;
use crate::verbs::datagram::{self, DatagramQueuePair, DatagramQueuePairAttributes};
use crate::verbs::error::ConnectError;
use crate::verbs::event_queues::EventQueues;
use crate::verbs::manual::{BringUpOptions, Remote};
use crate::verbs::qpn::{Numbers, QpPort};
use crate::verbs::queue_pair::{QueuePair, QueuePairAttributes, QueuePairOptions};
use ironwarp_rnic::connect::Terms;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::event::{AsyncEvent, Routing};
use ironwarp_rnic::host::Host;
use ironwarp_rnic::memory::{Domain, TagCipher};
use ironwarp_rnic::queue::{Moderation, SharedReceiveQueue, SrqSize, XrcDomain};
use ironwarp_rnic::sync::lock;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The number of the only port.
const PORT: u32 = 1;

/// An adapter.
///
/// The order of the fields matters: connection management goes first, so that no connection is made while the lanes stop.
#[derive(Debug)]
pub struct Engine {
    cm: Arc<CmContext>,
    /// The ports of manually connected queue pairs.
    ports: ManualPorts,
    /// Its asynchronous events, once the program asked for them.
    events: Mutex<Option<Arc<AsyncEventQueue>>>,
    event_queues: Arc<EventQueues>,
    numbers: Arc<Numbers>,
    next_cq: AtomicU32,
    next_srq: AtomicU32,
    next_qp: AtomicU32,
    core: Core,
}

/// What ends when the adapter is closed. Closing loses nothing: connections that are being closed have the time in the settings.
#[derive(Debug)]
struct Core {
    config: Arc<Config>,
    device: Arc<Device>,
    steering: Arc<Steering>,
}

impl Drop for Core {
    fn drop(&mut self) {
        self.steering.stop(self.config.close);
        self.device.shut_down(); // everything that was posted is complete or flushed
    }
}

/// Counters of the lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Number of times that lanes' threads woke.
    pub lane_wakes: u64,
    /// Number of running lanes.
    pub lanes: usize,
}

impl Engine {
    /// Opens an adapter with these settings. Its lanes start when they are first needed.
    pub fn new(config: Config) -> io::Result<Arc<Self>> {
        let host: Arc<dyn Host> = Arc::new(ProgramMemory::new()?);
        let cluster_key = cluster_key(&config)?;
        let capture = Capture::open(&config, &host);
        let device = Device::new(config.device(), host, TagCipher::new(random()?));
        let config = Arc::new(config);
        let event_queues = Arc::new(EventQueues::new(&device));
        let shown = Arc::clone(&event_queues);
        let steering =
            Arc::new(Steering::new(&config, &device, move |steering, lane| {
                match StatusServer::new(steering, &shown) {
                    Ok(server) => lane.handle().submit(Command::AddSource(Arc::new(server))),
                    Err(error) => tracing::info!(%error, "`ironwarp show` will not find this adapter"),
                }
            })?);
        device.routing().set_map(Routing::new(steering.lanes()).map()); // of the lanes that there are
        Ok(Arc::new(Self {
            cm: CmContext::new(&config, &steering, capture, cluster_key),
            ports: ManualPorts::default(),
            events: Mutex::default(),
            event_queues,
            numbers: Numbers::new(),
            next_cq: AtomicU32::new(1),
            next_srq: AtomicU32::new(1),
            next_qp: AtomicU32::new(0),
            core: Core { config, device, steering },
        }))
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<Device> {
        &self.core.device
    }

    /// Returns the settings.
    pub fn config(&self) -> &Config {
        &self.core.config
    }

    /// Returns counters of the lanes.
    pub fn statistics(&self) -> Statistics {
        let lanes = self.steering().running_lanes();
        Statistics { lane_wakes: lanes.iter().map(|lane| lane.handle().wakes()).sum(), lanes: lanes.len() }
    }

    /// Returns the lanes, and which of them serves what.
    pub fn steering(&self) -> &Arc<Steering> {
        &self.core.steering
    }

    /// Returns the event queues, and the map from events to them.
    pub fn event_queues(&self) -> &Arc<EventQueues> {
        &self.event_queues
    }

    // --- Notification ---

    /// Creates a completion handler (*Set Completion Handler*, requirement N2).
    pub fn create_handler(&self) -> io::Result<Arc<CompletionHandler>> {
        let wake = EventFdWake::new()?;
        let handler = self.device().create_handler(Box::new(wake.clone())).map_err(io::Error::other)?;
        let handler = CompletionHandler::new(handler, wake);
        self.event_queues.add_handler(&handler);
        Ok(handler)
    }

    /// Creates a completion handler for one completion queue. It does not count towards the maximum number of handlers.
    pub fn create_private_handler(&self) -> io::Result<Arc<CompletionHandler>> {
        let wake = EventFdWake::new()?;
        let handler = self.device().create_private_handler(Box::new(wake.clone()));
        Ok(CompletionHandler::new(handler, wake))
    }

    /// Wakes the consumer of a handler at most once in each `interval`; with zero, for every event (requirement I10).
    pub fn moderate(&self, handler: &CompletionHandler, interval: Duration) -> io::Result<()> {
        handler.moderate(interval, self.steering().default_lane()?.handle());
        Ok(())
    }

    /// Delays the event of a completion queue until it has `count` completions, or `period` has passed since the first (requirement I10).
    /// A count of one or less turns moderation off; a period of zero waits for the count as long as it takes.
    pub fn moderate_cq(&self, cq: &CompletionQueue, count: usize, period: Duration) -> io::Result<()> {
        let moderation = match count {
            0 | 1 => None,
            _ => {
                let timer = LaneTimer::new(self.steering().default_lane()?.handle(), cq.cq());
                Some(Moderation { count, period, timer })
            }
        };
        cq.cq().moderate(moderation);
        Ok(())
    }

    /// Returns the queue of asynchronous events: what happens to objects of the adapter outside of any work request.
    pub fn async_events(&self) -> io::Result<Arc<AsyncEventQueue>> {
        let mut events = lock(&self.events);
        if let Some(events) = &*events {
            return Ok(Arc::clone(events));
        }
        let queue = AsyncEventQueue::open(self.device().events())?;
        *events = Some(Arc::clone(&queue));
        // A sandbox may deny access to the kernel's interfaces. All other events come.
        if let Err(error) = self.raise_port_events() {
            tracing::warn!(%error, "changes of the port will not be reported");
        }
        Ok(queue)
    }

    /// Reports changes to the port and its GIDs from now on, until the adapter is closed.
    pub fn watch_port(&self, watcher: Arc<dyn PortWatcher>) -> io::Result<()> {
        let monitor = Arc::new(Monitor::new(watcher)?);
        self.steering().default_lane()?.handle().submit(Command::AddSource(monitor));
        Ok(())
    }

    /// Raises asynchronous events for changes to the port and its GIDs from now on.
    pub fn raise_port_events(&self) -> io::Result<()> {
        self.watch_port(Arc::new(PortEvents(Arc::clone(self.device()))))
    }

    /// Calls a function on a lane's thread at this time, or soon after. It must not block.
    pub fn call_at(&self, at: Instant, call: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.cm.call_at(at, call)
    }

    // --- Queues ---

    /// Creates a completion queue for `capacity` completions, without a handler.
    pub fn create_cq(&self, capacity: usize) -> io::Result<Arc<CompletionQueue>> {
        self.new_cq(capacity, None)
    }

    /// Creates a completion queue whose queue pairs are served by this lane and stay there (requirement N5).
    pub fn create_cq_on(&self, capacity: usize, lane: usize) -> io::Result<Arc<CompletionQueue>> {
        self.steering().use_vector(lane).map_err(io::Error::other)?;
        self.new_cq(capacity, Some(lane))
    }

    /// Creates a completion queue for an interface that always has a completion vector. Vector 0 means lane 0 once another completion queue
    /// of the adapter has named a lane. A program that never does has its connections on all lanes.
    pub fn create_cq_with_default_vector(&self, capacity: usize) -> io::Result<Arc<CompletionQueue>> {
        self.new_cq(capacity, Some(0))
    }

    fn new_cq(&self, capacity: usize, vector: Option<usize>) -> io::Result<Arc<CompletionQueue>> {
        let number = self.next_cq.fetch_add(1, Ordering::Relaxed);
        CompletionQueue::new(number, capacity, self.steering(), vector)
    }

    /// Creates a control queue for `depth` operations, which complete on `cq` (requirement X6).
    pub fn create_control_queue(&self, depth: usize, cq: &Arc<CompletionQueue>) -> io::Result<ControlQueue> {
        ControlQueue::start(self.numbers.assign_plain()?, depth, cq)
    }

    /// Creates a shared receive queue for receives into memory of `domain`.
    pub fn create_srq(&self, domain: Domain, size: SrqSize) -> Arc<SharedReceiveQueue> {
        SharedReceiveQueue::new(self.next_srq(), self.device().events(), domain, size, None)
    }

    /// Creates a shared receive queue that senders name by its number (XRC), and whose receives complete on `cq`.
    pub fn create_xrc_srq(
        &self,
        domain: Domain,
        size: SrqSize,
        xrc: &XrcDomain,
        cq: &CompletionQueue,
    ) -> Arc<SharedReceiveQueue> {
        let cq = Some(Arc::clone(cq.cq()));
        let srq = SharedReceiveQueue::new(self.next_srq(), self.device().events(), domain, size, cq);
        xrc.add(&srq);
        srq
    }

    fn next_srq(&self) -> u32 {
        self.next_srq.fetch_add(1, Ordering::Relaxed)
    }

    // --- Queue pairs ---

    /// Creates a queue pair.
    pub fn create_qp(&self, attributes: QueuePairAttributes) -> io::Result<Arc<QueuePair>> {
        self.create_qp_with(attributes, QueuePairOptions::default())
    }

    /// Creates a queue pair with options. If it is connected manually, or reachable, its number includes a port.
    pub fn create_qp_with(
        &self,
        attributes: QueuePairAttributes,
        options: QueuePairOptions,
    ) -> io::Result<Arc<QueuePair>> {
        let number = match attributes.manual || options.reachable {
            true => self.numbers.assign_with_port(|| {
                let port: Arc<dyn QpPort> = self.ports.open(&self.cm)?;
                Ok(port)
            })?,
            false => self.numbers.assign_plain()?,
        };
        let place = self.next_qp.fetch_add(1, Ordering::Relaxed);
        Ok(QueuePair::new(number, place, self.device(), attributes, options.events))
    }

    /// Binds sockets for a connectionless queue pair at these addresses of the host, or at every GID that it has now if none are given.
    /// The setting `ports` limits the port.
    pub fn bind_datagram_port(&self, addresses: Option<&[IpAddr]>) -> io::Result<UdpPort> {
        datagram::bind(addresses, self.config().ports)
    }

    /// Creates a connectionless queue pair at these sockets. Its number contains their port.
    pub fn create_datagram_qp(
        &self,
        attributes: &DatagramQueuePairAttributes,
        udp: UdpPort,
    ) -> io::Result<Arc<DatagramQueuePair>> {
        DatagramQueuePair::new(self.device(), self.cm.capture().cloned(), attributes, udp)
    }

    // --- Connections ---

    /// Returns the terms for this adapter's connections, with these depths or its own.
    pub fn terms(&self, ird: Option<u16>, ord: Option<u16>) -> Terms {
        self.cm.terms(ird, ord)
    }

    /// Begins to connect a queue pair. An event of the queue pair reports the result.
    pub fn connect(
        &self,
        pair: &Arc<QueuePair>,
        to: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<(), ConnectError> {
        if let Some(space) = options.port_space
            && self.config().port_policy() != PortPolicy::Tcp
        {
            return Search::begin(&self.cm, pair, to, space, options);
        }
        let request = DialRequest {
            to,
            from: options.from,
            mode: options.mode,
            terms: self.terms(options.ird, options.ord),
            private_data: options.private_data.as_slice().into(),
        };
        let dial = Dial::new(&self.cm, Arc::<QueuePair>::clone(pair), request)?;
        Ok(self.cm.begin(dial)?)
    }

    /// Moves an initialised queue pair to [`State::ReadyToReceive`](ironwarp_rnic::qp::State::ReadyToReceive), and begins to connect it to
    /// one that is told the same about this one. An event of the queue pair reports the result; it may be ready to send before. Its
    /// retries determine how long requests then wait for the peer, and how the peer is answered if receives are not posted.
    pub fn bring_up(
        &self,
        pair: &Arc<QueuePair>,
        remote: Remote,
        options: &BringUpOptions,
    ) -> Result<(), BringUpError> {
        let port = pair.number().port().and_then(|port| self.ports.find(port.number()));
        bring_up(&self.cm, pair, &port.ok_or(BringUpError::NoPort)?, remote, options)
    }

    /// Listens at an address; port 0 lets the kernel choose.
    pub fn listen(&self, at: SocketAddr) -> io::Result<Listener> {
        Listener::new(&self.cm, at)
    }

    /// Listens at an address, and sends incoming connections to `sink`. Up to `backlog` of them wait for a decision, or fewer if the process
    /// may not have many descriptors; beyond that, the oldest of the peer with the most is rejected for each new one.
    pub fn listen_with(
        &self,
        at: SocketAddr,
        sink: Arc<dyn EventSink<Incoming>>,
        backlog: usize,
    ) -> io::Result<Listening> {
        Listening::new(&self.cm, at, sink, backlog)
    }

    /// Listens at an address that was bound before, and sends incoming connections to `sink`, as [`listen_with`](Self::listen_with).
    pub fn listen_bound(
        &self,
        bound: Bound,
        sink: Arc<dyn EventSink<Incoming>>,
        backlog: usize,
    ) -> io::Result<Listening> {
        Listening::bound(&self.cm, bound, sink, backlog)
    }
}

/// Raises asynchronous events for changes of the port.
#[derive(Debug)]
struct PortEvents(Arc<Device>);

impl PortWatcher for PortEvents {
    fn on_port_change(&self, change: PortChange) {
        self.0.raise(match change {
            PortChange::Active => AsyncEvent::PortActive(PORT),
            PortChange::Error => AsyncEvent::PortError(PORT),
            PortChange::Gids => AsyncEvent::GidChange(PORT),
        });
    }
}
