//! The queues of queue pairs, with the requests that are under way: posted, and not polled by the program yet.

use super::finding::{Finding, Kind};
use super::memory;
use super::queues::Cq;
use super::request::{Posted, Request, Shared, Use, format_name};
use super::stack::Stack;
use ironwarp_engine::{DatagramQueuePair, QueuePair};
use ironwarp_rnic::host::Span;
use ironwarp_rnic::qp::State;
use ironwarp_rnic::sync::lock;
use std::collections::VecDeque;
use std::ops::{Range, RangeBounds};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// A send queue or receive queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) pending: VecDeque<Request>,
    /// For each of them, the range of addresses with all of its buffers: less to search than the requests.
    extents: VecDeque<Range<u64>>,
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

/// Maximum number of requests whose buffers are compared at once.
const MAX_COMPARED: usize = 64;

impl Queue {
    fn push(&mut self, request: Request) {
        self.extents.push_back(memory::extent(&request.buffers));
        self.pending.push_back(request);
    }

    fn remove(&mut self, at: usize) -> Option<Request> {
        self.extents.remove(at);
        self.pending.remove(at)
    }

    fn drain(&mut self, range: impl RangeBounds<usize> + Clone) -> impl Iterator<Item = Request> {
        self.extents.drain(range.clone());
        self.pending.drain(range)
    }

    /// Returns the first of these requests whose buffers overlap others.
    fn find_overlap(&self, requests: Range<usize>, buffers: &[Span]) -> Option<usize> {
        let Range { start, end } = memory::extent(buffers);
        let first = requests.start;
        let extents = self.extents.range(requests).enumerate();
        let near = extents.filter(|(_, other)| other.start < end && start < other.end);
        let mut overlapping = near.map(|(at, _)| first + at);
        overlapping.find(|at| memory::overlap(&self.pending[*at].buffers, buffers))
    }

    /// Takes requests off that a completion ends: up to the signaled one that completed. A failed request completes even
    /// if it is not signaled.
    fn complete(&mut self, id: u64, succeeded: bool) -> Vec<Request> {
        let found = self.pending.iter().position(|request| match succeeded {
            true => request.signaled,
            false => request.id == id,
        });
        found.map_or(Vec::new(), |at| self.drain(..=at).collect())
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
            at >= first_executing || at < reported && request.is_checked()
        };
        requests.filter(move |(at, request)| uses(*at, request)).map(|(_, request)| request)
    }

    /// Returns whether a request sends what earlier ones get, and waits for these: because of its fence, or that of one
    /// between them.
    fn waits_for_sink(&self, posted: &Posted, buffers: &[Span]) -> bool {
        let fenced = match posted.fence {
            true => Some(self.pending.len()),
            false if self.has_fences => self.pending.iter().rposition(|request| request.fence),
            false => None,
        };
        let Some(fenced) = fenced else { return false };
        let mut earlier = self.pending.range(..fenced);
        earlier.any(|request| request.is_sink() && memory::overlap(&request.buffers, buffers))
    }

    /// Takes off the first request with this id.
    fn take(&mut self, id: u64) -> Option<Request> {
        let at = self.pending.iter().position(|request| request.id == id)?;
        self.remove(at)
    }

    /// Returns whether requests are under way, and none of them will be reported to the program.
    fn is_unsignaled(&self) -> bool {
        !self.pending.is_empty() && self.pending.iter().all(|request| !request.signaled)
    }
}

