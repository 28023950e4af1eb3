//! Checks at the end of a run that each connection ended correctly, and that the right request failed.

use super::connection::{Connection, Events};
use super::defect::Defect;
use super::program::Program;
use super::request::{Effect, Request};
use super::supply::Receiving;
use super::verb::Verb;
use ironwarp_rnic::error::{ErrorOrigin, QpError};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::Status;
use ironwarp_wire::Tag;

/// One end of a connection and its peer.
#[derive(Clone, Copy)]
pub(super) struct Verdict<'a> {
    /// The program of this end.
    pub(super) program: &'a Program,
    /// The program of the other end.
    pub(super) peer: &'a Program,
    /// The index of the connection.
    pub(super) number: usize,
    /// Whether fault injection has cut connections.
    pub(super) cut: bool,
    /// Whether the peer has closed, and this end has no error.
    pub(super) gone: bool,
}

impl Verdict<'_> {
    /// Returns this end of the connection.
    fn connection(&self) -> &Connection {
        &self.program.connections[self.number]
    }

    /// Returns the peer's end of the connection.
    fn theirs(&self) -> &Connection {
        &self.peer.connections[self.number]
    }

    /// Returns the first posted request that has a defect.
    fn first_defect(connection: &Connection) -> Option<(usize, Defect)> {
        let requests = connection.requests[..connection.posted].iter().enumerate();
        requests.filter_map(|(index, request)| Some((index, request.defect?))).next()
    }

    /// Checks a connection that has ended, at this end or at the peer's: the run explains the error, every request has
    /// completed, and the right request failed.
    pub(super) fn expect_ended(&self) {
        let connection = self.connection();
        if let Some(error) = connection.error() {
            assert!(self.is_explained(error), "{}: {error}, {:?}", self.number, self.theirs().error());
            if !connection.fate.reset {
                self.expect_blame(error);
                self.expect_all_completed();
            }
            self.expect_events(error);
        }
        self.expect_memory();
    }

    /// Returns whether something in the run explains this error.
    fn is_explained(&self, error: &QpError) -> bool {
        let (connection, theirs) = (self.connection(), self.theirs());
        let own = Self::first_defect(connection).map(|(_, defect)| defect);
        let defect = Self::first_defect(theirs).map(|(_, defect)| defect);
        let remote = defect.is_some_and(Defect::is_remote);
        let revoked = self.program.taken.is_some();
        let ended = theirs.error().is_some() || theirs.fate.reset;
        match error {
            QpError::Disconnected => connection.disconnected.is_some(),
            QpError::Closed | QpError::CutShort => ended || theirs.disconnected.is_some(),
            QpError::Lost(_) => self.cut || theirs.fate.reset || self.peer.taken.is_some(),
            QpError::HalfSent | QpError::Unmapped { .. } => revoked,
            QpError::Moved => connection.fate.moved || connection.fate.reset,
            QpError::TimedOut(_) | QpError::Unreachable => connection.fate.aborted,
            QpError::Local(_) => revoked || matches!(own, Some(Defect::LocalTag | Defect::Refused)),
            QpError::Register { .. } => own == Some(Defect::Refused),
            QpError::Remote(_) => revoked || connection.fate.revoked || remote,
            QpError::Protocol(_) => remote,
            QpError::NoImmediate => own == Some(Defect::ForeignPeer),
            QpError::Overrun(_) => self.program.rules.overflows(self.program.number),
            QpError::Terminated(_) => {
                theirs.error().is_some_and(|it| !matches!(**it, QpError::Terminated(_)))
            }
            _ => false,
        }
    }

    /// Checks that at most one request is blamed, and that it is the one the model predicts.
    fn expect_blame(&self, error: &QpError) {
        let connection = self.connection();
        let blamed = connection.failed_requests();
        match self.predict_blame(error) {
            Blame::Nobody => assert_eq!(blamed, [], "{}: {error}", self.number),
            Blame::Oldest(status) => {
                let oldest = connection.first_failed().map(|index| (index, status));
                assert_eq!(blamed, Vec::from_iter(oldest), "{}: {error}", self.number);
            }
            Blame::One(index, status) => {
                let gone = matches!(connection.outcomes[index], None | Some(Status::Success));
                let verb = connection.requests[index].verb;
                // A peer may acknowledge a message that waits for a receive before it detects the defect.
                let acknowledged_early =
                    gone && !verb.has_response() && (!connection.acknowledged || verb.uses_receive());
                let expected = if acknowledged_early { vec![] } else { vec![(index, status)] };
                assert_eq!(blamed, expected, "{}: {error}, {:?}", self.number, connection.outcomes);
                if let (QpError::Terminated(_), Some(first)) =
                    (error, connection.first_failed().filter(|it| *it < index))
                {
                    // The peer works in order: it has performed all earlier requests, but may not have sent their
                    // responses.
                    assert!(
                        connection.requests[first].verb.has_response(),
                        "{first} was done, but {index} is to blame"
                    );
                }
            }
            Blame::Word => {
                let word = |(index, _): &(usize, _)| {
                    matches!(connection.requests[*index].verb, Verb::FetchAdd | Verb::CompareSwap)
                };
                assert!(blamed.len() == 1 && blamed.iter().all(word), "{}: {error}, {blamed:?}", self.number);
            }
        }
    }

    /// Predicts which request fails because of this error.
    fn predict_blame(&self, error: &QpError) -> Blame {
        let (connection, theirs) = (self.connection(), self.theirs());
        let waits = self.program.completes == Completes::WhenAcknowledged;
        let defect = Self::first_defect(connection);
        match error {
            QpError::Local(denied) => match defect {
                Some((index, defect)) => Blame::One(index, defect.status()),
                None => self.blame_local_user(denied.tag),
            },
            QpError::Unmapped { addr, remote: false, .. } => self.blame_local_user(addr.tag),
            QpError::Register { .. } | QpError::NoImmediate => {
                let (index, defect) = defect.expect("a planned defect");
                Blame::One(index, defect.status())
            }
            QpError::Terminated(_) => match theirs.error().map(|it| &**it) {
                Some(QpError::Protocol(_)) => {
                    let (index, defect) = defect.expect("a planned defect");
                    Blame::One(index, defect.status())
                }
                Some(QpError::Remote(denied)) => match defect {
                    Some((index, defect)) if defect.is_remote() => Blame::One(index, defect.status()),
                    _ => self.blame_remote_user(denied.tag),
                },
                Some(QpError::Unmapped { addr, remote: true, .. }) => self.blame_remote_user(addr.tag),
                _ => Blame::Oldest(Status::RemoteOperation),
            },
            QpError::Lost(_) | QpError::CutShort | QpError::TimedOut(_) | QpError::Unreachable if waits => {
                Blame::Oldest(Status::RetryExceeded)
            }
            _ => Blame::Nobody,
        }
    }

    /// Blames the request whose local buffer has this tag. If no request has, it was the buffer of a receive.
    fn blame_local_user(&self, tag: Tag) -> Blame {
        let is = |request: &Request| request.here.tag == tag && request.here.span.len > 0;
        let index = self.connection().requests.iter().position(is);
        index.map_or(Blame::Nobody, |index| Blame::One(index, Status::LocalProtection))
    }

    /// Blames the request that accessed remote memory with this tag. If no request has it, the tag is that of a word.
    fn blame_remote_user(&self, tag: Tag) -> Blame {
        let index = self.connection().requests.iter().position(|request| request.named == Some(tag));
        index.map_or(Blame::Word, |index| Blame::One(index, Status::RemoteAccess))
    }

    /// Checks that all posted requests and receives have completed.
    fn expect_all_completed(&self) {
        if self.program.rules.overflows(self.program.number) {
            return; // completions that did not fit are lost, which an event has reported
        }
        let connection = self.connection();
        let open = (connection.completed..connection.posted)
            .filter(|&index| connection.requests[index].posted.signaled);
        assert_eq!(
            open.collect::<Vec<_>>(),
            Vec::<usize>::new(),
            "{}: requests did not complete",
            self.number
        );
        if self.program.rules.receiving == Receiving::Own {
            let left = self.program.supplies[self.number].outstanding();
            assert_eq!(left, 0, "{}: receives did not complete", self.number);
        }
    }

    /// Checks that there was one event for each cause, and no other.
    fn expect_events(&self, error: &QpError) {
        let connection = self.connection();
        let shares = self.program.rules.receiving != Receiving::Own;
        let remote = matches!(error, QpError::Remote(_));
        let expected = Events {
            fatal: usize::from(matches!(error, QpError::Overrun(_))),
            // A peer that ends the stream because of its own failure made no invalid request.
            request_error: usize::from(
                !remote && !matches!(error, QpError::Terminated(_)) && error.origin() == ErrorOrigin::Peer,
            ),
            access_error: usize::from(remote),
            last_receive: usize::from(shares && !connection.fate.reset),
            established: connection.events.established.min(1),
        };
        assert_eq!(connection.events, expected, "{}: {error}", self.number);
    }

    /// Checks the memory: a request that succeeded has transferred all of its data, any other request a prefix or
    /// nothing.
    fn expect_memory(&self) {
        let connection = self.connection();
        for (index, request) in connection.requests.iter().enumerate() {
            let posted = Some(request).filter(|_| index < connection.posted);
            let done = connection.succeeded(index);
            match request.effect {
                Effect::Write { to } => self.peer.expect_prefix(to, posted),
                Effect::Read | Effect::Atomic { .. } if done => self.program.check_answer(request),
                Effect::Read => self.program.expect_prefix(request.here.span, posted),
                _ => {}
            }
        }
        if !self.peer.is_revoked(connection.word.span) {
            let (done, may) = connection.atomics();
            let word = self.peer.word(connection.word.span.addr + 8);
            assert!(
                connection.values[done..=may].contains(&word),
                "{word:x} of {:x?}",
                &connection.values[done..=may]
            );
        }
    }

    /// Checks that all posted requests were done and that the peer has received all messages.
    pub(super) fn expect_done(&self) {
        let (connection, theirs) = (self.connection(), self.theirs());
        let count = connection.disconnected.unwrap_or(connection.posted);
        let missing = (0..count).filter(|&index| match connection.outcomes[index] {
            None => connection.requests[index].posted.signaled,
            Some(status) => status != Status::Success,
        });
        assert_eq!(missing.collect::<Vec<_>>(), [], "{}: not all of {count} requests were done", self.number);
        let messages = connection.messages_before(count);
        assert_eq!(theirs.received, messages, "{}: not all messages were received", self.number);
        for request in &connection.requests[..count] {
            match request.effect {
                Effect::Write { to } if !self.peer.is_revoked(to) => {
                    self.peer.arena.check_pattern(to, request.pattern);
                }
                Effect::Read | Effect::Atomic { .. } => self.program.check_answer(request),
                _ => {}
            }
            if let Some(tag) = request.named.filter(|_| request.once) {
                let valid = self.peer.device.table().look_up(tag).is_some_and(|info| info.valid);
                assert!(!valid, "{}: {tag} is still valid after its message", self.number);
            }
        }
    }

    /// Checks that a working connection has nothing outstanding.
    pub(super) fn expect_well(&self) {
        let connection = self.connection();
        assert_eq!(Self::first_defect(connection), None, "{}: a defect was not detected", self.number);
        let next = connection.requests.get(connection.posted).map(|request| request.after);
        assert_eq!(next, None, "{}: request {} was not posted", self.number, connection.posted);
        let Events { established, .. } = connection.events;
        assert_eq!(connection.events, Events { established: established.min(1), ..Events::default() });
        self.expect_done();
        self.expect_memory();
    }
}

