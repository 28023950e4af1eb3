//! The send queue: work requests from post to completion, in order.
//!
//! The tx half takes requests from the front of what is posted and says which of them the link took; the rx half says
//! what the peer acknowledged and which Reads were answered. Whoever made the oldest request complete retires it, and all
//! behind it that were only waiting for their turn: completions leave in the order of posting.
//!
//! What the peer can answer is written down *before* it is sent (the answer may be here before the sender's next line
//! runs), and taken back if it was not sent after all.

mod refusal;

use super::receive::narrow;
use super::{Completion, Opcode, Operation, Receive, SharedSendQueue, Status, WorkRequest};
use crate::error::{Fault, PostError};
use crate::qp::{Completes, Qp};
use ironwarp_wire::{AtomicOp, Place, ReadRequest};
use refusal::Refusals;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Requests that are not completed yet, and the Reads among them that are not answered.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// How many requests it holds, and how many elements each may have. Small: see `a_queue_pair_stays_small`.
    capacity: u32,
    max_sges: u32,
    completes: Completes,
    /// The sequence number of `entries[0]`.
    first: u64,
    entries: VecDeque<Entry>,
    /// Reads that the peer was asked for and has not answered, in order (RFC 5040 §5.2).
    reads: VecDeque<OutstandingRead>,
    /// So many messages of the request class were handed to the link, or are about to be.
    promised: u64,
    /// So many of them were delivered, as far as the peer said.
    acknowledged: u64,
    /// Messages are in a call of the link: whether they left is known when it returns.
    sending: bool,
    /// The stream failed meanwhile, by this request of ours and for this reason.
    failure: Option<Box<Failure>>,
    /// The stream failed.
    failed: bool,
    /// A registration was refused (requirement M7).
    refusals: Option<Box<Refusals>>,
    /// Its receives are flushed once the requests here have completed, the one in use first.
    flush: Option<Box<Option<Receive>>>,
    /// The requests are those of a shared send queue, for this connection (requirement X7).
    feed: Option<Box<Feed>>,
}

/// What stands between this and a shared send queue.
#[derive(Debug)]
struct Feed {
    queue: Arc<SharedSendQueue>,
    /// The queue pair of this connection.
    qp: Weak<Qp>,
    /// The numbers, in the order of transmission, of those that were sent and are not complete: requests are both in turn.
    numbers: VecDeque<u64>,
    /// Nothing completes any more.
    silent: bool,
}

/// A request that is to blame, if one is, with its status; and the reason.
type Failure = (Option<(u64, Status)>, Arc<Fault>);

#[derive(Debug)]
pub(super) struct Entry {
    request: WorkRequest,
    /// Its message is the n-th of the request class; it is complete when so many were acknowledged.
    number: u64,
    /// Its message sequence number, for one on queue 0 or 1.
    msn: u32,
    /// The link took all of it.
    sent: bool,
    /// A Read that was answered, a local operation that was executed.
    done: bool,
    /// It will never be begun. How it ends is the next of [`Refusals`].
    refused: bool,
}

/// A Read Request, or an Atomic Request, without its answer.
#[derive(Clone, Debug)]
pub(crate) struct OutstandingRead {
    pub(crate) kind: Asked,
    /// Whose it is; `None` for one of the adapter's own, which asks for nothing.
    pub(crate) entry: Option<u64>,
    /// The answer also acknowledges so many messages: they were delivered before it was served (RFC 5040 §5.5).
    pub(crate) number: u64,
    /// Where the peer was told to send the answer, if it was.
    pub(crate) sink: Place,
    pub(crate) len: u32,
    /// How much of it has come.
    pub(crate) received: u32,
}

/// What the peer was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Read,
    /// By Read V2: the peer was not told where the answer goes (requirement X4).
    ReadV2,
    /// With this identifier, which the answer returns (RFC 7306 §5.2).
    Atomic(u32),
}

