//! Checks each completion: its order, its fields, and the memory that the request accessed.

use super::coverage::Feature;
use super::defect::Defect;
use super::program::Program;
use super::request::{Effect, Request};
use super::rules::Rules;
use super::supply::Receiving;
use super::verb::Verb;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::qp::State;
use ironwarp_rnic::queue::{Completion, Opcode, Operation, Status};

impl Program {
    /// Polls and checks all completions and asynchronous events.
    pub(super) fn poll(&mut self, peer: &Self) {
        for model in 0..self.cqs.len() {
            let now = self.timers.clock().now();
            for completion in self.cqs[model].poll(now, &mut self.coverage) {
                self.note(format_args!("{:x} ends: {}", completion.wr_id, completion.status));
                match completion.opcode {
                    Opcode::Receive | Opcode::ReceiveWrite => self.check_receive(&completion, peer),
                    _ => self.check_request(&completion, peer),
                }
            }
        }
        self.check_events();
        for connection in 0..self.connections.len() {
            if self.connections[connection].prepare_retry() {
                self.note(format_args!("retries on connection {connection}"));
                self.coverage.record(Feature::TriedAgain);
                self.step(connection, State::ReadyToSend);
            }
        }
    }

    /// Checks the completion of a request.
    fn check_request(&mut self, completion: &Completion, peer: &Self) {
        let number = self.connection_of(completion.qp);
        let index = self.connections[number].record_completion(completion);
        let (connection, theirs) = (&self.connections[number], &peer.connections[number]);
        let Request { verb, effect, here, pattern, .. } = connection.requests[index];
        self.coverage.record_status(verb, completion.status);
        let Request { once, defect, .. } = connection.requests[index];
        if defect == Some(Defect::Touched) && completion.status == Status::RemoteAccess {
            self.coverage.record(Feature::TouchedAgain);
        }
        if defect == Some(Defect::OldTag) && completion.status == Status::RemoteAccess {
            self.coverage.record(Feature::OldTag);
        }
        if completion.status != Status::Success {
            self.expect_unregistered(&connection.requests[index], completion.status);
            return;
        }
        // All earlier messages have been received, so none of them delays this request at the peer.
        let unhindered = theirs.received >= connection.messages_before(index);
        match effect {
            Effect::Write { to } if connection.acknowledged && unhindered && !peer.is_revoked(to) => {
                peer.arena.check_pattern(to, pattern);
            }
            Effect::Count if !self.is_revoked(here.span) => self.counted.push(self.word(here.span.addr)),
            Effect::Read | Effect::Atomic { .. } => self.check_answer(&connection.requests[index]),
            _ => {}
        }
        if once {
            self.coverage.record(Feature::Once);
        }
        let connection = &self.connections[number];
        // An acknowledged message has completed its receive, unless no receive was posted: an adapter may acknowledge a
        // message that it keeps until a receive is posted.
        let Rules { receiving, withholds, prompt, .. } = self.rules;
        let placed = receiving == Receiving::Own && !withholds && prompt && theirs.is_well();
        let before = connection.messages_before(index);
        if connection.acknowledged && verb.uses_receive() && placed && theirs.received <= before {
            let pending = theirs.received + peer.supplies[number].outstanding() <= before;
            assert!(pending, "request {index} was acknowledged, but its message did not arrive");
        }
    }

    /// Checks that a request that registers memory and sends has registered nothing, if it has failed because one of both
    /// was refused.
    fn expect_unregistered(&self, request: &Request, status: Status) {
        let Operation::RegisterSend { tag, .. } = request.posted.operation else { return };
        let refused = status == Status::WindowBind
            || (status == Status::LocalProtection && request.defect == Some(Defect::LocalTag));
        let right = match request.retry {
            Some(Operation::RegisterSend { tag, .. }) => Some(tag),
            _ => None,
        };
        for tag in [Some(tag), right].into_iter().flatten().filter(|_| refused) {
            let valid = self.device.table().look_up(tag).is_some_and(|entry| entry.valid);
            assert!(!valid, "{tag} is valid, but its request failed: {status}");
        }
    }

    /// Checks that the response to a request has the data of the peer.
    pub(super) fn check_answer(&self, request: &Request) {
        let span = request.here.span;
        match request.effect {
            _ if self.is_revoked(span) => {}
            Effect::Read => self.arena.check_pattern(span, request.pattern),
            Effect::Atomic { before } => {
                assert_eq!(self.word(span.addr), before, "out of order: {:?}", request.verb);
            }
            _ => {}
        }
    }

