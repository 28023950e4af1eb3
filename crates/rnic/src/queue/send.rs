//! The send queue: work requests from post to completion, in order.
//!
//! The tx half takes requests from the front and reports which of them the link has taken; the rx half reports
//! what the peer has acknowledged and which Reads were answered. The thread that completes the oldest request
//! also completes those after it that were only waiting for their turn: completions have the order of posting.
//!
//! Whatever the peer can answer is recorded *before* it is sent, because the answer may arrive before the
//! sender's next instruction, and rolled back if it was not sent after all.

mod ending;
mod find;
mod refusal;

use super::entry::{Entry, OutstandingRead, Refusals, check_request, success_completion};
use super::feed::Feed;
use super::receive::saturate;
use super::{
    Completes, Completion, Data, Operation, QueueOwner, Receive, SharedSendQueue, Status, WorkRequest,
};
use crate::error::{PostError, QpError};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Requests that are not complete, and the Reads among them that are not answered.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// Maximum number of requests, and of elements of each. `u32`, to keep queue pairs small.
    capacity: u32,
    max_sges: u32,
    completes: Completes,
    /// The sequence number of `entries[0]`.
    first: u64,
    entries: VecDeque<Entry>,
    /// Reads that the peer has not answered, in order (RFC 5040 §5.2).
    reads: VecDeque<OutstandingRead>,
    /// Number of messages of the request class that were passed to the link, or are about to be.
    acknowledgeable: u64,
    /// Number of messages that the peer has acknowledged.
    acknowledged: u64,
    /// Messages are being passed to the link: what was sent is known when the call returns.
    sending: bool,
    /// Set if the stream failed during that call: the requests complete once it is known what was sent.
    failure: Option<Box<Failure>>,
    /// The stream failed.
    failed: bool,
    /// A registration was refused (requirement M7).
    refusals: Option<Box<Refusals>>,
    /// The receives are to be flushed when the requests are complete, the one in use first.
    flush: Option<Box<Option<Receive>>>,
    /// The requests come from a shared send queue (requirement X7).
    feed: Option<Box<Feed>>,
}

/// The failure of a stream whose requests have not completed yet.
#[derive(Debug)]
struct Failure {
    blamed: Option<BlamedRequest>,
    cause: Arc<QpError>,
}

/// The request to which the failure of a stream is attributed. It completes with `status`, the requests after it are
/// flushed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlamedRequest {
    /// Sequence number of the request in its send queue.
    pub(crate) seq: u64,
    pub(crate) status: Status,
}

impl SendQueue {
    pub(crate) fn new(
        capacity: usize,
        max_sges: usize,
        completes: Completes,
        shared: Option<(Arc<SharedSendQueue>, Weak<dyn QueueOwner>)>,
    ) -> Self {
        let feed = |(queue, qp)| Box::new(Feed { queue, qp, numbers: VecDeque::new(), suppressed: false });
        Self {
            capacity: if shared.is_some() { 0 } else { saturate(capacity) },
            feed: shared.map(feed),
            max_sges: saturate(max_sges),
            completes,
            first: 0,
            entries: VecDeque::new(),
            reads: VecDeque::new(),
            acknowledgeable: 0,
            acknowledged: 0,
            sending: false,
            failure: None,
            failed: false,
            refusals: None,
            flush: None,
        }
    }

    /// Posts all of `requests`, or none.
    pub(crate) fn post(&mut self, requests: impl IntoIterator<Item = WorkRequest>) -> Result<(), PostError> {
        let before = self.entries.len();
        let posted = requests.into_iter().try_for_each(|request| {
            if self.entries.len() >= self.capacity as usize {
                return Err(self.full_error());
            }
            check_request(&request, self.max_sges as usize)?;
            self.entries.push_back(Entry::new(request));
            Ok(())
        });
        if posted.is_err() {
            self.entries.truncate(before);
        }
        posted
    }

    /// The error for a request that does not fit. A queue fed by a shared send queue holds no requests itself.
    #[cold]
    fn full_error(&self) -> PostError {
        match &self.feed {
            Some(_) => PostError::NoSendQueue,
            None => PostError::Full { capacity: self.capacity as usize },
        }
    }

