//! The device: state that all queue pairs of a function share. An adapter has one, and one more for each function that was
//! created in it (requirement X1).

use crate::adversary::Adversary;
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
use crate::parking::Parking;
use crate::pool::AdapterPool;
use crate::quota::{Account, Quotas, Resource};
use crate::sync::{Mutex, lock};
use ironwarp_wire::Tag;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Maximum number of bytes that one call to a link transfers. Larger calls are not faster with TCP, and hold
/// guards longer.
const LONG_CALL: usize = 1 << 20;
/// Maximum number of bytes that one call to a link transfers if there is low-latency traffic. The last frame may exceed
/// it. Short, because the kernel finishes a copy before another thread gets the processor.
const SHORT_CALL: usize = 32 << 10;
/// Maximum number of bytes that one call to a link receives while the parked messages of the function exhaust its quota.
const EXHAUSTED_CALL: usize = 8 << 10;
/// Share of the adapter's budget of parked bytes that a function gets, unless its quota says otherwise.
const PARKED_SHARE: u64 = 64;
/// Number of tag slots of a function, unless its quota of tags is larger. Enough for 67 million registrations.
const FUNCTION_SLOTS: u32 = if cfg!(loom) { 64 } else { 1 << 18 };

/// Maximum number of completion handlers (requirement N1), not counting the private ones of completion queues.
pub const HANDLERS: usize = 1024;
/// The number of the first completion handler. Event queues with lower numbers are for global, asynchronous and channel
/// events (requirement I6).
const FIRST_HANDLER: u16 = HANDLER_QUEUES.start;

/// The maximum number of completion handlers is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many completion handlers, the maximum is {HANDLERS}: one can serve many completion queues")]
pub struct TooManyHandlers;

/// Why a function was not created: the adapter cannot give it what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FunctionError {
    /// Too few tags are unused.
    #[error(
        "too few unused tags for another function, which needs {slots} indices of the adapter: close another function, or lower the \
         quota of tags"
    )]
    TooFewTags {
        /// Number of indices that the function needs.
        slots: u64,
    },
    /// The budget for parked messages is assigned to other functions.
    #[error(
        "too few unassigned bytes for parked messages of another function, which needs {bytes}: lower its quota, or raise the setting \
         `parked`"
    )]
    TooFewParkedBytes {
        /// Number of bytes that the function needs.
        bytes: u64,
    },
}

/// State that all queue pairs of a function share: the memory table, settings and events.
pub struct Device {
    config: DeviceConfig,
    /// Access to the program's memory.
    host: Arc<dyn Host>,
    /// The translation and protection table.
    table: Table,
    /// The faults to inject. `None` if there are none.
    faults: Option<Arc<Faults>>,
    /// The adversary. `None` if there is none.
    adversary: Option<Arc<Adversary>>,
    /// What the functions of the adapter share.
    pool: Arc<AdapterPool>,
    /// The quotas of the function, and what it uses.
    account: Arc<Account>,
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
    /// Maximum number of bytes that one call to a link transfers.
    max_call_len: AtomicUsize,
    /// Maximum number of bytes that one call to a link receives: `max_call_len`, or less while `parking` is exhausted.
    max_recv_len: AtomicUsize,
    /// The bytes of messages that wait for a receive.
    parking: Parking,
    /// The device of the adapter, if this is that of a function.
    adapter: Option<Weak<Self>>,
}

impl Device {
    /// Creates a device that accesses the program's memory through `host`, and derives its tags from `cipher`.
    pub fn new(config: DeviceConfig, host: Arc<dyn Host>, cipher: Arc<TagCipher>) -> Arc<Self> {
        let faults = (config.faults != FaultPlan::default()).then(|| Faults::new(config.faults, config.seed));
        let adversary = config.adversary.0.map(Adversary::new);
        let parking = Parking::new(config.parked as u64);
        let account = Arc::default();
        let table = Table::with_account(limits_of(&config), cipher, &account);
        let shared = SharedParts { host, faults, adversary, pool: Arc::default(), adapter: None };
        Self::with_parts(config, table, shared, account, parking)
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
        let faults = (config.faults != FaultPlan::default()).then(|| Faults::new(config.faults, config.seed));
        let adversary = config.adversary.0.map(Adversary::new);
        let parking = Parking::new(config.parked as u64);
        let account = Arc::default();
        let table = Table::load(limits_of(&config), table, &account, relocate)?;
        let pool = Arc::new(AdapterPool::with_domains(next_domain));
        let shared = SharedParts { host, faults, adversary, pool, adapter: None };
        Ok(Self::with_parts(config, table, shared, account, parking))
    }

