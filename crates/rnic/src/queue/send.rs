//! The send queue of a queue pair: keeps work requests from post to completion, in order.
//!
//! The tx half starts requests in order and reports which of them the link has taken. The rx half reports how many
//! messages the peer has acknowledged and which Reads were answered. Completions have the order of posting, so a
//! request that is done may have to wait for an older one. The thread that completes the older one completes both.
//!
//! Every request that the peer can answer is recorded *before* it is sent, because the answer may arrive before the
//! sender's next instruction. If the link did not take the request, the record is rolled back.
//!
//! Three numbers identify a request: `seq` counts the requests of this queue from zero, `number` counts the messages
//! of the request class (Write, Send, Immediate Data, Read and Atomic Request) from one, and `msn` is the message
//! sequence number of DDP.

mod ending;
mod find;
mod frozen;
mod post;
mod refusal;
#[cfg(all(test, not(loom)))]
mod tests;

use super::entry::{Entry, OutstandingRead, Refusals, success_completion};
use super::feed::Feed;
use super::inline::InlineSlots;
use super::receive::saturate;
use super::{
    Completes, Completion, Data, Operation, QueueOwner, Receive, SharedSendQueue, Status, WorkRequest,
};
use crate::error::QpError;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// The send queue of one queue pair: its requests that are not complete, and the Reads that are not answered.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SendQueue {
    /// Maximum number of requests. `u32`, to keep queue pairs small. Zero if a shared send queue feeds this queue.
    capacity: u32,
    /// Maximum number of scatter/gather elements of a request. `u32`, to keep queue pairs small.
    max_sges: u32,
    /// Requests may register memory (requirement M17).
    registration: bool,
    /// When Sends and Writes complete.
    completes: Completes,
    /// The sequence number of `entries[0]`.
    first: u64,
    /// The requests that are not complete, in the order of posting.
    entries: VecDeque<Entry>,
    /// Read and Atomic Requests that the peer has not answered. It answers them in order (RFC 5040 §5.2).
    reads: VecDeque<OutstandingRead>,
    /// Number of messages of the request class that the peer has acknowledged.
    acknowledged: u64,
    /// A call to the link is in progress: which messages were sent is known when the call returns.
    sending: bool,
    /// Set if the stream failed during a call to the link. The requests complete after the call.
    #[serde(skip)]
    failure: Option<Box<Failure>>,
    /// The stream failed.
    failed: bool,
    /// The queue pair is frozen (requirement X2), so the capacity is zero, and this queue only takes the place of the real one.
    #[serde(skip)]
    frozen: bool,
    /// `None` until it is needed for the first time.
    extra: Option<Box<Extra>>,
    /// Set if the receives have to be flushed once the requests are complete. The inner option is the receive in use
    /// by a message, which is flushed first.
    flush: Option<Box<Option<Receive>>>,
    /// The shared send queue that the requests come from (requirement X7). `None` if the queue pair has its own queue.
    #[serde(skip)]
    feed: Option<Box<Feed>>,
}

/// State that few send queues need.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Extra {
    /// Requests that were refused (requirement M7).
    refusals: Refusals,
    /// Memory for inline data that does not fit into its request (requirement X5).
    #[serde(skip)]
    inline: InlineSlots,
}

/// When a request completes that was started by [`SendQueue::begin_last`].
#[derive(Clone, Copy, Debug)]
#[must_use = "the queue has to be told when a request was sent"]
pub(crate) enum Begun {
    /// It completes when it is sent: the queue has to be told.
    UntilSent,
    /// It completes when it is acknowledged. Until then, it makes no difference whether the link has taken it.
    UntilAcknowledged,
}

/// The failure of a stream whose requests have not completed yet.
#[derive(Debug)]
struct Failure {
    /// The request that caused the failure. `None` if no request did.
    blamed: Option<BlamedRequest>,
    /// Why the stream failed.
    cause: Arc<QpError>,
}

/// The request to which the failure of a stream is attributed. It completes with `status`, the requests after it are
/// flushed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlamedRequest {
    /// Sequence number of the request in its send queue.
    pub(crate) seq: u64,
    /// The status with which the request completes.
    pub(crate) status: Status,
}

