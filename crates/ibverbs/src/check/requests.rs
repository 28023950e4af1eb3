//! Requests that are under way: posted, and not polled by the program yet.

use super::finding::{Finding, Kind};
use super::limits::Operation;
use super::memory::{self, Poison, Spans};
use super::queues::Cq;
use super::regions::{Element, Regions};
use super::stack::Stack;
use ironwarp_engine::{DatagramQueuePair, QueuePair};
use ironwarp_rnic::host::{Host, Span};
use ironwarp_rnic::qp::State;
use ironwarp_rnic::queue::WrId;
use ironwarp_rnic::sync::lock;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// What a request does with its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Sends their content.
    Source,
    /// Writes to them.
    Sink,
    /// Has none, or copied them.
    Nothing,
}

/// A request that the program is about to post.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) id: u64,
    pub(crate) signaled: bool,
    /// Whether it waits for all earlier Reads and atomic operations.
    pub(crate) fence: bool,
    pub(crate) uses: Use,
    pub(crate) elements: SmallVec<[Element; 2]>,
    /// The target of an atomic operation.
    pub(crate) atomic: Option<u64>,
    /// `None` for a receive.
    pub(crate) operation: Option<Operation>,
    /// The length of inline data.
    pub(crate) inline: Option<usize>,
}

/// A request that is under way.
#[derive(Debug)]
pub(super) struct Request {
    id: u64,
    signaled: bool,
    fence: bool,
    pub(super) elements: SmallVec<[Element; 2]>,
    /// The buffers, as addresses of this process.
    pub(super) buffers: Spans,
    state: Buffers,
    stack: Stack,
    /// Whether a finding says already why it will fail.
    pub(super) is_reported: bool,
}

/// What is known about the buffers of a request.
#[derive(Debug)]
enum Buffers {
    Unchecked,
    /// Digest of the data to send.
    Digest(u64),
    Poisoned(Poison),
}

/// A send queue or receive queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) pending: VecDeque<Request>,
    /// Whether a request with a fence was ever posted.
    has_fences: bool,
    /// Whether [`Pair::is_stuck`] was true before.
    was_stuck: bool,
}

/// Until when a request uses its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// Until the adapter has executed it.
    Executed,
    /// Until the program has polled its completion, or a later one that reports it as well.
    Polled,
}

/// A receive queue, of one queue pair or shared.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    /// The queue pair or shared receive queue, for messages.
    name: String,
    pub(super) queue: Mutex<Queue>,
    /// The completion queues that may get its completions.
    pub(super) cqs: Mutex<Vec<Arc<Cq>>>,
    shared: bool,
}

/// The adapter's queue pair.
#[derive(Clone, Debug)]
pub(crate) enum Engine {
    Stream(Weak<QueuePair>),
    Datagram(Weak<DatagramQueuePair>),
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Pair {
    name: String,
    pub(super) sends: Mutex<Queue>,
    pub(super) receives: Arc<ReceiveQueue>,
    pub(super) send_cq: Arc<Cq>,
    /// Number of requests that the send queue holds.
    send_depth: usize,
    engine: Engine,
    /// The thread that polled a failed completion of the queue pair, since its last reset.
    pub(super) failure: Mutex<Option<ThreadId>>,
}

/// Poisoned requests by number, for reports of poison that turns up elsewhere.
#[derive(Debug, Default)]
pub(super) struct Poisoned {
    last: u32,
    recent: VecDeque<(u32, String, Stack)>,
}

/// Number of poisoned requests that are remembered.
const MAX_RECENT: usize = 4096;
/// Maximum number of posted receives whose buffers are compared with that of another request.
const MAX_COMPARED: usize = 64;
/// The number of a request has 24 bits in poison.
const NUMBERS: u32 = 1 << 24;

impl Poisoned {
    /// Remembers a request, and returns its number.
    fn add(&mut self, name: String, stack: Stack) -> u32 {
        self.last = (self.last + 1) % NUMBERS;
        if self.recent.len() == MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((self.last, name, stack));
        self.last
    }

    /// Finds a request.
    fn find(&self, number: u32) -> Option<(&str, &Stack)> {
        let found = self.recent.iter().find(|(known, ..)| *known == number);
        found.map(|(_, name, stack)| (name.as_str(), stack))
    }
}

/// What requests of all queues share.
#[derive(Debug)]
pub(super) struct Shared<'c> {
    pub(super) host: &'c dyn Host,
    pub(super) adapter: usize,
    /// Whether buffers are filled with poison.
    pub(super) poisons: bool,
    pub(super) regions: &'c Regions,
    pub(super) poisoned: &'c Mutex<Poisoned>,
}