    /// Creates a device for a function of the adapter that this device belongs to (requirement X1). It has a table, events
    /// and handlers of its own; the host, the key of the tags, injected faults and buffers are shared. Call this for the
    /// device of the adapter itself, which gives some of its tags to the function.
    pub fn create_function(self: &Arc<Self>, quotas: Quotas) -> Result<Arc<Self>, FunctionError> {
        let tags = match quotas.get(Resource::Tags) {
            u64::MAX => 0, // no quota: as many as it has slots
            tags => tags.min(self.config.tags as u64),
        };
        let needed = tags.max(FUNCTION_SLOTS.into());
        let too_few = FunctionError::TooFewTags { slots: needed };
        let count = u32::try_from(needed).map_err(|_| too_few)?;
        // A function that was closed may have left a few less.
        let min = u32::try_from(tags).map_or(count, |tags| tags.max(FUNCTION_SLOTS / 2));
        let bytes = match quotas.get(Resource::ParkedBytes) {
            u64::MAX => self.config.parked as u64 / PARKED_SHARE,
            bytes => bytes,
        };
        if !self.parking.give(bytes) {
            return Err(FunctionError::TooFewParkedBytes { bytes });
        }
        let slots = self.pool.take_slots(min, count).or_else(|| self.table.split_off_slots(count));
        let Some(slots) = slots else {
            self.take_parked_bytes_back(bytes);
            return Err(too_few);
        };
        // As many entries as it has slots, so that the quota is reached before the tags are used up.
        let entries = u64::from(slots.end - slots.start);
        let quotas = quotas.with(Resource::Tags, quotas.get(Resource::Tags).min(entries));
        let quotas = quotas.with(Resource::ParkedBytes, bytes);
        let config = DeviceConfig { tag_slots: slots, ..self.config.clone() };
        let account = Account::new(self.pool.next_function(), quotas);
        let table = Table::with_account(limits_of(&config), Arc::clone(self.table.cipher()), &account);
        let shared = SharedParts {
            host: Arc::clone(&self.host),
            faults: self.faults.clone(),
            adversary: self.adversary.clone(),
            pool: Arc::clone(&self.pool),
            adapter: Some(Arc::downgrade(self)),
        };
        let device = Self::with_parts(config, table, shared, account, Parking::new(bytes));
        device.max_call_len.store(self.max_call_len(), Ordering::Relaxed);
        device.max_recv_len.store(self.max_call_len(), Ordering::Relaxed);
        Ok(device)
    }

