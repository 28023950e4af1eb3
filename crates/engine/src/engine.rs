//! [`Engine`], an open adapter or a function of it: the facade over the device, the lanes and connection management, which
//! other crates use.

use crate::capture::Capture;
use crate::cm::context::CmContext;
use crate::cm::dial::{ConnectOptions, Dial, DialRequest};
use crate::cm::incoming::Incoming;
use crate::cm::listen::{Listener, Listening};
use crate::cm::manual::{BringUpError, bring_up};
use crate::cm::proof::Key;
use crate::cm::search::Search;
use crate::config::{Config, PortPolicy};
use crate::gid::GidTable;
use crate::logical::admin::PortObserver;
use crate::logical::monitor::Monitor;
use crate::logical::{self, LogicalDevice, PortChange, PortWatcher};
use crate::notify::channel::{EventFdWake, EventSink};
use crate::notify::handler::{AsyncEventQueue, CompletionHandler, LaneTimer};
use crate::reactor::class::Processors;
use crate::reactor::command::Command;
use crate::status::StatusServer;
use crate::steering::Steering;
use crate::sys::memory::ProgramMemory;
use crate::sys::random::random;
use crate::sys::tcp::{Bound, adopt, with_port};
use crate::sys::udp::UdpPort;
use crate::verbs::control::ControlQueue;
use crate::verbs::cq::CompletionQueue;
use crate::verbs::datagram::{self, DatagramQueuePair, DatagramQueuePairAttributes};
use crate::verbs::error::ConnectError;
use crate::verbs::event_queues::EventQueues;
use crate::verbs::function::{Function, Functions};
use crate::verbs::iscsi::{IscsiQueuePair, IscsiQueuePairAttributes};
use crate::verbs::manual::{BringUpOptions, Remote};
use crate::verbs::qpn::QpPort;
use crate::verbs::queue_pair::{QueuePair, QueuePairAttributes, QueuePairOptions};
use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::connect::Terms;
use ironwarp_rnic::device::{Device, HANDLERS, TooManyHandlers};
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::event::{AsyncEvent, Wake};
use ironwarp_rnic::host::Host;
use ironwarp_rnic::memory::{Domain, TagCipher};
use ironwarp_rnic::queue::{Cq, Moderation, SharedReceiveQueue, SrqSize, XrcDomain};
use ironwarp_rnic::quota::{QuotaExceeded, Resource};
use ironwarp_rnic::sync::lock;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

mod adapter;
mod create;
mod leaving;
pub(crate) mod listening;
pub(crate) mod moving;
pub(crate) mod shutdown;
pub(crate) mod take_in;

use adapter::{Lanes, Shared};

/// An open adapter, or a function of it (requirement X1). Dropping the last of them closes the adapter.
///
/// The order of the fields matters, because they are dropped in this order: the lanes stop before notification ends.
#[derive(Debug)]
pub struct Engine {
    /// What it shares with the other functions of the adapter.
    shared: Arc<Shared>,
    /// The queue of asynchronous events; `None` until [`async_events`](Self::async_events) is called.
    events: Mutex<Option<Arc<AsyncEventQueue>>>,
    /// The queue of channel events; dangling if the program does not read it.
    channel_events: Mutex<Weak<AsyncEventQueue>>,
    /// What it owns.
    function: Arc<Function>,
}

/// Counters of the lanes, without the low-latency lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Number of times that the threads of the lanes woke.
    pub lane_wakes: u64,
    /// Number of running lanes.
    pub lanes: usize,
}

impl Engine {
    /// Opens the first logical device of these settings. Its lanes start when they are first needed.
    pub fn new(config: Config) -> io::Result<Arc<Self>> {
        let devices = logical::devices(&config)?;
        Self::open(config, &devices[0])
    }

    /// Opens a logical device of these settings (requirement X3).
    pub fn open(config: Config, logical: &Arc<LogicalDevice>) -> io::Result<Arc<Self>> {
        Self::open_with(config, logical, |config, host| {
            Ok(Device::new(config, host, TagCipher::new(random()?)))
        })
    }

