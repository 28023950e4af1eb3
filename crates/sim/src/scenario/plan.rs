//! What two programs will ask for on one line: verbs at random, and small stories of windows and registrations that both take
//! part in. A request may wait for one that was planned before it, never the other way round: so nobody waits for ever.

use super::crime::Crime;
use super::memory::WHOLE;
use super::pick;
use super::program::Program;
use super::request::{After, Effect, Request, Slot, Verb, memory, some_atomic, some_len, work_request};
use super::supply::Receiving;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::memory::{Binding, Memory, Rights, Scope, following};
use ironwarp_rnic::queue::{Data, Operation, WorkRequest};
use ironwarp_wire::{AtomicOp, Place, Tag};

/// A line between two programs that is being planned.
pub(super) struct Plan<'a> {
    pub(super) rng: &'a mut Rng,
    pub(super) line: usize,
    pub(super) programs: &'a mut [Program; 2],
}

impl Plan<'_> {
    /// So many steps, each of one program's, or a story of both.
    pub(super) fn make(&mut self, steps: usize) {
        for who in [0, 1] {
            let peer = &mut self.programs[1 - who];
            // A word in the middle, so that a word beside it is there as well.
            let (span, place) = peer.open(16, WHOLE | Rights::REMOTE_ATOMIC, self.line);
            let word = Slot { span, tag: place.tag };
            self.programs[who].lines[self.line].word = word;
        }
        // Somebody has to speak first, and it is the initiator.
        self.simple(0, Verb::Send);
        for _ in 0..steps {
            let who = usize::from(self.rng.below(2) == 0);
            match self.rng.below(16) {
                0 | 1 => self.window(who),
                2 | 3 => self.registration(who),
                4 => self.count(who),
                _ => {
                    let verb = pick(self.rng, &SIMPLE);
                    self.simple(who, verb);
                }
            }
        }
    }

    fn longest(&self) -> usize {
        self.programs[0].rules.longest
    }

    /// Adds a request; returns its number.
    fn push(&mut self, who: usize, request: Request) -> usize {
        self.programs[who].add(self.line, request)
    }

    /// A verb with memory of its own on both sides.
    fn simple(&mut self, who: usize, verb: Verb) -> usize {
        let verb = match verb {
            Verb::SendImmediate if !self.programs[who].rules.immediate => Verb::WriteImmediate,
            verb => verb,
        };
        let len = if matches!(verb, Verb::FetchAdd | Verb::CompareSwap) { 8 } else { self.some_len() };
        let needed = match verb {
            Verb::Write | Verb::WriteImmediate => Some(WHOLE | Rights::REMOTE_WRITE),
            Verb::Read => Some(Rights::LOCAL_READ | Rights::REMOTE_READ),
            _ => None,
        };
        let line = self.line;
        let target = needed.map(|rights| self.programs[1 - who].open(len, rights, line));
        self.access(who, verb, len, target, After::Nothing)
    }

    fn some_len(&mut self) -> usize {
        let longest = self.longest();
        some_len(self.rng, longest)
    }

    /// A request with the peer's memory `target`.
    fn access(
        &mut self,
        who: usize,
        verb: Verb,
        len: usize,
        target: Option<(Span, Place)>,
        after: After,
    ) -> usize {
        let (line, pattern) = (self.line, self.rng.next());
        let here = self.programs[who].slot(len, if verb.asks() { WHOLE } else { Rights::LOCAL_READ });
        if !verb.asks() {
            self.programs[who].arena.fill_pattern(here.span, pattern);
        }
        let (operation, effect) = match (verb, target) {
            (Verb::Write | Verb::WriteImmediate, Some((to, place))) => {
                (Operation::Write(place), Effect::Write { to })
            }
            (Verb::Read, Some((from, place))) => {
                self.programs[1 - who].arena.fill_pattern(from, pattern);
                (Operation::Read(place), Effect::Read)
            }
            (Verb::FetchAdd | Verb::CompareSwap, _) => {
                let line = &mut self.programs[who].lines[line];
                let before = *line.values.last().expect("it holds something");
                let (op, then) = some_atomic(self.rng, verb, before);
                line.values.push(then);
                let target = Place { offset: line.word.span.addr + 8, ..line.word.place() };
                (Operation::Atomic { target, op }, Effect::Atomic { before })
            }
            _ => (Operation::Send { invalidate: None }, Effect::None),
        };
        let named = match operation {
            Operation::Write(place) | Operation::Read(place) if len > 0 => Some(place.tag),
            _ => None, // the word is named by many
        };
        let mut posted = work_request(self.rng, &self.programs[who].arena, operation, &here);
        if matches!(verb, Verb::SendImmediate | Verb::WriteImmediate) {
            posted.immediate = Some(u32::try_from(self.rng.next() >> 32).expect("32 bits"));
        }
        if verb.uses_receive() && self.programs[who].rules.receiving == Receiving::Named {
            posted.srq = 1 + u32::from(self.rng.below(2) == 0);
        }
        let (crime, once, retry) = (None, false, None);
        self.push(who, Request { verb, effect, pattern, here, named, after, crime, once, retry, posted })
    }

    /// One more on the counter that all lines share.
    fn count(&mut self, who: usize) {
        let (verb, target) = (Verb::FetchAdd, self.programs[1 - who].counter_place());
        let here = self.programs[who].slot(8, WHOLE);
        let operation = Operation::Atomic { target, op: AtomicOp::FetchAdd { add: 1, mask: 0 } };
        let posted = WorkRequest {
            signaled: true,
            ..work_request(self.rng, &self.programs[who].arena, operation, &here)
        };
        let (effect, after, named, crime) = (Effect::Count, After::Nothing, None, None);
        let (pattern, once, retry) = (0, false, None);
        self.push(who, Request { verb, effect, pattern, here, named, after, crime, once, retry, posted });
    }

    /// A request of the adapter's own, which is reported.
    fn local(&mut self, who: usize, verb: Verb, operation: Operation, after: After) -> usize {
        let posted = WorkRequest::new(0, operation, Data::Memory(<&[_]>::default().into()));
        let (effect, here, named, crime) = (Effect::None, Slot::NOWHERE, None, None);
        let (pattern, once, retry) = (0, false, None);
        self.push(who, Request { verb, effect, pattern, here, named, after, crime, once, retry, posted })
    }

    /// The owner binds a window, the peer uses it, one of the two closes it.
    fn window(&mut self, owner: usize) {
        let (len, verb) = (1 + self.some_len(), pick(self.rng, &THROUGH));
        let region = self.programs[owner].bare(len, WHOLE | Rights::BIND);
        let window = self.programs[owner].new_window();
        let scope = pick(self.rng, &[Scope::Stream, Scope::Domain]);
        let binding = Binding {
            region: region.tag,
            at: region.span.addr,
            len: len as u64,
            rights: Rights::REMOTE,
            zero_based: self.rng.below(2) == 0,
            scope,
            one_touch: self.rng.below(3) == 0,
        };
        let bound = self.local(owner, Verb::Bind, Operation::Bind { window, binding }, After::Nothing);
        let tag = following(window);
        let place = Place { tag, offset: if binding.zero_based { 0 } else { binding.at } };
        let used = self.access(1 - owner, verb, len, Some((region.span, place)), After::PeerDid(bound));
        self.programs[1 - owner].lines[self.line].requests[used].once = binding.one_touch;
        let again = Operation::Bind { window: tag, binding: Binding { len: 0, ..binding } };
        match self.rng.below(4) {
            0 | 3 if scope == Scope::Stream && !binding.one_touch => self.invalidate_remotely(1 - owner, tag),
            1 => self.close(owner, used, Verb::Invalidate, Operation::Invalidate(tag)),
            2 => self.close(owner, used, Verb::Bind, again),
            _ => {}
        }
    }

    /// The owner registers memory by a request and sends from it at once; the peer uses it, one of the two ends it.
    fn registration(&mut self, owner: usize) {
        let (len, verb) = (1 + self.some_len(), pick(self.rng, &THROUGH));
        let region = self.programs[owner].unregistered(len);
        let tag = self.programs[owner].new_tag();
        let one_touch = self.rng.below(3) == 0;
        let memory = Memory { one_touch, ..memory(region, WHOLE | Rights::REMOTE) };
        let registered = self.register(owner, tag, memory);
        if self.programs[owner].rules.strict_windows {
            self.local(owner, Verb::Invalidate, Operation::Invalidate(tag), After::Nothing);
            return;
        }
        let place = Place { tag, offset: region.addr };
        let used = self.access(1 - owner, verb, len, Some((region, place)), After::PeerDid(registered));
        self.programs[1 - owner].lines[self.line].requests[used].once = one_touch;
        match self.rng.below(4) {
            0 | 3 if !one_touch => self.invalidate_remotely(1 - owner, tag),
            1 => self.close(owner, used, Verb::Invalidate, Operation::Invalidate(tag)),
            _ => {}
        }
    }

    /// A registration; where the program would try again, it is refused at first, every other time.
    fn register(&mut self, owner: usize, tag: Tag, memory: Memory) -> usize {
        let right = Operation::Register { tag, memory: memory.clone() };
        if !self.programs[owner].rules.reactive || self.rng.below(2) == 0 {
            return self.local(owner, Verb::Register, right, After::Nothing);
        }
        let wrong = Operation::Register { tag: following(tag), memory };
        let index = self.local(owner, Verb::Register, wrong, After::Nothing);
        self.programs[owner].lines[self.line].requests[index].retry = Some(right);
        index
    }

    /// The peer closes it with its next message, once what it read is there.
    fn invalidate_remotely(&mut self, user: usize, tag: Tag) {
        let index = self.simple(user, Verb::Send);
        let request = &mut self.programs[user].lines[self.line].requests[index];
        request.verb = Verb::SendInvalidate;
        request.posted.operation = Operation::Send { invalidate: Some(tag) };
        request.posted.srq = 0; // the word is taken, so it names no queue
        request.posted.fence = true;
        if self.programs[user].rules.receiving == Receiving::Named {
            request.posted.operation = Operation::Send { invalidate: None };
            request.verb = Verb::Send;
            request.posted.srq = 1;
        }
    }

    /// The owner closes it, once it knows that the peer has done with it.
    fn close(&mut self, owner: usize, used: usize, verb: Verb, operation: Operation) {
        let user = 1 - owner;
        let request = &mut self.programs[user].lines[self.line].requests[used];
        let after = if request.verb.asks() {
            request.posted.signaled = true;
            After::PeerDid(used)
        } else {
            let told = self.simple(user, Verb::Send);
            After::Got(self.programs[user].lines[self.line].messages_before(told) + 1)
        };
        self.local(owner, verb, operation, after);
    }

    /// One request, of one of the programs, must fail.
    pub(super) fn turn_criminal(&mut self, who: usize) {
        let rules = self.programs[who].rules;
        let own = rules.receiving == Receiving::Own;
        if rules.strict_receive && own && self.rng.below(2) == 0 {
            // All receives but one are there.
            let line = &mut self.programs[who].lines[self.line];
            let last = line.messages().last().map(|(index, _)| index);
            if let Some(index) = last {
                line.requests[index].crime = Some(Crime::NoReceive);
            }
        } else if !rules.immediate && self.rng.below(3) == 0 {
            self.stranger(who);
        } else if self.rng.below(5) > 0 || !self.touch_again(who) {
            let (left, right) = self.programs.split_at_mut(1);
            let (program, peer) =
                if who == 0 { (&mut left[0], &mut right[0]) } else { (&mut right[0], &mut left[0]) };
            program.turn_criminal(self.rng, self.line, peer);
        }
    }

    /// A second message to memory that serves one. False: there is none.
    fn touch_again(&mut self, who: usize) -> bool {
        let line = &mut self.programs[who].lines[self.line];
        let Some(first) = line.requests.iter().position(|request| request.once) else { return false };
        // Of the other kind: a peer that does not acknowledge complains of a place, and both would name it.
        let (place, verb) = match line.requests[first].posted.operation {
            Operation::Write(place) => (place, Verb::Read),
            Operation::Read(place) => (place, pick(self.rng, &[Verb::Write, Verb::WriteImmediate])),
            _ => return false,
        };
        let index = self.access(who, verb, 1, Some((Span { addr: 0, len: 0 }, place)), After::Nothing);
        let request = &mut self.programs[who].lines[self.line].requests[index];
        (request.effect, request.crime) = (Effect::None, Some(Crime::Touched));
        true
    }

    /// A Send with Immediate to one who does not understand it.
    fn stranger(&mut self, who: usize) {
        let index = self.simple(who, Verb::Send);
        let request = &mut self.programs[who].lines[self.line].requests[index];
        request.verb = Verb::SendImmediate;
        request.posted.immediate = Some(1);
        request.crime = Some(Crime::Stranger);
    }
}

const SIMPLE: [Verb; 10] = [
    Verb::Send,
    Verb::Send,
    Verb::SendImmediate,
    Verb::Write,
    Verb::Write,
    Verb::WriteImmediate,
    Verb::Read,
    Verb::Read,
    Verb::FetchAdd,
    Verb::CompareSwap,
];

/// What a peer does with memory that was opened for it.
const THROUGH: [Verb; 3] = [Verb::Write, Verb::WriteImmediate, Verb::Read];
