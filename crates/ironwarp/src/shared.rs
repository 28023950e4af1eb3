//! The state that an adapter's handles and objects share and keep alive.

use crate::deferred_dereg::DeferredDeregs;
use ironwarp_engine::logical::LogicalDevice;
use ironwarp_engine::{Config, Engine};
use ironwarp_rnic::device::Device;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

/// State shared by all handles and objects of an adapter.
pub(crate) struct Shared {
    /// The engine: the adapter's threads, sockets and device.
    pub(crate) engine: Arc<Engine>,
    /// Dropped regions that could not be deregistered yet, because windows are bound to them.
    pub(crate) deferred: DeferredDeregs,
    /// Locked while a request that assigns a new tag is posted, so that tags are assigned in the order of posting.
    pub(crate) tag_order: Mutex<()>,
}

impl Shared {
    /// Creates the shared state of a new adapter for a logical device of the settings.
    pub(crate) fn new(config: Config, device: &Arc<LogicalDevice>) -> io::Result<Self> {
        Ok(Self::of_engine(Engine::open(config, device)?))
    }

    /// Creates the shared state of an adapter or a function.
    pub(crate) fn of_engine(engine: Arc<Engine>) -> Self {
        Self { engine, deferred: DeferredDeregs::default(), tag_order: Mutex::default() }
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
