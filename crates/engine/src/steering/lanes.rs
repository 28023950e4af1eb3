//! The lanes of an adapter, and the only place that decides which lane serves what (requirement I7).
//!
//! | work | lane |
//! |---|---|
//! | a queue pair whose completion queue is of class low latency | the low-latency lane (requirement N6) |
//! | a queue pair whose completion queue has a completion vector | the lane of that number (requirement N5) |
//! | any other queue pair | from the [redirection table](RedirectionTable), by the hash of its addresses |
//! | work without addresses, such as a timer | the default lane |
//!
//! If the completion handler has processors, only lanes within them serve the queue pair (`processors.rs`).
//!
//! Connections can be moved to another lane while traffic flows, by the program and by `rebalance.rs` (requirement I9).

use super::rebalance::Rebalancer;
use crate::config::Config;
use crate::logical::LogicalDevice;
use crate::reactor::class::Class;
use crate::reactor::command::Command;
use crate::reactor::lane::{Lane, LaneLoad};
use crate::reactor::member::{Member, Movable, Placement};
use crate::reactor::thread::{LaneConfig, start};
use crate::shm::SharedMemory;
use crate::sys::random::random;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::event::{AdminCommand, AsyncEvent, Stop};
use ironwarp_rnic::steering::{HashKey, KEY_LEN, RedirectionTable, Tuple, toeplitz};
use ironwarp_rnic::sync::{self, lock};
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// The lane for work without addresses.
const DEFAULT_LANE: usize = 0;

/// The number of a lane is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lane {lane} out of range: the adapter has lanes 0 to {}", .lanes - 1)]
#[non_exhaustive]
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
    /// The lane may run on other processors than those of the queue pair's completion handler (requirement N5).
    #[error("lane {lane} may leave processors {processors:?}, to which the completion handler is restricted")]
    OutsideProcessors {
        /// The number of the lane.
        lane: usize,
        /// The processors of the handler.
        processors: Vec<usize>,
    },
    /// A system call failed. The connection stays on its lane.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// A function that is called with the default lane when the lanes start.
type OnStart = Box<dyn Fn(&Arc<Steering>, &Lane) + Send + Sync>;

/// The secret key of the hash, and the table that it indexes.
struct Hashing {
    key: [u8; KEY_LEN],
    table: RedirectionTable,
}

impl Hashing {
    /// Creates the default table for this many lanes. Generates a key if the setting is empty.
    fn new(key: &HashKey, lanes: usize) -> io::Result<Self> {
        Ok(Self { key: generate_key(key)?, table: RedirectionTable::spread(lanes) })
    }

    /// Returns the hash of a connection between these addresses.
    fn hash(&self, peer: SocketAddr, local: SocketAddr) -> u32 {
        toeplitz(&self.key, &Tuple::new(peer, local))
    }
}

/// Returns the key of a setting, or a random one if the setting is empty.
fn generate_key(key: &HashKey) -> io::Result<[u8; KEY_LEN]> {
    key.bytes().map_or_else(random, |key| Ok(*key))
}

/// The lanes of an adapter and its redirection table.
pub struct Steering {
    config: Arc<Config>,
    logical: Arc<LogicalDevice>,
    /// Secret key of the hash, and the table that it indexes.
    hashing: RwLock<Hashing>,
    /// Number of lanes, started or not, without the low-latency lane.
    count: usize,
    /// The lanes without the low-latency lane, once they are started.
    lanes: OnceLock<Vec<Arc<Lane>>>,
    /// The lane for low-latency completion queues (requirement N6), once it is started. Its number is `count`, and it
    /// is not in the table.
    low_latency: OnceLock<Arc<Lane>>,
    /// The threads of all lanes, to join them. `None` once the lanes were told to stop: no lane starts after that.
    threads: Mutex<Option<Vec<JoinHandle<()>>>>,
    /// The device of the adapter itself.
    device: Arc<Device>,
    /// The devices of its functions (requirement X1). Some may have been dropped.
    functions: Mutex<Vec<Weak<Device>>>,
    on_start: OnStart,
    /// Whether the lanes were told to stop. The lock is held while a connection is moved: lanes stop at different
    /// times, and a connection must not move to one that has stopped.
    stopped: Mutex<bool>,
    /// `None` if there is only one lane, or rebalancing is off.
    rebalancer: Option<Rebalancer>,
    /// Whether the program has created a completion queue with a completion vector.
    vectors_used: AtomicBool,
    /// The lanes that were restricted to processors, by the program or for a completion handler (requirement N5).
    pub(super) restricted: Mutex<BTreeSet<usize>>,
    /// Shared memory with other processes; `None` if it is off.
    shared_memory: Option<Arc<SharedMemory>>,
}

