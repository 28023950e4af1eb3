//! The device: state that all queue pairs of an adapter share.

use crate::config::DeviceConfig;
use crate::event::{
    AsyncEvent, AsyncEvents, CompletionHandler, HANDLER_QUEUES, HandlerId, LANE_QUEUE, Routing, Sizes, Wake,
};
use crate::fault::{FaultPlan, Faults};
use crate::host::{Buffer, Host, Span};
use crate::memory::{
    Domain, Limits, Memory, RegisterError, ReregisterError, Reregistration, Stream, Table, TableError,
    TableImage, TagCipher, Translation,
};
use crate::outbound::TxBatch;
use crate::sync::{Mutex, lock};
use ironwarp_wire::Tag;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Size of a staging buffer: the maximum number of bytes that one call receives into it.
const STAGING: usize = if cfg!(fuzzing) { 4 << 10 } else { 256 << 10 };
/// Maximum number of bytes that one call to a link transfers. Larger calls are not faster with TCP, and hold
/// guards longer.
const LONG_CALL: usize = 1 << 20;
/// Maximum number of bytes that one call to a link transfers if there is low-latency traffic. The last frame may exceed
/// it. Short, because the kernel finishes a copy before another thread gets the processor.
const SHORT_CALL: usize = 32 << 10;
/// Maximum number of unused batches, and of unused staging buffers, that are kept. Threads need them while they drive a
/// queue pair, so there is no need for one per queue pair.
const MAX_SPARE: usize = 8;

/// Maximum number of completion handlers (requirement N1), not counting the private ones of completion queues.
pub const HANDLERS: usize = 1024;
/// The number of the first completion handler. Event queues with lower numbers are for global, asynchronous and channel
/// events (requirement I6).
const FIRST_HANDLER: u16 = HANDLER_QUEUES.start;

/// The maximum number of completion handlers is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many completion handlers, the maximum is {HANDLERS}: one can serve many completion queues")]
pub struct TooManyHandlers;

/// State that all queue pairs of an adapter share: the memory table, settings, events and unused buffers.
pub struct Device {
    config: DeviceConfig,
    /// Access to the program's memory.
    host: Arc<dyn Host>,
    /// The translation and protection table.
    table: Table,
    /// The faults to inject. `None` if there are none.
    faults: Option<Arc<Faults>>,
    /// The number of the next protection domain.
    domains: AtomicU32,
    /// The asynchronous events.
    events: Arc<AsyncEvents>,
    /// The mapping of events to event queues and vectors.
    routing: Arc<Routing>,
    /// The completion handlers, by number minus [`FIRST_HANDLER`].
    handlers: Mutex<Vec<Weak<CompletionHandler>>>,
    /// The identifier of the next private completion handler.
    next_private_handler: AtomicU64,
    /// The private completion handlers. Some may have been dropped.
    private_handlers: Mutex<Vec<Weak<CompletionHandler>>>,
    /// The completion handlers of lanes.
    lane_handlers: Mutex<Vec<Weak<CompletionHandler>>>,
    /// Whether the adapter was shut down, or is being shut down.
    is_shut_down: AtomicBool,
    /// Unused batches.
    #[expect(clippy::vec_box, reason = "they are handed around for each message")]
    batches: Mutex<Vec<Box<TxBatch>>>,
    /// Unused staging buffers.
    staging: Mutex<Vec<Buffer>>,
    /// Maximum number of bytes that one call to a link transfers.
    max_call_len: AtomicUsize,
}

impl Device {
    /// Creates a device that accesses the program's memory through `host`, and derives its tags from `cipher`.
    pub fn new(config: DeviceConfig, host: Arc<dyn Host>, cipher: Arc<TagCipher>) -> Arc<Self> {
        let table = Table::new(limits_of(&config), cipher);
        Self::with_table(config, host, table, 1)
    }

    /// Creates a device with the memory table of another one (requirement X2), of which `next_domain` is the number of the
    /// next protection domain. `relocate` translates memory of the other device to memory of this one.
    pub fn load(
        config: DeviceConfig,
        host: Arc<dyn Host>,
        table: TableImage,
        next_domain: u32,
        relocate: &mut dyn FnMut(&[Span]) -> Option<Translation>,
    ) -> Result<Arc<Self>, TableError> {
        let table = Table::load(limits_of(&config), table, relocate)?;
        Ok(Self::with_table(config, host, table, next_domain))
    }

    /// Creates a device with this memory table.
    fn with_table(config: DeviceConfig, host: Arc<dyn Host>, table: Table, next_domain: u32) -> Arc<Self> {
        let routing = Routing::new(1); // for one lane: the engine sets another map once it knows how many it has
        Arc::new(Self {
            table,
            faults: (config.faults != FaultPlan::default()).then(|| Faults::new(config.faults, config.seed)),
            config,
            host,
            domains: AtomicU32::new(next_domain),
            events: Arc::new(AsyncEvents::new(Sizes::default(), &routing)),
            routing,
            handlers: Mutex::default(),
            next_private_handler: AtomicU64::new(HandlerId::FIRST_PRIVATE.0),
            private_handlers: Mutex::default(),
            lane_handlers: Mutex::default(),
            is_shut_down: AtomicBool::new(false),
            batches: Mutex::default(),
            staging: Mutex::default(),
            max_call_len: AtomicUsize::new(LONG_CALL),
        })
    }