    /// Opens a logical device, with the device that `create` returns.
    fn open_with(
        mut config: Config,
        logical: &Arc<LogicalDevice>,
        create: impl FnOnce(DeviceConfig, Arc<dyn Host>) -> io::Result<Arc<Device>>,
    ) -> io::Result<Arc<Self>> {
        logical::check_plan(&config)?;
        let logical = &logical.in_this_process(&config)?;
        config.faults = logical.faults(&config);
        // The adversary delays what arrives in FPDUs. In shared memory it would have to follow switches of the stream.
        config.shm &= config.adversary.0.is_none();
        let host: Arc<dyn Host> = Arc::new(ProgramMemory::new()?);
        let cluster_key = config.cluster_key()?.map(Key::Cluster);
        if config.recorder
            && let Err(error) = ironwarp_recorder::start()
        {
            tracing::debug!(%error, "no events are recorded");
        }
        let capture = Capture::open(&config, &host);
        let device = create(config.device_config(), host)?;
        let config = Arc::new(config);
        let function = Function::new(device);
        let functions = Arc::<Functions>::default();
        functions.add(&function);
        let status_functions = Arc::clone(&functions);
        let steering =
            Arc::new(Steering::new(&config, logical, function.device(), move |steering, lane| {
                GidTable::read_notifications_on(lane.handle());
                match StatusServer::new(steering, &status_functions) {
                    Ok(server) => lane.handle().submit(Command::AddSource(Arc::new(server))),
                    Err(error) => tracing::info!(%error, "`ironwarp show` will not find this adapter"),
                }
            })?);
        function.set_lanes(steering.lanes());
        let cm = CmContext::new(&config, &steering, capture, cluster_key);
        let engine = Self::with_function(Shared::new(cm, functions, Lanes { config, steering }), function);
        for at in logical.begin_plan(&engine.config().port_plan) {
            let logical = Arc::clone(logical);
            engine.call_at(at, move || logical.follow_plan())?;
        }
        Ok(Arc::new(engine))
    }