impl Steering {
    /// Creates the steering of an adapter. The lanes start when they are first needed; then `on_start` is called with
    /// the default lane.
    pub(crate) fn new(
        config: &Arc<Config>,
        logical: &Arc<LogicalDevice>,
        device: &Arc<Device>,
        on_start: impl Fn(&Arc<Self>, &Lane) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let count = config.lanes.clamp(1, processors);
        Ok(Self {
            config: Arc::clone(config),
            logical: Arc::clone(logical),
            hashing: RwLock::new(Hashing::new(&config.steering_key, count)?),
            count,
            lanes: OnceLock::new(),
            low_latency: OnceLock::new(),
            threads: Mutex::new(Some(Vec::new())),
            device: Arc::clone(device),
            functions: Mutex::default(),
            on_start: Box::new(on_start),
            stopped: Mutex::new(false),
            rebalancer: Rebalancer::new(config.rebalance, count),
            vectors_used: AtomicBool::new(false),
            restricted: Mutex::default(),
            shared_memory: SharedMemory::new(config, device)?,
        })
    }

    /// Returns the number of lanes, without the low-latency lane.
    pub fn lanes(&self) -> usize {
        self.count
    }

    /// Returns the redirection table.
    pub fn table(&self) -> RedirectionTable {
        sync::read(&self.hashing).table.clone()
    }

    /// Replaces the redirection table, and with it its size and its mask, while traffic flows (requirements I7, I9). New
    /// connections follow it; existing connections stay on their lanes.
    pub fn set_table(&self, table: RedirectionTable) -> Result<(), NoSuchLane> {
        for entry in table.entries() {
            self.check_lane(usize::from(*entry))?;
        }
        sync::write(&self.hashing).table = table;
        self.raise(AdminCommand::SetRedirectionTable);
        Ok(())
    }

    /// Replaces the secret key of the hash while traffic flows (requirement I7); an empty setting generates one. New
    /// connections are hashed with it; existing connections stay on their lanes.
    pub fn set_key(&self, key: &HashKey) -> io::Result<()> {
        let key = generate_key(key)?;
        sync::write(&self.hashing).key = key;
        self.raise(AdminCommand::SetHashKey);
        Ok(())
    }

    /// Tells the programs of all functions about a command, which affects all of them.
    fn raise(&self, command: AdminCommand) {
        self.devices().iter().for_each(|device| device.raise(AsyncEvent::AdminCommand(command)));
    }

    /// Returns the load of each lane. Lanes that have not started have no load.
    pub fn load(&self) -> Vec<LaneLoad> {
        let idle = vec![LaneLoad::default(); self.count];
        if self.running_lanes().is_empty() {
            idle
        } else {
            self.running_lanes().iter().map(|lane| lane.load()).collect()
        }
    }

    /// Returns the hash by which the redirection table assigns a connection between these addresses.
    pub fn hash(&self, peer: SocketAddr, local: SocketAddr) -> u32 {
        sync::read(&self.hashing).hash(peer, local)
    }

    /// Returns an error if there is no lane with this number. The low-latency lane is not accepted.
    pub(crate) fn check_lane(&self, lane: usize) -> Result<(), NoSuchLane> {
        if lane < self.count { Ok(()) } else { Err(NoSuchLane { lane, lanes: self.count }) }
    }

    // --- Moving connections ---

    /// Returns whether the lanes were told to stop. If not, a connection that was added to a poll set before this call
    /// will be disconnected when they are told to.
    pub(crate) fn is_stopped(&self) -> bool {
        *lock(&self.stopped)
    }

