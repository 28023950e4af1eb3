//! The end of a run: whether each line ended as it should, and whether the right request was blamed for it.

use super::crime::Crime;
use super::line::{Events, Line};
use super::program::Program;
use super::request::{Effect, Request, Verb};
use super::supply::Receiving;
use ironwarp_rnic::error::{Culprit, Fault};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::Status;
use ironwarp_wire::Tag;

/// One end of a line, and the other.
#[derive(Clone, Copy)]
pub(super) struct Verdict<'a> {
    pub(super) program: &'a Program,
    pub(super) peer: &'a Program,
    pub(super) number: usize,
    /// Connections were cut on purpose.
    pub(super) cut: bool,
    /// The peer closed, and this end goes on without.
    pub(super) gone: bool,
}

impl Verdict<'_> {
    fn line(&self) -> &Line {
        &self.program.lines[self.number]
    }

    fn theirs(&self) -> &Line {
        &self.peer.lines[self.number]
    }

    fn criminal(line: &Line) -> Option<(usize, Crime)> {
        let crimes = line.requests[..line.posted].iter().enumerate();
        crimes.filter_map(|(index, request)| Some((index, request.crime?))).next()
    }

    /// The line is over, or its peer is gone: there is a reason, everything was given back, the right request has the blame.
    pub(super) fn expect_ended(&self) {
        let line = self.line();
        if let Some(fault) = line.qp.fault() {
            assert!(self.is_explained(fault), "{}: {fault}, {:?}", self.number, self.theirs().qp.fault());
            if !line.fate.reset {
                self.expect_blame(fault);
                self.expect_given_back();
            }
            self.expect_events(fault);
        }
        self.expect_memory();
    }

    /// Whether the run has a reason for this.
    fn is_explained(&self, fault: &Fault) -> bool {
        let (line, theirs) = (self.line(), self.theirs());
        let own = Self::criminal(line).map(|(_, crime)| crime);
        let crime = Self::criminal(theirs).map(|(_, crime)| crime);
        let remote = crime.is_some_and(Crime::is_remote);
        let took = self.program.taken.is_some();
        let ended = theirs.qp.fault().is_some() || theirs.fate.reset;
        match fault {
            Fault::Disconnected => line.disconnected.is_some(),
            Fault::Closed | Fault::CutShort => ended || theirs.disconnected.is_some(),
            Fault::Lost(_) => self.cut || theirs.fate.reset || self.peer.taken.is_some(),
            Fault::HalfSent | Fault::Unmapped { .. } => took,
            Fault::Moved => line.fate.moved || line.fate.reset,
            Fault::TimedOut(_) | Fault::Unreachable => line.fate.aborted,
            Fault::Local(_) => took || matches!(own, Some(Crime::LocalTag | Crime::Refused)),
            Fault::Register { .. } => own == Some(Crime::Refused),
            Fault::Remote(_) => took || line.fate.revoked || remote,
            Fault::Protocol(_) => remote,
            Fault::NoImmediate => own == Some(Crime::Stranger),
            Fault::Overrun(_) => self.program.rules.overflows(self.program.number),
            Fault::Terminated(_) => theirs.qp.fault().is_some_and(|it| !matches!(**it, Fault::Terminated(_))),
            _ => false,
        }
    }

    /// At most one request is blamed, and it is the one that the model says.
    fn expect_blame(&self, fault: &Fault) {
        let line = self.line();
        let blamed = line.blamed();
        match self.blame(fault) {
            Blame::Nobody => assert_eq!(blamed, [], "{}: {fault}", self.number),
            Blame::Oldest(status) => {
                let oldest = line.first_failed().map(|index| (index, status));
                assert_eq!(blamed, Vec::from_iter(oldest), "{}: {fault}", self.number);
            }
            Blame::One(index, status) => {
                let gone = matches!(line.outcomes[index], None | Some(Status::Success));
                let verb = line.requests[index].verb;
                // Who waits for a receive as well as its peer vouches for what it keeps, before it finds out what is wrong with it.
                let told = gone && !verb.asks() && (!line.acknowledged || verb.uses_receive());
                let expected = if told { vec![] } else { vec![(index, status)] };
                assert_eq!(blamed, expected, "{}: {fault}, {:?}", self.number, line.outcomes);
                if let (Fault::Terminated(_), Some(first)) =
                    (fault, line.first_failed().filter(|it| *it < index))
                {
                    // The peer works in order: it did all before, but may not have answered.
                    assert!(line.requests[first].verb.asks(), "{first} was done, {index} is to blame");
                }
            }
            Blame::Word => {
                let word = |(index, _): &(usize, _)| {
                    matches!(line.requests[*index].verb, Verb::FetchAdd | Verb::CompareSwap)
                };
                assert!(blamed.len() == 1 && blamed.iter().all(word), "{}: {fault}, {blamed:?}", self.number);
            }
        }
    }

    fn blame(&self, fault: &Fault) -> Blame {
        let (line, theirs) = (self.line(), self.theirs());
        let waits = self.program.completes == Completes::WhenAcknowledged;
        let crime = Self::criminal(line);
        match fault {
            Fault::Local(denied) => match crime {
                Some((index, crime)) => Blame::One(index, crime.status()),
                None => self.owner_of(denied.tag),
            },
            Fault::Unmapped { place, remote: false, .. } => self.owner_of(place.tag),
            Fault::Register { .. } | Fault::NoImmediate => {
                let (index, crime) = crime.expect("it was planned");
                Blame::One(index, crime.status())
            }
            Fault::Terminated(_) => match theirs.qp.fault().map(|it| &**it) {
                Some(Fault::Protocol(_)) => {
                    let (index, crime) = crime.expect("it was planned");
                    Blame::One(index, crime.status())
                }
                Some(Fault::Remote(denied)) => match crime {
                    Some((index, crime)) if crime.is_remote() => Blame::One(index, crime.status()),
                    _ => self.user_of(denied.tag),
                },
                Some(Fault::Unmapped { place, remote: true, .. }) => self.user_of(place.tag),
                _ => Blame::Oldest(Status::RemoteOperation),
            },
            Fault::Lost(_) | Fault::CutShort | Fault::TimedOut(_) | Fault::Unreachable if waits => {
                Blame::Oldest(Status::RetryExceeded)
            }
            _ => Blame::Nobody,
        }
    }

    /// The request whose buffer was taken away; a receive may have been it instead.
    fn owner_of(&self, tag: Tag) -> Blame {
        let is = |request: &Request| request.here.tag == tag && request.here.span.len > 0;
        let index = self.line().requests.iter().position(is);
        index.map_or(Blame::Nobody, |index| Blame::One(index, Status::LocalProtection))
    }

    /// The request that named this memory of the peer's.
    fn user_of(&self, tag: Tag) -> Blame {
        let index = self.line().requests.iter().position(|request| request.named == Some(tag));
        index.map_or(Blame::Word, |index| Blame::One(index, Status::RemoteAccess))
    }

    /// Everything that was posted is complete, one way or the other.
    fn expect_given_back(&self) {
        if self.program.rules.overflows(self.program.number) {
            return; // what did not fit is lost, and that was not silent
        }
        let line = self.line();
        let open = (line.completed..line.posted).filter(|&index| line.requests[index].posted.signaled);
        assert_eq!(open.collect::<Vec<_>>(), Vec::<usize>::new(), "{}: every request ended", self.number);
        if self.program.rules.receiving == Receiving::Own {
            let left = self.program.supplies[self.number].outstanding();
            assert_eq!(left, 0, "{}: every receive ended", self.number);
        }
    }

    /// One event for each thing that happened, and none for what did not.
    fn expect_events(&self, fault: &Fault) {
        let line = self.line();
        let shares = self.program.rules.receiving != Receiving::Own;
        let remote = matches!(fault, Fault::Remote(_));
        let expected = Events {
            fatal: usize::from(matches!(fault, Fault::Overrun(_))),
            // A peer that ends the stream for its own failure made no invalid request.
            request_error: usize::from(
                !remote && !matches!(fault, Fault::Terminated(_)) && fault.culprit() == Culprit::Peer,
            ),
            access_error: usize::from(remote),
            last_receive: usize::from(shares && !line.fate.reset),
            established: line.events.established.min(1),
        };
        assert_eq!(line.events, expected, "{}: {fault}", self.number);
    }

    /// What was done is in memory; what was not is there from the front on, or not at all.
    fn expect_memory(&self) {
        let line = self.line();
        for (index, request) in line.requests.iter().enumerate() {
            let posted = Some(request).filter(|_| index < line.posted);
            let done = line.succeeded(index);
            match request.effect {
                Effect::Write { to } => self.peer.expect_prefix(to, posted),
                Effect::Read | Effect::Atomic { .. } if done => self.program.check_answer(request),
                Effect::Read => self.program.expect_prefix(request.here.span, posted),
                _ => {}
            }
        }
        if !self.peer.took(line.word.span) {
            let (done, may) = line.atomics();
            let word = self.peer.word(line.word.span.addr + 8);
            assert!(line.values[done..=may].contains(&word), "{word:x} of {:x?}", &line.values[done..=may]);
        }
    }

    /// All that was posted was done, and the peer has it.
    pub(super) fn expect_done(&self) {
        let (line, theirs) = (self.line(), self.theirs());
        let count = line.disconnected.unwrap_or(line.posted);
        let missing = (0..count).filter(|&index| match line.outcomes[index] {
            None => line.requests[index].posted.signaled,
            Some(status) => status != Status::Success,
        });
        assert_eq!(missing.collect::<Vec<_>>(), [], "{}: all of {count} were done", self.number);
        let messages = line.messages_before(count);
        assert_eq!(theirs.received, messages, "{}: all messages were received", self.number);
        for request in &line.requests[..count] {
            match request.effect {
                Effect::Write { to } if !self.peer.took(to) => {
                    self.peer.arena.check_pattern(to, request.pattern);
                }
                Effect::Read | Effect::Atomic { .. } => self.program.check_answer(request),
                _ => {}
            }
            if let Some(tag) = request.named.filter(|_| request.once) {
                let valid = self.peer.device.table().look_up(tag).is_some_and(|info| info.valid);
                assert!(!valid, "{}: {tag} has served its message", self.number);
            }
        }
    }

    /// The line is well: nothing waits any more.
    pub(super) fn expect_well(&self) {
        let line = self.line();
        assert_eq!(Self::criminal(line), None, "{}: nobody noticed", self.number);
        let next = line.requests.get(line.posted).map(|request| request.after);
        assert_eq!(next, None, "{}: request {} can be posted", self.number, line.posted);
        let Events { established, .. } = line.events;
        assert_eq!(line.events, Events { established: established.min(1), ..Events::default() });
        self.expect_done();
        self.expect_memory();
    }
}

/// Who is to blame for the end of a stream.
enum Blame {
    Nobody,
    /// Whatever is the first that did not end well.
    Oldest(Status),
    One(usize, Status),
    /// Some operation on a word that many name.
    Word,
}

impl Program {
    /// Every operation on the counter was done once: no two found the same number, and none is missing.
    pub(super) fn expect_counted(&self, peer: &Self, posted: usize) {
        let mut found = self.counted.clone();
        found.sort_unstable();
        let distinct = found.windows(2).all(|two| two[0] < two[1]);
        if peer.took(peer.counter()) {
            return;
        }
        let count = peer.word(peer.counter().addr + 8);
        assert!(distinct && found.last().is_none_or(|last| *last < count), "{found:?} of {count}");
        assert!((found.len()..=posted).contains(&usize::try_from(count).expect("it is small")), "{count}");
    }

    /// The receives of shared queues are with the adapter, but for those that a reset took.
    pub(super) fn expect_supplies(&self, lost: usize) {
        for supply in self.supplies.iter().filter(|supply| supply.shared.is_some()) {
            let missing = supply.outstanding() - supply.ready();
            assert!(missing <= lost, "{missing} receives of supply {} are lost", supply.number);
        }
    }
}
