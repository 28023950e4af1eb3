//! Moves all objects of an adapter to another process (requirement X2, `docs/functions.md`): freezes them and stores their
//! state, or restores them from that.

use super::Engine;
use super::listening::PausedListeners;
use crate::cm::listen::Listener;
use crate::config::Config;
use crate::logical::LogicalDevice;
use crate::steering::LeaveError;
use crate::sys::socket::TcpLink;
use crate::verbs::cq::CompletionQueue;
use crate::verbs::error::ConnectError;
use crate::verbs::queue_pair::{
    FrozenPair, MOVABLE_CHECK, PairImage, PairNotMovable, QueuePair, RestoredPair,
};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::memory::{KeyMask, NotCarried, StillPending, TableError, Translation};
use ironwarp_rnic::qp::{FrozenQp, MovedObjects, Qp};
use ironwarp_rnic::queue::{Cq, CqTooLarge, FrozenCq, FrozenSrq, SharedReceiveQueue, XrcDomain};
use ironwarp_rnic::quota::Resource;
use ironwarp_rnic::snapshot::{Snapshot, SnapshotError};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

#[cfg(test)]
mod tests;

/// Maximum number of objects of a kind that an adapter has created when it moves: as many numbers are left afterwards.
const MAX_CREATED: u32 = 1 << 31;
/// The kinds of objects whose numbers follow each other.
const COUNTED: [&str; 3] = ["completion queues", "shared receive queues", "protection domains"];