impl Queue {
    /// Takes requests off that a completion ends: up to the signaled one that completed. A failed request completes even
    /// if it is not signaled.
    fn complete(&mut self, id: u64, succeeded: bool) -> Vec<Request> {
        let found = self.pending.iter().position(|request| match succeeded {
            true => request.signaled,
            false => request.id == id,
        });
        found.map_or(Vec::new(), |at| self.pending.drain(..=at).collect())
    }

    /// Returns the requests that use their buffers, the last one first, if the last `executing` ones are not executed.
    pub(super) fn using_buffers(
        &mut self,
        executing: usize,
        until: Until,
    ) -> impl Iterator<Item = &mut Request> {
        let first_executing = self.pending.len().saturating_sub(executing);
        let reported = match until {
            Until::Executed => 0,
            Until::Polled => self.pending.iter().rposition(|it| it.signaled).map_or(0, |last| last + 1),
        };
        let requests = self.pending.iter_mut().enumerate().rev();
        let uses = move |at: usize, request: &Request| {
            at >= first_executing || at < reported && !matches!(request.state, Buffers::Unchecked)
        };
        requests.filter(move |(at, request)| uses(*at, request)).map(|(_, request)| request)
    }

    /// Returns whether a request sends what earlier ones get, and waits for these: because of its fence, or that of one
    /// between them.
    fn waits_for_sink(&self, posted: &Posted, shared: &Shared<'_>) -> bool {
        let fenced = match posted.fence {
            true => Some(self.pending.len()),
            false if self.has_fences => self.pending.iter().rposition(|request| request.fence),
            false => None,
        };
        let Some(fenced) = fenced else { return false };
        let Some(buffers) = shared.regions.buffers(shared.adapter, &posted.elements) else { return false };
        let is_sink = |request: &Request| matches!(request.state, Buffers::Poisoned(_));
        let mut earlier = self.pending.range(..fenced);
        earlier.any(|request| is_sink(request) && memory::overlap(&request.buffers, &buffers))
    }

    /// Takes off the first request with this id.
    fn take(&mut self, id: u64) -> Option<Request> {
        let at = self.pending.iter().position(|request| request.id == id)?;
        self.pending.remove(at)
    }

    /// Returns whether requests are under way, and none of them will be reported to the program.
    fn is_unsignaled(&self) -> bool {
        !self.pending.is_empty() && self.pending.iter().all(|request| !request.signaled)
    }
}

impl Request {
    /// Prepares a request before it is posted. Findings are added to `found`.
    fn new(posted: Posted, of: &str, stack: &Stack, shared: &Shared<'_>, found: &mut Vec<Finding>) -> Self {
        let Posted { id, signaled, fence, uses, elements, atomic, .. } = posted;
        let name = || format_name(id, of); // slow, and most requests need no name
        if let Some(target) = atomic.filter(|target| !target.is_multiple_of(8)) {
            let text = format!(
                "{}: the target {target:#x} of an atomic operation is not aligned to 8 bytes",
                name()
            );
            found.push(Finding::posted(Kind::MisalignedAtomic, text, stack));
        }
        let stale = shared.regions.find_stale(shared.adapter, &elements, name, stack);
        let is_reported = stale.is_some();
        found.extend(stale);
        let buffers: Spans = shared.regions.buffers(shared.adapter, &elements).unwrap_or_default();
        let parts = memory::checked_parts(&buffers);
        let state = match uses {
            _ if parts.is_empty() => Buffers::Unchecked,
            Use::Nothing => Buffers::Unchecked,
            Use::Source => match memory::read(shared.host, &parts) {
                None => Buffers::Unchecked,
                Some(bytes) => {
                    found.extend(find_early_read(&bytes, name, stack, shared));
                    Buffers::Digest(memory::digest(&bytes))
                }
            },
            Use::Sink if !shared.poisons => {
                Poison::remember(shared.host, parts).map_or(Buffers::Unchecked, Buffers::Poisoned)
            }
            Use::Sink => {
                let number = lock(shared.poisoned).add(name(), stack.clone());
                Poison::fill(shared.host, number, parts).map_or(Buffers::Unchecked, Buffers::Poisoned)
            }
        };
        Self { id, signaled, fence, elements, buffers, state, stack: stack.clone(), is_reported }
    }