/// Returns how messages name a queue pair.
pub(super) fn format_pair(number: u32) -> String {
    format!("queue pair {number:#08x}")
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
            let buffers = shared.buffers(&posted);
            // Programs that do not look at the data post one buffer several times.
            let pending = queue.pending.len();
            if queue.find_overlap(pending.saturating_sub(MAX_COMPARED)..pending, &buffers).is_some() {
                posted.uses = Use::Nothing;
            }
            queue.push(Request::new(posted, buffers, &self.name, stack, shared, &mut found));
        }
        let posted = queue.pending.len() - before;
        let cqs = lock(&self.cqs).clone();
        // Before the post, because another thread may poll a completion during it.
        cqs.iter().for_each(|cq| cq.expect(posted));
        let accepted = post();
        for mut refused in queue.drain(before + accepted..) {
            refused.forget_buffers(shared.host);
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
            if self.shared { queue.take(id) } else { queue.remove(0) }
        };
        lock(&self.cqs).iter().for_each(|cq| cq.end(1));
        let Some(request) = taken else { return (None, None) };
        let info = Ended::new(&request);
        // The message of a later receive may be in the same buffer.
        let is_shared = |buffers: &[Span]| received.is_none() || self.overlaps(buffers);
        (Some(info), request.end(&self.name, received.unwrap_or(0), shared, is_shared))
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
    fn yield_to(
        &self,
        id: u64,
        buffers: &[Span],
        of: &str,
        stack: &Stack,
        shared: &Shared<'_>,
    ) -> Option<Finding> {
        let mut queue = lock(&self.queue);
        let compared = queue.pending.len().min(MAX_COMPARED);
        let first = queue.find_overlap(0..compared, buffers)?;
        let receive = &queue.pending[first];
        let (read, posted_at) = (format_name(receive.id, &self.name), receive.stack.clone());
        let others = queue.pending.range_mut(first..compared);
        let shares = others.filter(|request| memory::overlap(&request.buffers, buffers));
        shares.for_each(|request| request.forget_buffers(shared.host));
        let text = format!("{} sends from the buffer of {read}, which is posted", format_name(id, of));
        let finding = Finding::posted(Kind::ReceiveBufferReadEarly, text, stack);
        Some(finding.after("the buffer was posted", &posted_at))
    }

    /// Returns whether a buffer overlaps those of a posted receive.
    fn overlaps(&self, buffers: &[Span]) -> bool {
        let queue = lock(&self.queue);
        queue.find_overlap(0..queue.pending.len().min(MAX_COMPARED), buffers).is_some()
    }

    /// Forgets all receives, before the queue is destroyed.
    pub(super) fn forget(&self, shared: &Shared<'_>) {
        let receives: Vec<Request> = lock(&self.queue).drain(..).collect();
        lock(&self.cqs).iter().for_each(|cq| cq.end(receives.len()));
        receives.into_iter().for_each(|mut request| request.forget_buffers(shared.host));
    }

    pub(super) fn name(&self) -> &str {
        &self.name
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
            let buffers = shared.buffers(&posted);
            if posted.uses == Use::Source
                && let Some(finding) = self.receives.yield_to(posted.id, &buffers, &self.name, stack, shared)
            {
                posted.uses = Use::Nothing;
                found.push(finding);
            }
            queue.has_fences |= posted.fence;
            if posted.uses == Use::Source && queue.waits_for_sink(&posted, &buffers) {
                posted.uses = Use::Nothing;
            }
            queue.push(Request::new(posted, buffers, &self.name, stack, shared, &mut found));
        }
        let count = |requests: &mut dyn Iterator<Item = &Request>| requests.filter(|it| it.signaled).count();
        // Before the post, because another thread may poll a completion during it.
        self.send_cq.expect(count(&mut queue.pending.range(before..)));
        let accepted = post();
        let refused: Vec<Request> = queue.drain(before + accepted..).collect();
        drop(queue);
        self.send_cq.end(count(&mut refused.iter()));
        refused.into_iter().for_each(|mut request| request.forget_buffers(shared.host));
        found.extend(self.send_cq.find_overrun());
        found
    }

    /// Returns whether the program cannot learn when the send queue, which is full, has room again: none of its requests is
    /// signaled. Returns true only once. `refused` says that the adapter refused a request because the queue is full. If it did
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
        drop(queue.drain(..excess));
        !std::mem::replace(&mut queue.was_stuck, true)
    }

    /// Ends the requests that a completion ends. Returns the one that completed.
    pub(super) fn complete(
        &self,
        id: u64,
        succeeded: bool,
        shared: &Shared<'_>,
    ) -> (Option<Ended>, Vec<Finding>) {
        let mut ended = lock(&self.sends).complete(id, succeeded);
        self.send_cq.end(1);
        ended.chunks_mut(MAX_COMPARED).for_each(|some| Request::accept_unchanged(some, shared.host));
        let last = ended.last().map(Ended::new);
        let mut found = Vec::new();
        for request in ended {
            let received = if succeeded { usize::MAX } else { 0 };
            let is_shared = |buffers: &[Span]| !succeeded || self.receives.overlaps(buffers);
            found.extend(request.end(&self.name, received, shared, is_shared));
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
        let sends: Vec<Request> = lock(&self.sends).drain(..).collect();
        let signaled = sends.iter().filter(|request| request.signaled).count();
        self.send_cq.end(signaled);
        sends.into_iter().for_each(|mut request| request.forget_buffers(shared.host));
        if !self.receives.shared {
            self.receives.forget(shared);
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}
