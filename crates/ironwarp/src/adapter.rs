//! The adapter: where everything else comes from. After this: protection domains, completion queues, listeners.

use crate::attic::Attic;
use crate::completion_handler::{AsyncEvents, CompletionHandler};
use crate::completion_queue::CompletionQueue;
use crate::control_queue::ControlQueue;
use crate::error::CreateError;
use crate::listener::Listener;
use crate::protection_domain::ProtectionDomain;
use crate::shared_receive_queue::XrcDomain;
use crate::steering::Steering;
use ironwarp_engine::event::EventFdWake;
use ironwarp_engine::gid::{GidEntry, GidTable};
use ironwarp_engine::{Engine, SetMapError, Statistics};
use ironwarp_rnic::config::Config;
use ironwarp_rnic::device::{Device, HANDLERS};
use ironwarp_rnic::event::{EventMap, Vector as EventVector};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An RDMA adapter in this process. Clones are handles to the same adapter.
///
/// Whatever is made from it keeps it alive. When the last of all these is gone, connections that are still closing get
/// [`Config::close`] to finish: what was posted is sent.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use ironwarp::{Adapter, Config};
///
/// let adapter = Adapter::open(Config { lanes: 1, ..Config::default() })?;
/// let completions = adapter.completion_queue(64)?;
/// let domain = adapter.protection_domain();
/// # let _ = (completions, domain);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Adapter {
    shared: Arc<Shared>,
}

/// What all handles and objects of an adapter share.
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    /// Memory that could not be given back yet.
    pub(crate) attic: Attic,
    /// Held while requests that give a new tag are posted: the tag must be the entry's next when they are.
    pub(crate) naming: Mutex<()>,
}

