//! The process that takes an adapter over.

use super::memory::CarriedMemory;
use super::{HandOverError, TakeOverOptions, kept, required_key};
use crate::adapter::Adapter;
use crate::completion::CompletionQueue;
use crate::config::Config;
use crate::connection::Listener;
use crate::memory::{Contents, MemoryRegion, memfd};
use crate::protection_domain::ProtectionDomain;
use crate::queue::{QueuePair, SharedReceiveQueue};
use crate::shared::Shared;
use ironwarp_engine::hand_over::host::{HostTarget, HostTargetOptions, take_over_from_host};
use ironwarp_engine::hand_over::{self, Failure, Name, Refusal, Target, TargetOptions, TargetStep};
use ironwarp_engine::logical::{self, LogicalDevice};
use ironwarp_engine::{Arrived, ArrivedSocket, Engine, RestoredEngine};
use ironwarp_rnic::memory::{Domain, KeyMask};
use ironwarp_rnic::snapshot::VERSION;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// An adapter that was taken over, with its objects. They have the numbers and tags that they had before.
#[derive(Debug)]
#[non_exhaustive]
pub struct TakenOver {
    /// The adapter.
    pub adapter: Adapter,
    /// Bytes of the program that handed the adapter over.
    pub data: Vec<u8>,
    /// The completion queues, in the order of their creation.
    pub completion_queues: Vec<CompletionQueue>,
    /// The shared receive queues, in the order of their creation.
    pub shared_receive_queues: Vec<SharedReceiveQueue>,
    /// The queue pairs, in the order of their creation.
    pub queue_pairs: Vec<QueuePair>,
    /// The regions that were registered by call. Those that were registered by requests, and windows, stay valid until the
    /// adapter is closed.
    pub regions: Vec<MemoryRegion>,
    /// The listeners, in the order of their creation. They have the same addresses. Peers that connected during the hand-over
    /// wait in the backlog.
    pub listeners: Vec<Listener>,
    /// The protection domains that have queue pairs or regions.
    pub protection_domains: Vec<ProtectionDomain>,
    /// Whether the other process died after it had offered the adapter, so that it does not know of the success.
    pub adopted: bool,
}

/// What has arrived of an adapter.
struct AdapterTarget {
    config: Config,
    device: Arc<LogicalDevice>,
    arrived: Arrived,
    memory: CarriedMemory,
    loaded: Option<Loaded>,
    /// Called after each step.
    at: fn(&dyn fmt::Debug),
}

/// An adapter that was restored, and does not act yet.
struct Loaded {
    engine: RestoredEngine,
    taken: TakenOver,
}

impl Adapter {
    /// Takes over the adapter of the process at the other end of a SEQPACKET socket, which calls
    /// [`hand_over`](Self::hand_over). See [`hand_over`](crate::hand_over).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use ironwarp::Adapter;
    /// use ironwarp::hand_over::{HandOverOptions, TakeOverOptions};
    /// use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    ///
    /// let (here, there) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    /// let next = std::thread::spawn(move || Adapter::take_over(there, TakeOverOptions::new()));
    /// Adapter::new()?.hand_over(here, &HandOverOptions::new().data(b"version 1"))?;
    /// assert_eq!(next.join().unwrap()?.data, b"version 1");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the other process does not offer an adapter in time, or takes its offer back, or if the adapter cannot be
    /// restored here. Then this process has nothing of the adapter, and the error tells who owns it.
    pub fn take_over(from: impl Into<OwnedFd>, options: TakeOverOptions) -> Result<TakenOver, HandOverError> {
        let timeout = options.timeout;
        let target = AdapterTarget::new(options)?;
        let options = TargetOptions { timeout, versions: VERSION..=VERSION, ..TargetOptions::default() };
        let taken = hand_over::take_over(from.into(), target, &options)?;
        Ok(TakenOver { data: taken.program, adopted: taken.adopted, ..taken.active })
    }

    /// Takes over the adapter of a process on another host, which has started this one by
    /// [`hand_over_to_host`](Self::hand_over_to_host). `input` and `output` are usually the standard input and output of this
    /// process, so it prints nothing until this returns. The interface gets the addresses of the connections.
    ///
    /// This process needs the capabilities CAP_NET_ADMIN and CAP_NET_RAW, and must be in the network namespace of the interface.
    /// Its [cluster key](crate::Config::key_file) is the same as at the other host.
    ///
    /// ```
    /// use ironwarp::Adapter;
    /// use ironwarp::hand_over::TakeOverOptions;
    /// use std::io::{stdin, stdout};
    /// use std::os::fd::AsFd;
    ///
    /// let (input, output) = (stdin().as_fd().try_clone_to_owned()?, stdout().as_fd().try_clone_to_owned()?);
    /// let options = TakeOverOptions::new(); // without the key of the other host
    /// let refused = Adapter::take_over_from_host(input, output, "eth0", options).unwrap_err();
    /// assert!(refused.to_string().starts_with("no cluster key is set: both hosts need the same one"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails like [`take_over`](Self::take_over), and if the interface cannot take the addresses, or this host has one of them.
    pub fn take_over_from_host(
        input: impl Into<OwnedFd>,
        output: impl Into<OwnedFd>,
        interface: &str,
        options: TakeOverOptions,
    ) -> Result<TakenOver, HandOverError> {
        let key = required_key(&options.config)?;
        let host_options = HostTargetOptions {
            interface: interface.to_owned(),
            timeout: options.timeout,
            versions: VERSION..=VERSION,
            state: TargetOptions::default().state,
            memory: options.memory,
        };
        let target = AdapterTarget::new(options)?;
        let taken = take_over_from_host(input.into(), output.into(), target, &key, &host_options)?;
        Ok(TakenOver { data: taken.program, adopted: taken.adopted, ..taken.active })
    }
}

