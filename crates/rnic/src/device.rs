//! The device: what all queue pairs of an adapter share.

use crate::config::Config;
use crate::event::{AsyncEvent, AsyncEvents, CompletionHandler, HandlerId, LANE_QUEUE, Routing, Sizes, Wake};
use crate::fault::{FaultPlan, Faults};
use crate::host::{Buffer, Host};
use crate::memory::{
    Domain, Limits, Memory, RegisterError, ReregisterError, Reregistration, Stream, Table, TagCipher,
};
use crate::stream::Train;
use crate::sync::{Mutex, lock};
use ironwarp_wire::Tag;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// A staging buffer: what one call receives at most that does not go straight to its place.
const STAGING: usize = if cfg!(fuzzing) { 4 << 10 } else { 256 << 10 };
/// What one call of a link moves at most: larger ones bring no more (limits of the kernel's TCP), and keep guards longer.
const LONG_CALL: usize = 1 << 20;
/// The same where somebody is in a hurry, give or take a frame: what the kernel copies in one call it copies to the end before another
/// thread has the processor.
const SHORT_CALL: usize = 32 << 10;
/// So many idle buffers are kept; they are used by threads, not by queue pairs.
const SPARE: usize = 8;

/// How many completion handlers there can be (requirement N1), apart from those that completion queues have for
/// themselves.
pub const HANDLERS: usize = 1024;
/// The queues before it are for global and for asynchronous events (requirement I6).
const FIRST_HANDLER: u16 = 2;

/// There are as many completion handlers as there can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are {HANDLERS} completion handlers: one may serve many completion queues")]
pub struct TooManyHandlers;

/// The adapter's memory table, settings and spare buffers.
pub struct Device {
    config: Config,
    host: Arc<dyn Host>,
    table: Table,
    /// Made only where faults are asked for.
    faults: Option<Arc<Faults>>,
    domains: AtomicU32,
    events: Arc<AsyncEvents>,
    routing: Arc<Routing>,
    /// The completion handlers, by their number less [`FIRST_HANDLER`].
    handlers: Mutex<Vec<Weak<CompletionHandler>>>,
    /// Those of lanes.
    lane_handlers: Mutex<Vec<Weak<CompletionHandler>>>,
    #[expect(clippy::vec_box, reason = "they are handed around for each message")]
    trains: Mutex<Vec<Box<Train>>>,
    staging: Mutex<Vec<Buffer>>,
    longest_call: AtomicUsize,
}

impl Device {
    /// A device that reaches the program's memory through `host`, and whose tags follow from `cipher`.
    pub fn new(config: Config, host: Arc<dyn Host>, cipher: Arc<TagCipher>) -> Arc<Self> {
        let routing = Routing::new(config.lanes);
        let limits = Limits { entries: config.tags, strict: config.strict_windows };
        Arc::new(Self {
            table: Table::new(limits, cipher),
            faults: (config.faults != FaultPlan::default()).then(|| Faults::new(config.faults, config.seed)),
            config,
            host,
            domains: AtomicU32::new(1),
            events: Arc::new(AsyncEvents::new(Sizes::default(), &routing)),
            routing,
            handlers: Mutex::default(),
            lane_handlers: Mutex::default(),
            trains: Mutex::default(),
            staging: Mutex::default(),
            longest_call: AtomicUsize::new(LONG_CALL),
        })
    }

    /// Its settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The program's memory.
    pub fn host(&self) -> &dyn Host {
        &*self.host
    }

    /// The translation and protection table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The faults that are injected, if any are.
    pub fn faults(&self) -> Option<&Arc<Faults>> {
        self.faults.as_ref()
    }

    /// A protection domain that no other has.
    pub fn allocate_domain(&self) -> Domain {
        Domain(self.domains.fetch_add(1, Ordering::Relaxed))
    }

    /// Registers memory by a call (requirement M6).
    pub fn register(&self, domain: Domain, memory: Memory) -> Result<Tag, RegisterError> {
        self.may_register()?;
        self.table.register(self.host(), domain, memory)
    }

    /// The same, for memory that need not be mapped yet.
    pub fn register_on_demand(&self, domain: Domain, memory: Memory) -> Result<Tag, RegisterError> {
        self.may_register()?;
        self.table.register_on_demand(domain, memory)
    }

    /// Registers memory by a call, and has all of its pages made.
    pub fn register_prefaulted(&self, domain: Domain, memory: Memory) -> Result<Tag, RegisterError> {
        memory.prepare(self.host(), true)?;
        self.register(domain, memory)
    }

    /// Ends a registration that was [begun](Table::begin).
    pub fn finish_registration(
        &self,
        domain: Domain,
        tag: Tag,
        memory: Memory,
        prefaulted: bool,
    ) -> Result<(), RegisterError> {
        let prepared = self.may_register().and_then(|()| memory.prepare(self.host(), prefaulted));
        self.table.finish(domain, tag, memory, prepared)
    }

