//! The lanes of an adapter, and which of them serves what: the one place that chooses (requirement I7).
//!
//! A connection goes where the hash of its addresses leads, through the [redirection table](RedirectionTable). What has no
//! addresses, such as a listener or a timer, goes to the default lane; what belongs to a completion queue for which the program named
//! a lane goes there (requirement N5). Connections can be [moved](Steering::move_queue_pair) to
//! another lane while traffic flows, and `rebalance` does so by itself (requirement I9).

mod rebalance;
#[cfg(test)]
mod tests;

use crate::class::Class;
use crate::connection::Connection;
use crate::cq::CompletionQueue;
use crate::event_queues::EventQueues;
use crate::lane::{Job, Lane};
use crate::pair::QueuePair;
use crate::set::lock;
use crate::show::Shown;
use crate::sys::random::random;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::Fault;
use ironwarp_rnic::event::Stop;
use ironwarp_rnic::steering::{KEY_LEN, RedirectionTable, Tuple, toeplitz};
use rebalance::Rebalancer;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Where what has no addresses goes.
const DEFAULT: usize = 0;

/// A lane that there is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no lane {lane}: they count from 0 to {}", .lanes - 1)]
pub struct NoSuchLane {
    /// The number that was given.
    pub lane: usize,
    /// How many lanes there are.
    pub lanes: usize,
}

/// A queue pair that was not moved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// There is no such lane.
    #[error("{0}")]
    NoSuchLane(#[from] NoSuchLane),
    /// It has no connection, or none any more.
    #[error("the queue pair is not connected")]
    NotConnected,
    /// The operating system says no. It is where it was.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// What a lane has to do, and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneLoad {
    /// How many sockets of queue pairs it waits for, while their program does not.
    pub sockets: usize,
    /// How much time of a processor its thread has used.
    pub busy: Duration,
    /// How often its thread woke.
    pub wakes: u64,
    /// Number of pending timers.
    pub timers: usize,
    /// Number of connections that peers have begun and that are not streams yet.
    pub making: usize,
    /// Number of such connections that were closed because there were too many, or too few descriptors.
    pub evicted: u64,
}

/// The lanes of an adapter and its redirection table.
pub struct Steering {
    key: [u8; KEY_LEN],
    table: RwLock<RedirectionTable>,
    /// How many lanes there are, started or not.
    count: usize,
    lanes: OnceLock<Vec<Arc<Lane>>>,
    /// The lane of what is urgent (requirement N6), once something is. The table does not lead there.
    urgent: OnceLock<Arc<Lane>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Who tells them that the adapter has failed.
    device: Arc<Device>,
    /// For who looks from outside.
    event_queues: Arc<EventQueues>,
    /// Held while a connection is moved; true once the lanes were told to stop, which each hears at a time of its own.
    stopped: Mutex<bool>,
    rebalancer: Option<Rebalancer>,
    /// The program names lanes for completion queues.
    named: AtomicBool,
}

impl Steering {
    /// No lane runs yet.
    pub(crate) fn new(device: &Arc<Device>, event_queues: &Arc<EventQueues>) -> io::Result<Arc<Self>> {
        let config = device.config();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let count = config.lanes.clamp(1, processors);
        Ok(Arc::new(Self {
            key: config.steering_key.bytes().map_or_else(random, |key| Ok(*key))?,
            table: RwLock::new(RedirectionTable::spread(count)),
            count,
            lanes: OnceLock::new(),
            urgent: OnceLock::new(),
            threads: Mutex::default(),
            device: Arc::clone(device),
            event_queues: Arc::clone(event_queues),
            stopped: Mutex::new(false),
            rebalancer: Rebalancer::new(config.rebalance, count),
            named: AtomicBool::new(false),
        }))
    }

    /// How many lanes there are.
    pub fn lanes(&self) -> usize {
        self.count
    }