impl SendQueue {
    /// Creates an empty queue. `shared` is the shared send queue that feeds it, if any, with the queue pair of this
    /// queue.
    pub(crate) fn new(
        capacity: usize,
        max_sges: usize,
        registration: bool,
        completes: Completes,
        shared: Option<(Arc<SharedSendQueue>, Weak<dyn QueueOwner>)>,
    ) -> Self {
        let feed = |(queue, qp)| Box::new(Feed { queue, qp, numbers: VecDeque::new(), suppressed: false });
        Self {
            capacity: if shared.is_some() { 0 } else { saturate(capacity) },
            feed: shared.map(feed),
            max_sges: saturate(max_sges),
            registration,
            completes,
            first: 0,
            entries: VecDeque::new(),
            reads: VecDeque::new(),
            acknowledged: 0,
            sending: false,
            failure: None,
            failed: false,
            frozen: false,
            extra: None,
            flush: None,
        }
    }

    /// Drops all completions of this queue pair that its shared send queue has not delivered yet, and suppresses those
    /// to come. Does nothing without a shared send queue.
    pub(crate) fn suppress_completions(&mut self, qp: u32) {
        if let Some(feed) = &mut self.feed {
            feed.suppressed = true;
            feed.queue.purge(qp);
        }
    }

    /// Number of requests that are not complete.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the request with this sequence number. `None` if it was not posted yet, or is complete.
    pub(crate) fn request(&self, seq: u64) -> Option<&WorkRequest> {
        self.entries.get(self.index(seq)?).map(|entry| &entry.request)
    }

    /// Number of Read and Atomic Requests that the peer has not answered, including probes, which the adapter sends by
    /// itself: all of them count against the peer's IRD.
    pub(crate) fn outstanding_reads(&self) -> usize {
        self.reads.len()
    }

    /// Whether a Read or atomic operation that the consumer posted is outstanding. A fenced request waits for it.
    pub(crate) fn has_consumer_read(&self) -> bool {
        self.reads.iter().any(|read| read.entry.is_some())
    }

    /// Returns the oldest Read or Atomic Request that was not answered: the peer's next response belongs to it.
    pub(crate) fn oldest_read(&mut self) -> Option<&mut OutstandingRead> {
        self.reads.front_mut()
    }

    /// Returns the buffers that the consumer posted for the response to `read`. `None` for a probe, or if the stream
    /// failed and the request is gone.
    pub(crate) fn sink(&self, read: &OutstandingRead) -> Option<&Data> {
        read.entry.and_then(|seq| self.request(seq)).map(|request| &request.data)
    }

    /// Records a Read or Atomic Request that is about to be sent.
    pub(crate) fn add_outstanding_read(&mut self, read: OutstandingRead) {
        self.reads.push_back(read);
    }

    /// Removes the last `n` Read and Atomic Requests from the record, because the link did not take them.
    pub(crate) fn roll_back_reads(&mut self, n: usize) {
        // Saturates: if the stream failed meanwhile, the list is empty.
        self.reads.truncate(self.reads.len().saturating_sub(n));
    }

    /// Assigns the number and the message sequence number of its message to the request `seq`.
    pub(crate) fn assign_number(&mut self, seq: u64, number: u64, msn: u32) {
        if let Some(entry) = self.entry(seq) {
            (entry.number, entry.msn) = (number, msn);
        }
    }

    /// Starts up to `max` requests, from `seq` on, until `begin` returns `None`. `begin` returns the number and the
    /// message sequence number of the request's message. Returns whether all posted requests were started.
    pub(crate) fn begin_several(
        &mut self,
        seq: u64,
        max: usize,
        mut begin: impl FnMut(&WorkRequest) -> Option<(u64, u32)>,
    ) -> bool {
        let Some(first) = self.index(seq) else { return false };
        let mut entries = self.entries.iter_mut().skip(first);
        for entry in entries.by_ref().take(max) {
            let Some((number, msn)) = begin(&entry.request) else { return false };
            (entry.number, entry.msn) = (number, msn);
        }
        entries.next().is_none()
    }