    /// Moves a connection to the lane that its completion queue and its addresses select, if its lane does not fit class
    /// and processors of its completion handler. Does nothing to a connection that is closed.
    pub(crate) fn steer(self: &Arc<Self>, connection: &Arc<dyn Movable>) -> io::Result<()> {
        let placement = connection.placement();
        if self.fits(connection.lane(), &placement)? {
            return Ok(());
        }
        let Some((peer, local)) = connection.addresses() else { return Ok(()) };
        let lane = self.lane_for(&placement, peer, local)?;
        match self.move_connection(connection, lane.handle().number()) {
            Err(MoveError::System(error)) => Err(error),
            _ => Ok(()), // moved, or closed by now
        }
    }

    /// Moves a connection to a lane that the program has chosen. Fails if the lane does not fit the processors of its
    /// completion handler.
    pub(crate) fn move_within(
        self: &Arc<Self>,
        connection: &Arc<dyn Movable>,
        to: usize,
    ) -> Result<(), MoveError> {
        self.check_lane(to)?;
        let placement = Placement { class: Class::DEFAULT, ..connection.placement() };
        if !self.fits(to, &placement)? {
            let processors = placement.processors.numbers().to_vec();
            return Err(MoveError::OutsideProcessors { lane: to, processors });
        }
        self.move_connection(connection, to)
    }

    /// Moves a connection to the lane with this number.
    pub(crate) fn move_connection(&self, connection: &Arc<dyn Movable>, to: usize) -> Result<(), MoveError> {
        self.move_connection_if(connection, to, || true)
    }

    /// Moves a connection to the lane with this number, if `condition` holds. `condition` is called while no other
    /// connection is moved.
    fn move_connection_if(
        &self,
        connection: &Arc<dyn Movable>,
        to: usize,
        condition: impl FnOnce() -> bool,
    ) -> Result<(), MoveError> {
        let stopped = lock(&self.stopped);
        if *stopped || !condition() {
            return Err(MoveError::NotConnected);
        }
        let moved = Arc::clone(connection).move_to(to)?;
        drop(stopped);
        if self.device.events().is_stopped() {
            connection.abort(QpError::Stopped); // its new lane may have aborted its connections before this one came
        }
        if moved { Ok(()) } else { Err(MoveError::NotConnected) }
    }

    /// Compares the loads of the lanes, and moves one connection from the busiest to a less busy one if that reduces the
    /// imbalance. Called by busy lanes.
    pub(super) fn rebalance(self: &Arc<Self>) {
        let movable = |lane: usize| self.movable(lane);
        let fits = |connection: &dyn Movable, lane: usize| {
            self.fits(lane, &connection.placement()).is_ok_and(|fits| fits)
        };
        let chosen = self.rebalancer.as_ref().and_then(|it| it.choose(self.running_lanes(), movable, fits));
        let Some((connection, to)) = chosen else { return };
        let qp = connection.qpn();
        // Class and processors may have changed since it was chosen: low-latency connections stay on their lane.
        match self.move_connection_if(&connection, to, || fits(&*connection, to)) {
            Ok(()) => tracing::debug!(qp, to, "rebalanced queue pair"),
            Err(error) => tracing::debug!(qp, %error, "failed to rebalance queue pair"),
        }
    }

    /// Returns the connections of a lane that rebalancing may move: those assigned by the redirection table, which the
    /// lane serves. Connections that programs poll cost the lane nothing.
    fn movable(&self, lane: usize) -> Vec<Arc<dyn Movable>> {
        let served = self.running_lanes()[lane].sets().into_iter().filter(|set| !set.is_polled());
        let movable = served.flat_map(|set| set.members()).filter_map(Member::movable);
        movable.filter(|connection| self.lane_by_vector(connection.placement().vector).is_none()).collect()
    }

    // --- Choosing lanes ---

