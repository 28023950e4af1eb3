//! The state that an adapter's handles and objects share and keep alive.

use crate::deferred_dereg::DeferredDeregs;
use ironwarp_engine::logical::LogicalDevice;
use ironwarp_engine::{Config, Engine};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::sync::lock;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Weak};

/// State shared by all handles and objects of an adapter.
pub(crate) struct Shared {
    /// The engine: the adapter's threads, sockets and device.
    pub(crate) engine: Arc<Engine>,
    /// Dropped regions that could not be deregistered yet, because windows are bound to them.
    pub(crate) deferred: DeferredDeregs,
    /// Locked while a request that assigns a new tag is posted, so that tags are assigned in the order of posting.
    pub(crate) tag_order: Mutex<()>,
    /// The buffers of regions, which move with the adapter to another process.
    pub(crate) buffers: BufferList,
}

/// Memory of a region, which moves with the adapter to another process (requirement X2).
pub(crate) trait RegionBuffers: Send + Sync + fmt::Debug {
    /// Returns the address range of each buffer, and its file if other processes can map it.
    fn files(&self) -> Vec<(Span, Option<BorrowedFd<'_>>)>;
}

/// The buffers of regions. Some may have been dropped.
#[derive(Debug, Default)]
pub(crate) struct BufferList(Mutex<Vec<Weak<dyn RegionBuffers>>>);

impl BufferList {
    /// Adds the buffers of a region.
    pub(crate) fn add(&self, buffers: Weak<dyn RegionBuffers>) {
        let mut list = lock(&self.0);
        if list.len() == list.capacity() {
            list.retain(|known| known.strong_count() > 0); // before the list grows
        }
        list.push(buffers);
    }

    /// Returns the buffers of all regions that exist, without duplicates.
    pub(crate) fn all(&self) -> Vec<Arc<dyn RegionBuffers>> {
        let mut all: Vec<_> = lock(&self.0).iter().filter_map(Weak::upgrade).collect();
        all.sort_by_key(|buffers| Arc::as_ptr(buffers).addr());
        all.dedup_by_key(|buffers| Arc::as_ptr(buffers).addr());
        all
    }
}

impl Shared {
    /// Creates the shared state of a new adapter for a logical device of the settings.
    pub(crate) fn new(config: Config, device: &Arc<LogicalDevice>) -> io::Result<Self> {
        Ok(Self::of_engine(Engine::open(config, device)?))
    }

    /// Creates the shared state of an adapter or a function.
    pub(crate) fn of_engine(engine: Arc<Engine>) -> Self {
        Self {
            engine,
            deferred: DeferredDeregs::default(),
            tag_order: Mutex::default(),
            buffers: BufferList::default(),
        }
    }

    /// Returns the adapter's device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        self.engine.device()
    }
}

// Not derived: omits the state of the engine, which is long and internal. Programs know the shared state as `Adapter`.
impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter").field("lanes", &self.engine.statistics().lanes).finish_non_exhaustive()
    }
}
