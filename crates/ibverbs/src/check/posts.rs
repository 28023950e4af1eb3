//! Posting, completions, and what they reveal about requests, regions and queues.

use super::checker::Checker;
use super::finding::{Finding, Kind};
use super::inside::Inside;
use super::pairs::{Ended, Engine, Pair, Queue, ReceiveQueue, Until, format_pair};
use super::queues::Cq;
use super::regions::Region;
use super::request::{Posted, Request, Shared, format_name};
use super::stack::Stack;
use super::watch::{Released, What};
use crate::abi::*;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::memory::Check;
use ironwarp_rnic::qp::State;
use ironwarp_rnic::sync::{lock, read, write};
use ironwarp_wire::{Cause, Protection};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a queue pair that is destroyed waits for its requests.
const PATIENCE: Duration = Duration::from_secs(1);

/// The attributes of a new queue pair. Objects are named by the addresses of their C structures.
#[derive(Debug)]
pub(crate) struct PairAttributes {
    pub(crate) adapter: usize,
    pub(crate) number: u32,
    pub(crate) send_cq: usize,
    pub(crate) receive_cq: usize,
    /// Zero if the queue pair has its own receive queue.
    pub(crate) srq: usize,
    /// Number of requests that the send queue holds.
    pub(crate) send_depth: usize,
    pub(crate) engine: Engine,
}

/// A completion that the program polled.
#[derive(Debug)]
pub(crate) struct Completed<'c> {
    pub(crate) adapter: usize,
    /// The completion queue.
    pub(crate) cq: usize,
    pub(crate) wc: &'c ibv_wc,
    /// Why the request failed, if the adapter knows.
    pub(crate) cause: Option<&'c QpError>,
}

/// Returns whether hardware may pin more of this process's memory than RLIMIT_MEMLOCK.
fn may_pin_any() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK))
}