impl Adapter {
    /// An adapter with the usual settings.
    ///
    /// ```
    /// let adapter = ironwarp::Adapter::new()?;
    /// assert!(adapter.config().crc);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn new() -> io::Result<Self> {
        Self::open(Config::default())
    }

    /// An adapter with these settings. Its threads start when the first connection is made.
    ///
    /// ```
    /// use ironwarp::{Adapter, Config};
    ///
    /// // From variables such as IRONWARP_LANES, as a program that runs in many places may want it.
    /// let adapter = Adapter::open(Config::from_env()?)?;
    /// assert_eq!(adapter.config().lanes, Config::default().lanes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(config: Config) -> io::Result<Self> {
        let shared =
            Shared { engine: Engine::new(config)?, attic: Attic::default(), naming: Mutex::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Its settings.
    pub fn config(&self) -> &Config {
        self.shared.engine.config()
    }

    /// A protection domain: queue pairs reach only the memory that is registered in theirs.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let (mine, yours) = (adapter.protection_domain(), adapter.protection_domain());
    /// assert_ne!(mine.id(), yours.id());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn protection_domain(&self) -> ProtectionDomain {
        ProtectionDomain::new(&self.shared)
    }

    /// A completion queue with room for `capacity` completions.
    ///
    /// Make it large enough for all that can complete before it is polled: a completion that finds no room ends its
    /// queue pair (requirement I5).
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let cq = adapter.completion_queue(64)?;
    /// assert!(cq.poll_one()?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn completion_queue(&self, capacity: usize) -> io::Result<CompletionQueue> {
        CompletionQueue::new(&self.shared, capacity, None)
    }

    /// The same, whose queue pairs are served by this lane and stay there (requirement N5): with the lane [on the
    /// processors](crate::Steering::set_processors) of the thread that waits for the completions, all of it stays on one.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let last = adapter.steering().lanes() - 1;
    /// let cq = adapter.completion_queue_on(64, last)?;
    /// assert!(adapter.completion_queue_on(64, last + 1).is_err());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn completion_queue_on(&self, capacity: usize, lane: usize) -> io::Result<CompletionQueue> {
        CompletionQueue::new(&self.shared, capacity, Some(lane))
    }

    /// A completion handler, for many completion queues: *Set Completion Handler* (requirement N2). It fails if there are as
    /// many as [`query`](Self::query) says, or no descriptor is left.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let (one, another) = (adapter.completion_handler()?, adapter.completion_handler()?);
    /// assert_ne!(one.id(), another.id());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn completion_handler(&self) -> io::Result<CompletionHandler> {
        Ok(CompletionHandler::new(&self.shared, self.shared.engine.create_handler()?))
    }

    /// What happens to queue pairs, completion queues, shared receive queues, ports and the adapter outside of any request.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// assert_eq!(adapter.async_events()?.next(), None);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn async_events(&self) -> io::Result<AsyncEvents> {
        AsyncEvents::new(&self.shared)
    }

    /// A control queue for `depth` operations, which complete on `cq` (requirement X6). It fails if no thread can be started.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let cq = adapter.completion_queue(64)?;
    /// let control = adapter.control_queue(&cq, 16)?;
    /// assert_eq!(control.depth(), 16);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn control_queue(&self, cq: &CompletionQueue, depth: usize) -> Result<ControlQueue, CreateError> {
        ControlQueue::new(&self.shared, cq, depth)
    }

    /// What the adapter can do: *Query RNIC* (requirement N1).
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let limits = adapter.query();
    /// assert!(limits.completion_handlers > 1);
    /// assert_eq!(limits.ird, adapter.config().ird);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn query(&self) -> Limits {
        let config = self.config();
        Limits { completion_handlers: HANDLERS, tags: config.tags, ird: config.ird, ord: config.ord }
    }

    /// A domain for queues of receives that peers name (XRC).
    pub fn xrc_domain(&self) -> XrcDomain {
        XrcDomain::default()
    }

    /// Listens at an address. Port 0 lets the kernel choose one; [`Listener::local_addr`] tells which.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// assert_ne!(listener.local_addr()?.port(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn listen(&self, at: SocketAddr) -> io::Result<Listener> {
        Ok(Listener::new(&self.shared, self.shared.engine.listen(at)?))
    }

    /// The addresses of this host as GIDs, in order of their indices: first that of the default route's interface, loopback
    /// last. An index keeps its address for as long as the process lives; new addresses come at the end.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// for entry in adapter.gids()? {
    ///     println!("{}: {} on {}, MTU {}", entry.index, entry.gid, entry.interface, entry.mtu);
    /// }
    /// # assert!(adapter.gids()?.iter().any(|entry| entry.gid.to_string() == "::ffff:127.0.0.1"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn gids(&self) -> io::Result<Vec<GidEntry>> {
        GidTable::of_process().entries()
    }

    /// Which of its threads serves which queue pair.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// assert_eq!(adapter.steering().load().len(), adapter.steering().lanes());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn steering(&self) -> Steering {
        Steering::new(&self.shared)
    }

    /// Which event queue an event goes to, by its code and lane, and which vector wakes who reads it (requirement I8).
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// use ironwarp::EventCode;
    ///
    /// assert_eq!(adapter.event_map().route(EventCode::DeviceFatal, 0).queue, 0);
    /// assert_eq!(adapter.event_map().route(EventCode::QpFatal, 0).queue, 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn event_map(&self) -> EventMap {
        self.shared.engine.event_map()
    }

    /// Changes that while events flow: none is lost or doubled.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// use ironwarp::{EventMap, MapShape};
    ///
    /// // One vector for everything.
    /// let map = EventMap::new(MapShape::ByQueue, adapter.steering().lanes(), 1);
    /// adapter.set_event_map(map.clone()).expect("it is for all lanes that there are");
    /// assert_eq!(adapter.event_map(), map);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_event_map(&self, map: EventMap) -> Result<(), SetMapError> {
        self.shared.engine.set_event_map(map)
    }

    /// A descriptor that is readable while any event queue that the [map](Self::event_map) gives this vector has an event. Events are
    /// taken where they always are: at handlers, completion queues and [`async_events`](Self::async_events).
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// use ironwarp::EventVector;
    ///
    /// let vector = adapter.vector(EventVector::Message(0))?; // to wait for in poll(2) or epoll
    /// # let _ = vector;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn vector(&self, vector: EventVector) -> io::Result<VectorDescriptor> {
        Ok(VectorDescriptor(self.shared.engine.vector(vector)?))
    }

    /// The completion handler that the [map](Self::event_map) has for a lane: for completion queues that
    /// [follow the map](CompletionQueue::follow_map).
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// use ironwarp::EventCode;
    ///
    /// let handler = adapter.lane_handler(0).expect("there is a lane 0");
    /// assert_eq!(handler.id().0, adapter.event_map().route(EventCode::Completion, 0).queue);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn lane_handler(&self, lane: usize) -> Result<CompletionHandler, SetMapError> {
        Ok(CompletionHandler::new(&self.shared, self.shared.engine.lane_handler(lane)?))
    }

    /// What its threads did so far.
    pub fn statistics(&self) -> Statistics {
        self.shared.engine.statistics()
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

/// What is readable while events with a vector wait: see [`Adapter::vector`].
#[derive(Clone, Debug)]
pub struct VectorDescriptor(EventFdWake);

impl AsFd for VectorDescriptor {
    /// Readable exactly while there is an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What an adapter can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// How many completion handlers there can be, besides those that completion queues have of their own.
    pub completion_handlers: usize,
    /// How many memory regions and windows there can be.
    pub tags: usize,
    /// How many Reads and atomics of a peer a queue pair holds, unless its connection says otherwise.
    pub ird: u16,
    /// How many Reads and atomics a queue pair has outstanding, unless its connection says otherwise.
    pub ord: u16,
}

impl Shared {
    pub(crate) fn device(&self) -> &Arc<Device> {
        self.engine.device()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter").field("lanes", &self.engine.statistics().lanes).finish_non_exhaustive()
    }
}

/// A holder that panicked is a bug that has been reported; the data here stay consistent at every step.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