    /// Starts the request `seq` if it was posted last, before a call that passes it to the link. `begin` returns what is
    /// needed of the request, or `None` if it cannot be started. The number and the message sequence number of its
    /// message are `numbers`. Returns `None`, and changes nothing, if the request cannot be started, if others have to be
    /// started before, or if a probe has to follow because the peer does not acknowledge.
    #[inline]
    pub(crate) fn begin_last<T>(
        &mut self,
        seq: u64,
        numbers: (u64, u32),
        peer_acknowledges: bool,
        begin: impl FnOnce(&WorkRequest) -> Option<T>,
    ) -> Option<(T, Begun)> {
        let needs_probe = self.completes == Completes::WhenAcknowledged && !peer_acknowledges;
        if needs_probe || self.failed || self.feed.is_some() || self.index(seq)? + 1 != self.entries.len() {
            return None;
        }
        let entry = self.entries.back_mut().filter(|entry| !entry.refused)?;
        let begun = begin(&entry.request)?;
        (entry.number, entry.msn) = numbers;
        let state = match self.completes {
            Completes::WhenAcknowledged => Begun::UntilAcknowledged,
            Completes::WhenSent => {
                self.sending = true;
                Begun::UntilSent
            }
        };
        Some((begun, state))
    }

    /// Takes a request of which the link has taken a part, although it was not in the queue, and inserts it. `seq` is the sequence number
    /// of the first request that was not started: the new one gets it, and those that were not started get higher ones.
    /// The number and the message sequence number of its message are `numbers`. If the stream has failed meanwhile, the
    /// request completes as if it was sent, which needs no completion.
    pub(crate) fn insert_started(
        &mut self,
        request: &mut Option<WorkRequest>,
        seq: u64,
        (number, msn): (u64, u32),
    ) {
        if let (Some(request), Some(at)) = (request.take(), self.index(seq))
            && !self.failed
        {
            self.entries.insert(at, Entry { number, msn, ..Entry::new(request) });
        }
    }

    /// Takes the numbers of the request `seq` and of all later requests back, because their messages were not sent.
    /// Other messages may get the same numbers and be acknowledged first.
    pub(crate) fn roll_back_numbers(&mut self, seq: u64) {
        let begun = usize::try_from(seq.saturating_sub(self.first)).unwrap_or(usize::MAX);
        for entry in self.entries.iter_mut().skip(begun) {
            (entry.number, entry.msn) = (0, 0);
        }
    }

    /// Marks the request `seq` as sent: the link has taken the last byte of its message.
    pub(crate) fn mark_sent(&mut self, seq: u64) {
        if let Some(index) = self.index(seq)
            && let Some(entry) = self.entries.get_mut(index)
        {
            entry.sent = true;
            if let Some(feed) = &mut self.feed {
                feed.numbers.push_back(feed.queue.record_transmission());
            }
        }
    }

    /// Marks the request `seq` as sent and done: a local operation, which sends nothing, was executed.
    pub(crate) fn mark_executed(&mut self, seq: u64) {
        self.mark_sent(seq);
        if let Some(entry) = self.entry(seq) {
            entry.done = true;
        }
    }

    /// Makes the request `seq`, whose registration was executed, a Send. Returns false if the request is gone, because
    /// the stream failed meanwhile.
    pub(crate) fn become_send(&mut self, seq: u64) -> bool {
        let Some(entry) = self.entry(seq) else { return false };
        if let Operation::RegisterSend { invalidate, .. } = entry.request.operation {
            entry.request.operation = Operation::Send { invalidate };
        }
        true
    }

    /// Removes the oldest outstanding Read or Atomic Request, which was answered in full, and marks its work request as
    /// done. The response also acknowledges the request and all messages before it.
    pub(crate) fn complete_oldest_read(&mut self) {
        let Some(read) = self.reads.pop_front() else { return };
        if let Some(entry) = read.entry.and_then(|seq| self.entry(seq)) {
            entry.done = true;
        }
        self.acknowledge(read.number);
    }

    /// Number of messages of the request class that the peer has acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Records that the peer has delivered the first `number` messages. A lower number than before has no effect.
    pub(crate) fn acknowledge(&mut self, number: u64) {
        self.acknowledged = self.acknowledged.max(number);
    }