    /// Posts all of `requests`, or none, from a shared send queue.
    pub(crate) fn post_shared(
        &mut self,
        from: &SharedSendQueue,
        requests: impl IntoIterator<Item = WorkRequest>,
    ) -> Result<(), PostError> {
        let Some(feed) = self.feed.as_mut().filter(|feed| std::ptr::eq(&*feed.queue, from)) else {
            return Err(PostError::OtherSendQueue);
        };
        if self.entries.capacity() == 0 {
            (self.entries, feed.numbers) = feed.queue.lend_ring();
        }
        let before = self.entries.len();
        let posted = requests.into_iter().try_for_each(|request| {
            check_request(&request, self.max_sges as usize)?;
            from.reserve()?;
            self.entries.push_back(Entry::new(request));
            Ok(())
        });
        if posted.is_err() {
            from.release(self.entries.len() - before);
            self.entries.truncate(before);
            self.return_ring();
        }
        posted
    }

    /// Returns the ring to the shared send queue, which lends it while there are requests.
    fn return_ring(&mut self) {
        if let Some(feed) = &mut self.feed
            && self.entries.is_empty()
            && self.entries.capacity() > 0
        {
            let numbers = std::mem::take(&mut feed.numbers);
            feed.queue.take_back_ring((std::mem::take(&mut self.entries), numbers));
        }
    }

    /// Suppresses completions on a shared send queue.
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

    /// The request with this sequence number, if it was posted.
    pub(crate) fn request(&self, seq: u64) -> Option<&WorkRequest> {
        self.entries.get(self.index(seq)?).map(|entry| &entry.request)
    }

    /// Number of outstanding Reads, including those of the adapter itself: they share the peer's IRD.
    pub(crate) fn outstanding_reads(&self) -> usize {
        self.reads.len()
    }

    /// Whether a Read of the consumer is outstanding, for which a fence waits.
    pub(crate) fn has_consumer_read(&self) -> bool {
        self.reads.iter().any(|read| read.entry.is_some())
    }

    /// The Read whose response is due.
    pub(crate) fn oldest_read(&mut self) -> Option<&mut OutstandingRead> {
        self.reads.front_mut()
    }

    /// The buffers of the consumer for the response to a Read.
    pub(crate) fn sink(&self, read: &OutstandingRead) -> Option<&Data> {
        read.entry.and_then(|seq| self.request(seq)).map(|request| &request.data)
    }

    /// Number of messages of the request class that the peer may have seen.
    pub(crate) fn acknowledgeable(&self) -> u64 {
        self.acknowledgeable
    }

    /// Messages are about to be sent: the peer may acknowledge up to `number` of them.
    pub(crate) fn set_acknowledgeable(&mut self, number: u64) {
        self.acknowledgeable = number;
    }

    /// A Read Request is about to be sent.
    pub(crate) fn add_outstanding_read(&mut self, read: OutstandingRead) {
        self.reads.push_back(read);
    }

    /// The last `n` Read Requests were not sent after all.
    pub(crate) fn roll_back_reads(&mut self, n: usize) {
        // If the stream failed meanwhile, there are none.
        self.reads.truncate(self.reads.len().saturating_sub(n));
    }

    /// Sets the number and the message sequence number of a request's message.
    pub(crate) fn assign_number(&mut self, seq: u64, number: u64, msn: u32) {
        if let Some(entry) = self.entry(seq) {
            (entry.number, entry.msn) = (number, msn);
        }
    }

    /// Starts up to `most` requests, from `seq` on, for as long as `begin` returns number and message sequence
    /// number. Returns whether all posted requests were started.
    pub(crate) fn begin_several(
        &mut self,
        seq: u64,
        most: usize,
        mut begin: impl FnMut(&WorkRequest) -> Option<(u64, u32)>,
    ) -> bool {
        let Some(first) = self.index(seq) else { return false };
        let mut entries = self.entries.iter_mut().skip(first);
        for entry in entries.by_ref().take(most) {
            let Some((number, msn)) = begin(&entry.request) else { return false };
            (entry.number, entry.msn) = (number, msn);
        }
        entries.next().is_none()
    }