    /// The settings.
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// Access to the program's memory.
    pub fn host(&self) -> &dyn Host {
        &*self.host
    }

    /// The translation and protection table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The faults to inject, if any.
    pub fn faults(&self) -> Option<&Arc<Faults>> {
        self.faults.as_ref()
    }

    /// Allocates a protection domain.
    pub fn allocate_domain(&self) -> Domain {
        Domain(self.domains.fetch_add(1, Ordering::Relaxed))
    }

    /// The number of the next protection domain.
    pub(crate) fn next_domain(&self) -> u32 {
        self.domains.load(Ordering::Relaxed)
    }

    /// Registers memory by call (requirement M6).
    pub fn register(&self, domain: Domain, memory: Memory) -> Result<Tag, RegisterError> {
        self.inject_registration_fault()?;
        self.table.register(self.host(), domain, memory)
    }

    /// Registers memory by call that need not be mapped yet.
    pub fn register_on_demand(&self, domain: Domain, memory: Memory) -> Result<Tag, RegisterError> {
        self.inject_registration_fault()?;
        self.table.register_on_demand(domain, memory)
    }

    /// Registers memory by call, and faults all of its pages in.
    pub fn register_prefaulted(&self, domain: Domain, memory: Memory) -> Result<Tag, RegisterError> {
        memory.prepare(self.host(), true)?;
        self.register(domain, memory)
    }

    /// Finishes a registration that was [begun](Table::begin_registration), and faults its pages in if `prefaulted`.
    pub fn finish_registration(
        &self,
        domain: Domain,
        tag: Tag,
        memory: Memory,
        prefaulted: bool,
    ) -> Result<(), RegisterError> {
        let prepared =
            self.inject_registration_fault().and_then(|()| memory.prepare(self.host(), prefaulted));
        self.table.finish_registration(domain, tag, memory, prepared)
    }

    /// Changes a region that was registered by call, and returns its new tag.
    pub fn reregister(&self, tag: Tag, to: Reregistration) -> Result<Tag, ReregisterError> {
        self.inject_registration_fault()?;
        self.table.reregister(self.host(), tag, to)
    }

    /// Executes a registration by work request.
    pub(crate) fn register_by_request(
        &self,
        stream: Stream,
        tag: Tag,
        memory: Memory,
    ) -> Result<(), RegisterError> {
        self.inject_registration_fault()?;
        self.table.fill(self.host(), stream, tag, memory)
    }

    /// Fails if a fault is injected into this registration.
    fn inject_registration_fault(&self) -> Result<(), RegisterError> {
        match &self.faults {
            Some(faults) if faults.should_fail_registration() => Err(RegisterError::Injected),
            _ => Ok(()),
        }
    }

    /// Raises an asynchronous event of the default lane.
    pub fn raise(&self, event: AsyncEvent) {
        self.events.raise(event);
    }

    /// Raises an asynchronous event of this lane.
    pub fn raise_from(&self, lane: u16, event: AsyncEvent) {
        self.events.raise_from(lane, event);
    }

    /// The asynchronous events.
    pub fn events(&self) -> &Arc<AsyncEvents> {
        &self.events
    }

    /// Creates a completion handler (*Set Completion Handler*, requirement N2), which calls `wake` for its events.
    pub fn create_handler(&self, wake: Box<dyn Wake>) -> Result<Arc<CompletionHandler>, TooManyHandlers> {
        let mut handlers = self.create_handlers([wake])?;
        handlers.pop().ok_or(TooManyHandlers)
    }

    /// Creates a completion handler for each of `wakes`, with the lowest free numbers: all of them, or none if that would
    /// be more than [`HANDLERS`] (requirement N2). A number becomes free when its handler is dropped.
    pub fn create_handlers<W>(&self, wakes: W) -> Result<Vec<Arc<CompletionHandler>>, TooManyHandlers>
    where
        W: IntoIterator<Item = Box<dyn Wake>, IntoIter: ExactSizeIterator>,
    {
        let wakes = wakes.into_iter();
        let mut handlers = lock(&self.handlers);
        let is_free = |index: usize| handlers.get(index).is_none_or(|known| known.strong_count() == 0);
        let all = (0..HANDLERS).zip(FIRST_HANDLER..);
        let free: Vec<_> = all.filter(|(index, _)| is_free(*index)).take(wakes.len()).collect();
        if free.len() < wakes.len() {
            return Err(TooManyHandlers);
        }
        let known = free.last().map_or(0, |(last, _)| last + 1).max(handlers.len());
        handlers.resize(known, Weak::new());
        let created = free.into_iter().zip(wakes).map(|((index, number), wake)| {
            let handler = self.create_numbered_handler(number, wake);
            handlers[index] = Arc::downgrade(&handler);
            handler
        });
        Ok(created.collect())
    }