    /// Ends a request that completed, after `received` bytes were written to its buffers.
    fn end(self, of: &str, received: usize, shared: &Shared<'_>, overlaps: bool) -> Option<Finding> {
        let (kind, what) = match self.state {
            Buffers::Unchecked => return None,
            Buffers::Digest(before) => {
                let bytes = memory::read(shared.host, &memory::checked_parts(&self.buffers))?;
                if overlaps || memory::digest(&bytes) == before {
                    return None;
                }
                (Kind::SendBufferChanged, "changed between post and completion")
            }
            Buffers::Poisoned(poison) => {
                if !poison.end(shared.host, &self.buffers, received) || overlaps {
                    return None;
                }
                (Kind::ReceiveBufferWritten, "written by the program between post and completion")
            }
        };
        let text = format!("{}: {} {what}", format_name(self.id, of), Buffer(&self.buffers));
        Some(Finding::posted(kind, text, &self.stack))
    }

    /// Stops checking the buffers, and gives them their earlier content back.
    pub(super) fn forget_buffers(&mut self, host: &dyn Host) {
        if let Buffers::Poisoned(poison) = std::mem::replace(&mut self.state, Buffers::Unchecked) {
            poison.end(host, &self.buffers, 0);
        }
    }

    /// Marks the request as one of which a finding says why it will fail.
    pub(super) fn mark_reported(&mut self) -> &Self {
        self.is_reported = true;
        self
    }

    /// Returns how messages name the request, and the call that posted it.
    pub(super) fn describe(&self, of: &str) -> (String, &Stack) {
        (format_name(self.id, of), &self.stack)
    }
}

/// Returns how messages name a queue pair.
pub(super) fn format_pair(number: u32) -> String {
    format!("queue pair {number:#08x}")
}

/// Returns how messages name a request.
pub(super) fn format_name(id: u64, of: &str) -> String {
    format!("request {} of {of}", WrId(id))
}

/// Buffers, as messages name them.
struct Buffer<'b>(&'b [Span]);

impl std::fmt::Display for Buffer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let total: usize = self.0.iter().map(|span| span.len).sum();
        let first = self.0.first().map_or(0, |span| span.addr);
        write!(f, "{total} bytes at {first:#x}")?;
        if self.0.len() > 1 { write!(f, " and {} more places", self.0.len() - 1) } else { Ok(()) }
    }
}

/// Looks for poison of another request in data that is about to be sent.
fn find_early_read(
    bytes: &[u8],
    name: impl FnOnce() -> String,
    stack: &Stack,
    shared: &Shared<'_>,
) -> Option<Finding> {
    let number = memory::find_poison(bytes)?;
    let poisoned = lock(shared.poisoned);
    let (read, posted) = poisoned.find(number)?;
    let text = format!("{} sends bytes that were read from a buffer of {read} before its completion", name());
    let finding = Finding::posted(Kind::ReceiveBufferReadEarly, text, stack);
    Some(finding.after("the buffer was posted", posted))
}

impl ReceiveQueue {
    pub(super) fn new(name: String, cqs: Vec<Arc<Cq>>, shared: bool) -> Arc<Self> {
        Arc::new(Self { name, queue: Mutex::default(), cqs: Mutex::new(cqs), shared })
    }