impl SendQueue {
    pub(crate) fn new(
        capacity: usize,
        max_sges: usize,
        completes: Completes,
        shared: Option<(Arc<SharedSendQueue>, Weak<Qp>)>,
    ) -> Self {
        let feed = |(queue, qp)| Box::new(Feed { queue, qp, numbers: VecDeque::new(), silent: false });
        Self {
            capacity: if shared.is_some() { 0 } else { narrow(capacity) },
            feed: shared.map(feed),
            max_sges: narrow(max_sges),
            completes,
            first: 0,
            entries: VecDeque::new(),
            reads: VecDeque::new(),
            promised: 0,
            acknowledged: 0,
            sending: false,
            failure: None,
            failed: false,
            refusals: None,
            flush: None,
        }
    }

    /// Takes all of `requests`, or none.
    pub(crate) fn post(&mut self, requests: impl IntoIterator<Item = WorkRequest>) -> Result<(), PostError> {
        let before = self.entries.len();
        let posted = requests.into_iter().try_for_each(|request| {
            if self.entries.len() >= self.capacity as usize {
                return Err(self.full());
            }
            check(&request, self.max_sges as usize)?;
            self.entries.push_back(Entry::new(request));
            Ok(())
        });
        if posted.is_err() {
            self.entries.truncate(before);
        }
        posted
    }

    /// Why it takes no request: one that is fed by a shared send queue holds none itself.
    #[cold]
    fn full(&self) -> PostError {
        match &self.feed {
            Some(_) => PostError::NoSendQueue,
            None => PostError::Full { capacity: self.capacity as usize },
        }
    }