    fn with_parts(
        config: DeviceConfig,
        table: Table,
        shared: SharedParts,
        account: Arc<Account>,
        parking: Parking,
    ) -> Arc<Self> {
        let SharedParts { host, faults, adversary, pool, adapter } = shared;
        let routing = Routing::new(1); // for one lane: the engine sets another map once it knows how many it has
        Arc::new(Self {
            table,
            faults,
            adversary,
            config,
            host,
            pool,
            account,
            events: Arc::new(AsyncEvents::new(Sizes::default(), &routing)),
            routing,
            handlers: Mutex::default(),
            next_private_handler: AtomicU64::new(HandlerId::FIRST_PRIVATE.0),
            private_handlers: Mutex::default(),
            lane_handlers: Mutex::default(),
            is_shut_down: AtomicBool::new(false),
            max_call_len: AtomicUsize::new(LONG_CALL),
            max_recv_len: AtomicUsize::new(LONG_CALL),
            parking,
            adapter,
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

    /// The adversary, if there is one.
    pub fn adversary(&self) -> Option<&Arc<Adversary>> {
        self.adversary.as_ref()
    }

    /// The quotas of the function, and what it uses.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Returns how much of a kind the function uses.
    pub fn used(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Tags => self.table.len() as u64,
            Resource::ParkedBytes => self.parking.used(),
            _ => self.account.used(resource),
        }
    }

    /// Allocates a protection domain. Its number is unique among all functions of the adapter.
    pub fn allocate_domain(&self) -> Domain {
        self.pool.allocate_domain()
    }

    /// The number of the next protection domain.
    pub fn next_domain(&self) -> u32 {
        self.pool.next_domain()
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
        self.max_recv_len.fetch_min(SHORT_CALL, Ordering::Relaxed);
    }

    /// Maximum number of bytes that one call to a link receives.
    pub(crate) fn max_recv_len(&self) -> usize {
        self.max_recv_len.load(Ordering::Relaxed)
    }

    /// The bytes of messages that wait for a receive.
    pub(crate) fn parking(&self) -> &Parking {
        &self.parking
    }

    /// Counts bytes of a message that begins to wait for a receive.
    pub(crate) fn park_bytes(&self, bytes: usize) {
        self.parking.add(bytes as u64, |exhausted| self.set_exhausted(exhausted));
    }

    /// Counts bytes of a message that no longer waits for a receive. If there is room again, has the streams driven that wait
    /// for it.
    pub(crate) fn unpark_bytes(&self, bytes: usize) {
        self.parking.remove(bytes as u64, |exhausted| self.set_exhausted(exhausted));
    }

    /// Takes back bytes that a function has had.
    fn take_parked_bytes_back(&self, bytes: u64) {
        self.parking.take_back(bytes, |exhausted| self.set_exhausted(exhausted));
    }

    /// Limits calls that receive while the quota of parked bytes is exhausted: what they receive may have to be parked.
    fn set_exhausted(&self, exhausted: bool) {
        let len = if exhausted { EXHAUSTED_CALL } else { self.max_call_len() };
        self.max_recv_len.store(len, Ordering::Relaxed);
    }

    /// Maximum number of bytes that one call to a link transfers.
    pub(crate) fn max_call_len(&self) -> usize {
        self.max_call_len.load(Ordering::Relaxed)
    }

    /// Takes an unused batch, or creates one.
    pub(crate) fn take_batch(&self) -> Box<TxBatch> {
        let mut batch = self.pool.take_batch(self.host());
        batch.set_max_len(self.max_call_len());
        batch
    }

    /// Puts a batch back after use.
    pub(crate) fn put_batch(&self, batch: Box<TxBatch>) {
        self.pool.put_batch(batch);
    }

    /// Takes an unused staging buffer, or creates one.
    pub(crate) fn take_staging(&self) -> Buffer {
        self.pool.take_staging(self.host())
    }

    /// Puts a staging buffer back after use.
    pub(crate) fn put_staging(&self, staging: Buffer) {
        self.pool.put_staging(staging);
    }
}

/// What the device of a function shares with that of its adapter.
struct SharedParts {
    host: Arc<dyn Host>,
    faults: Option<Arc<Faults>>,
    adversary: Option<Arc<Adversary>>,
    pool: Arc<AdapterPool>,
    /// The device of the adapter; `None` for that itself.
    adapter: Option<Weak<Device>>,
}

impl Drop for Device {
    /// Leaves the tags that were never assigned to functions that are created later, and the bytes for parked messages to
    /// the adapter.
    fn drop(&mut self) {
        self.pool.put_slots(self.table.unused_slots());
        if let Some(adapter) = self.adapter.as_ref().and_then(Weak::upgrade) {
            adapter.take_parked_bytes_back(self.account.quotas().get(Resource::ParkedBytes));
        }
    }
}

/// Returns the limits of the memory table.
fn limits_of(config: &DeviceConfig) -> Limits {
    let (strict, entries) = (config.strict_windows, config.tags);
    let (slots, instances) = (config.tag_slots.clone(), config.tag_instances);
    Limits { entries, strict, slots, instances }
}

/// Omits the buffers.
impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Device");
        debug.field("config", &self.config).field("table", &self.table).finish_non_exhaustive()
    }
}
