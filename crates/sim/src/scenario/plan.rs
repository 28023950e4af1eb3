//! Plans the requests of two programs on one connection: random verbs, and sequences with windows and registrations in which both
//! take part. A request may wait only for one that was planned earlier, so there is no deadlock.

use super::defect::Defect;
use super::program::Program;
use super::random::pick;
use super::request::{
    After, Effect, LOCAL_ACCESS, Request, Slot, memory, some_atomic, some_len, work_request,
};
use super::supply::Receiving;
use super::verb::Verb;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::memory::{Binding, Memory, Rights, Scope, next_tag};
use ironwarp_rnic::queue::{Data, Operation, WorkRequest};
use ironwarp_wire::{AtomicOp, Place, Tag};

/// The plan of a connection between two programs.
pub(super) struct Plan<'a> {
    pub(super) rng: &'a mut Rng,
    pub(super) connection: usize,
    pub(super) programs: &'a mut [Program; 2],
}

impl Plan<'_> {
    /// Plans the given number of steps, each by one program or by both.
    pub(super) fn make(&mut self, steps: usize) {
        for who in [0, 1] {
            let peer = &mut self.programs[1 - who];
            // A word in the middle, so that the adjacent word exists as well.
            let (span, place) = peer.open(16, LOCAL_ACCESS | Rights::REMOTE_ATOMIC, self.connection);
            let word = Slot { span, tag: place.tag };
            self.programs[who].connections[self.connection].word = word;
        }
        // The initiator must send first.
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

    /// Adds a request. Returns its number.
    fn push(&mut self, who: usize, request: Request) -> usize {
        self.programs[who].add(self.connection, request)
    }

    /// Plans a verb with memory of its own on both sides.
    fn simple(&mut self, who: usize, verb: Verb) -> usize {
        let verb = match verb {
            Verb::SendImmediate if !self.programs[who].rules.immediate => Verb::WriteImmediate,
            verb => verb,
        };
        let len = if matches!(verb, Verb::FetchAdd | Verb::CompareSwap) { 8 } else { self.some_len() };
        let needed = match verb {
            Verb::Write | Verb::WriteImmediate => Some(LOCAL_ACCESS | Rights::REMOTE_WRITE),
            Verb::Read => Some(Rights::LOCAL_READ | Rights::REMOTE_READ),
            _ => None,
        };
        let connection = self.connection;
        let target = needed.map(|rights| self.programs[1 - who].open(len, rights, connection));
        self.access(who, verb, len, target, After::Nothing)
    }

    fn some_len(&mut self) -> usize {
        let longest = self.longest();
        some_len(self.rng, longest)
    }

    /// Plans a request for the remote memory `target`.
    fn access(
        &mut self,
        who: usize,
        verb: Verb,
        len: usize,
        target: Option<(Span, Place)>,
        after: After,
    ) -> usize {
        let (connection, pattern) = (self.connection, self.rng.next());
        let here = self.programs[who].slot(len, if verb.asks() { LOCAL_ACCESS } else { Rights::LOCAL_READ });
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
                let connection = &mut self.programs[who].connections[connection];
                let before = *connection.values.last().expect("a value");
                let (op, then) = some_atomic(self.rng, verb, before);
                connection.values.push(then);
                let target = Place { offset: connection.word.span.addr + 8, ..connection.word.place() };
                (Operation::Atomic { target, op }, Effect::Atomic { before })
            }
            _ => (Operation::Send { invalidate: None }, Effect::None),
        };
        let named = match operation {
            Operation::Write(place) | Operation::Read(place) if len > 0 => Some(place.tag),
            _ => None, // many requests use the word
        };
        let mut posted = work_request(self.rng, &self.programs[who].arena, operation, &here);
        if matches!(verb, Verb::SendImmediate | Verb::WriteImmediate) {
            posted.immediate = Some(u32::try_from(self.rng.next() >> 32).expect("32 bits"));
        }
        if verb.uses_receive() && self.programs[who].rules.receiving == Receiving::Named {
            posted.srq = 1 + u32::from(self.rng.below(2) == 0);
        }
        let (defect, once, retry) = (None, false, None);
        self.push(who, Request { verb, effect, pattern, here, named, after, defect, once, retry, posted })
    }

    /// Plans an increment of the counter that all connections share.
    fn count(&mut self, who: usize) {
        let (verb, target) = (Verb::FetchAdd, self.programs[1 - who].counter_place());
        let here = self.programs[who].slot(8, LOCAL_ACCESS);
        let operation = Operation::Atomic { target, op: AtomicOp::FetchAdd { add: 1, mask: 0 } };
        let posted = WorkRequest {
            signaled: true,
            ..work_request(self.rng, &self.programs[who].arena, operation, &here)
        };
        let (effect, after, named, defect) = (Effect::Count, After::Nothing, None, None);
        let (pattern, once, retry) = (0, false, None);
        self.push(who, Request { verb, effect, pattern, here, named, after, defect, once, retry, posted });
    }

    /// Plans a local operation, which is signaled.
    fn local(&mut self, who: usize, verb: Verb, operation: Operation, after: After) -> usize {
        let posted = WorkRequest::new(0, operation, Data::Memory(<&[_]>::default().into()));
        let (effect, here, named, defect) = (Effect::None, Slot::NOWHERE, None, None);
        let (pattern, once, retry) = (0, false, None);
        self.push(who, Request { verb, effect, pattern, here, named, after, defect, once, retry, posted })
    }

    /// The owner binds a window, the peer uses it, and one of them invalidates it.
    fn window(&mut self, owner: usize) {
        let (len, verb) = (1 + self.some_len(), pick(self.rng, &THROUGH));
        let region = self.programs[owner].bare(len, LOCAL_ACCESS | Rights::BIND);
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
        let tag = next_tag(window);
        let place = Place { tag, offset: if binding.zero_based { 0 } else { binding.at } };
        let used = self.access(1 - owner, verb, len, Some((region.span, place)), After::PeerDid(bound));
        self.programs[1 - owner].connections[self.connection].requests[used].once = binding.one_touch;
        let again = Operation::Bind { window: tag, binding: Binding { len: 0, ..binding } };
        match self.rng.below(4) {
            0 | 3 if scope == Scope::Stream && !binding.one_touch => self.invalidate_remotely(1 - owner, tag),
            1 => self.close(owner, used, Verb::Invalidate, Operation::Invalidate(tag)),
            2 => self.close(owner, used, Verb::Bind, again),
            _ => {}
        }
    }

    /// The owner registers memory by a request and sends from it immediately; the peer uses it, and one of them invalidates it.
    fn registration(&mut self, owner: usize) {
        let (len, verb) = (1 + self.some_len(), pick(self.rng, &THROUGH));
        let region = self.programs[owner].unregistered(len);
        let tag = self.programs[owner].new_tag();
        let one_touch = self.rng.below(3) == 0;
        let memory = Memory { one_touch, ..memory(region, LOCAL_ACCESS | Rights::REMOTE) };
        let registered = self.register(owner, tag, memory);
        if self.programs[owner].rules.strict_windows {
            self.local(owner, Verb::Invalidate, Operation::Invalidate(tag), After::Nothing);
            return;
        }
        let place = Place { tag, offset: region.addr };
        let used = self.access(1 - owner, verb, len, Some((region, place)), After::PeerDid(registered));
        self.programs[1 - owner].connections[self.connection].requests[used].once = one_touch;
        match self.rng.below(4) {
            0 | 3 if !one_touch => self.invalidate_remotely(1 - owner, tag),
            1 => self.close(owner, used, Verb::Invalidate, Operation::Invalidate(tag)),
            _ => {}
        }
    }

    /// Plans a registration. If the program retries, half of them are refused first.
    fn register(&mut self, owner: usize, tag: Tag, memory: Memory) -> usize {
        let right = Operation::Register { tag, memory: memory.clone() };
        if !self.programs[owner].rules.reactive || self.rng.below(2) == 0 {
            return self.local(owner, Verb::Register, right, After::Nothing);
        }
        let wrong = Operation::Register { tag: next_tag(tag), memory };
        let index = self.local(owner, Verb::Register, wrong, After::Nothing);
        self.programs[owner].connections[self.connection].requests[index].retry = Some(right);
        index
    }

    /// The peer invalidates it with its next message, after its reads have completed.
    fn invalidate_remotely(&mut self, user: usize, tag: Tag) {
        let index = self.simple(user, Verb::Send);
        let request = &mut self.programs[user].connections[self.connection].requests[index];
        request.verb = Verb::SendInvalidate;
        request.posted.operation = Operation::Send { invalidate: Some(tag) };
        request.posted.srq = 0; // the field holds the tag, so it cannot name a queue
        request.posted.fence = true;
        if self.programs[user].rules.receiving == Receiving::Named {
            request.posted.operation = Operation::Send { invalidate: None };
            request.verb = Verb::Send;
            request.posted.srq = 1;
        }
    }

    /// The owner invalidates it after the peer has finished.
    fn close(&mut self, owner: usize, used: usize, verb: Verb, operation: Operation) {
        let user = 1 - owner;
        let request = &mut self.programs[user].connections[self.connection].requests[used];
        let after = if request.verb.asks() {
            request.posted.signaled = true;
            After::PeerDid(used)
        } else {
            let told = self.simple(user, Verb::Send);
            After::Got(self.programs[user].connections[self.connection].messages_before(told) + 1)
        };
        self.local(owner, verb, operation, after);
    }

    /// Makes one request of a program fail.
    pub(super) fn inject_defect(&mut self, who: usize) {
        let rules = self.programs[who].rules;
        let own = rules.receiving == Receiving::Own;
        if rules.strict_receive && own && self.rng.below(2) == 0 {
            // One receive is missing.
            let connection = &mut self.programs[who].connections[self.connection];
            let last = connection.messages().last().map(|(index, _)| index);
            if let Some(index) = last {
                connection.requests[index].defect = Some(Defect::NoReceive);
            }
        } else if !rules.immediate && self.rng.below(3) == 0 {
            self.unsupported_send(who);
        } else if self.rng.below(5) > 0 || !self.touch_again(who) {
            let (left, right) = self.programs.split_at_mut(1);
            let (program, peer) =
                if who == 0 { (&mut left[0], &mut right[0]) } else { (&mut right[0], &mut left[0]) };
            program.inject_defect(self.rng, self.connection, peer);
        }
    }

    /// Plans a second message to one-touch memory. Returns false if there is none.
    fn touch_again(&mut self, who: usize) -> bool {
        let connection = &mut self.programs[who].connections[self.connection];
        let Some(first) = connection.requests.iter().position(|request| request.once) else { return false };
        // Of a different kind, because a peer that does not acknowledge reports only the place, which both would have.
        let (place, verb) = match connection.requests[first].posted.operation {
            Operation::Write(place) => (place, Verb::Read),
            Operation::Read(place) => (place, pick(self.rng, &[Verb::Write, Verb::WriteImmediate])),
            _ => return false,
        };
        let index = self.access(who, verb, 1, Some((Span { addr: 0, len: 0 }, place)), After::Nothing);
        let request = &mut self.programs[who].connections[self.connection].requests[index];
        (request.effect, request.defect) = (Effect::None, Some(Defect::Touched));
        true
    }

    /// Plans a Send with Immediate to a peer that does not support it.
    fn unsupported_send(&mut self, who: usize) {
        let index = self.simple(who, Verb::Send);
        let request = &mut self.programs[who].connections[self.connection].requests[index];
        request.verb = Verb::SendImmediate;
        request.posted.immediate = Some(1);
        request.defect = Some(Defect::ForeignPeer);
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

/// Verbs that use memory opened by the peer.
const THROUGH: [Verb; 3] = [Verb::Write, Verb::WriteImmediate, Verb::Read];