    /// Checks the completion of a receive.
    fn check_receive(&mut self, completion: &Completion, peer: &Self) {
        let number = self.connection_of(completion.qp);
        let supply = usize::try_from(completion.wr_id >> 32).expect("a small number");
        let slot = self.supplies[supply].take(completion.wr_id, self.rules.receiving == Receiving::Own);
        self.coverage.record_status(self.rules.receiving.verb(), completion.status);
        let (connection, theirs) = (&self.connections[number], &peer.connections[number]);
        let message = theirs.messages().nth(connection.received);
        if completion.status != Status::Success {
            assert!(connection.error().is_some(), "{completion:?}");
            let defect = message.and_then(|(_, request)| request.defect?.receive());
            let may = [
                Some(Status::Flushed),
                defect,
                self.is_revoked(slot.span).then_some(Status::LocalProtection),
            ];
            assert!(may.contains(&Some(completion.status)), "{completion:?}");
            self.expect_prefix(slot.span, message.map(|(_, request)| request));
            self.connections[number].receives_failed += 1;
            return;
        }
        assert_eq!(connection.receives_failed, 0, "a receive succeeded after one that failed");
        let (index, request) = message.expect("a message");
        let fails_before =
            request.retry.is_some() || request.defect.is_some_and(|defect| !defect.is_remote());
        assert!(!fails_before, "{index} was refused, but its message arrived");
        assert!(index < theirs.posted);
        assert_eq!(self.supply_of(number, request), Some(supply), "wrong receive queue");
        expect_matches_message(completion, request);
        self.expect_delivered(request, slot.span);
        // Earlier writes are visible when the message arrives.
        let since =
            theirs.messages().take_while(|(earlier, _)| *earlier < index).last().map_or(0, |(at, _)| at);
        for earlier in &theirs.requests[since..=index] {
            if let Effect::Write { to } = earlier.effect
                && !self.is_revoked(to)
            {
                self.arena.check_pattern(to, earlier.pattern);
            }
        }
        self.connections[number].received += 1;
        if completion.solicited {
            self.coverage.record(Feature::Solicited);
        }
    }

    /// Checks that the memory of a receive has the message, and zeros after it.
    fn expect_delivered(&self, request: &Request, span: Span) {
        if self.is_revoked(span) {
            return;
        }
        let len = if request.verb == Verb::WriteImmediate { 0 } else { request.here.span.len };
        self.arena.check_pattern(Span { len, ..span }, request.pattern);
        let behind = Span::new(span.addr + len as u64, span.len - len);
        assert!(self.arena.read(behind).iter().all(|byte| *byte == 0), "bytes after the message");
    }

    /// Checks that memory has a prefix of the data of a request, and zeros after it. Without a request, all bytes must
    /// be zero.
    pub(super) fn expect_prefix(&self, span: Span, request: Option<&Request>) {
        if self.is_revoked(span) || span.len == 0 {
            return;
        }
        let found = self.arena.read(span);
        let mut rng = request
            .filter(|it| {
                it.verb != Verb::WriteImmediate || matches!(it.effect, Effect::Write { to } if to == span)
            })
            .map(|request| Rng::new(request.pattern));
        let bytes = std::iter::from_fn(|| rng.as_mut().map(|rng| rng.next().to_le_bytes())).flatten();
        let same = found.iter().zip(bytes).take_while(|(found, expected)| *found == expected).count();
        assert!(found[same..].iter().all(|byte| *byte == 0), "{span:x?} has unexpected data");
    }
}

/// Checks that a receive completion describes its message.
fn expect_matches_message(completion: &Completion, request: &Request) {
    let opcode = if request.verb == Verb::WriteImmediate { Opcode::ReceiveWrite } else { Opcode::Receive };
    let invalidated = match request.posted.operation {
        Operation::Send { invalidate } | Operation::RegisterSend { invalidate, .. } => invalidate,
        _ => None,
    };
    let Completion { byte_len, solicited, immediate, .. } = *completion;
    assert_eq!(
        (completion.opcode, u64::from(byte_len), solicited, immediate, completion.invalidated),
        (opcode, request.posted.data.len(), request.posted.solicited, request.posted.immediate, invalidated),
    );
}
