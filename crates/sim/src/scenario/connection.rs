//! One queue pair of a program: its planned requests, their results, and a model that checks the completions.

use super::request::{After, Effect, Request, Slot};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::qp::Qp;
use ironwarp_rnic::queue::{Completion, Status};
use std::sync::Arc;

/// A queue pair and its model.
#[derive(Debug)]
pub(super) struct Connection {
    /// The index of the connection.
    pub(super) number: usize,
    pub(super) qp: Arc<Qp>,
    /// How often the queue pair was reset.
    pub(super) generation: u64,
    /// Requests in posting order.
    pub(super) requests: Vec<Request>,
    /// Number of requests that were posted.
    pub(super) posted: usize,
    /// For each request, the status of its completion; `None` without a completion.
    pub(super) outcomes: Vec<Option<Status>>,
    /// Index of the first request that may still complete.
    pub(super) completed: usize,
    /// Number of messages received.
    pub(super) received: usize,
    /// Number of receives that failed.
    pub(super) receives_failed: usize,
    /// Whether a request succeeds only after the peer has received it.
    pub(super) acknowledged: bool,
    /// Number of requests posted before the program disconnected, which must still be done. `None` if it did not
    /// disconnect.
    pub(super) disconnected: Option<usize>,
    pub(super) drain: Drain,
    /// Remote memory with a word that only this connection changes.
    pub(super) word: Slot,
    /// The value of that word before each planned atomic operation, and after the last.
    pub(super) values: Vec<u64>,
    /// Index of the first request that was posted after the stream had ended.
    pub(super) late: Option<usize>,
    /// Index of a refused registration that will be retried.
    pub(super) refused: Option<usize>,
    /// What the program did to the queue pair during the run.
    pub(super) fate: Fate,
    /// Number of asynchronous events of the queue pair.
    pub(super) events: Events,
    /// Why the stream ended, if that was before the queue pair moved: of the error, only a number and the text move.
    ended_before: Option<Arc<QpError>>,
}

/// The state of draining a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// The queue pair is not drained.
    No,
    /// Draining was requested when this many requests were posted. Later requests must not be started.
    Requested(usize),
    /// The event has arrived: no request is started any more.
    Done,
}

/// What a program did to a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fate {
    /// Whether it was reset.
    pub(super) reset: bool,
    /// Whether it was moved to the error state.
    pub(super) moved: bool,
    /// Whether rights of its peer were revoked.
    pub(super) revoked: bool,
    /// Whether its driver aborted it.
    pub(super) aborted: bool,
}

/// Number of asynchronous events for a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Events {
    pub(super) fatal: usize,
    pub(super) request_error: usize,
    pub(super) access_error: usize,
    pub(super) last_receive: usize,
    pub(super) established: usize,
}

impl Connection {
    /// Creates the model of a queue pair without requests.
    pub(super) fn new(number: usize, qp: Arc<Qp>, generation: u64) -> Self {
        Self {
            number,
            qp,
            generation,
            requests: Vec::new(),
            posted: 0,
            outcomes: Vec::new(),
            completed: 0,
            received: 0,
            receives_failed: 0,
            acknowledged: false,
            disconnected: None,
            drain: Drain::No,
            word: Slot::NOWHERE,
            values: vec![0],
            late: None,
            refused: None,
            fate: Fate::default(),
            events: Events::default(),
            ended_before: None,
        }
    }

    /// Returns why the stream ended, if it did.
    pub(super) fn error(&self) -> Option<&Arc<QpError>> {
        self.ended_before.as_ref().or_else(|| self.qp.error())
    }

    /// Replaces the queue pair by one of another function. Returns the former.
    pub(super) fn replace(&mut self, qp: Arc<Qp>) -> Arc<Qp> {
        self.ended_before = self.error().cloned();
        let now = qp.error().map(ToString::to_string);
        assert_eq!(self.ended_before.as_ref().map(ToString::to_string), now, "the error did not move");
        std::mem::replace(&mut self.qp, qp)
    }

    /// Returns the identifier of a request, which is unique even across resets.
    pub(super) fn id(&self, index: usize) -> u64 {
        self.generation << 48 | (self.number as u64) << 32 | index as u64
    }

    /// Returns whether the queue pair has no error and was not reset.
    pub(super) fn is_well(&self) -> bool {
        self.error().is_none() && !self.fate.reset
    }

    /// Returns the requests that consume a receive of the peer, in order, with their indices.
    pub(super) fn messages(&self) -> impl Iterator<Item = (usize, &Request)> {
        self.requests.iter().enumerate().filter(|(_, request)| request.verb.uses_receive())
    }

    /// Returns how many requests before this index consume a receive of the peer.
    pub(super) fn messages_before(&self, index: usize) -> usize {
        self.requests[..index].iter().filter(|request| request.verb.uses_receive()).count()
    }

