//! One queue pair of a program: its requests, their results, and a model of both.

use super::request::{After, Effect, Request, Slot};
use ironwarp_rnic::qp::Qp;
use ironwarp_rnic::queue::{Completion, Status};
use std::sync::Arc;

/// A queue pair and its model.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) number: usize,
    pub(super) qp: Arc<Qp>,
    /// How often it was reset.
    pub(super) generation: u64,
    /// Requests in posting order.
    pub(super) requests: Vec<Request>,
    pub(super) posted: usize,
    /// The known status of each request.
    pub(super) outcomes: Vec<Option<Status>>,
    /// All requests before this one have completed.
    pub(super) completed: usize,
    /// Number of messages received.
    pub(super) received: usize,
    /// Number of receives that failed.
    pub(super) receives_failed: usize,
    /// Success means that the peer has received it.
    pub(super) acknowledged: bool,
    /// Number of requests posted before the program disconnected, which must still be done.
    pub(super) disconnected: Option<usize>,
    pub(super) drain: Drain,
    /// A remote word that only this connection changes, and its value before each planned operation.
    pub(super) word: Slot,
    pub(super) values: Vec<u64>,
    /// The first request that was posted after the end.
    pub(super) late: Option<usize>,
    /// A refused registration that will be retried.
    pub(super) refused: Option<usize>,
    /// What the program did to it during the run.
    pub(super) fate: Fate,
    /// Asynchronous events for it.
    pub(super) events: Events,
}

/// The state of draining a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    No,
    /// Requests after this many must not be started.
    Asked(usize),
    /// The event has arrived: nothing is done any more.
    Done,
}

/// What a program did to a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fate {
    pub(super) reset: bool,
    pub(super) moved: bool,
    pub(super) revoked: bool,
    /// Its driver aborted it.
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
        }
    }

    /// Returns the identifier of a request, which is unique even across resets.
    pub(super) fn id(&self, index: usize) -> u64 {
        self.generation << 48 | (self.number as u64) << 32 | index as u64
    }

    /// Whether it still works.
    pub(super) fn is_well(&self) -> bool {
        self.qp.error().is_none() && !self.fate.reset
    }

    /// Returns the messages that consume receives, in order, with their request numbers.
    pub(super) fn messages(&self) -> impl Iterator<Item = (usize, &Request)> {
        self.requests.iter().enumerate().filter(|(_, request)| request.verb.uses_receive())
    }

    pub(super) fn messages_before(&self, index: usize) -> usize {
        self.requests[..index].iter().filter(|request| request.verb.uses_receive()).count()
    }

    /// Whether nothing but room in the queue prevents this request from being posted.
    pub(super) fn may_post(&self, index: usize, peer: &Self) -> bool {
        match self.requests[index].after {
            After::Nothing => true,
            After::PeerDid(other) => peer.outcomes[other] == Some(Status::Success),
            After::Got(messages) => self.received >= messages,
        }
    }

    /// Records the completion of a request, and checks its order and that an unsignaled one did not succeed.
    pub(super) fn take_note(&mut self, completion: &Completion) -> usize {
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
            assert!(self.qp.error().is_some() || flushed, "{completion:?}");
        }
        self.completed = index + 1;
        self.outcomes[index] = Some(completion.status);
        index
    }

    /// Whether this status is the planned refusal of a request.
    fn is_refused(&self, index: usize, status: Status) -> bool {
        status == Status::WindowBind && self.requests[index].retry.is_some()
    }

    /// Corrects a refused registration and posts it again with all requests that were flushed after it. Returns false if there is
    /// nothing to retry.
    pub(super) fn try_again(&mut self) -> bool {
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

    fn expect_not_drained(&self, index: usize) {
        match self.drain {
            Drain::No => {}
            Drain::Asked(posted) => assert!(index < posted, "{index} was started while the queue drains"),
            Drain::Done => panic!("{index} was done in a drained queue"),
        }
    }

    /// Whether this request is known to have succeeded, because it or a later one was reported.
    pub(super) fn succeeded(&self, index: usize) -> bool {
        let rest = self.outcomes[index..].iter();
        rest.flatten().next() == Some(&Status::Success)
    }

    /// Returns how many atomic operations on its word were done, and how many may have been.
    pub(super) fn atomics(&self) -> (usize, usize) {
        let is = |request: &Request| matches!(request.effect, Effect::Atomic { .. });
        let done = (0..self.posted).filter(|index| is(&self.requests[*index]) && self.succeeded(*index));
        let may = self.requests[..self.posted].iter().filter(|request| is(request));
        (done.count(), may.count())
    }

    /// Returns the requests that were neither successful nor flushed.
    pub(super) fn blamed(&self) -> Vec<(usize, Status)> {
        let ends = self.outcomes.iter().enumerate().filter_map(|(index, end)| Some((index, (*end)?)));
        let ends = ends.filter(|(index, end)| !self.is_refused(*index, *end));
        ends.filter(|(_, end)| !matches!(end, Status::Success | Status::Flushed)).collect()
    }

    /// Returns the first request that did not succeed, of those posted before the end.
    pub(super) fn first_failed(&self) -> Option<usize> {
        // Requests after a refused registration were flushed because of it.
        let before = self.refused.unwrap_or(self.posted);
        let posted = &self.outcomes[..self.late.unwrap_or(self.posted).min(before)];
        posted.iter().position(|end| end.is_some_and(|status| status != Status::Success))
    }
}