    /// Posts receives with `post`, which returns how many the adapter accepted.
    pub(super) fn post(
        &self,
        requests: Vec<Posted>,
        stack: &Stack,
        shared: &Shared<'_>,
        post: impl FnOnce() -> usize,
    ) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut queue = lock(&self.queue);
        let before = queue.pending.len();
        for mut posted in requests {
            let buffers = shared.regions.buffers(shared.adapter, &posted.elements).unwrap_or_default();
            // Programs that do not look at the data post one buffer several times.
            if queue
                .pending
                .iter()
                .rev()
                .take(MAX_COMPARED)
                .any(|other| memory::overlap(&other.buffers, &buffers))
            {
                posted.uses = Use::Nothing;
            }
            queue.pending.push_back(Request::new(posted, &self.name, stack, shared, &mut found));
        }
        let posted = queue.pending.len() - before;
        let cqs = lock(&self.cqs).clone();
        // Before the post, because another thread may poll a completion during it.
        cqs.iter().for_each(|cq| cq.expect(posted));
        let accepted = post();
        for refused in queue.pending.drain(before + accepted..) {
            refused.end(&self.name, 0, shared, true);
        }
        drop(queue);
        for cq in cqs {
            cq.end(posted - accepted);
            found.extend(cq.find_overrun());
        }
        found
    }

    /// Ends the receive that completed with `received` bytes, or without any in its buffers.
    pub(super) fn complete(
        &self,
        id: u64,
        received: Option<usize>,
        shared: &Shared<'_>,
    ) -> (Option<Ended>, Option<Finding>) {
        let taken = {
            let mut queue = lock(&self.queue);
            if self.shared { queue.take(id) } else { queue.pending.pop_front() }
        };
        // The message of a later receive may be in the same buffer.
        let overlaps = taken.as_ref().is_some_and(|request| self.overlaps(&request.buffers));
        lock(&self.cqs).iter().for_each(|cq| cq.end(1));
        let Some(request) = taken else { return (None, None) };
        let info = Ended::new(&request);
        (Some(info), request.end(&self.name, received.unwrap_or(0), shared, overlaps || received.is_none()))
    }

    /// Returns whether no receive is posted.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.queue).pending.is_empty()
    }

    /// Returns whether its completions go to this completion queue.
    pub(super) fn completes_to(&self, cq: &Arc<Cq>) -> bool {
        lock(&self.cqs).iter().any(|known| Arc::ptr_eq(known, cq))
    }

    /// Returns whether a receive with this id is posted.
    pub(super) fn holds(&self, id: u64) -> bool {
        lock(&self.queue).pending.iter().any(|request| request.id == id)
    }

    /// Gives posted receives whose buffers a request is about to send their earlier content back. Returns a finding if
    /// there are any.
    fn yield_to(&self, posted: &Posted, of: &str, stack: &Stack, shared: &Shared<'_>) -> Option<Finding> {
        let buffers = shared.regions.buffers(shared.adapter, &posted.elements)?;
        let mut queue = lock(&self.queue);
        let pending = queue.pending.iter_mut().take(MAX_COMPARED);
        let mut shares = pending.filter(|request| memory::overlap(&request.buffers, &buffers)).peekable();
        let receive = shares.peek()?;
        let (read, posted_at) = (format_name(receive.id, &self.name), receive.stack.clone());
        shares.for_each(|request| request.forget_buffers(shared.host));
        let text = format!("{} sends from the buffer of {read}, which is posted", format_name(posted.id, of));
        let finding = Finding::posted(Kind::ReceiveBufferReadEarly, text, stack);
        Some(finding.after("the buffer was posted", &posted_at))
    }

    /// Returns whether a buffer overlaps those of a posted receive.
    fn overlaps(&self, buffers: &[Span]) -> bool {
        lock(&self.queue)
            .pending
            .iter()
            .take(MAX_COMPARED)
            .any(|request| memory::overlap(&request.buffers, buffers))
    }
}

/// What remains of a request that ended, for messages.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) id: u64,
    pub(super) stack: Stack,
    /// Whether a finding said already why it would fail.
    pub(super) is_reported: bool,
}

impl Ended {
    fn new(request: &Request) -> Self {
        Self { id: request.id, stack: request.stack.clone(), is_reported: request.is_reported }
    }
}

impl Pair {
    pub(super) fn new(
        name: String,
        receives: Arc<ReceiveQueue>,
        send_cq: Arc<Cq>,
        send_depth: usize,
        engine: Engine,
    ) -> Self {
        Self {
            name,
            sends: Mutex::default(),
            receives,
            send_cq,
            send_depth,
            engine,
            failure: Mutex::new(None),
        }
    }

    /// Returns the number of requests that are not executed, or `None` if the queue pair executes no requests. One in the
    /// state RTS executes them as soon as it is connected. Datagrams count as executed when they are posted.
    pub(super) fn executing(&self) -> Option<usize> {
        let pair = match &self.engine {
            Engine::Stream(pair) => pair.upgrade()?,
            Engine::Datagram(pair) => {
                let state = pair.upgrade()?.qp().state();
                return (!matches!(state, State::Reset | State::Init | State::Error)).then_some(0);
            }
        };
        if pair.is_disconnecting() {
            return None; // the program has ended it
        }
        let qp = pair.qp();
        let executes = match qp.state() {
            State::Error => false,
            State::ReadyToSend => qp.is_linked() || !qp.is_finished(),
            _ => qp.is_linked(),
        };
        executes.then(|| qp.queued_sends())
    }