    /// Returns whether everything has happened that must happen before this request may be posted.
    pub(super) fn may_post(&self, index: usize, peer: &Self) -> bool {
        match self.requests[index].after {
            After::Nothing => true,
            After::PeerSucceeded(other) => peer.outcomes[other] == Some(Status::Success),
            After::Received(messages) => self.received >= messages,
        }
    }

    /// Records the completion of a request and returns the index of the request. Checks the order of completions, and
    /// that no unsignaled request reported success.
    pub(super) fn record_completion(&mut self, completion: &Completion) -> usize {
        let index = usize::try_from(completion.wr_id & 0xffff_ffff).expect("a known request");
        assert_eq!(completion.wr_id, self.id(index), "request of another connection or generation");
        assert!(self.completed <= index && index < self.posted, "out of order or repeated: {completion:?}");
        for skipped in self.completed..index {
            assert!(!self.requests[skipped].posted.signaled, "signaled request {skipped} was skipped");
        }
        let request = &self.requests[index];
        assert_eq!(completion.opcode, request.verb.opcode());
        let succeeded = completion.status == Status::Success;
        if succeeded {
            assert!(request.posted.signaled, "unsignaled request succeeded: {completion:?}");
            assert_eq!(u64::from(completion.byte_len), request.posted.data.len());
            self.expect_not_drained(index);
            let before = self.outcomes[..index].iter().flatten();
            assert!(
                before.copied().all(|it| it == Status::Success),
                "{index} succeeded after one that failed"
            );
        } else if self.is_refused(index, completion.status) {
            self.refused = Some(index);
        } else {
            let flushed = self.refused.is_some() && completion.status == Status::Flushed;
            assert!(self.error().is_some() || flushed, "{completion:?}");
        }
        self.completed = index + 1;
        self.outcomes[index] = Some(completion.status);
        index
    }

    /// Returns whether this status is the planned refusal of a request.
    fn is_refused(&self, index: usize, status: Status) -> bool {
        status == Status::WindowBind && self.requests[index].retry.is_some()
    }

    /// Corrects a refused registration, and marks it and all requests that were flushed after it as not posted. Returns
    /// false if there is no registration to retry.
    pub(super) fn prepare_retry(&mut self) -> bool {
        let Some(index) = self.refused.filter(|_| self.is_well()) else { return false };
        assert!(
            self.qp.is_refusing() && self.completed == self.posted,
            "not all requests after it were flushed"
        );
        self.refused = None;
        self.requests[index].posted.operation = self.requests[index].retry.take().expect("a planned refusal");
        self.outcomes[index..].fill(None);
        (self.posted, self.completed) = (index, index);
        true
    }

    /// Checks that draining did not forbid this request, which succeeded.
    fn expect_not_drained(&self, index: usize) {
        match self.drain {
            Drain::No => {}
            Drain::Requested(posted) => assert!(index < posted, "{index} was started while the queue drains"),
            Drain::Done => panic!("{index} was done in a drained queue"),
        }
    }

    /// Returns whether this request is known to have succeeded: the first completion of this or a later request is a
    /// success.
    pub(super) fn succeeded(&self, index: usize) -> bool {
        let rest = self.outcomes[index..].iter();
        rest.flatten().next() == Some(&Status::Success)
    }

    /// Returns how many atomic operations on the connection's word were certainly done, and how many at most.
    pub(super) fn atomics(&self) -> (usize, usize) {
        let is = |request: &Request| matches!(request.effect, Effect::Atomic { .. });
        let done = (0..self.posted).filter(|index| is(&self.requests[*index]) && self.succeeded(*index));
        let may = self.requests[..self.posted].iter().filter(|request| is(request));
        (done.count(), may.count())
    }

    /// Returns the requests that failed: neither successful, nor flushed, nor refused as planned. With their statuses.
    pub(super) fn failed_requests(&self) -> Vec<(usize, Status)> {
        let ends = self.outcomes.iter().enumerate().filter_map(|(index, end)| Some((index, (*end)?)));
        let ends = ends.filter(|(index, end)| !self.is_refused(*index, *end));
        ends.filter(|(_, end)| !matches!(end, Status::Success | Status::Flushed)).collect()
    }

    /// Returns the index of the first request that did not succeed, of those posted before the stream ended.
    pub(super) fn first_failed(&self) -> Option<usize> {
        // Requests after a refused registration were flushed because of it.
        let before = self.refused.unwrap_or(self.posted);
        let posted = &self.outcomes[..self.late.unwrap_or(self.posted).min(before)];
        posted.iter().position(|end| end.is_some_and(|status| status != Status::Success))
    }
}