    /// Creates the completion handler of a lane, whose number follows from that of the lane. Call this once per
    /// lane.
    pub fn create_lane_handler(&self, lane: u16, wake: Box<dyn Wake>) -> Arc<CompletionHandler> {
        let handler = self.create_numbered_handler(LANE_QUEUE + lane, wake);
        lock(&self.lane_handlers).push(Arc::downgrade(&handler));
        handler
    }

    /// Creates a completion handler with this number, whose events are routed by it.
    fn create_numbered_handler(&self, number: u16, wake: Box<dyn Wake>) -> Arc<CompletionHandler> {
        let interrupt = self.routing.create_interrupt(number, wake.into());
        CompletionHandler::new(HandlerId(number.into()), Box::new(interrupt), Some(self.events()))
    }

    /// The mapping of events to event queues and vectors.
    pub fn routing(&self) -> &Arc<Routing> {
        &self.routing
    }

    /// Creates a private completion handler for one completion queue, which calls `wake` for its events. It has an
    /// identifier of its own, but no number that the map could name, and does not count towards [`HANDLERS`].
    pub fn create_private_handler(&self, wake: Box<dyn Wake>) -> Arc<CompletionHandler> {
        let id = HandlerId(self.next_private_handler.fetch_add(1, Ordering::Relaxed));
        let handler = CompletionHandler::new(id, wake, Some(self.events()));
        let mut known = lock(&self.private_handlers);
        if known.len() == known.capacity() {
            known.retain(|handler| handler.strong_count() > 0);
        }
        known.push(Arc::downgrade(&handler));
        handler
    }

    /// The completion handlers that have a number, in order.
    pub fn handlers(&self) -> Vec<Arc<CompletionHandler>> {
        let (numbered, lanes) = (lock(&self.handlers), lock(&self.lane_handlers));
        numbered.iter().chain(&*lanes).filter_map(Weak::upgrade).collect()
    }

    /// Records that the adapter is being shut down (requirement N11). From now on, queue pairs whose stream has ended refuse
    /// requests, instead of flushing them.
    pub fn begin_shut_down(&self) {
        self.is_shut_down.store(true, Ordering::SeqCst);
    }

    /// Whether the adapter was shut down, or is being shut down.
    pub fn is_shut_down(&self) -> bool {
        self.is_shut_down.load(Ordering::SeqCst)
    }

    /// Stops raising events, because the adapter is closed (requirement N11). Events that were raised can still
    /// be taken.
    pub fn shut_down(&self) {
        let private: Vec<_> = lock(&self.private_handlers).iter().filter_map(Weak::upgrade).collect();
        self.handlers().iter().chain(&private).for_each(|handler| handler.shut_down());
        self.events.shut_down();
    }

    /// Limits calls to links to fewer bytes from now on, for the sake of low-latency traffic (requirement N6). Bulk
    /// traffic then needs more calls.
    pub fn shorten_calls(&self) {
        self.max_call_len.store(SHORT_CALL, Ordering::Relaxed);
    }

    /// Maximum number of bytes that one call to a link transfers.
    pub(crate) fn max_call_len(&self) -> usize {
        self.max_call_len.load(Ordering::Relaxed)
    }

    /// Takes an unused batch, or creates one.
    pub(crate) fn take_batch(&self) -> Box<TxBatch> {
        let spare = lock(&self.batches).pop();
        let mut batch = spare.unwrap_or_else(|| Box::new(TxBatch::new(self.host())));
        batch.set_max_len(self.max_call_len());
        batch
    }

    /// Puts a batch back after use.
    pub(crate) fn put_batch(&self, batch: Box<TxBatch>) {
        put_back(&self.batches, batch);
    }

    /// Takes an unused staging buffer, or creates one.
    pub(crate) fn take_staging(&self) -> Buffer {
        let spare = lock(&self.staging).pop();
        spare.unwrap_or_else(|| self.host.buffer(STAGING))
    }

    /// Puts a staging buffer back after use.
    pub(crate) fn put_staging(&self, staging: Buffer) {
        put_back(&self.staging, staging);
    }
}

/// Returns the limits of the memory table.
fn limits_of(config: &DeviceConfig) -> Limits {
    let (strict, entries) = (config.strict_windows, config.tags);
    let (indices, instances) = (config.tag_indices, config.tag_instances);
    Limits { entries, strict, indices, instances }
}

/// Omits the buffers.
impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Device");
        debug.field("config", &self.config).field("table", &self.table).finish_non_exhaustive()
    }
}

/// Adds an item to a list of unused ones. Drops it if the list is full.
fn put_back<T>(spare: &Mutex<Vec<T>>, item: T) {
    let mut spare = lock(spare);
    if spare.len() < MAX_SPARE {
        spare.push(item);
    }
}