    /// The redirection table as it is now.
    pub fn table(&self) -> RedirectionTable {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the redirection table, while traffic flows (requirement I9). New connections go by it; those that there are stay
    /// where they are.
    pub fn set_table(&self, table: RedirectionTable) -> Result<(), NoSuchLane> {
        for entry in table.entries() {
            self.check(usize::from(*entry))?;
        }
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = table;
        Ok(())
    }

    /// What each lane has to do, and did so far.
    pub fn load(&self) -> Vec<LaneLoad> {
        let idle = vec![LaneLoad::default(); self.count];
        if self.running().is_empty() { idle } else { self.running().iter().map(|lane| lane.load()).collect() }
    }

    /// Moves the connection of a queue pair to another lane, while traffic flows: nothing is lost, doubled or reordered. Its completion
    /// queues are polled and waited on as before. (A connectionless queue pair stays where it is.)
    pub fn move_queue_pair(&self, pair: &QueuePair, to: usize) -> Result<(), MoveError> {
        self.check(to)?;
        let connection = pair.connection().ok_or(MoveError::NotConnected)?;
        let lane = self.running().get(to).ok_or(MoveError::NotConnected)?;
        self.transfer(&connection, lane)
    }

    /// On which processors a lane may run.
    pub fn processors(self: &Arc<Self>, lane: usize) -> io::Result<Vec<usize>> {
        self.check(lane).map_err(io::Error::other)?;
        self.lane(lane)?.await_thread().processors()
    }

    /// Lets a lane run on these processors and no others (requirement N5), where the threads that wait for its completions may run,
    /// too. It fails if the process may use none of them.
    pub fn set_processors(self: &Arc<Self>, lane: usize, processors: &[usize]) -> io::Result<()> {
        self.check(lane).map_err(io::Error::other)?;
        self.lane(lane)?.await_thread().set_processors(processors)
    }

    /// Moves a connection to the lane that its completion queue and its addresses lead to, if it is not there.
    pub(crate) fn settle(self: &Arc<Self>, connection: &Arc<Connection>) -> io::Result<()> {
        let (Ok(peer), Ok(local)) = (connection.link().peer_addr(), connection.link().local_addr()) else {
            return Ok(()); // it is closed
        };
        let lane = self.lane_for(connection.pair().receive_cq(), peer, local)?;
        match self.transfer(connection, &lane) {
            Err(MoveError::System(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// The same for one that is new, where that is cheap.
    pub(crate) fn settle_new(self: &Arc<Self>, connection: &Arc<Connection>) -> io::Result<()> {
        let urgent = connection.pair().receive_cq().class() == Class::LowLatency;
        if urgent == self.is_urgent(&connection.lane()) { Ok(()) } else { self.settle(connection) }
    }

    fn transfer(&self, connection: &Arc<Connection>, lane: &Arc<Lane>) -> Result<(), MoveError> {
        self.transfer_if(connection, lane, || true)
    }

    /// If `still`, once nobody else moves anything.
    fn transfer_if(
        &self,
        connection: &Arc<Connection>,
        lane: &Arc<Lane>,
        still: impl FnOnce() -> bool,
    ) -> Result<(), MoveError> {
        let stopped = lock(&self.stopped);
        if *stopped || !still() {
            return Err(MoveError::NotConnected);
        }
        let pair = connection.pair();
        let set = pair.receive_cq().set_on(lane)?;
        pair.send_cq().add_set(&set);
        let moved = connection.move_to(&set)?;
        drop(stopped);
        if self.device.events().is_stopped() {
            connection.cut(Fault::Stopped); // its new lane may have cut all others before
        }
        if moved { Ok(()) } else { Err(MoveError::NotConnected) }
    }

    /// The hash of a connection between these addresses.
    pub fn hash(&self, peer: SocketAddr, local: SocketAddr) -> u32 {
        toeplitz(&self.key, &Tuple::new(peer, local))
    }

    fn check(&self, lane: usize) -> Result<(), NoSuchLane> {
        if lane < self.count { Ok(()) } else { Err(NoSuchLane { lane, lanes: self.count }) }
    }

    // --- For the engine ---

    /// The lane of a connection between these addresses.
    pub(crate) fn lane_of(self: &Arc<Self>, peer: SocketAddr, local: SocketAddr) -> io::Result<Arc<Lane>> {
        let hash = self.hash(peer, local);
        let lane = self.table.read().unwrap_or_else(PoisonError::into_inner).lane(hash);
        Ok(Arc::clone(&self.started()?[lane]))
    }

    /// The same, of one with this completion queue: its class may have a lane, or the program may have named one.
    pub(crate) fn lane_for(
        self: &Arc<Self>,
        cq: &CompletionQueue,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> io::Result<Arc<Lane>> {
        match (cq.class(), self.named_by(cq)) {
            (Class::LowLatency, _) => self.urgent(),
            (Class::Bulk(_), Some(lane)) => self.lane(lane),
            (Class::Bulk(_), None) => self.lane_of(peer, local),
        }
    }

    /// The lane of what is urgent; the first call starts it.
    fn urgent(self: &Arc<Self>) -> io::Result<Arc<Lane>> {
        self.started()?;
        let mut threads = lock(&self.threads);
        if let Some(lane) = self.urgent.get() {
            return Ok(Arc::clone(lane));
        }
        let (lane, thread) = Lane::start_urgent(self.count, self.device.events())?;
        self.device.shorten_calls();
        threads.push(thread);
        Ok(Arc::clone(self.urgent.get_or_init(|| lane)))
    }

    /// All lanes that run, that of what is urgent included.
    pub(crate) fn every(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.running().iter().chain(self.urgent.get())
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn event_queues(&self) -> &EventQueues {
        &self.event_queues
    }

    /// Whether this is the lane of what is urgent.
    pub(crate) fn is_urgent(&self, lane: &Arc<Lane>) -> bool {
        self.urgent.get().is_some_and(|urgent| Arc::ptr_eq(urgent, lane))
    }

    /// The lane with this number.
    pub(crate) fn lane(self: &Arc<Self>, lane: usize) -> io::Result<Arc<Lane>> {
        Ok(Arc::clone(&self.started()?[lane]))
    }

    /// The program names a lane for a completion queue.
    pub(crate) fn name(&self, lane: usize) -> Result<(), NoSuchLane> {
        self.check(lane)?;
        self.named.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The lane that the program named for a completion queue. It may have to name one, and then 0 says nothing while it names no other.
    pub(crate) fn named_by(&self, cq: &CompletionQueue) -> Option<usize> {
        cq.vector().filter(|lane| *lane != 0 || self.named.load(Ordering::Relaxed))
    }

    /// The lane of what has no addresses.
    pub(crate) fn default_lane(self: &Arc<Self>) -> io::Result<Arc<Lane>> {
        Ok(Arc::clone(&self.started()?[DEFAULT]))
    }

    /// The lanes that run: all of them, or none yet.
    pub(crate) fn running(&self) -> &[Arc<Lane>] {
        self.lanes.get().map_or(&[], |lanes| lanes)
    }

    /// The lanes; the first call starts them.
    fn started(self: &Arc<Self>) -> io::Result<&[Arc<Lane>]> {
        if self.lanes.get().is_none() {
            self.start()?;
        }
        Ok(self.running())
    }

    #[cold]
    fn start(self: &Arc<Self>) -> io::Result<()> {
        let mut threads = lock(&self.threads);
        if self.lanes.get().is_none() {
            // Weakly: a lane that nobody rebalances has nobody to tell.
            let me = self.rebalancer.as_ref().map_or_else(Weak::new, |_| Arc::downgrade(self));
            let start = |number| Lane::start(number, Weak::clone(&me), self.device.events());
            let started: io::Result<Vec<_>> = (0..self.count).map(start).collect();
            let (lanes, running): (Vec<_>, Vec<_>) = started?.into_iter().unzip();
            threads.extend(running);
            self.device.events().set_stop(Box::new(StopLanes(Arc::downgrade(self))));
            self.show(&lanes[DEFAULT]);
            self.lanes.get_or_init(|| lanes);
        }
        Ok(())
    }

    /// Answers `ironwarp show` from now on. An adapter that cannot be shown works all the same.
    fn show(self: &Arc<Self>, by: &Lane) {
        match Shown::new(self) {
            Ok(shown) => by.submit(Job::Attend(Arc::new(shown))),
            Err(error) => tracing::info!(%error, "`ironwarp show` will not find this adapter"),
        }
    }

    /// Ends the lanes when all connections are closed, or so much time has passed.
    pub(crate) fn stop(&self, within: Duration) {
        *lock(&self.stopped) = true;
        self.every().for_each(|lane| lane.submit(Job::Stop(within)));
        let me = std::thread::current().id();
        for thread in lock(&self.threads).drain(..) {
            // A lane may be the last to hold the adapter; it cannot wait for itself.
            if thread.thread().id() != me && thread.join().is_err() {
                tracing::error!("a lane panicked");
            }
        }
    }
}

/// Without the key, which is a secret.
impl fmt::Debug for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steering")
            .field("lanes", &self.count)
            .field("table", &self.table())
            .finish_non_exhaustive()
    }
}

/// Ends what the lanes do once the adapter has failed.
#[derive(Debug)]
struct StopLanes(Weak<Steering>);

impl Stop for StopLanes {
    fn stop(&self) {
        if let Some(steering) = self.0.upgrade() {
            steering.every().for_each(|lane| lane.submit(Job::Cut));
        }
    }
}