    /// Waits until no requests are under way. Returns false at the deadline.
    pub(super) fn wait_for_requests(&self, deadline: Instant) -> bool {
        while self.executing().is_some_and(|count| count > 0) {
            if Instant::now() >= deadline {
                return false;
            }
            // Threads of the adapter serve the connection, because the program does not poll.
            thread::sleep(Duration::from_micros(100));
        }
        true
    }

    /// Posts requests to the send queue with `post`, which returns how many the adapter accepted.
    pub(super) fn post(
        &self,
        requests: Vec<Posted>,
        stack: &Stack,
        shared: &Shared<'_>,
        post: impl FnOnce() -> usize,
    ) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut queue = lock(&self.sends);
        let before = queue.pending.len();
        for mut posted in requests {
            if posted.uses == Use::Source
                && let Some(finding) = self.receives.yield_to(&posted, &self.name, stack, shared)
            {
                posted.uses = Use::Nothing;
                found.push(finding);
            }
            queue.has_fences |= posted.fence;
            if posted.uses == Use::Source && queue.waits_for_sink(&posted, shared) {
                posted.uses = Use::Nothing;
            }
            queue.pending.push_back(Request::new(posted, &self.name, stack, shared, &mut found));
        }
        let count = |requests: &mut dyn Iterator<Item = &Request>| requests.filter(|it| it.signaled).count();
        // Before the post, because another thread may poll a completion during it.
        self.send_cq.expect(count(&mut queue.pending.range(before..)));
        let accepted = post();
        let refused: Vec<Request> = queue.pending.drain(before + accepted..).collect();
        drop(queue);
        self.send_cq.end(count(&mut refused.iter()));
        for refused in refused {
            refused.end(&self.name, 0, shared, true);
        }
        found.extend(self.send_cq.find_overrun());
        found
    }

    /// Returns whether the program cannot learn when the send queue, which is full, has room again: none of its requests is
    /// signaled. Returns it once. `refused` says that the adapter refused a request because the queue is full. If it did
    /// not, then it has executed the oldest requests meanwhile, and these are forgotten.
    pub(super) fn is_stuck(&self, refused: bool) -> bool {
        let mut queue = lock(&self.sends);
        let excess = queue.pending.len().saturating_sub(self.send_depth);
        if excess == 0 && !refused || !queue.is_unsignaled() {
            return false;
        }
        if !refused && self.executing().is_none() {
            return false; // requests that are flushed complete even if they are not signaled
        }
        queue.pending.drain(..excess);
        !std::mem::replace(&mut queue.was_stuck, true)
    }

    /// Ends the requests that a completion ends. Returns the one that completed.
    pub(super) fn complete(
        &self,
        id: u64,
        succeeded: bool,
        shared: &Shared<'_>,
    ) -> (Option<Ended>, Vec<Finding>) {
        let ended = lock(&self.sends).complete(id, succeeded);
        self.send_cq.end(1);
        let last = ended.last().map(Ended::new);
        let mut found = Vec::new();
        for request in ended {
            let received = if succeeded { usize::MAX } else { 0 };
            let overlaps = self.receives.overlaps(&request.buffers);
            found.extend(request.end(&self.name, received, shared, overlaps || !succeeded));
        }
        (last, found)
    }

    /// Waits until the checker knows the completions that threads have polled.
    pub(super) fn wait_for_polls(&self) {
        let cqs = lock(&self.receives.cqs).clone();
        cqs.iter().chain([&self.send_cq]).for_each(|cq| drop(lock(&cq.polling)));
    }

    /// Forgets all requests, before the queue pair is destroyed or after a reset.
    pub(super) fn end(&self, shared: &Shared<'_>) {
        let sends: Vec<Request> = lock(&self.sends).pending.drain(..).collect();
        let signaled = sends.iter().filter(|request| request.signaled).count();
        self.send_cq.end(signaled);
        sends.into_iter().for_each(|request| drop(request.end(&self.name, 0, shared, true)));
        if !self.receives.shared {
            self.receives.forget(shared);
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl ReceiveQueue {
    /// Forgets all receives, before the queue is destroyed.
    pub(super) fn forget(&self, shared: &Shared<'_>) {
        let receives: Vec<Request> = lock(&self.queue).pending.drain(..).collect();
        lock(&self.cqs).iter().for_each(|cq| cq.end(receives.len()));
        receives.into_iter().for_each(|request| drop(request.end(&self.name, 0, shared, true)));
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}