    /// The same, from a shared send queue.
    pub(crate) fn post_shared(
        &mut self,
        from: &SharedSendQueue,
        requests: impl IntoIterator<Item = WorkRequest>,
    ) -> Result<(), PostError> {
        let Some(feed) = self.feed.as_mut().filter(|feed| std::ptr::eq(&*feed.queue, from)) else {
            return Err(PostError::OtherSendQueue);
        };
        if self.entries.capacity() == 0 {
            (self.entries, feed.numbers) = feed.queue.lend();
        }
        let before = self.entries.len();
        let posted = requests.into_iter().try_for_each(|request| {
            check(&request, self.max_sges as usize)?;
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

    /// A ring is lent by a shared send queue while there are requests.
    fn return_ring(&mut self) {
        if let Some(feed) = &mut self.feed
            && self.entries.is_empty()
            && self.entries.capacity() > 0
        {
            let numbers = std::mem::take(&mut feed.numbers);
            feed.queue.take_back((std::mem::take(&mut self.entries), numbers));
        }
    }

    /// From now on nothing completes on a shared send queue.
    pub(crate) fn hush(&mut self, qp: u32) {
        if let Some(feed) = &mut self.feed {
            feed.silent = true;
            feed.queue.purge(qp);
        }
    }

    /// How many requests are not complete.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The request with this sequence number, if it was posted.
    pub(crate) fn request(&self, seq: u64) -> Option<&WorkRequest> {
        self.entries.get(self.index(seq)?).map(|entry| &entry.request)
    }

    /// How many Reads are outstanding, the adapter's own included: they share the peer's IRD.
    pub(crate) fn reads(&self) -> usize {
        self.reads.len()
    }

    /// Whether a Read of the consumer's, which a fence would wait for, is outstanding.
    pub(crate) fn reads_pending(&self) -> bool {
        self.reads.iter().any(|read| read.entry.is_some())
    }

    /// The Read whose answer is due.
    pub(crate) fn read(&mut self) -> Option<&mut OutstandingRead> {
        self.reads.front_mut()
    }

    /// The consumer's buffers for the answer of a Read.
    pub(crate) fn sink(&self, read: &OutstandingRead) -> Option<&super::Data> {
        read.entry.and_then(|seq| self.request(seq)).map(|request| &request.data)
    }

    /// How many messages of the request class the peer may have seen.
    pub(crate) fn promised(&self) -> u64 {
        self.promised
    }

    /// Messages are about to be sent: from now on the peer may acknowledge up to `number` of them.
    pub(crate) fn promise(&mut self, number: u64) {
        self.promised = number;
    }

    /// A Read Request is about to be sent.
    pub(crate) fn promise_read(&mut self, read: OutstandingRead) {
        self.reads.push_back(read);
    }

    /// The last so many Read Requests were not sent after all.
    pub(crate) fn take_back_reads(&mut self, n: usize) {
        // The stream may have failed meanwhile, and then there are none.
        self.reads.truncate(self.reads.len().saturating_sub(n));
    }

    /// The message of a request has this number and sequence number.
    pub(crate) fn numbered(&mut self, seq: u64, number: u64, msn: u32) {
        if let Some(entry) = self.entry(seq) {
            (entry.number, entry.msn) = (number, msn);
        }
    }

    /// Begins up to `most` requests from this one on, as far as `begin` takes them, which gives each its number and sequence number.
    /// Returns whether there is none behind them.
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

    /// The messages of this request and those behind it were not sent after all: others may get their numbers, and be
    /// acknowledged, before they are.
    pub(crate) fn take_back_numbers(&mut self, seq: u64) {
        let begun = usize::try_from(seq.saturating_sub(self.first)).unwrap_or(usize::MAX);
        for entry in self.entries.iter_mut().skip(begun) {
            (entry.number, entry.msn) = (0, 0);
        }
    }

    /// The link took all of a request's message.
    pub(crate) fn sent(&mut self, seq: u64) {
        if let Some(index) = self.index(seq)
            && let Some(entry) = self.entries.get_mut(index)
        {
            entry.sent = true;
            if let Some(feed) = &mut self.feed {
                feed.numbers.push_back(feed.queue.transmitted());
            }
        }
    }

    /// A local operation was executed.
    pub(crate) fn executed(&mut self, seq: u64) {
        self.sent(seq);
        if let Some(entry) = self.entry(seq) {
            entry.done = true;
        }
    }

    /// The Read at the front was answered in full.
    pub(crate) fn answered(&mut self) {
        let Some(read) = self.reads.pop_front() else { return };
        if let Some(entry) = read.entry.and_then(|seq| self.entry(seq)) {
            entry.done = true;
        }
        self.acknowledge(read.number);
    }

    /// How many messages the peer delivered, as far as it said.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The peer delivered so many messages.
    pub(crate) fn acknowledge(&mut self, number: u64) {
        self.acknowledged = self.acknowledged.max(number);
    }

    /// Of the `sent` messages, some complete by an acknowledgement, and no outstanding Read will bring one.
    pub(crate) fn wants_probe(&self, sent: u64) -> bool {
        let covered = self.reads.back().map_or(self.acknowledged, |read| read.number);
        self.completes == Completes::WhenAcknowledged && sent > covered.max(self.acknowledged)
    }

    /// From now on requests complete like this: what the peer can do for us shows only when it is there.
    pub(crate) fn set_completes(&mut self, completes: Completes) {
        self.completes = completes;
    }

    /// Nothing is waiting to be sent, acknowledged or answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.entries.is_empty() && self.reads.is_empty()
    }

    /// Whether all requests before this one are complete.
    pub(crate) fn is_complete_to(&self, seq: u64) -> bool {
        self.first >= seq
    }

    /// Completes what has its turn.
    pub(crate) fn retire(&mut self, qp: u32, mut complete: impl FnMut(Completion)) {
        while let Some(entry) = self.entries.front()
            && self.is_complete(entry)
        {
            let Some(entry) = self.entries.pop_front() else { break };
            self.first += 1;
            if self.feed.is_some() || entry.refused {
                self.retire_specially(qp, &entry, &mut complete);
            } else if entry.request.signaled {
                complete(succeeded(&entry.request, qp));
            }
        }
        self.return_ring();
    }

    /// Completes empty Writes that nothing else is in front of. They have no effect and ask for one thing: whether all before them was
    /// delivered, which the peer has said.
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
                complete(succeeded(&entry.request, qp));
            }
        }
        self.return_ring();
    }

    #[cold]
    fn retire_specially(&mut self, qp: u32, entry: &Entry, mut complete: impl FnMut(Completion)) {
        let completion = self.ended(qp, entry);
        match &mut self.feed {
            Some(feed) => feed.finish(entry, completion),
            None => completion.into_iter().for_each(&mut complete),
        }
    }

    fn is_complete(&self, entry: &Entry) -> bool {
        if entry.refused {
            return true;
        }
        // What the peer delivered was sent, though the sender may not have come to note it yet.
        let delivered = entry.number > 0 && entry.number <= self.acknowledged;
        match entry.request.operation {
            Operation::Read(_) | Operation::Atomic { .. } => entry.sent && entry.done,
            ref operation if operation.is_local() => entry.done,
            _ => delivered || (self.completes == Completes::WhenSent && entry.sent),
        }
    }

    /// The peer refuses this request: it works in order, so it delivered all before it.
    pub(crate) fn delivered_before(&mut self, seq: u64) {
        if let Some(number) = self.entry(seq).map(|entry| entry.number) {
            self.acknowledge(number.saturating_sub(1));
        }
    }

    /// Messages are about to be handed to the link.
    pub(crate) fn begin_sending(&mut self) {
        self.sending = true;
    }

    /// What left is known. If the stream failed meanwhile, everything completes now.
    pub(crate) fn end_sending(&mut self, qp: u32, complete: impl FnMut(Completion)) {
        self.sending = false;
        if let Some((failed, cause)) = self.failure.take().map(|failure| *failure) {
            self.complete_all(qp, failed, &cause, complete);
        }
    }

    /// The stream failed: completes everything, once it is known what left. The request `failed` gets its status; of the
    /// others, those that were complete and waited for their turn succeed, and the rest are flushed.
    pub(crate) fn fail(
        &mut self,
        qp: u32,
        failed: Option<(u64, Status)>,
        cause: &Arc<Fault>,
        complete: impl FnMut(Completion),
    ) {
        self.failed = true;
        self.restore();
        if self.sending {
            self.failure.get_or_insert_with(|| Box::new((failed, Arc::clone(cause))));
        } else {
            self.complete_all(qp, failed, cause, complete);
        }
    }

    /// Whether the receives are to be flushed now. If not, requests are still to complete for the failure, which comes first:
    /// who fails expects to hear of the request that is to blame before all that follows from it.
    pub(crate) fn may_flush(&mut self, in_use: &mut Option<Receive>) -> bool {
        if self.failed && self.failure.is_none() {
            return true;
        }
        let flush = self.flush.get_or_insert_default();
        if in_use.is_some() {
            **flush = in_use.take();
        }
        false
    }

    /// The flush that had to wait, if it need not any more.
    pub(crate) fn due_flush(&mut self) -> Option<Option<Receive>> {
        let flush = if self.failed && self.failure.is_none() { self.flush.take() } else { None };
        flush.map(|in_use| *in_use)
    }

    fn complete_all(
        &mut self,
        qp: u32,
        blamed: Option<(u64, Status)>,
        cause: &Arc<Fault>,
        mut complete: impl FnMut(Completion),
    ) {
        self.retire(qp, &mut complete);
        // Completions are in order: nothing succeeds behind what did not.
        let mut flushing = false;
        for entry in std::mem::take(&mut self.entries) {
            let seq = self.first;
            self.first += 1;
            let status = match blamed {
                Some((blamed, status)) if seq == blamed => status,
                _ if !flushing && self.is_complete(&entry) => Status::Success,
                _ => Status::Flushed,
            };
            flushing |= status != Status::Success;
            let completion = if status != Status::Success && !entry.refused {
                Some(failed(&entry.request, qp, &(status, Arc::clone(cause))))
            } else {
                self.ended(qp, &entry)
            };
            match &mut self.feed {
                Some(feed) => feed.finish(&entry, completion),
                None => completion.into_iter().for_each(&mut complete),
            }
        }
        self.reads.clear();
    }

    /// The Send or Write with Immediate, or else the Read or atomic operation, with this message sequence number.
    pub(crate) fn find_msn(&self, msn: u32, read: bool) -> Option<u64> {
        self.find(|entry| {
            entry.msn == msn
                && entry.number > 0
                && match entry.request.operation {
                    Operation::Send { .. } => !read,
                    Operation::Write(_) => !read && entry.request.immediate.is_some(),
                    Operation::Read(_) | Operation::Atomic { .. } => read,
                    _ => false,
                }
        })
    }

    /// The Read that asked for this, or of which this is what is left. It has no answer yet, and answers come in order: if several
    /// asked for the same, it is the oldest.
    pub(crate) fn find_read(&self, asked: &ReadRequest) -> Option<u64> {
        self.find(|entry| match entry.request.operation {
            Operation::Read(source) => {
                source.tag == asked.source.tag
                    && (source.offset..=source.offset.saturating_add(entry.request.data.len()))
                        .contains(&asked.source.offset)
                    && entry.number > 0
                    && !entry.done
            }
            _ => false,
        })
    }

    /// The oldest Write that covers this place, and is not known to have been delivered. A peer that acknowledges does so
    /// before it complains: then it is the first that is not, though others cover the place as well.
    pub(crate) fn find_write(&self, place: Place) -> Option<u64> {
        self.find(|entry| match entry.request.operation {
            Operation::Write(to) => {
                to.tag == place.tag
                    && (to.offset..=to.offset.saturating_add(entry.request.data.len()))
                        .contains(&place.offset)
                    && entry.number > self.acknowledged
            }
            _ => false,
        })
    }

    /// The oldest that was sent, at least in part, and is not complete.
    pub(crate) fn oldest(&self) -> Option<u64> {
        (!self.entries.is_empty()).then_some(self.first)
    }

    fn find(&self, wanted: impl Fn(&Entry) -> bool) -> Option<u64> {
        (self.first..).zip(&self.entries).find(|(_, entry)| wanted(entry)).map(|(seq, _)| seq)
    }

    fn entry(&mut self, seq: u64) -> Option<&mut Entry> {
        let index = self.index(seq)?;
        self.entries.get_mut(index)
    }

    fn index(&self, seq: u64) -> Option<usize> {
        usize::try_from(seq.checked_sub(self.first)?).ok()
    }
}