/// Why an adapter cannot move now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FreezeError {
    /// The adapter was shut down.
    #[error("an adapter that was shut down cannot move: hand it over before, or open another one")]
    ShutDown,
    /// A queue pair cannot.
    #[error(transparent)]
    QueuePair(#[from] PairNotMovable),
    /// A stream does not leave shared memory.
    #[error(transparent)]
    SharedMemory(#[from] LeaveError),
    /// There are connectionless queue pairs.
    #[error("connectionless queue pairs cannot move: destroy them first")]
    Datagrams,
    /// There are queue pairs in iSCSI mode.
    #[error("queue pairs in iSCSI mode cannot move: destroy them first")]
    Iscsi,
    /// There are control queues.
    #[error("control queues cannot move: destroy them first")]
    ControlQueues,
    /// Regions have moved here from another function.
    #[error("regions that came from another function cannot move to another process")]
    ForeignRegions,
    /// A registration is in progress.
    #[error(transparent)]
    Registration(#[from] StillPending),
    /// A completion queue is too large.
    #[error(transparent)]
    CompletionQueue(#[from] CqTooLarge),
    /// So many objects were created that few numbers are left for others.
    #[error(
        "{0} {1} were created, and an adapter with more than {MAX_CREATED} cannot move: open another one"
    )]
    Created(u32, &'static str),
}

/// Why an adapter cannot be restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The state of the device cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The state of the adapter is damaged.
    #[error("the state of the adapter is damaged: {0}")]
    Damaged(#[from] postcard::Error),
    /// Bytes follow the state of the adapter.
    #[error("{0} bytes follow the state of the adapter")]
    Trailing(usize),
    /// Objects that are created later would get numbers that are in use, or few numbers are left for them.
    #[error(
        "the state of the adapter contradicts itself: {created} {kind} were created, and one is number {number}"
    )]
    Created {
        /// Number of objects that were created.
        created: u32,
        /// Their kind.
        kind: &'static str,
        /// The largest of their numbers.
        number: u32,
    },
    /// Objects or sockets are missing that others name.
    #[error("the state of the adapter contradicts itself: {0} is missing")]
    Missing(&'static str),
    /// The memory table cannot be restored.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The state names memory that was not carried over.
    #[error(transparent)]
    NotCarried(#[from] NotCarried),
    /// A connection could not be restored.
    #[error(transparent)]
    Connection(#[from] ConnectError),
    /// The kernel refused a resource, or a number is in use here.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// The objects of an adapter that is frozen, and their state.
#[derive(Debug, Default)]
pub struct FrozenEngine {
    pairs: Vec<FrozenPair>,
    qps: Vec<FrozenQp>,
    images: Vec<PairImage>,
    shared_receive_queues: Vec<Arc<SharedReceiveQueue>>,
    srqs: Vec<FrozenSrq>,
    completion_queues: Vec<Arc<CompletionQueue>>,
    cqs: Vec<FrozenCq>,
    /// Accept again when this is dropped.
    listeners: PausedListeners,
}

/// The state of an adapter, as it is stored.
#[derive(Debug, Serialize, Deserialize)]
struct EngineImage {
    /// The snapshot of the device.
    snapshot: Vec<u8>,
    pairs: Vec<PairImage>,
    /// Number of completion queues and of shared receive queues that were created, which the numbers of new ones follow.
    created: [u32; 2],
    /// Numbers of the listeners.
    listeners: Vec<u32>,
}

/// What has arrived with the state of an adapter.
#[derive(Debug, Default)]
pub struct Arrived {
    /// The sockets of [`Engine::connected_sockets`], by number.
    pub sockets: HashMap<u32, ArrivedSocket>,
    /// The sockets of [`Engine::listening_sockets`], by number.
    pub listeners: HashMap<u32, OwnedFd>,
    /// What hides the key of the tag cipher in the state.
    pub mask: KeyMask,
}

/// The socket of a connection, and what was in its buffers if it is another one than at the source.
#[derive(Debug)]
pub struct ArrivedSocket {
    pub fd: OwnedFd,
    /// Bytes that had arrived at the source.
    pub received: Vec<u8>,
    /// Bytes that the source had not sent.
    pub unsent: Vec<u8>,
}

/// An adapter that was restored, and does not act yet.
#[derive(Debug)]
pub struct RestoredEngine {
    engine: Arc<Engine>,
    completion_queues: Vec<Arc<CompletionQueue>>,
    cqs: Vec<FrozenCq>,
    shared_receive_queues: Vec<Arc<SharedReceiveQueue>>,
    pairs: Vec<RestoredPair>,
    listeners: Vec<Listener>,
}

/// The objects of an adapter that was restored, by number.
struct Objects {
    cqs: HashMap<u32, Arc<CompletionQueue>>,
    srqs: HashMap<u32, Arc<SharedReceiveQueue>>,
}

impl MovedObjects for Objects {
    fn cq(&self, number: u32) -> Option<Arc<Cq>> {
        self.cqs.get(&number).map(|cq| Arc::clone(cq.cq()))
    }

    fn srq(&self, number: u32) -> Option<Arc<SharedReceiveQueue>> {
        self.srqs.get(&number).cloned()
    }

    fn xrc_domain(&self, srqs: &[u32]) -> Option<Arc<XrcDomain>> {
        let domain = XrcDomain::new();
        srqs.iter().try_for_each(|srq| self.srqs.get(srq).map(|srq| domain.add(srq)))?;
        Some(domain)
    }
}

impl Engine {
    /// Returns whether all objects of the adapter can move now.
    pub fn check_movable(&self) -> Result<(), FreezeError> {
        if self.device().is_shut_down() {
            return Err(FreezeError::ShutDown);
        }
        if self.function.objects().has_datagram_pairs() {
            return Err(FreezeError::Datagrams);
        }
        if self.function.objects().has_iscsi_pairs() {
            return Err(FreezeError::Iscsi);
        }
        if self.function.objects().has_control_queues() {
            return Err(FreezeError::ControlQueues);
        }
        if self.device().table().has_foreign() {
            return Err(FreezeError::ForeignRegions);
        }
        // What the loader would refuse is found here, before anything is frozen.
        self.function.objects().completion_queues().iter().try_for_each(|cq| cq.cq().check_movable())?;
        let ([cqs, srqs], next_domain) = (self.shared.created(), self.device().next_domain());
        for (created, kind) in [cqs, srqs, next_domain].into_iter().zip(COUNTED) {
            if created > MAX_CREATED {
                return Err(FreezeError::Created(created, kind));
            }
        }
        Ok(self.function.objects().pairs().iter().try_for_each(|pair| pair.check_movable())?)
    }

    /// Waits until all objects of the adapter can move, at most until the deadline: all streams leave shared memory, and those
    /// that are being closed there are closed.
    pub fn wait_until_movable(&self, deadline: Instant) -> Result<(), FreezeError> {
        loop {
            self.leave_shared_memory(deadline).map_err(|mut errors| errors.swap_remove(0))?;
            match self.check_movable() {
                Err(FreezeError::QueuePair(
                    PairNotMovable::SharedMemory(_) | PairNotMovable::Connecting(_),
                )) if Instant::now() < deadline => std::thread::sleep(MOVABLE_CHECK),
                checked => return checked,
            }
        }
    }

    /// Returns the numbers and sockets of all queue pairs that have a connection.
    pub fn connected_sockets(&self) -> Vec<(u32, Arc<TcpLink>)> {
        self.function.objects().pairs().iter().filter_map(|pair| Some((pair.id(), pair.socket()?))).collect()
    }

    /// Freezes all objects: nothing is sent, received, posted, completed or polled from now on. The listeners were
    /// [paused](Self::pause_listening) before.
    pub fn freeze(&self, listeners: PausedListeners) -> Result<FrozenEngine, FreezeError> {
        self.check_movable()?;
        let mut frozen = FrozenEngine { listeners, ..FrozenEngine::default() };
        for pair in self.function.objects().pairs() {
            match pair.freeze() {
                Ok((pair, qp, image)) => {
                    frozen.pairs.push(pair);
                    frozen.qps.push(qp);
                    frozen.images.push(image);
                }
                Err(error) => {
                    frozen.thaw();
                    return Err(error.into());
                }
            }
        }
        frozen.shared_receive_queues = self.function.objects().shared_receive_queues();
        frozen.srqs = frozen.shared_receive_queues.iter().map(|srq| srq.freeze()).collect();
        frozen.completion_queues = self.function.objects().completion_queues();
        frozen.cqs = frozen.completion_queues.iter().map(|cq| cq.cq().freeze()).collect();
        Ok(frozen)
    }

    /// Returns the state of the adapter, which is frozen, as bytes. `mask` hides the key of the tag cipher.
    pub fn store(&self, frozen: &mut FrozenEngine, mask: KeyMask) -> Result<Vec<u8>, FreezeError> {
        let snapshot = self.device().snapshot(&frozen.cqs, &frozen.srqs, &frozen.qps, mask)?;
        let created = self.shared.created();
        let (pairs, listeners) = (std::mem::take(&mut frozen.images), frozen.listeners.numbers());
        let image = EngineImage { snapshot, pairs, created, listeners };
        Ok(postcard::to_allocvec(&image).expect("a vector takes everything"))
    }

    /// Restores an adapter from its state and what has arrived with it. It does not act until it is
    /// [activated](RestoredEngine::activate). `relocate` translates memory of the other process to memory of this one.
    pub fn load(
        config: Config,
        logical: &Arc<LogicalDevice>,
        state: &[u8],
        arrived: Arrived,
        relocate: &mut dyn FnMut(&[Span]) -> Option<Translation>,
    ) -> Result<RestoredEngine, LoadError> {
        let Arrived { mut sockets, mut listeners, mask } = arrived;
        let (image, rest) = postcard::take_from_bytes::<EngineImage>(state)?;
        if !rest.is_empty() {
            return Err(LoadError::Trailing(rest.len()));
        }
        let mut snapshot = Snapshot::decode(&image.snapshot)?;
        image.check_created(&snapshot)?;
        snapshot.table.mask_key(mask);
        snapshot.relocate(relocate)?;
        let Snapshot { next_domain, table, cqs, srqs, qps } = snapshot;
        let mut loaded = Ok(());
        let engine = Self::open_with(config, logical, |config, host| {
            Device::load(config, host, table, next_domain, relocate).map_err(|error| {
                loaded = Err(error);
                io::ErrorKind::InvalidData.into()
            })
        });
        loaded?;
        let engine = engine?;
        engine.shared.set_created(image.created);
        let mut objects = Objects { cqs: HashMap::new(), srqs: HashMap::new() };
        let mut restored = RestoredEngine {
            engine: Arc::clone(&engine),
            completion_queues: Vec::new(),
            cqs: Vec::new(),
            shared_receive_queues: Vec::new(),
            pairs: Vec::new(),
            listeners: Vec::new(),
        };
        for frozen in cqs {
            let cq =
                CompletionQueue::new(frozen.id, frozen.capacity, engine.device(), engine.steering(), None)?;
            cq.add_adversary(engine.device())?;
            engine.function.objects().add_cq(&cq);
            objects.cqs.insert(frozen.id, Arc::clone(&cq));
            restored.completion_queues.push(cq);
            restored.cqs.push(frozen);
        }
        for frozen in srqs {
            let cq = frozen.cq.and_then(|cq| objects.cq(cq));
            let srq = engine.new_srq(frozen.id, frozen.domain, frozen.size(), cq).map_err(io::Error::from)?;
            objects.srqs.insert(frozen.id, Arc::clone(&srq));
            srq.thaw(frozen);
            restored.shared_receive_queues.push(srq);
        }
        if image.pairs.len() != qps.len() {
            return Err(LoadError::Missing("a queue pair"));
        }
        for (frozen, image) in qps.into_iter().zip(image.pairs) {
            let socket = sockets.remove(&frozen.id());
            restored.pairs.push(engine.restore_pair(frozen, image, socket, &objects)?);
        }
        for number in image.listeners {
            let socket = listeners.remove(&number).ok_or(LoadError::Missing("a listening socket"))?;
            restored.listeners.push(Listener::restore(&engine.shared.cm, &engine.function, socket)?);
        }
        Ok(restored)
    }

    /// Restores a queue pair, whose connection has this socket.
    fn restore_pair(
        &self,
        mut frozen: FrozenQp,
        image: PairImage,
        socket: Option<ArrivedSocket>,
        objects: &Objects,
    ) -> Result<RestoredPair, LoadError> {
        if frozen.id() != image.number {
            return Err(LoadError::Missing("a queue pair"));
        }
        if frozen.has_stream() && socket.is_none() {
            return Err(LoadError::Missing("a socket"));
        }
        if frozen.has_stream() && !image.is_established() {
            return Err(LoadError::Missing("a connection"));
        }
        let number = self.shared.numbers.claim_plain(frozen.id())?;
        let charged = self.device().account().charge(Resource::QueuePairs, 1); // dropping the queue pair releases it
        charged.map_err(io::Error::from)?;
        let [send, receive] = frozen.cqs().map(|cq| objects.cqs.get(&cq).cloned());
        let (Some(send), Some(receive)) = (send, receive) else {
            return Err(LoadError::Missing("a completion queue"));
        };
        let socket = socket.map(|ArrivedSocket { fd, received, unsent }| {
            frozen.carry(&received, unsent);
            TcpLink::handed_over(fd, image.is_finished()).map(Arc::new)
        });
        let socket = socket.transpose()?;
        let restored = Qp::restore(self.device(), frozen, objects).ok_or(LoadError::Missing("a queue"))?;
        let index = self.shared.next_qp_index();
        let pair =
            QueuePair::restore(number, index, self.device(), restored, [send, receive], image, socket)?;
        self.function.objects().add_pair(&pair.pair);
        Ok(pair)
    }
}

impl EngineImage {
    /// Checks that objects that are created later get other numbers than those that there are.
    fn check_created(&self, snapshot: &Snapshot) -> Result<(), LoadError> {
        let Snapshot { next_domain, cqs, srqs, .. } = snapshot;
        let [cqs_created, srqs_created] = self.created;
        let largest_cq = cqs.iter().map(|cq| cq.id).max().unwrap_or_default();
        let largest_srq = srqs.iter().map(|srq| srq.id).max().unwrap_or_default();
        let counts = [(cqs_created, largest_cq), (srqs_created, largest_srq), (*next_domain, 0)];
        for ((created, number), kind) in counts.into_iter().zip(COUNTED) {
            if !(number..=MAX_CREATED).contains(&created) {
                return Err(LoadError::Created { created, kind, number });
            }
        }
        Ok(())
    }
}

impl FrozenEngine {
    /// Puts the state of all objects back, and goes on.
    pub fn thaw(self) {
        for (srq, frozen) in self.shared_receive_queues.iter().zip(self.srqs) {
            srq.thaw(frozen);
        }
        for (cq, frozen) in self.completion_queues.iter().zip(self.cqs) {
            cq.cq().thaw(frozen);
        }
        for (pair, frozen) in self.pairs.iter().zip(self.qps) {
            pair.thaw(frozen);
        }
    }

    /// Ends all objects, because another process has them. Nothing is sent.
    pub fn surrender(self) {
        self.pairs.iter().for_each(FrozenPair::surrender);
        self.listeners.surrender();
    }
}

impl RestoredEngine {
    /// Returns the adapter.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the completion queues.
    pub fn completion_queues(&self) -> &[Arc<CompletionQueue>] {
        &self.completion_queues
    }

    /// Returns the shared receive queues.
    pub fn shared_receive_queues(&self) -> &[Arc<SharedReceiveQueue>] {
        &self.shared_receive_queues
    }

    /// Returns the queue pairs.
    pub fn queue_pairs(&self) -> impl Iterator<Item = &Arc<QueuePair>> {
        self.pairs.iter().map(|restored| &restored.pair)
    }

    /// Takes the listeners.
    pub fn take_listeners(&mut self) -> Vec<Listener> {
        std::mem::take(&mut self.listeners)
    }

    /// Begins to act: the connections are served, new ones are accepted, and events are raised that are due.
    pub fn activate(self) {
        for (cq, frozen) in self.completion_queues.iter().zip(self.cqs) {
            cq.cq().thaw(frozen);
        }
        self.pairs.iter().for_each(RestoredPair::activate);
        self.engine.function.movable_listeners().iter().for_each(|listener| listener.resume());
    }

    /// Drops all objects without acting on their sockets, because another process owns them.
    pub fn discard(self) {
        self.pairs.iter().for_each(RestoredPair::discard);
    }
}
