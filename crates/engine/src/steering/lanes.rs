//! Which lane serves what: the one place that decides (requirement I7).
//!
//! A connection goes to the lane that the [redirection table](RedirectionTable) has for the hash of its addresses. Work without addresses,
//! such as a listener or a timer, goes to the default lane. A completion queue with a completion vector has its connections on
//! that lane (requirement N5). Connections can be moved to another lane while traffic flows, by the program and by `rebalance.rs`
//! (requirement I9).

use super::rebalance::Rebalancer;
use crate::config::Config;
use crate::reactor::class::Class;
use crate::reactor::command::Command;
use crate::reactor::lane::{Lane, LaneLoad};
use crate::reactor::member::{Member, Movable, Placement};
use crate::reactor::thread::{LaneConfig, start};
use crate::sys::random::random;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::event::Stop;
use ironwarp_rnic::steering::{KEY_LEN, RedirectionTable, Tuple, toeplitz};
use ironwarp_rnic::sync::{self, lock};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// The lane for work without addresses.
const DEFAULT: usize = 0;

/// The number of a lane is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lane {lane} out of range: the adapter has lanes 0 to {}", .lanes - 1)]
pub struct NoSuchLane {
    /// The number given.
    pub lane: usize,
    /// Number of lanes.
    pub lanes: usize,
}