    /// Changes a region that was registered by a call, and returns its new tag.
    pub fn reregister(&self, tag: Tag, to: Reregistration) -> Result<Tag, ReregisterError> {
        self.may_register()?;
        self.table.reregister(self.host(), tag, to)
    }

    /// Executes a registration by work request.
    pub(crate) fn fill(&self, stream: Stream, tag: Tag, memory: Memory) -> Result<(), RegisterError> {
        self.may_register()?;
        self.table.fill(self.host(), stream, tag, memory)
    }

    fn may_register(&self) -> Result<(), RegisterError> {
        match &self.faults {
            Some(faults) if faults.fail_registration() => {
                Err(RegisterError::Full { entries: self.config.tags })
            }
            _ => Ok(()),
        }
    }

    /// Something happened outside of any request.
    pub fn raise(&self, event: AsyncEvent) {
        self.events.raise(event);
    }

    /// What happened outside of any request.
    pub fn events(&self) -> &Arc<AsyncEvents> {
        &self.events
    }

    /// *Set Completion Handler* (requirement N2): one with a number that no other has.
    pub fn create_handler(&self, wake: Box<dyn Wake>) -> Result<Arc<CompletionHandler>, TooManyHandlers> {
        let mut handlers = lock(&self.handlers);
        let free = handlers.iter().position(|handler| handler.strong_count() == 0).unwrap_or(handlers.len());
        let number = u16::try_from(free).ok().filter(|_| free < HANDLERS).ok_or(TooManyHandlers)?;
        let handler = self.numbered_handler(HandlerId(FIRST_HANDLER + number), wake);
        if free == handlers.len() {
            handlers.push(Weak::new());
        }
        handlers[free] = Arc::downgrade(&handler);
        Ok(handler)
    }

    /// The completion handler of a lane, whose number follows from the lane's. Once for each.
    pub fn create_lane_handler(&self, lane: u16, wake: Box<dyn Wake>) -> Arc<CompletionHandler> {
        let handler = self.numbered_handler(HandlerId(LANE_QUEUE + lane), wake);
        lock(&self.lane_handlers).push(Arc::downgrade(&handler));
        handler
    }

    fn numbered_handler(&self, id: HandlerId, wake: Box<dyn Wake>) -> Arc<CompletionHandler> {
        let interrupt = self.routing.interrupt(id.0, wake.into());
        CompletionHandler::new(id, Box::new(interrupt), Some(self.events()))
    }

    /// Which events go to which queues, and whom they wake.
    pub fn routing(&self) -> &Arc<Routing> {
        &self.routing
    }

    /// A completion handler for one completion queue: it has no number of its own, and does not count.
    pub fn create_private_handler(&self, wake: Box<dyn Wake>) -> Arc<CompletionHandler> {
        CompletionHandler::new(HandlerId::PRIVATE, wake, Some(self.events()))
    }

    /// The completion handlers that have a number, in its order.
    pub fn handlers(&self) -> Vec<Arc<CompletionHandler>> {
        let (numbered, lanes) = (lock(&self.handlers), lock(&self.lane_handlers));
        numbered.iter().chain(&*lanes).filter_map(Weak::upgrade).collect()
    }

    /// The adapter goes away: no event is raised any more (requirement N11). What was raised can still be taken.
    pub fn shut_down(&self) {
        self.handlers().iter().for_each(|handler| handler.shut_down());
        self.events.shut_down();
    }

    /// From now on no call of a link keeps a processor long: somebody is in a hurry (requirement N6). Bulk traffic pays for it with
    /// more calls.
    pub fn shorten_calls(&self) {
        self.longest_call.store(SHORT_CALL, Ordering::Relaxed);
    }

    /// What one call of a link moves at most.
    pub(crate) fn longest_call(&self) -> usize {
        self.longest_call.load(Ordering::Relaxed)
    }

    pub(crate) fn take_train(&self) -> Box<Train> {
        let spare = lock(&self.trains).pop();
        let mut train = spare.unwrap_or_else(|| Box::new(Train::new(self.host())));
        train.set_longest(self.longest_call());
        train
    }

    pub(crate) fn put_train(&self, train: Box<Train>) {
        keep(&self.trains, train);
    }

    pub(crate) fn take_staging(&self) -> Buffer {
        let spare = lock(&self.staging).pop();
        spare.unwrap_or_else(|| self.host.buffer(STAGING))
    }

    pub(crate) fn put_staging(&self, staging: Buffer) {
        keep(&self.staging, staging);
    }
}

/// Without its buffers, which are long and mean nothing.
impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Device");
        debug.field("config", &self.config).field("table", &self.table).finish_non_exhaustive()
    }
}

fn keep<T>(spare: &Mutex<Vec<T>>, item: T) {
    let mut spare = lock(spare);
    if spare.len() < SPARE {
        spare.push(item);
    }
}
