//! One queue pair of a program: what it was asked for, what it has said of it, and what follows from both.

use super::request::{After, Effect, Request, Slot};
use ironwarp_rnic::qp::Qp;
use ironwarp_rnic::queue::{Completion, Status};
use std::sync::Arc;

/// A queue pair, and the model of it.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) number: usize,
    pub(super) qp: Arc<Qp>,
    /// How often it was reset.
    pub(super) generation: u64,
    /// In the order they are posted.
    pub(super) requests: Vec<Request>,
    pub(super) posted: usize,
    /// How each ended, as far as it was told.
    pub(super) outcomes: Vec<Option<Status>>,
    /// All requests before this one are complete.
    pub(super) completed: usize,
    /// How many messages came.
    pub(super) received: usize,
    /// How many receives came back without one.
    pub(super) receives_failed: usize,
    /// Success means that the peer has it.
    pub(super) acknowledged: bool,
    /// What was posted before the program disconnected must still be done.
    pub(super) disconnected: Option<usize>,
    pub(super) drain: Drain,
    /// A word of the peer's that only this line changes, and what it holds before each of the operations that are planned.
    pub(super) word: Slot,
    pub(super) values: Vec<u64>,
    /// The first request that was posted when all was over.
    pub(super) late: Option<usize>,
    /// A registration that was refused, and will be tried again.
    pub(super) refused: Option<usize>,
    /// What the program did to it in the middle of the run.
    pub(super) fate: Fate,
    /// Events that came for it.
    pub(super) events: Events,
}

/// How far the draining of a send queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    No,
    /// What was posted behind the first so many must not be done.
    Asked(usize),
    /// The event came: nothing is done any more.
    Done,
}

/// What a program did to a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fate {
    pub(super) reset: bool,
    pub(super) moved: bool,
    pub(super) revoked: bool,
    /// Its driver gave it up.
    pub(super) aborted: bool,
}

/// How many asynchronous events came for a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Events {
    pub(super) fatal: usize,
    pub(super) request_error: usize,
    pub(super) access_error: usize,
    pub(super) last_receive: usize,
    pub(super) established: usize,
}

impl Line {
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

    /// The identifier of a request: nobody else has it, not even a later life of this queue pair.
    pub(super) fn id(&self, index: usize) -> u64 {
        self.generation << 48 | (self.number as u64) << 32 | index as u64
    }

    /// Nothing happened to it yet.
    pub(super) fn is_well(&self) -> bool {
        self.qp.fault().is_none() && !self.fate.reset
    }

    /// The messages that use up receives, in order, with their numbers as requests.
    pub(super) fn messages(&self) -> impl Iterator<Item = (usize, &Request)> {
        self.requests.iter().enumerate().filter(|(_, request)| request.verb.uses_receive())
    }

    pub(super) fn messages_before(&self, index: usize) -> usize {
        self.requests[..index].iter().filter(|request| request.verb.uses_receive()).count()
    }

    /// Whether the next request waits for something else than room.
    pub(super) fn may_post(&self, index: usize, peer: &Self) -> bool {
        match self.requests[index].after {
            After::Nothing => true,
            After::PeerDid(other) => peer.outcomes[other] == Some(Status::Success),
            After::Got(messages) => self.received >= messages,
        }
    }

    /// Takes note of how a request ended: in order, once, and success only where it was to be reported.
    pub(super) fn take_note(&mut self, completion: &Completion) -> usize {
        let index = usize::try_from(completion.wr_id & 0xffff_ffff).expect("it is one of ours");
        assert_eq!(completion.wr_id, self.id(index), "of this line, and of its life");
        assert!(self.completed <= index && index < self.posted, "in order and once: {completion:?}");
        for skipped in self.completed..index {
            assert!(!self.requests[skipped].posted.signaled, "request {skipped} was to be reported");
        }
        let request = &self.requests[index];
        assert_eq!(completion.opcode, request.verb.opcode());
        let succeeded = completion.status == Status::Success;
        if succeeded {
            assert!(request.posted.signaled, "success was not to be reported: {completion:?}");
            assert_eq!(u64::from(completion.byte_len), request.posted.data.len());
            self.expect_not_drained(index);
            let before = self.outcomes[..index].iter().flatten();
            assert!(
                before.copied().all(|it| it == Status::Success),
                "{index} succeeded behind one that failed"
            );
        } else if self.is_refused(index, completion.status) {
            self.refused = Some(index);
        } else {
            let flushed = self.refused.is_some() && completion.status == Status::Flushed;
            assert!(self.qp.fault().is_some() || flushed, "{completion:?}");
        }
        self.completed = index + 1;
        self.outcomes[index] = Some(completion.status);
        index
    }

    /// Whether a request ended like this because it was to be refused at first.
    fn is_refused(&self, index: usize, status: Status) -> bool {
        status == Status::WindowBind && self.requests[index].retry.is_some()
    }

    /// A registration was refused, and all behind it was flushed: it is put right, and all of them are posted once more. False: there
    /// is nothing to try again.
    pub(super) fn try_again(&mut self) -> bool {
        let Some(index) = self.refused.filter(|_| self.is_well()) else { return false };
        assert!(self.qp.is_refusing() && self.completed == self.posted, "all behind it came back");
        self.refused = None;
        self.requests[index].posted.operation =
            self.requests[index].retry.take().expect("it was to be refused");
        self.outcomes[index..].fill(None);
        (self.posted, self.completed) = (index, index);
        true
    }

    fn expect_not_drained(&self, index: usize) {
        match self.drain {
            Drain::No => {}
            Drain::Asked(posted) => assert!(index < posted, "{index} was begun while the queue drains"),
            Drain::Done => panic!("{index} was done though the queue is drained"),
        }
    }

    /// Whether this request is known to have been done: it was reported, or one behind it was.
    pub(super) fn succeeded(&self, index: usize) -> bool {
        let rest = self.outcomes[index..].iter();
        rest.flatten().next() == Some(&Status::Success)
    }

    /// How many atomic operations on its word were done, and how many may have been.
    pub(super) fn atomics(&self) -> (usize, usize) {
        let is = |request: &Request| matches!(request.effect, Effect::Atomic { .. });
        let done = (0..self.posted).filter(|index| is(&self.requests[*index]) && self.succeeded(*index));
        let may = self.requests[..self.posted].iter().filter(|request| is(request));
        (done.count(), may.count())
    }

    /// The requests that ended other than well or flushed.
    pub(super) fn blamed(&self) -> Vec<(usize, Status)> {
        let ends = self.outcomes.iter().enumerate().filter_map(|(index, end)| Some((index, (*end)?)));
        let ends = ends.filter(|(index, end)| !self.is_refused(*index, *end));
        ends.filter(|(_, end)| !matches!(end, Status::Success | Status::Flushed)).collect()
    }

    /// The first that did not end well, of those that were posted before the end.
    pub(super) fn first_failed(&self) -> Option<usize> {
        // What is behind a registration that was refused came back for that.
        let before = self.refused.unwrap_or(self.posted);
        let posted = &self.outcomes[..self.late.unwrap_or(self.posted).min(before)];
        posted.iter().position(|end| end.is_some_and(|status| status != Status::Success))
    }
}