impl Entry {
    fn new(request: WorkRequest) -> Self {
        Self { request, number: 0, msn: 0, sent: false, done: false, refused: false }
    }
}

impl Feed {
    fn finish(&mut self, entry: &Entry, completion: Option<Completion>) {
        let number = if entry.sent { self.numbers.pop_front() } else { None };
        let wanted = completion.filter(|_| !self.silent);
        self.queue.finish(number.unwrap_or(0), wanted.map(|completion| (completion, Weak::clone(&self.qp))));
    }
}

impl Drop for SendQueue {
    /// Requests that nobody will complete take no place of a shared send queue.
    fn drop(&mut self) {
        if let Some(feed) = &mut self.feed {
            self.entries.iter().for_each(|entry| feed.finish(entry, None));
        }
    }
}

/// What can be wrong with a request before anything is looked up.
fn check(request: &WorkRequest, max_sges: usize) -> Result<(), PostError> {
    if let super::Data::Memory(sges) = &request.data
        && sges.as_slice().len() > max_sges
    {
        return Err(PostError::TooManySges { have: sges.as_slice().len(), limit: max_sges });
    }
    let len = request.data.len();
    if len > u64::from(MAX_MESSAGE) {
        return Err(PostError::MessageTooLong { len, limit: MAX_MESSAGE });
    }
    let inline = matches!(request.data, super::Data::Inline(_));
    match request.operation {
        Operation::Read(_) if inline && len > 0 => Err(PostError::InlineRead),
        Operation::Atomic { .. } if inline || len != ATOMIC_LEN => Err(PostError::AtomicData { len }),
        _ => Ok(()),
    }
}

