//! What a program checks of each completion: that it has its turn, that it says what it should, and that memory holds what it
//! says.

use super::coverage::Trait;
use super::crime::Crime;
use super::program::Program;
use super::request::{Effect, Request, Verb};
use super::rules::Rules;
use super::supply::Receiving;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::qp::State;
use ironwarp_rnic::queue::{Completion, Opcode, Operation, Status};

impl Program {
    /// Looks at all that completed, and at all that happened besides.
    pub(super) fn poll(&mut self, peer: &Self) {
        for watch in 0..self.watches.len() {
            let now = self.timers.clock().now();
            for completion in self.watches[watch].poll(now, &mut self.coverage) {
                self.note(format_args!("{:x} ends: {}", completion.wr_id, completion.status));
                match completion.opcode {
                    Opcode::Receive | Opcode::ReceiveWrite => self.check_receive(&completion, peer),
                    _ => self.check_request(&completion, peer),
                }
            }
        }
        self.look_at_events();
        for line in 0..self.lines.len() {
            if self.lines[line].try_again() {
                self.note(format_args!("tries again on line {line}"));
                self.coverage.met(Trait::TriedAgain);
                self.step(line, State::ReadyToSend);
            }
        }
    }

    fn check_request(&mut self, completion: &Completion, peer: &Self) {
        let number = self.line_of(completion.qp);
        let index = self.lines[number].take_note(completion);
        let (line, theirs) = (&self.lines[number], &peer.lines[number]);
        let Request { verb, effect, here, pattern, .. } = line.requests[index];
        self.coverage.ended(verb, completion.status);
        let Request { once, crime, .. } = line.requests[index];
        if crime == Some(Crime::Touched) && completion.status == Status::RemoteAccess {
            self.coverage.met(Trait::TouchedAgain);
        }
        if completion.status != Status::Success {
            return;
        }
        // No message of ours waits for a receive that could be in the way of this request.
        let passed = theirs.received >= line.messages_before(index);
        match effect {
            Effect::Write { to } if line.acknowledged && passed && !peer.took(to) => {
                peer.arena.check_pattern(to, pattern);
            }
            Effect::Count if !self.took(here.span) => self.counted.push(self.word(here.span.addr)),
            Effect::Read | Effect::Atomic { .. } => self.check_answer(&line.requests[index]),
            _ => {}
        }
        if once {
            self.coverage.met(Trait::Once);
        }
        let line = &self.lines[number];
        // What is acknowledged is in its receive, unless none was there: an adapter may vouch for what it keeps until then.
        let Rules { receiving, withholds, prompt, .. } = self.rules;
        let placed = receiving == Receiving::Own && !withholds && prompt && theirs.is_well();
        let before = line.messages_before(index);
        if line.acknowledged && verb.uses_receive() && placed && theirs.received <= before {
            let waits = theirs.received + peer.supplies[number].outstanding() <= before;
            assert!(waits, "request {index} is acknowledged, and its message is not there");
        }
    }

    /// What came back is what the peer had.
    pub(super) fn check_answer(&self, request: &Request) {
        let span = request.here.span;
        match request.effect {
            _ if self.took(span) => {}
            Effect::Read => self.arena.check_pattern(span, request.pattern),
            Effect::Atomic { before } => {
                assert_eq!(self.word(span.addr), before, "in the order of one requester: {:?}", request.verb);
            }
            _ => {}
        }
    }

    fn check_receive(&mut self, completion: &Completion, peer: &Self) {
        let number = self.line_of(completion.qp);
        let supply = usize::try_from(completion.wr_id >> 32).expect("a small number");
        let slot = self.supplies[supply].take(completion.wr_id, self.rules.receiving == Receiving::Own);
        self.coverage.ended(self.rules.receiving.verb(), completion.status);
        let (line, theirs) = (&self.lines[number], &peer.lines[number]);
        let message = theirs.messages().nth(line.received);
        if completion.status != Status::Success {
            assert!(line.qp.fault().is_some(), "{completion:?}");
            let crime = message.and_then(|(_, request)| request.crime?.receive());
            let may = [Some(Status::Flushed), crime, self.took(slot.span).then_some(Status::LocalProtection)];
            assert!(may.contains(&Some(completion.status)), "{completion:?}");
            self.expect_prefix(slot.span, message.map(|(_, request)| request));
            self.lines[number].receives_failed += 1;
            return;
        }
        assert_eq!(line.receives_failed, 0, "none succeeds after one that failed");
        let (index, request) = message.expect("somebody sent it");
        assert!(index < theirs.posted);
        assert_eq!(self.supply_of(number, request), Some(supply), "the queue that it was for");
        expect_told(completion, request);
        self.expect_delivered(request, slot.span);
        // What was written before the message is there when the message is.
        let since =
            theirs.messages().take_while(|(earlier, _)| *earlier < index).last().map_or(0, |(at, _)| at);
        for earlier in &theirs.requests[since..=index] {
            if let Effect::Write { to } = earlier.effect
                && !self.took(to)
            {
                self.arena.check_pattern(to, earlier.pattern);
            }
        }
        self.lines[number].received += 1;
        if completion.solicited {
            self.coverage.met(Trait::Solicited);
        }
    }

    /// The memory of a receive holds the message, and nothing behind it.
    fn expect_delivered(&self, request: &Request, span: Span) {
        if self.took(span) {
            return;
        }
        let len = if request.verb == Verb::WriteImmediate { 0 } else { request.here.span.len };
        self.arena.check_pattern(Span { len, ..span }, request.pattern);
        let behind = Span { addr: span.addr + len as u64, len: span.len - len };
        assert!(self.arena.read(behind).iter().all(|byte| *byte == 0), "behind the message is nothing");
    }

    /// Memory holds the front of what was to come, and nothing behind it.
    pub(super) fn expect_prefix(&self, span: Span, request: Option<&Request>) {
        if self.took(span) || span.len == 0 {
            return;
        }
        let found = self.arena.read(span);
        let mut rng = request
            .filter(|it| {
                it.verb != Verb::WriteImmediate || matches!(it.effect, Effect::Write { to } if to == span)
            })
            .map(|request| Rng::new(request.pattern));
        let bytes = std::iter::from_fn(|| rng.as_mut().map(|rng| rng.next().to_le_bytes())).flatten();
        let same = found.iter().zip(bytes).take_while(|(found, wanted)| *found == wanted).count();
        assert!(found[same..].iter().all(|byte| *byte == 0), "{span:x?} holds what nobody sent");
    }
}

/// A receive says what its message was.
fn expect_told(completion: &Completion, request: &Request) {
    let opcode = if request.verb == Verb::WriteImmediate { Opcode::ReceiveWrite } else { Opcode::Receive };
    let invalidated = match request.posted.operation {
        Operation::Send { invalidate } => invalidate,
        _ => None,
    };
    let Completion { byte_len, solicited, immediate, .. } = *completion;
    assert_eq!(
        (completion.opcode, u64::from(byte_len), solicited, immediate, completion.invalidated),
        (opcode, request.posted.data.len(), request.posted.solicited, request.posted.immediate, invalidated),
    );
}