/// Why a queue pair was not moved to another lane.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// The number of the lane is out of range.
    #[error("{0}")]
    NoSuchLane(#[from] NoSuchLane),
    /// The queue pair has no connection.
    #[error("the queue pair is not connected")]
    NotConnected,
    /// A system call failed. The connection stays on its lane.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// A function that is called with the default lane.
type OnStart = Box<dyn Fn(&Arc<Steering>, &Lane) + Send + Sync>;

/// The lanes of an adapter and its redirection table.
pub struct Steering {
    config: Arc<Config>,
    key: [u8; KEY_LEN],
    table: RwLock<RedirectionTable>,
    /// Number of lanes, started or not.
    count: usize,
    lanes: OnceLock<Vec<Arc<Lane>>>,
    /// The lane for low-latency completion queues (requirement N6), once there is one. It is not in the table.
    low_latency: OnceLock<Arc<Lane>>,
    /// The threads of the lanes; `None` once they were told to stop, after which no lane starts.
    threads: Mutex<Option<Vec<JoinHandle<()>>>>,
    device: Arc<Device>,
    /// Called with the default lane when the lanes start.
    on_start: OnStart,
    /// Held while a connection is moved; true once the lanes were told to stop, which they learn at different times.
    stopped: Mutex<bool>,
    rebalancer: Option<Rebalancer>,
    /// The program has created a completion queue with a completion vector.
    vectors_used: AtomicBool,
}

impl Steering {
    /// The lanes start when they are first needed; then `on_start` is called with the default lane.
    pub(crate) fn new(
        config: &Arc<Config>,
        device: &Arc<Device>,
        on_start: impl Fn(&Arc<Self>, &Lane) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let count = config.lanes.clamp(1, processors);
        Ok(Self {
            config: Arc::clone(config),
            key: config.steering_key.bytes().map_or_else(random, |key| Ok(*key))?,
            table: RwLock::new(RedirectionTable::spread(count)),
            count,
            lanes: OnceLock::new(),
            low_latency: OnceLock::new(),
            threads: Mutex::new(Some(Vec::new())),
            device: Arc::clone(device),
            on_start: Box::new(on_start),
            stopped: Mutex::new(false),
            rebalancer: Rebalancer::new(config.rebalance, count),
            vectors_used: AtomicBool::new(false),
        })
    }

    /// Returns the number of lanes.
    pub fn lanes(&self) -> usize {
        self.count
    }

    /// Returns the redirection table.
    pub fn table(&self) -> RedirectionTable {
        sync::read(&self.table).clone()
    }

    /// Replaces the redirection table while traffic flows (requirement I9). New connections follow it; existing connections stay
    /// on their lanes.
    pub fn set_table(&self, table: RedirectionTable) -> Result<(), NoSuchLane> {
        for entry in table.entries() {
            self.check_lane(usize::from(*entry))?;
        }
        *sync::write(&self.table) = table;
        Ok(())
    }

    /// Returns the load of each lane.
    pub fn load(&self) -> Vec<LaneLoad> {
        let idle = vec![LaneLoad::default(); self.count];
        if self.running_lanes().is_empty() {
            idle
        } else {
            self.running_lanes().iter().map(|lane| lane.load()).collect()
        }
    }

    /// Returns the processors on which a lane may run.
    pub fn processors(self: &Arc<Self>, lane: usize) -> io::Result<Vec<usize>> {
        self.check_lane(lane).map_err(io::Error::other)?;
        self.lane(lane)?.handle().await_thread().processors()
    }

    /// Restricts a lane to these processors (requirement N5). Threads that wait for its completions may run there, too. Fails if the
    /// process may use none of them.
    pub fn set_processors(self: &Arc<Self>, lane: usize, processors: &[usize]) -> io::Result<()> {
        self.check_lane(lane).map_err(io::Error::other)?;
        self.lane(lane)?.handle().await_thread().set_processors(processors)
    }

    /// Returns the hash of a connection between these addresses.
    pub fn hash(&self, peer: SocketAddr, local: SocketAddr) -> u32 {
        toeplitz(&self.key, &Tuple::new(peer, local))
    }

    pub(crate) fn check_lane(&self, lane: usize) -> Result<(), NoSuchLane> {
        if lane < self.count { Ok(()) } else { Err(NoSuchLane { lane, lanes: self.count }) }
    }

    // --- Moving connections ---

    /// Whether the lanes were told to stop. A lane that is told later disconnects every connection that was in its poll sets before
    /// this returned false.
    pub(crate) fn is_stopped(&self) -> bool {
        *lock(&self.stopped)
    }

    /// Moves a connection to the lane that its completion queue and its addresses lead to, if it is on another.
    pub(crate) fn steer(self: &Arc<Self>, connection: &Arc<dyn Movable>) -> io::Result<()> {
        let Some((peer, local)) = connection.addresses() else { return Ok(()) };
        let lane = self.lane_for(connection.placement(), peer, local)?;
        match self.move_connection(connection, lane.handle().number()) {
            Err(MoveError::System(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Moves a new connection between the low-latency lane and the others, if the class of its completion queue has changed.
    pub(crate) fn steer_new(self: &Arc<Self>, connection: &Arc<dyn Movable>) -> io::Result<()> {
        let low_latency = connection.placement().class == Class::LowLatency;
        if low_latency == (connection.lane() == self.count) { Ok(()) } else { self.steer(connection) }
    }

    /// Moves a connection to a lane.
    pub(crate) fn move_connection(&self, connection: &Arc<dyn Movable>, to: usize) -> Result<(), MoveError> {
        self.move_connection_if(connection, to, || true)
    }

    /// Moves a connection to a lane if `still` returns true while nothing else is moved.
    fn move_connection_if(
        &self,
        connection: &Arc<dyn Movable>,
        to: usize,
        still: impl FnOnce() -> bool,
    ) -> Result<(), MoveError> {
        let stopped = lock(&self.stopped);
        if *stopped || !still() {
            return Err(MoveError::NotConnected);
        }
        let moved = Arc::clone(connection).move_to(to)?;
        drop(stopped);
        if self.device.events().is_stopped() {
            connection.abort(QpError::Stopped); // its new lane may have cut all others before
        }
        if moved { Ok(()) } else { Err(MoveError::NotConnected) }
    }

    /// Compares the lanes, and moves one queue pair if that helps. Called by busy lanes.
    fn rebalance(&self) {
        let movable = |lane: usize| self.movable(lane);
        let chosen = self.rebalancer.as_ref().and_then(|it| it.choose(self.running_lanes(), movable));
        let Some((connection, to)) = chosen else { return };
        // Its class may have changed since.
        let still = || connection.placement().class != Class::LowLatency;
        let qp = connection.qpn();
        match self.move_connection_if(&connection, to, still) {
            Ok(()) => tracing::debug!(qp, to, "rebalanced queue pair"),
            Err(error) => tracing::debug!(qp, %error, "failed to rebalance queue pair"),
        }
    }

    /// The connections that were steered to a lane and that it serves: those that programs poll cost it nothing.
    fn movable(&self, lane: usize) -> Vec<Arc<dyn Movable>> {
        let served = self.running_lanes()[lane].sets().into_iter().filter(|set| !set.is_polled());
        let movable = served.flat_map(|set| set.members()).filter_map(Member::movable);
        movable.filter(|connection| self.named_lane(connection.placement()).is_none()).collect()
    }

    // --- Choosing lanes ---

    /// The lane of a connection between these addresses.
    pub(crate) fn lane_by_addresses(
        self: &Arc<Self>,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> io::Result<&Arc<Lane>> {
        let hash = self.hash(peer, local);
        let lane = sync::read(&self.table).lane(hash);
        self.lane(lane)
    }

    /// The lane of a connection between these addresses, whose completion queue may have a class or a vector that decides.
    pub(crate) fn lane_for(
        self: &Arc<Self>,
        placement: Placement,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> io::Result<&Arc<Lane>> {
        match (placement.class, self.named_lane(placement)) {
            (Class::LowLatency, _) => self.low_latency(),
            (Class::Bulk(_), Some(lane)) => self.lane(lane),
            (Class::Bulk(_), None) => self.lane_by_addresses(peer, local),
        }
    }

    /// The lane for work without addresses.
    pub(crate) fn default_lane(self: &Arc<Self>) -> io::Result<&Arc<Lane>> {
        self.lane(DEFAULT)
    }

    /// The lane with this number, that for low latency being the last.
    pub(crate) fn lane(self: &Arc<Self>, lane: usize) -> io::Result<&Arc<Lane>> {
        if lane == self.count { self.low_latency() } else { Ok(&self.started()?[lane]) }
    }

    /// The program creates a completion queue with this completion vector.
    pub(crate) fn use_vector(&self, lane: usize) -> Result<(), NoSuchLane> {
        self.check_lane(lane)?;
        self.vectors_used.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The lane that the completion vector names. Vector 0 names none as long as no completion queue has another: some interfaces
    /// cannot leave it out.
    fn named_lane(&self, placement: Placement) -> Option<usize> {
        placement.vector.filter(|lane| *lane != 0 || self.vectors_used.load(Ordering::Relaxed))
    }

    // --- Lanes ---

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Whether this is the lane for low-latency completion queues.
    pub(crate) fn is_low_latency(&self, lane: &Arc<Lane>) -> bool {
        self.low_latency.get().is_some_and(|it| Arc::ptr_eq(it, lane))
    }

    /// All running lanes, including that for low latency.
    pub(crate) fn all_lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.running_lanes().iter().chain(self.low_latency.get())
    }

    /// The running lanes: all but that for low latency, or none yet.
    pub(crate) fn running_lanes(&self) -> &[Arc<Lane>] {
        self.lanes.get().map_or(&[], |lanes| lanes)
    }

    /// The lane for low-latency completion queues; the first call starts it.
    fn low_latency(self: &Arc<Self>) -> io::Result<&Arc<Lane>> {
        if let Some(lane) = self.low_latency.get() {
            return Ok(lane);
        }
        self.started()?;
        let mut threads = lock(&self.threads);
        let threads = threads.as_mut().ok_or_else(stopped)?;
        if let Some(lane) = self.low_latency.get() {
            return Ok(lane); // another thread was first
        }
        let config = LaneConfig { number: self.count, low_latency: true, on_busy: None };
        let (lane, thread) = start(config, self.device.events())?;
        self.device.shorten_calls();
        threads.push(thread);
        Ok(self.low_latency.get_or_init(|| lane))
    }

    /// The lanes; the first call starts them.
    fn started(self: &Arc<Self>) -> io::Result<&[Arc<Lane>]> {
        if self.lanes.get().is_none() {
            self.start()?;
        }
        Ok(self.running_lanes())
    }

    #[cold]
    fn start(self: &Arc<Self>) -> io::Result<()> {
        let mut threads = lock(&self.threads);
        let threads = threads.as_mut().ok_or_else(stopped)?;
        if self.lanes.get().is_none() {
            let started: io::Result<Vec<_>> = (0..self.count).map(|lane| self.start_lane(lane)).collect();
            let (lanes, running): (Vec<_>, Vec<_>) = started?.into_iter().unzip();
            threads.extend(running);
            self.device.events().set_stop(Box::new(StopLanes(Arc::downgrade(self))));
            (self.on_start)(self, &lanes[DEFAULT]);
            self.lanes.get_or_init(|| lanes);
        }
        Ok(())
    }

    fn start_lane(self: &Arc<Self>, number: usize) -> io::Result<(Arc<Lane>, JoinHandle<()>)> {
        let on_busy = self.rebalancer.as_ref().map(|_| -> Box<dyn Fn() + Send> {
            let this = Arc::downgrade(self);
            Box::new(move || {
                if let Some(steering) = this.upgrade() {
                    steering.rebalance();
                }
            })
        });
        start(LaneConfig { number, low_latency: false, on_busy }, self.device.events())
    }

    /// Ends the lanes when all connections are closed, or after this much time.
    pub(crate) fn stop(&self, within: Duration) {
        *lock(&self.stopped) = true;
        // Without the lock while it waits: a lane that needs it to start another would never end.
        let threads = lock(&self.threads).take();
        self.all_lanes().for_each(|lane| lane.handle().submit(Command::Stop(within)));
        let me = std::thread::current().id();
        for thread in threads.into_iter().flatten() {
            // A lane may be the last to hold the adapter; it cannot wait for itself.
            if thread.thread().id() != me && thread.join().is_err() {
                tracing::error!("a lane's thread panicked");
            }
        }
    }
}

fn stopped() -> io::Error {
    io::Error::other("the adapter is being closed")
}

/// Leaves out the key, which is a secret.
impl fmt::Debug for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steering")
            .field("lanes", &self.count)
            .field("table", &self.table())
            .finish_non_exhaustive()
    }
}

/// Cuts all connections once the adapter has failed.
#[derive(Debug)]
struct StopLanes(Weak<Steering>);

impl Stop for StopLanes {
    fn stop(&self) {
        if let Some(steering) = self.0.upgrade() {
            steering.all_lanes().for_each(|lane| lane.handle().submit(Command::Abort));
        }
    }
}