/// The request that is to blame for the end of a stream.
enum Blame {
    /// No request: all are flushed.
    Nobody,
    /// The first request that did not succeed, which has this status.
    Oldest(Status),
    /// The request with this index, which has this status.
    One(usize, Status),
    /// One of the atomic operations on a word that many requests use.
    Word,
}

impl Program {
    /// Checks that every increment of the peer's counter was done exactly once: no two returned the same value, and the
    /// counter is at most `posted`.
    pub(super) fn expect_counted(&self, peer: &Self, posted: usize) {
        let mut found = self.counted.clone();
        found.sort_unstable();
        let distinct = found.windows(2).all(|two| two[0] < two[1]);
        if peer.is_revoked(peer.counter()) {
            return;
        }
        let count = peer.word(peer.counter().addr + 8);
        assert!(distinct && found.last().is_none_or(|last| *last < count), "{found:?} of {count}");
        assert!((found.len()..=posted).contains(&usize::try_from(count).expect("a small number")), "{count}");
    }

    /// Checks that the adapter still has the receives of shared queues, except up to `lost` ones that resets discarded.
    pub(super) fn expect_supplies(&self, lost: usize) {
        for supply in self.supplies.iter().filter(|supply| supply.shared.is_some()) {
            let missing = supply.outstanding() - supply.ready();
            assert!(missing <= lost, "{missing} receives of supply {} are lost", supply.number);
        }
    }
}