/// The longest message: 2 GiB, as hardware has it.
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// What an atomic operation returns.
const ATOMIC_LEN: u64 = 8;

const fn opcode(request: &WorkRequest) -> Opcode {
    match request.operation {
        Operation::Send { .. } => Opcode::Send,
        Operation::Write(_) => Opcode::Write,
        Operation::Read(_) => Opcode::Read,
        Operation::Atomic { op: AtomicOp::CompareSwap { .. }, .. } => Opcode::CompareSwap,
        Operation::Atomic { op: AtomicOp::FetchAdd { .. }, .. } => Opcode::FetchAdd,
        Operation::Bind { .. } | Operation::BindAs { .. } => Opcode::Bind,
        Operation::Register { .. } => Opcode::Register,
        Operation::Invalidate(_) => Opcode::Invalidate,
    }
}

fn failed(request: &WorkRequest, qp: u32, (status, cause): &(Status, Arc<Fault>)) -> Completion {
    Completion::failed(request.id, opcode(request), qp, *status, Some(Arc::clone(cause)))
}

fn succeeded(request: &WorkRequest, qp: u32) -> Completion {
    let byte_len = u32::try_from(request.data.len()).unwrap_or(u32::MAX);
    Completion::succeeded(request.id, opcode(request), qp, byte_len)
}