    /// The messages of this request and those after it were not sent after all. Other messages may get their
    /// numbers, and be acknowledged, before they are sent.
    pub(crate) fn roll_back_numbers(&mut self, seq: u64) {
        let begun = usize::try_from(seq.saturating_sub(self.first)).unwrap_or(usize::MAX);
        for entry in self.entries.iter_mut().skip(begun) {
            (entry.number, entry.msn) = (0, 0);
        }
    }

    /// The link has taken all of a request's message.
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

    /// A local operation was executed.
    pub(crate) fn mark_executed(&mut self, seq: u64) {
        self.mark_sent(seq);
        if let Some(entry) = self.entry(seq) {
            entry.done = true;
        }
    }

    /// The oldest Read was answered in full.
    pub(crate) fn complete_oldest_read(&mut self) {
        let Some(read) = self.reads.pop_front() else { return };
        if let Some(entry) = read.entry.and_then(|seq| self.entry(seq)) {
            entry.done = true;
        }
        self.acknowledge(read.number);
    }

    /// Number of messages that the peer has acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The peer has acknowledged `number` messages.
    pub(crate) fn acknowledge(&mut self, number: u64) {
        self.acknowledged = self.acknowledged.max(number);
    }

    /// Whether some of the `sent` messages complete by an acknowledgement that no outstanding Read will bring.
    pub(crate) fn needs_probe(&self, sent: u64) -> bool {
        let covered = self.reads.back().map_or(self.acknowledged, |read| read.number);
        self.completes == Completes::WhenAcknowledged && sent > covered.max(self.acknowledged)
    }

    /// Changes when requests complete: the capabilities of the peer are known only after it has connected.
    pub(crate) fn set_completes(&mut self, completes: Completes) {
        self.completes = completes;
    }

    /// Whether nothing waits to be sent, acknowledged or answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.entries.is_empty() && self.reads.is_empty()
    }

    /// Whether all requests before this one are complete.
    pub(crate) fn is_complete_before(&self, seq: u64) -> bool {
        self.first >= seq
    }

    /// Completes the requests whose turn has come.
    pub(crate) fn retire(&mut self, qp: u32, mut complete: impl FnMut(Completion)) {
        while let Some(entry) = self.entries.front()
            && self.is_complete(entry)
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

    /// Completes empty Writes at the front. They have no effect; all that they ask is whether everything before
    /// them was delivered, and the peer has said so.
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

    #[cold]
    fn retire_refused_or_shared(&mut self, qp: u32, entry: &Entry, mut complete: impl FnMut(Completion)) {
        let completion = self.take_completion(qp, entry);
        match &mut self.feed {
            Some(feed) => feed.finish(entry, completion),
            None => completion.into_iter().for_each(&mut complete),
        }
    }

    fn is_complete(&self, entry: &Entry) -> bool {
        if entry.refused {
            return true;
        }
        // Acknowledged messages were sent, even if the sender has not recorded it yet.
        let delivered = entry.number > 0 && entry.number <= self.acknowledged;
        match entry.request.operation {
            Operation::Read(_) | Operation::Atomic { .. } => entry.sent && entry.done,
            ref operation if operation.is_local() => entry.done,
            _ => delivered || (self.completes == Completes::WhenSent && entry.sent),
        }
    }

    fn entry(&mut self, seq: u64) -> Option<&mut Entry> {
        let index = self.index(seq)?;
        self.entries.get_mut(index)
    }

    fn index(&self, seq: u64) -> Option<usize> {
        usize::try_from(seq.checked_sub(self.first)?).ok()
    }
}

impl Drop for SendQueue {
    /// Requests that never complete must not occupy a shared send queue.
    fn drop(&mut self) {
        if let Some(feed) = &mut self.feed {
            self.entries.iter().for_each(|entry| feed.finish(entry, None));
        }
    }
}