    /// Whether some of the `sent` messages complete when they are acknowledged, and no outstanding Read follows them
    /// whose response would acknowledge them.
    pub(crate) fn needs_probe(&self, sent: u64) -> bool {
        let covered = self.reads.back().map_or(self.acknowledged, |read| read.number);
        self.completes == Completes::WhenAcknowledged && sent > covered.max(self.acknowledged)
    }

    /// Sets when Sends and Writes complete. It depends on the peer's capabilities, which arrive after connecting.
    pub(crate) fn set_completes(&mut self, completes: Completes) {
        self.completes = completes;
    }

    /// Whether nothing waits to be sent, acknowledged or answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.entries.is_empty() && self.reads.is_empty()
    }

    /// Whether all requests before `seq` are complete.
    pub(crate) fn is_complete_before(&self, seq: u64) -> bool {
        self.first >= seq
    }

    /// Removes the requests at the front that are done, and calls `complete` with the completion of each that needs
    /// one.
    pub(crate) fn retire(&mut self, qp: u32, mut complete: impl FnMut(Completion)) {
        while let Some(entry) = self.entries.front()
            && self.is_done(entry)
        {
            let Some(entry) = self.entries.pop_front() else { break };
            self.first += 1;
            if self.feed.is_some() || entry.refused {
                self.retire_refused_or_shared(qp, &entry, &mut complete);
            } else if entry.request.signaled {
                complete(success_completion(&entry.request, qp));
            }
        }
        self.return_ring();
    }

    /// Completes empty Writes at the front with success. An empty Write has no effect; a program posts one to learn
    /// whether all messages before it were delivered, and the peer has acknowledged these.
    pub(crate) fn retire_empty_writes(&mut self, qp: u32, mut complete: impl FnMut(Completion)) {
        let is_empty = |request: &WorkRequest| {
            matches!(request.operation, Operation::Write(_))
                && request.data.is_empty()
                && request.immediate.is_none()
        };
        if self.sending || self.failed || self.feed.is_some() {
            return;
        }
        while self.entries.front().is_some_and(|entry| is_empty(&entry.request)) {
            let Some(entry) = self.entries.pop_front() else { break };
            self.first += 1;
            if entry.request.signaled {
                complete(success_completion(&entry.request, qp));
            }
        }
        self.return_ring();
    }

    /// Completes a request of a refused registration, or of a shared send queue.
    #[cold]
    fn retire_refused_or_shared(&mut self, qp: u32, entry: &Entry, mut complete: impl FnMut(Completion)) {
        let completion = self.take_completion(qp, entry);
        match &mut self.feed {
            Some(feed) => feed.finish(entry, completion),
            None => completion.into_iter().for_each(&mut complete),
        }
    }

    /// Whether a request is done, so that it completes once all older requests have.
    fn is_done(&self, entry: &Entry) -> bool {
        if entry.refused {
            return true;
        }
        // An acknowledged message was sent, even if the sending thread has not set `sent` yet. Number zero is
        // unassigned.
        let delivered = entry.number > 0 && entry.number <= self.acknowledged;
        match entry.request.operation {
            Operation::Read(_) | Operation::Atomic { .. } => entry.sent && entry.done,
            ref operation if operation.is_local() => entry.done,
            _ => delivered || (self.completes == Completes::WhenSent && entry.sent),
        }
    }

    /// Returns the request `seq`. `None` if it was not posted yet, or is complete.
    fn entry(&mut self, seq: u64) -> Option<&mut Entry> {
        let index = self.index(seq)?;
        self.entries.get_mut(index)
    }

    /// Returns the index of the request `seq` in `entries`, which may be beyond its end. `None` if it is complete.
    fn index(&self, seq: u64) -> Option<usize> {
        usize::try_from(seq.checked_sub(self.first)?).ok()
    }
}

impl Drop for SendQueue {
    /// Releases the room that unfinished requests occupy in the shared send queue.
    fn drop(&mut self) {
        if let Some(feed) = &mut self.feed {
            self.entries.iter().for_each(|entry| feed.finish(entry, None));
        }
    }
}