impl AdapterTarget {
    fn new(options: TakeOverOptions) -> Result<Self, HandOverError> {
        let device = logical::devices(&options.config).map(|devices| Arc::clone(&devices[0]));
        let device = device.map_err(|error| kept(Failure::Declined(Refusal(error.to_string()))))?;
        Ok(Self {
            config: options.config,
            device,
            arrived: Arrived::default(),
            memory: CarriedMemory::default(),
            loaded: None,
            at: options.at,
        })
    }
}

impl Target for AdapterTarget {
    type Active = TakenOver;

    fn copy(&mut self, name: &[u8], descriptor: OwnedFd) -> Result<(), Refusal> {
        match Name::from_bytes(name) {
            Some(Name::Buffer { first, addr, len }) => {
                self.memory.add(first, addr, len, descriptor).map_err(|error| Refusal(error.to_string()))
            }
            Some(Name::Socket(number)) => {
                let socket = ArrivedSocket { fd: descriptor, received: Vec::new(), unsent: Vec::new() };
                self.arrived.sockets.insert(number, socket);
                Ok(())
            }
            Some(Name::Listener(number)) => {
                self.arrived.listeners.insert(number, descriptor);
                Ok(())
            }
            None => Err(Refusal(format!("a descriptor is named {name:x?}, which is not known"))),
        }
    }

    fn prepare(&mut self) -> Result<(), Refusal> {
        Ok(())
    }

    fn load(&mut self, _: u16, snapshot: &[u8]) -> Result<(), Refusal> {
        self.memory.assemble();
        let arrived = std::mem::take(&mut self.arrived);
        let memory = &self.memory;
        let mut relocate = |spans: &[_]| memory.relocate(spans);
        let config = self.config.clone();
        let mut engine = Engine::load(config, &self.device, snapshot, arrived, &mut relocate)
            .map_err(|error| Refusal(error.to_string()))?;
        match objects(&mut engine, memory) {
            Ok(taken) => {
                self.loaded = Some(Loaded { engine, taken });
                Ok(())
            }
            Err(error) => {
                engine.discard();
                Err(Refusal(error.to_string()))
            }
        }
    }

    fn activate(self) -> TakenOver {
        let Loaded { engine, taken } = self.loaded.expect("the adapter was loaded before it was taken");
        engine.activate();
        taken
    }

    fn discard(self) {
        if let Some(Loaded { engine, .. }) = self.loaded {
            engine.discard();
        }
    }

    fn at(&self, step: TargetStep) {
        (self.at)(&step);
    }
}

impl HostTarget for AdapterTarget {
    fn reveal_key(&mut self, mask: KeyMask) {
        self.arrived.mask = mask;
    }

    fn allocate(&mut self, len: u64) -> Result<OwnedFd, Refusal> {
        let created = usize::try_from(len).map_err(io::Error::other).and_then(memfd::create);
        created.map_err(|error| Refusal(format!("failed to allocate a buffer of {len} bytes: {error}")))
    }

    fn carry(&mut self, number: u32, received: Vec<u8>, unsent: Vec<u8>) {
        if let Some(socket) = self.arrived.sockets.get_mut(&number) {
            (socket.received, socket.unsent) = (received, unsent);
        }
    }

    fn listen(&mut self, number: u32, at: SocketAddr) -> Result<(), Refusal> {
        let socket = ironwarp_engine::Listener::socket_before_address(&self.config, at);
        let socket = socket.map_err(|error| Refusal(format!("failed to listen at {at}: {error}")))?;
        self.arrived.listeners.insert(number, socket);
        Ok(())
    }
}

/// Creates the objects of the program for those of an adapter that was restored.
fn objects(engine: &mut RestoredEngine, memory: &CarriedMemory) -> io::Result<TakenOver> {
    let shared = Arc::new(Shared::of_engine(Arc::clone(engine.engine())));
    let cqs = engine.completion_queues().iter();
    let completion_queues = cqs.map(|cq| CompletionQueue::restored(&shared, cq)).collect::<Result<_, _>>()?;
    let srqs = engine.shared_receive_queues().iter();
    let shared_receive_queues = srqs.map(|srq| SharedReceiveQueue::restored(&shared, srq)).collect();
    let queue_pairs: Vec<_> = engine.queue_pairs().map(|pair| QueuePair::restored(&shared, pair)).collect();
    let mut domains: BTreeSet<Domain> = queue_pairs.iter().map(|pair| Domain(pair.query().domain)).collect();
    let mut regions = Vec::new();
    for (info, addr) in shared.device().table().regions() {
        domains.insert(info.domain);
        if let Some(parts) = memory.region_at(addr) {
            let contents = Contents::of_parts(&shared, parts).map_err(io::Error::other)?;
            regions.push(MemoryRegion::restored(&shared, contents, &info));
        }
    }
    let domains = domains.into_iter().map(|domain| ProtectionDomain::restored(&shared, domain));
    let protection_domains = domains.collect::<Result<_, _>>()?;
    let listeners = engine.take_listeners().into_iter().map(|inner| Listener::restored(&shared, inner));
    let listeners = listeners.collect();
    Ok(TakenOver {
        adapter: Adapter { shared },
        data: Vec::new(),
        completion_queues,
        shared_receive_queues,
        queue_pairs,
        regions,
        listeners,
        protection_domains,
        adopted: false,
    })
}