    fn with_function(shared: Arc<Shared>, function: Arc<Function>) -> Self {
        Self { shared, events: Mutex::default(), channel_events: Mutex::default(), function }
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<Device> {
        self.function.device()
    }

    /// Returns the logical device that this is an open of.
    pub fn logical(&self) -> &Arc<LogicalDevice> {
        self.shared.cm.logical()
    }

    /// Returns the settings.
    pub fn config(&self) -> &Config {
        &self.shared.lanes.config
    }

    /// Returns counters of the lanes.
    pub fn statistics(&self) -> Statistics {
        let lanes = self.steering().running_lanes();
        Statistics { lane_wakes: lanes.iter().map(|lane| lane.handle().wakes()).sum(), lanes: lanes.len() }
    }

    /// Returns the steering, which has the lanes and decides which of them serves what.
    pub fn steering(&self) -> &Arc<Steering> {
        &self.shared.lanes.steering
    }

    /// Returns the event queues, and the map that assigns events to them.
    pub fn event_queues(&self) -> &EventQueues {
        self.function.event_queues()
    }

    // --- Notification ---

    /// Creates one completion handler, like [`create_handlers`](Self::create_handlers).
    pub fn create_handler(&self) -> io::Result<Arc<CompletionHandler>> {
        self.create_handlers(1).map(|mut handlers| handlers.swap_remove(0))
    }

    /// Creates `count` completion handlers, each of which wakes its consumer through an eventfd: all of them or none (*Set
    /// Completion Handler*, requirement N2). [`event_queues`](Self::event_queues) lists each until it is dropped. Returns
    /// [`QuotaExceeded`](io::ErrorKind::QuotaExceeded) if there would be too many.
    pub fn create_handlers(&self, count: usize) -> io::Result<Vec<Arc<CompletionHandler>>> {
        self.check_running()?;
        let too_many = |too_many: TooManyHandlers| io::Error::new(io::ErrorKind::QuotaExceeded, too_many);
        if count > HANDLERS {
            return Err(too_many(TooManyHandlers)); // before any descriptor is opened
        }
        let account = self.device().account();
        let places: Result<Vec<_>, _> =
            (0..count).map(|_| account.take(Resource::CompletionHandlers)).collect();
        let places = places?;
        let wakes = (0..count).map(|_| EventFdWake::new()).collect::<io::Result<Vec<_>>>()?;
        let boxed = wakes.iter().map(|wake| -> Box<dyn Wake> { Box::new(wake.clone()) });
        let inner = self.device().create_handlers(boxed).map_err(too_many)?;
        let handlers: Vec<_> = inner
            .into_iter()
            .zip(wakes)
            .zip(places)
            .map(|((inner, wake), place)| {
                CompletionHandler::new(inner, wake, self.function.end(), Some(place))
            })
            .collect();
        handlers.iter().for_each(|handler| self.event_queues().add_handler(handler));
        Ok(handlers)
    }

    /// Creates a private handler, with which each completion queue of the native API begins. It does not count towards the
    /// maximum number of handlers. Its event queue has no number, so the map of event queues cannot route events to it.
    pub fn create_private_handler(&self) -> io::Result<Arc<CompletionHandler>> {
        self.check_running()?;
        let wake = EventFdWake::new()?;
        let inner = self.device().create_private_handler(Box::new(wake.clone()));
        Ok(CompletionHandler::new(inner, wake, self.function.end(), None))
    }

    /// Wakes the consumer of a handler at most once in each `interval`; with zero, for every event (requirement I10).
    pub fn moderate(&self, handler: &CompletionHandler, interval: Duration) -> io::Result<()> {
        handler.moderate(interval, self.steering().default_lane()?.handle());
        Ok(())
    }

    /// Restricts a handler to these processors; with none, removes the restriction (requirement N5). The queue pairs whose
    /// receives complete on its completion queues are served by lanes that run there. Fails if no lane can.
    pub fn set_handler_processors(
        &self,
        handler: &CompletionHandler,
        processors: &[usize],
    ) -> io::Result<()> {
        let processors = Processors::new(processors);
        self.steering().check_processors(handler.class(), &processors)?;
        handler.set_processors(processors)
    }

    /// Delays the event of a completion queue until it has `count` completions, or `period` has passed since the first
    /// (requirement I10). A count of one or less turns moderation off; a period of zero waits for the count as long as
    /// it takes.
    pub fn moderate_cq(&self, cq: &CompletionQueue, count: usize, period: Duration) -> io::Result<()> {
        let moderation = match count {
            0 | 1 => None,
            _ => {
                let timer = LaneTimer::new(self.steering().default_lane()?.handle(), cq.cq());
                Some(Moderation { count, period, timer })
            }
        };
        cq.moderate(moderation);
        Ok(())
    }

    /// Returns the queue of asynchronous events, which report what happens to objects of the adapter outside of any
    /// work request. The first call opens the queue, and finds the events so far: the latest for each kind and object.
    pub fn async_events(&self) -> io::Result<Arc<AsyncEventQueue>> {
        let mut events = lock(&self.events);
        if let Some(events) = &*events {
            return Ok(Arc::clone(events));
        }
        self.check_running()?;
        let queue = AsyncEventQueue::open(self.device().events(), self.function.end())?;
        *events = Some(Arc::clone(&queue));
        // A sandbox may deny access to netlink. All events but those of the port are reported even then.
        if let Err(error) = self.raise_port_events() {
            tracing::warn!(%error, "changes of the port will not be reported");
        }
        Ok(queue)
    }

    /// Delays the wakeup for the events of a queue until it has `count` of them, or `period` has passed since the first
    /// (requirement I10). A count of one or less turns moderation off; a period of zero waits for the count as long as
    /// it takes. An event that reports the end of the adapter is not delayed.
    pub fn moderate_events(&self, queue: &AsyncEventQueue, count: usize, period: Duration) -> io::Result<()> {
        queue.moderate(count, period, self.steering().default_lane()?.handle());
        Ok(())
    }

    /// Returns the queue of channel events, which report what the connection manager does (requirement I6). Events are
    /// written while the queue exists.
    pub fn channel_events(&self) -> io::Result<Arc<AsyncEventQueue>> {
        let mut events = lock(&self.channel_events);
        if let Some(events) = events.upgrade() {
            return Ok(events);
        }
        let queue = AsyncEventQueue::open_channel(self.device().events(), self.function.end())?;
        *events = Arc::downgrade(&queue);
        Ok(queue)
    }

    /// Creates an event queue, to which the map of event queues may send asynchronous and channel events (requirement
    /// I6). When it is dropped, those events go to their default queues again.
    pub fn create_event_queue(&self) -> io::Result<Arc<AsyncEventQueue>> {
        let place = self.device().account().take(Resource::EventQueues)?;
        AsyncEventQueue::create(self.device().events(), self.function.end(), place)
    }

    /// Reports changes to the ports and their GIDs to `watcher` from now on, until the adapter is closed. Fails if
    /// netlink, which announces the changes, is not available, or if the lanes fail to start.
    pub fn watch_port(&self, watcher: Arc<dyn PortWatcher>) -> io::Result<()> {
        let monitor = Arc::new(Monitor::new(self.logical(), watcher)?);
        let observer: Weak<dyn PortObserver> = Arc::<Monitor>::downgrade(&monitor);
        self.logical().observe(observer);
        Arc::clone(&monitor).on_port_state(); // the port may have changed before it was observed
        self.steering().default_lane()?.handle().submit(Command::AddSource(monitor));
        Ok(())
    }

    /// Raises asynchronous events for changes to the ports and their GIDs from now on.
    pub fn raise_port_events(&self) -> io::Result<()> {
        self.watch_port(Arc::new(PortEvents(Arc::clone(self.device()))))
    }

    /// Has a lane's thread call a function at this time, or soon after. The function must not block.
    pub fn call_at(&self, at: Instant, call: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.shared.cm.call_at(at, call)
    }

    // --- Queues ---

    /// Creates a completion queue for `capacity` completions, without a handler.
    pub fn create_cq(&self, capacity: usize) -> io::Result<Arc<CompletionQueue>> {
        self.new_cq(capacity, None)
    }

    /// Creates a completion queue with a completion vector: its queue pairs are served by this lane and stay there
    /// (requirement N5).
    pub fn create_cq_on(&self, capacity: usize, lane: usize) -> io::Result<Arc<CompletionQueue>> {
        self.steering().use_vector(lane).map_err(io::Error::other)?;
        self.new_cq(capacity, Some(lane))
    }

    /// Creates a completion queue with completion vector 0, for interfaces that require a vector, where programs that
    /// do not care pass 0. The vector takes effect once [`create_cq_on`](Self::create_cq_on) was called for any lane:
    /// until then, the connections are spread over all lanes.
    pub fn create_cq_with_default_vector(&self, capacity: usize) -> io::Result<Arc<CompletionQueue>> {
        self.new_cq(capacity, Some(0))
    }

    /// Creates a completion queue with the next number.
    fn new_cq(&self, capacity: usize, vector: Option<usize>) -> io::Result<Arc<CompletionQueue>> {
        self.check_running()?;
        let number = self.shared.next_cq();
        let cq = CompletionQueue::new(number, capacity, self.device(), self.steering(), vector)?;
        cq.add_adversary(self.device())?;
        self.function.objects().add_cq(&cq);
        Ok(cq)
    }

    /// Creates a control queue for `depth` operations, which complete on `cq` (requirement X6).
    pub fn create_control_queue(&self, depth: usize, cq: &Arc<CompletionQueue>) -> io::Result<ControlQueue> {
        let place = self.device().account().take(Resource::QueuePairs)?;
        let queue = ControlQueue::start(self.shared.numbers.assign_plain()?, depth, cq, place)?;
        self.function.objects().add_control_queue(&queue);
        self.check_running()?; // after it was added: a shutdown that this does not find ends the queue
        Ok(queue)
    }

    /// Creates a shared receive queue for receives into memory of `domain`.
    pub fn create_srq(
        &self,
        domain: Domain,
        size: SrqSize,
    ) -> Result<Arc<SharedReceiveQueue>, QuotaExceeded> {
        self.new_srq(self.shared.next_srq(), domain, size, None)
    }

    /// Creates a shared receive queue that senders name by its number (XRC), and whose receives complete on `cq`.
    pub fn create_xrc_srq(
        &self,
        domain: Domain,
        size: SrqSize,
        xrc: &XrcDomain,
        cq: &CompletionQueue,
    ) -> Result<Arc<SharedReceiveQueue>, QuotaExceeded> {
        let srq = self.new_srq(self.shared.next_srq(), domain, size, Some(Arc::clone(cq.cq())))?;
        xrc.add(&srq);
        Ok(srq)
    }

    /// Creates a shared receive queue with this number, and adds it to those that a shutdown ends.
    fn new_srq(
        &self,
        number: u32,
        domain: Domain,
        size: SrqSize,
        cq: Option<Arc<Cq>>,
    ) -> Result<Arc<SharedReceiveQueue>, QuotaExceeded> {
        let place = self.device().account().take(Resource::SharedReceiveQueues)?;
        let events = self.device().events();
        let srq = SharedReceiveQueue::with_place(number, events, domain, size, cq, Some(place));
        self.function.objects().add_srq(&srq);
        if self.device().is_shut_down() {
            srq.shut_down();
        }
        Ok(srq)
    }

    // --- Queue pairs ---

    /// Creates a queue pair.
    pub fn create_qp(&self, attributes: QueuePairAttributes) -> io::Result<Arc<QueuePair>> {
        self.create_qp_with(attributes, QueuePairOptions::default())
    }

    /// Creates a queue pair with options. If it is connected manually, or reachable, its number contains a reserved TCP
    /// port.
    pub fn create_qp_with(
        &self,
        attributes: QueuePairAttributes,
        options: QueuePairOptions,
    ) -> io::Result<Arc<QueuePair>> {
        let number = match attributes.manual || options.reachable {
            true => self.shared.numbers.assign_with_port(|| {
                let port: Arc<dyn QpPort> = self.shared.ports.open(&self.shared.cm)?;
                Ok(port)
            })?,
            false => self.shared.numbers.assign_plain()?,
        };
        self.device().account().charge(Resource::QueuePairs, 1)?; // dropping the queue pair releases it
        let index = self.shared.next_qp_index();
        let pair = QueuePair::new(number, index, self.device(), attributes, options.events);
        self.function.objects().add_pair(&pair);
        self.check_running()?; // after it was added: a shutdown that this does not find ends the queue pair
        Ok(pair)
    }

    /// Binds sockets for a connectionless queue pair, all at one UDP port, at these addresses of the device. Without
    /// addresses, binds them at every GID that the device has now. The setting `ports` limits the port.
    pub fn bind_datagram_port(&self, addresses: Option<&[IpAddr]>) -> io::Result<UdpPort> {
        datagram::bind(self.logical(), addresses, self.config().ports)
    }

    /// Creates a connectionless queue pair with these sockets. Its number contains their port.
    pub fn create_datagram_qp(
        &self,
        attributes: &DatagramQueuePairAttributes,
        udp: UdpPort,
    ) -> io::Result<Arc<DatagramQueuePair>> {
        let pair = DatagramQueuePair::new(self.device(), self.shared.cm.capture().cloned(), attributes, udp)?;
        self.function.objects().add_datagram_pair(&pair);
        self.check_running()?; // after it was added: a shutdown that this does not find ends the queue pair
        Ok(pair)
    }

    /// Creates a queue pair in iSCSI mode (requirement M13) for a TCP connection on which the login is complete, and from
    /// which nothing after the last Login Response was read.
    pub fn create_iscsi_qp(
        &self,
        attributes: IscsiQueuePairAttributes,
        connection: OwnedFd,
    ) -> io::Result<Arc<IscsiQueuePair>> {
        let link = adopt(connection, &self.shared.cm.keepalive())?;
        let number = self.shared.numbers.assign_plain()?;
        let pair = IscsiQueuePair::new(number, self.device(), attributes, link)?;
        self.function.objects().add_iscsi_pair(&pair);
        self.check_running()?; // after it was added: a shutdown that this does not find ends the queue pair
        Ok(pair)
    }

    // --- Connections ---

    /// Returns the terms that this adapter offers for a connection, with this IRD and ORD, or those of the settings if
    /// `None`.
    pub fn terms(&self, ird: Option<u16>, ord: Option<u16>) -> Terms {
        self.shared.cm.terms(ird, ord)
    }

    /// Begins to connect a queue pair to a listener. An event of the queue pair reports the result.
    pub fn connect(
        &self,
        pair: &Arc<QueuePair>,
        to: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<(), ConnectError> {
        self.check_running()?;
        let mut options = options.clone();
        match options.from {
            Some(from) if !from.ip().is_unspecified() => self.logical().check_owns(from.ip())?,
            Some(from) => {
                let own = self.logical().source_for(to.ip())?;
                options.from = Some(own.map_or(from, |own| with_port(own, from.port())));
            }
            None => options.from = self.logical().source_for(to.ip())?,
        }
        self.logical().check_up(options.from.map(|from| from.ip()))?;
        if let Some(space) = options.port_space
            && self.config().port_policy() != PortPolicy::Tcp
        {
            return Search::begin(&self.shared.cm, pair, to, space, &options);
        }
        let request = DialRequest {
            to,
            from: options.from,
            mode: options.mode,
            terms: self.terms(options.ird, options.ord),
            private_data: options.private_data.into(),
            traffic_class: options.traffic_class,
        };
        let dial = Dial::new(&self.shared.cm, Arc::<QueuePair>::clone(pair), request)?;
        Ok(self.shared.cm.begin_handshake(dial)?)
    }

    /// Begins to connect a queue pair manually to the remote queue pair, whose program must do the same with this one.
    /// Moves the queue pair from the state Init to ReadyToReceive.
    ///
    /// An event of the queue pair reports the result; the program may move the queue pair to ready-to-send before. Its
    /// retry settings determine how long posted requests then wait for the peer, and how the peer is answered while no
    /// receives are posted.
    pub fn bring_up(
        &self,
        pair: &Arc<QueuePair>,
        remote: Remote,
        options: &BringUpOptions,
    ) -> Result<(), BringUpError> {
        self.check_running()?;
        let port = pair.number().port().and_then(|port| self.shared.ports.find(port.number()));
        bring_up(&self.shared.cm, pair, &port.ok_or(BringUpError::NoPort)?, remote, options)
    }

    /// Listens at an address; port 0 lets the kernel choose.
    pub fn listen(&self, at: SocketAddr) -> io::Result<Listener> {
        self.check_running()?;
        Listener::new(&self.shared.cm, &self.function, at)
    }

    /// Listens at an address, and sends incoming connections to `sink`. Up to `backlog` of them can wait to be accepted
    /// or rejected, fewer if the process has a low limit of descriptors. Beyond that, each new one has the oldest
    /// rejected that belongs to the peer with the most.
    pub fn listen_with(
        &self,
        at: SocketAddr,
        sink: Arc<dyn EventSink<Incoming>>,
        backlog: usize,
    ) -> io::Result<Listening> {
        self.check_running()?;
        Listening::new(&self.shared.cm, &self.function, at, sink, backlog)
    }

    /// Listens at an address that was bound before, for all logical devices: the sink checks whose address a peer has
    /// connected to. Otherwise like [`listen_with`](Self::listen_with).
    pub fn listen_bound(
        &self,
        bound: Bound,
        sink: Arc<dyn EventSink<Incoming>>,
        backlog: usize,
    ) -> io::Result<Listening> {
        self.check_running()?;
        Listening::at_bound(&self.shared.cm, &self.function, bound, sink, backlog)
    }

    /// Fails if the adapter was shut down, or is being shut down.
    fn check_running(&self) -> io::Result<()> {
        match self.device().is_shut_down() {
            true => Err(io::Error::new(io::ErrorKind::NotConnected, PostError::ShutDown)),
            false => Ok(()),
        }
    }
}

/// Raises asynchronous events for changes of the ports.
#[derive(Debug)]
struct PortEvents(Arc<Device>);

impl PortWatcher for PortEvents {
    fn on_port_change(&self, port: u8, change: PortChange) {
        let port = u32::from(port);
        self.0.raise(match change {
            PortChange::Active => AsyncEvent::PortActive(port),
            PortChange::Error => AsyncEvent::PortError(port),
            PortChange::Gids => AsyncEvent::GidChange(port),
        });
    }
}