    /// Returns the lane that the redirection table has for a connection between these addresses. Used for handshakes,
    /// whose completion queue is not known yet, and for connections whose completion queue selects no lane.
    pub(crate) fn lane_by_addresses(
        self: &Arc<Self>,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> io::Result<&Arc<Lane>> {
        let lane = {
            let hashing = sync::read(&self.hashing);
            hashing.table.lane(hashing.hash(peer, local))
        };
        self.lane(lane)
    }

    /// Returns the lane for an established connection. `placement` has class, processors and vector of its completion
    /// queue: the class low latency selects the lane, else the vector does, else the addresses do, among the lanes
    /// within the processors. Starts the lane if necessary.
    pub(crate) fn lane_for(
        self: &Arc<Self>,
        placement: &Placement,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> io::Result<&Arc<Lane>> {
        let vector = self.lane_by_vector(placement.vector);
        match placement.class {
            Class::LowLatency => self.low_latency_within(&placement.processors),
            Class::Bulk(_) if placement.processors.is_unlimited() => match vector {
                Some(lane) => self.lane(lane),
                None => self.lane_by_addresses(peer, local),
            },
            Class::Bulk(_) => {
                let within = self.lanes_within(&placement.processors)?;
                let by_hash = || {
                    let hashing = sync::read(&self.hashing);
                    hashing.table.lane_among(hashing.hash(peer, local), &within)
                };
                self.lane(vector.filter(|lane| within.contains(lane)).unwrap_or_else(by_hash))
            }
        }
    }

    /// Returns the lane for work without addresses.
    pub(crate) fn default_lane(self: &Arc<Self>) -> io::Result<&Arc<Lane>> {
        self.lane(DEFAULT_LANE)
    }

    /// Returns the lane with this number, and starts it if necessary. The low-latency lane has the number after all
    /// others.
    pub(crate) fn lane(self: &Arc<Self>, lane: usize) -> io::Result<&Arc<Lane>> {
        if lane == self.count { self.low_latency() } else { Ok(&self.start_lanes()?[lane]) }
    }

    /// Checks a completion vector, and records that the program uses vectors. Called when it creates a completion queue
    /// with one.
    pub(crate) fn use_vector(&self, lane: usize) -> Result<(), NoSuchLane> {
        self.check_lane(lane)?;
        self.vectors_used.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the number of the lane that a completion vector selects; `None` if there is no vector. Vector 0
    /// selects none until [`use_vector`](Self::use_vector) was called: programs that do not care for vectors pass 0,
    /// because some interfaces require one.
    fn lane_by_vector(&self, vector: Option<usize>) -> Option<usize> {
        vector.filter(|lane| *lane != 0 || self.vectors_used.load(Ordering::Relaxed))
    }

    // --- Lanes ---

    /// Adds the device of a function, whose connections the lanes serve from now on.
    pub(crate) fn add_function(&self, device: &Arc<Device>) {
        let mut functions = lock(&self.functions);
        functions.retain(|known| known.strong_count() > 0);
        functions.push(Arc::downgrade(device));
        drop(functions);
        // After it was added: of this thread and the one that starts that lane, at least one sees what the other did.
        if self.low_latency.get().is_some() {
            device.shorten_calls();
        }
        if self.device.events().is_stopped() {
            device.events().fail(&ADAPTER_FAILED);
        }
    }

    /// Returns the device of the adapter itself.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the devices of the adapter and its functions.
    fn devices(&self) -> Vec<Arc<Device>> {
        let functions = lock(&self.functions);
        [Arc::clone(&self.device)].into_iter().chain(functions.iter().filter_map(Weak::upgrade)).collect()
    }

    /// Returns the shared memory with other processes; `None` if it is off.
    pub(crate) fn shared_memory(&self) -> Option<&Arc<SharedMemory>> {
        self.shared_memory.as_ref()
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the logical device that the adapter is an open of.
    pub(crate) fn logical(&self) -> &Arc<LogicalDevice> {
        &self.logical
    }

    /// Returns whether this is the lane for low-latency completion queues.
    pub(crate) fn is_low_latency(&self, lane: &Arc<Lane>) -> bool {
        self.low_latency.get().is_some_and(|it| Arc::ptr_eq(it, lane))
    }

    /// Returns all running lanes, the low-latency lane last.
    pub(crate) fn all_lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.running_lanes().iter().chain(self.low_latency.get())
    }

    /// Returns the running lanes without the low-latency lane; none if they have not started.
    pub(crate) fn running_lanes(&self) -> &[Arc<Lane>] {
        self.lanes.get().map_or(&[], |lanes| lanes)
    }

    /// Returns the lane for low-latency completion queues. The first call starts it.
    pub(super) fn low_latency(self: &Arc<Self>) -> io::Result<&Arc<Lane>> {
        if let Some(lane) = self.low_latency.get() {
            return Ok(lane);
        }
        self.start_lanes()?;
        let mut threads = lock(&self.threads);
        let threads = threads.as_mut().ok_or_else(stopped)?;
        if let Some(lane) = self.low_latency.get() {
            return Ok(lane); // another thread was first
        }
        let config = LaneConfig { number: self.count, low_latency: true, on_busy: None };
        let (lane, thread) = start(config, self.device.events())?;
        threads.push(thread);
        let lane = self.low_latency.get_or_init(|| lane);
        self.devices().iter().for_each(|device| device.shorten_calls());
        Ok(lane)
    }

    /// Returns the lanes without the low-latency lane. The first call starts them.
    fn start_lanes(self: &Arc<Self>) -> io::Result<&[Arc<Lane>]> {
        if self.lanes.get().is_none() {
            self.start_lanes_once()?;
        }
        Ok(self.running_lanes())
    }

    /// Starts the lanes, unless another thread has done so since the caller checked. Fails if a thread cannot be
    /// started, or if the adapter is being closed. After a failure, the lanes that started end, and
    /// a later call starts all lanes.
    #[cold]
    fn start_lanes_once(self: &Arc<Self>) -> io::Result<()> {
        let mut threads = lock(&self.threads);
        let threads = threads.as_mut().ok_or_else(stopped)?;
        if self.lanes.get().is_none() {
            let mut lanes = Vec::with_capacity(self.count);
            let mut running = Vec::with_capacity(self.count);
            for number in 0..self.count {
                let (lane, thread) = self.start_lane(number).inspect_err(|_| stop_at_once(&lanes))?;
                lanes.push(lane);
                running.push(thread);
            }
            threads.extend(running);
            self.device.events().set_stop(Box::new(StopLanes(Arc::downgrade(self))));
            (self.on_start)(self, &lanes[DEFAULT_LANE]);
            self.lanes.get_or_init(|| lanes); // last: from now on other threads use the lanes
        }
        Ok(())
    }

    /// Starts one lane, which rebalances from time to time if rebalancing is on.
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

    /// Aborts all connections, and has a [`stop`](Self::stop) in progress end at once.
    pub(crate) fn abort_connections(&self) {
        for lane in self.all_lanes() {
            lane.handle().submit(Command::Abort);
            if self.is_stopped() {
                lane.handle().submit(Command::Stop(Duration::ZERO));
            }
        }
    }

    /// Disconnects all connections, and ends the lanes once these are closed, or after this much time. Waits for the
    /// lanes' threads.
    pub(crate) fn stop(&self, within: Duration) {
        *lock(&self.stopped) = true;
        // Taken out, so that the lock is not held while waiting: a lane that starts another one needs the lock, and
        // would never end.
        let threads = lock(&self.threads).take();
        self.all_lanes().for_each(|lane| lane.handle().submit(Command::Stop(within)));
        let me = std::thread::current().id();
        for thread in threads.into_iter().flatten() {
            // This may be a lane's thread, if the last reference to the adapter was dropped there. A thread cannot join
            // itself.
            if thread.thread().id() != me && thread.join().is_err() {
                tracing::error!("a lane's thread panicked");
            }
        }
    }
}

/// Ends the threads of these lanes, which have no connections yet. Called when the lane after them failed to start.
fn stop_at_once(lanes: &[Arc<Lane>]) {
    lanes.iter().for_each(|lane| lane.handle().submit(Command::Stop(Duration::ZERO)));
}

/// Returns the error for a lane that would have to start while the adapter is being closed.
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

/// Why a function stops if its adapter does.
const ADAPTER_FAILED: &str = "the adapter has failed";

/// Aborts the connections of all lanes, and stops the functions. The device calls it when the adapter has failed. The reference is weak because
/// the device, which steering holds, holds the callback.
#[derive(Debug)]
struct StopLanes(Weak<Steering>);

impl Stop for StopLanes {
    /// Makes each lane abort its connections. The lanes' threads go on, until [`Steering::stop`].
    fn stop(&self) {
        if let Some(steering) = self.0.upgrade() {
            steering.all_lanes().for_each(|lane| lane.handle().submit(Command::Abort));
            let functions: Vec<_> = lock(&steering.functions).iter().filter_map(Weak::upgrade).collect();
            functions.iter().for_each(|device| device.events().fail(&ADAPTER_FAILED));
        }
    }
}