impl Checker {
    fn shared(&self, adapter: usize) -> Shared<'_> {
        let poisons = self.config.check_poison;
        Shared { host: &self.memory, adapter, poisons, regions: &self.regions, poisoned: &self.poisoned }
    }

    fn pair(&self, adapter: usize, number: u32) -> Option<Arc<Pair>> {
        read(&self.pairs).get(&(adapter, number)).cloned()
    }

    /// Returns the receive queue from which a completed receive was taken. Messages to an XRC target queue pair name a
    /// shared receive queue, which its completion queue shows.
    fn receives_of(&self, pair: &Pair, cq: usize, id: u64) -> Arc<ReceiveQueue> {
        let own = || Arc::clone(&pair.receives);
        if !pair.receives.is_empty() {
            return own();
        }
        let Some(cq) = read(&self.cqs).get(&cq).cloned() else { return own() };
        let named = |queue: &&Arc<ReceiveQueue>| queue.completes_to(&cq) && queue.holds(id);
        read(&self.shared_receives).values().find(named).map_or_else(own, Arc::clone)
    }

    fn cq(&self, key: usize) -> Arc<Cq> {
        read(&self.cqs).get(&key).cloned().unwrap_or_else(|| Arc::new(Cq::new(0, usize::MAX)))
    }

    /// A completion queue was created.
    pub(crate) fn cq_created(&self, key: usize, handle: u32, capacity: usize) {
        let _inside = Inside::enter();
        write(&self.cqs).insert(key, Arc::new(Cq::new(handle, capacity)));
    }

    /// A completion queue was resized.
    pub(crate) fn cq_resized(&self, key: usize, capacity: usize) {
        self.cq(key).resize(capacity);
    }

    /// A completion queue was destroyed.
    pub(crate) fn cq_destroyed(&self, key: usize) {
        let _inside = Inside::enter();
        let Some(cq) = write(&self.cqs).remove(&key) else { return };
        let all = read(&self.shared_receives);
        all.values().for_each(|receives| lock(&receives.cqs).retain(|known| !Arc::ptr_eq(known, &cq)));
    }

    /// A shared receive queue was created. `cq` is the completion queue of one for XRC, otherwise zero.
    pub(crate) fn srq_created(&self, adapter: usize, key: usize, number: u32, cq: usize) {
        let _inside = Inside::enter();
        let cqs = if cq == 0 { Vec::new() } else { vec![self.cq(cq)] };
        let queue = ReceiveQueue::new(format!("shared receive queue {number}"), cqs, true);
        write(&self.shared_receives).insert((adapter, key), queue);
    }

    /// A shared receive queue was destroyed.
    pub(crate) fn srq_destroyed(&self, adapter: usize, key: usize) {
        let _inside = Inside::enter();
        let removed = write(&self.shared_receives).remove(&(adapter, key));
        if let Some(queue) = removed {
            queue.forget(&self.shared(adapter));
        }
    }

    /// A queue pair was created.
    pub(crate) fn pair_created(&self, attributes: &PairAttributes) {
        let _inside = Inside::enter();
        let PairAttributes { adapter, number, send_cq, receive_cq, srq, send_depth, ref engine } =
            *attributes;
        let name = format_pair(number);
        let cq = self.cq(receive_cq);
        let receives = match read(&self.shared_receives).get(&(adapter, srq)) {
            Some(shared) => {
                let mut cqs = lock(&shared.cqs);
                if !cqs.iter().any(|known| Arc::ptr_eq(known, &cq)) {
                    cqs.push(cq);
                }
                Arc::clone(shared)
            }
            None => ReceiveQueue::new(name.clone(), vec![cq], false),
        };
        let pair = Arc::new(Pair::new(name, receives, self.cq(send_cq), send_depth, engine.clone()));
        write(&self.pairs).insert((adapter, number), pair);
    }

    /// A queue pair is about to be destroyed. Waits for requests that are under way. What the peer has received may not be
    /// acknowledged yet, and the program may know by other means that it has arrived: then nothing is lost.
    pub(crate) fn pair_destroyed(&self, adapter: usize, number: u32) {
        let _inside = Inside::enter();
        let Some(pair) = self.pair(adapter, number) else { return };
        let executing = pair.executing().unwrap_or(0);
        if executing > 0 {
            let start = Instant::now();
            let (kind, outcome) = match pair.wait_for_requests(start + PATIENCE) {
                true => {
                    let outcome =
                        format!("they ended {:.1?} later, but hardware does not wait", start.elapsed());
                    (Kind::DestroyBeforeCompletion, outcome)
                }
                false => (Kind::DestroyWithRequests, "their data may not arrive".to_owned()),
            };
            let text =
                format!("{} is destroyed with {executing} of its requests under way: {outcome}", pair.name());
            let mut finding = Finding::now(kind, text);
            if let Some(request) = lock(&pair.sends).pending.back() {
                finding = finding.after("its last request was posted", request.describe(pair.name()).1);
            }
            self.report([finding]);
        }
        write(&self.pairs).remove(&(adapter, number));
        lock(&self.waiting).remove(&number);
        pair.end(&self.shared(adapter));
    }

    /// A queue pair was moved to another state. A reset has discarded its requests and unpolled completions.
    pub(crate) fn pair_moved(&self, adapter: usize, number: u32, to: State) {
        let _inside = Inside::enter();
        let Some(pair) = self.pair(adapter, number) else { return };
        if to == State::Reset {
            lock(&self.waiting).remove(&number);
            // Other threads may have polled completions just before the reset.
            pair.wait_for_polls();
            pair.end(&self.shared(adapter));
        }
        if matches!(to, State::Reset | State::ReadyToSend) {
            *lock(&pair.failure) = None;
        }
    }

    /// Posts requests to a send queue with `post`, which returns how many the adapter accepted and the errno.
    pub(crate) fn post_sends(
        &self,
        (adapter, number): (usize, u32),
        stack: &Stack,
        requests: Vec<Posted>,
        post: impl FnOnce() -> (usize, i32),
    ) -> i32 {
        let _inside = Inside::enter();
        let Some(pair) = self.pair(adapter, number) else { return post().1 };
        let mut found = self.find_exceeded(&requests, stack);
        if *lock(&pair.failure) == Some(std::thread::current().id()) {
            let text = format!(
                "{} was posted after the program polled a failed completion of the queue pair: it will be flushed",
                requests.first().map_or_else(String::new, |first| format_name(first.id, pair.name()))
            );
            found.push(Finding::posted(Kind::PostInErrorState, text, stack));
        }
        let mut errno = 0;
        found.extend(pair.post(requests, stack, &self.shared(adapter), || {
            let accepted;
            (accepted, errno) = post();
            accepted
        }));
        if pair.is_stuck(errno == libc::ENOMEM) {
            let text = format!(
                "the send queue of {} is full, and none of its requests is signaled: the program cannot learn when there is room",
                pair.name()
            );
            found.push(Finding::posted(Kind::SendQueueUnsignaled, text, stack));
        }
        self.report(found);
        errno
    }

    /// A request was refused because of the state of its queue pair.
    pub(crate) fn refused_by_state(&self, number: u32, id: u64, state: State, stack: &Stack) {
        let name = format_name(id, &format_pair(number));
        let text = format!("{name} was posted in state \"{state}\", in which a queue pair accepts none");
        self.report([Finding::posted(Kind::PostInErrorState, text, stack)]);
    }

    /// Posts receives to a queue pair with `post`, which returns how many the adapter accepted and the errno.
    pub(crate) fn post_receives(
        &self,
        (adapter, number): (usize, u32),
        stack: &Stack,
        requests: Vec<Posted>,
        post: impl FnOnce() -> (usize, i32),
    ) -> i32 {
        let _inside = Inside::enter();
        let Some(pair) = self.pair(adapter, number) else { return post().1 };
        self.post_to(&pair.receives, &self.shared(adapter), stack, requests, post)
    }

    /// Posts receives to a shared receive queue, like [`post_receives`](Self::post_receives).
    pub(crate) fn post_shared_receives(
        &self,
        of: (usize, usize),
        stack: &Stack,
        requests: Vec<Posted>,
        post: impl FnOnce() -> (usize, i32),
    ) -> i32 {
        let _inside = Inside::enter();
        let found = read(&self.shared_receives).get(&of).cloned();
        let Some(queue) = found else { return post().1 };
        self.post_to(&queue, &self.shared(of.0), stack, requests, post)
    }

    fn post_to(
        &self,
        queue: &Arc<ReceiveQueue>,
        shared: &Shared<'_>,
        stack: &Stack,
        requests: Vec<Posted>,
        post: impl FnOnce() -> (usize, i32),
    ) -> i32 {
        let mut errno = 0;
        let mut found = self.end_waits(queue, stack);
        found.extend(queue.post(requests, stack, shared, || {
            let accepted;
            (accepted, errno) = post();
            accepted
        }));
        self.report(found);
        errno
    }

    /// Polls a completion queue with `poll`, which calls [`completed`](Self::completed) for each completion. Threads do so one
    /// after the other.
    pub(crate) fn poll<R>(&self, cq: usize, poll: impl FnOnce() -> R) -> R {
        // The adapter's queues are locked in a poll, and their memory must not lead to the checker: a thread that posts has
        // locked the checker's queue, and waits for that of the adapter.
        let _inside = Inside::enter();
        let cq = read(&self.cqs).get(&cq).cloned();
        let _polling = cq.as_ref().map(|cq| lock(&cq.polling));
        poll()
    }

    /// The program polled a completion.
    pub(crate) fn completed(&self, completed: &Completed<'_>) {
        let _inside = Inside::enter();
        let Completed { adapter, wc, .. } = *completed;
        let Some(pair) = self.pair(adapter, wc.qp_num) else { return };
        let shared = self.shared(adapter);
        let succeeded = wc.status == IBV_WC_SUCCESS;
        let is_receive = wc.opcode & IBV_WC_RECV != 0;
        let receives = is_receive.then(|| self.receives_of(&pair, completed.cq, wc.wr_id));
        let (ended, mut found) = if let Some(receives) = &receives {
            let received = match (succeeded, wc.opcode) {
                // A Write has no data for these buffers, but the peer may have written to them.
                (false, _) | (true, IBV_WC_RECV_RDMA_WITH_IMM) => None,
                (true, _) => Some(wc.byte_len as usize),
            };
            let (ended, finding) = receives.complete(wc.wr_id, received, &shared);
            (ended, finding.into_iter().collect())
        } else {
            pair.complete(wc.wr_id, succeeded, &shared)
        };
        if !succeeded && wc.status != IBV_WC_WR_FLUSH_ERR {
            *lock(&pair.failure) = Some(std::thread::current().id());
            let of = receives.as_ref().map_or(pair.name(), |receives| receives.name());
            found.extend(ended.and_then(|ended| Self::explain(&ended, of, completed)));
        }
        if !found.is_empty() {
            self.report(found);
        }
    }

    /// Returns the mistake because of which a request failed, if it is one of the program that posted it.
    fn explain(ended: &Ended, of: &str, completed: &Completed<'_>) -> Option<Finding> {
        let Ended { id, stack, is_reported: false } = ended else { return None };
        let cause = completed.cause?;
        let kind = match cause {
            QpError::Local(denied) if denied.check == Check::Right => Kind::MissingRights,
            QpError::Local(_) => Kind::BadMemoryKey,
            QpError::Unmapped { remote: false, .. } => Kind::StaleRegistration,
            QpError::Terminated(terminate) => match terminate.cause {
                Cause::Protection(Protection::Access) => Kind::MissingRights,
                Cause::Protection(_) | Cause::TaggedBuffer(_) => Kind::BadMemoryKey,
                _ => return None,
            },
            _ => return None,
        };
        let text = format!("{} failed: {cause}", format_name(*id, of));
        Some(Finding::posted(kind, text, stack))
    }

    /// Memory was registered.
    pub(crate) fn registered(&self, adapter: usize, key: u32, region: Region) {
        let _inside = Inside::enter();
        self.check_region(region.len, region.access);
        self.regions.add(adapter, key, region);
        let total = self.regions.total();
        let limit = getrlimit(Resource::Memlock).current;
        if let Some(limit) = limit.filter(|limit| total > *limit)
            && !may_pin_any()
            && !self.exceeds_memlock.swap(true, Ordering::Relaxed)
        {
            let text = format!(
                "{total} bytes are registered, but RLIMIT_MEMLOCK is {limit} bytes: hardware pins memory, and would refuse (ulimit -l)"
            );
            self.report([Finding::now(Kind::MemlockLimit, text)]);
        }
    }

    /// Memory was registered again with the same key.
    pub(crate) fn reregistered(&self, adapter: usize, key: u32, change: impl FnOnce(&mut Region)) {
        let _inside = Inside::enter();
        if let Some(mut region) = self.regions.remove(adapter, key) {
            change(&mut region);
            self.regions.add(adapter, key, region);
        }
    }

    /// A region is about to be deregistered.
    pub(crate) fn deregistered(&self, adapter: usize, key: u32) {
        let _inside = Inside::enter();
        self.regions.remove(adapter, key);
        let uses = |request: &Request| request.elements.iter().any(|it| it.lkey == key && it.len > 0);
        let found = self.find_users(Some(adapter), Until::Executed, uses, |name| {
            let text = format!("the region with key {key:#x} was deregistered while {name} uses it");
            (Kind::RegionDeregisteredInUse, text)
        });
        self.forget_buffers(Some(adapter), uses);
        self.report(found);
    }

    /// The program frees memory, or has unmapped it.
    pub(super) fn released(&self, released: Released) {
        if Inside::is_entered() {
            return;
        }
        let _inside = Inside::enter();
        let Released { memory, what, .. } = released;
        if !self.regions.change(released) {
            return;
        }
        let uses = |request: &Request| super::memory::overlap(&request.buffers, &[memory]);
        let (kind, how) = match what {
            What::Freed => (Kind::MemoryFreedInUse, "freed"),
            What::Unmapped => (Kind::MemoryUnmappedInUse, "unmapped"),
        };
        let found = self.find_users(None, Until::Polled, uses, |name| {
            let Span { addr, len, .. } = memory;
            (kind, format!("{len} bytes at {addr:#x} were {how} while {name} uses them"))
        });
        self.report(found);
        self.forget_buffers(None, uses);
    }

    /// Stops checking the buffers of requests for which `uses` holds, of one adapter or of all: the program is about to use
    /// their memory for something else.
    fn forget_buffers(&self, adapter: Option<usize>, uses: impl Fn(&Request) -> bool) {
        let forget = |queue: &Mutex<Queue>| {
            let mut queue = lock(queue);
            let used = queue.pending.iter_mut().filter(|request| uses(request));
            used.for_each(|request| request.forget_buffers(&self.memory));
        };
        for pair in self.pairs_of(adapter) {
            forget(&pair.sends);
            forget(&pair.receives.queue);
        }
        // Also those of no queue pair here: messages to XRC queue pairs name theirs.
        let all = read(&self.shared_receives);
        let of = all.iter().filter(|((of, _), _)| adapter.is_none_or(|adapter| adapter == *of));
        of.for_each(|(_, receives)| forget(&receives.queue));
    }

    /// Returns the queue pairs of one adapter, or all.
    fn pairs_of(&self, adapter: Option<usize>) -> Vec<Arc<Pair>> {
        let all = read(&self.pairs);
        let of = all.iter().filter(|((of, _), _)| adapter.is_none_or(|adapter| adapter == *of));
        of.map(|(_, pair)| Arc::clone(pair)).collect()
    }

    /// The program got memory from its allocator.
    pub(super) fn allocated(&self, memory: Span) {
        if !Inside::is_entered() {
            let _inside = Inside::enter();
            self.regions.allocate(memory);
        }
    }

    /// Returns a finding for each queue with a request that still uses its buffers and for which `uses` holds, of one adapter
    /// or of all. `describe` returns its kind and text for the name of the request.
    fn find_users(
        &self,
        adapter: Option<usize>,
        until: Until,
        uses: impl Fn(&Request) -> bool,
        describe: impl Fn(&str) -> (Kind, String),
    ) -> Vec<Finding> {
        let mut found = Vec::new();
        for pair in self.pairs_of(adapter) {
            let Some(executing) = pair.executing() else { continue };
            for (queue, name, executing) in [
                (&pair.sends, pair.name(), executing),
                (&pair.receives.queue, pair.receives.name(), usize::MAX),
            ] {
                let mut queue = lock(queue);
                let users = queue.using_buffers(executing, until).filter(|request| uses(request));
                if let Some(last) = users.map(Request::mark_reported).reduce(|last, _| last) {
                    let (name, stack) = last.describe(name);
                    let (kind, text) = describe(&name);
                    found.push(Finding::now(kind, text).after("the request was posted", stack));
                }
            }
        }
        found
    }

    /// A message has begun to wait for a receive of this queue pair.
    pub(crate) fn receive_missing(&self, number: u32) {
        let _inside = Inside::enter();
        lock(&self.waiting).entry(number).or_insert_with(Instant::now);
    }

    /// Returns remarks about messages that waited for receives of this queue.
    fn end_waits(&self, queue: &Arc<ReceiveQueue>, stack: &Stack) -> Vec<Finding> {
        let mut waiting = lock(&self.waiting);
        if waiting.is_empty() {
            return Vec::new();
        }
        let mut found = Vec::new();
        for ((_, number), pair) in read(&self.pairs).iter() {
            if Arc::ptr_eq(&pair.receives, queue)
                && let Some(since) = waiting.remove(number)
            {
                let text = format!(
                    "a message for {} waited {:.1?} until a receive was posted: hardware would have made the sender retry, or fail",
                    pair.name(),
                    since.elapsed()
                );
                found.push(Finding::posted(Kind::WaitedForReceive, text, stack));
            }
        }
        found
    }
}
