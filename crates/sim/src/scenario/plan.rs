//! Plans the requests of two programs on one connection: random verbs, and sequences with windows and registrations in
//! which both programs take part. A request may wait only for a request that was planned earlier, so there is no
//! deadlock.

use super::defect::Defect;
use super::program::Program;
use super::random::pick;
use super::request::{
    After, Effect, LOCAL_ACCESS, Request, Slot, memory, random_atomic, random_len, work_request,
};
use super::supply::Receiving;
use super::verb::Verb;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::memory::{Binding, Memory, Rights, Scope, next_tag};
use ironwarp_rnic::queue::{Data, Operation, WorkRequest};
use ironwarp_wire::{AtomicOp, RemoteAddr, Tag};

/// The plan of a connection between two programs.
pub(super) struct Plan<'a> {
    pub(super) rng: &'a mut Rng,
    /// The index of the connection.
    pub(super) connection: usize,
    pub(super) programs: &'a mut [Program; 2],
}

impl Plan<'_> {
    /// Plans this many steps. A step has one request or several, of one program or of both.
    pub(super) fn plan_steps(&mut self, steps: usize) {
        for who in [0, 1] {
            let peer = &mut self.programs[1 - who];
            // The second of two words is the target of atomic operations, so that a defective request may address the
            // first.
            let (span, addr) = peer.open(16, LOCAL_ACCESS | Rights::REMOTE_ATOMIC, self.connection);
            let word = Slot { span, tag: addr.tag };
            self.programs[who].connections[self.connection].word = word;
        }
        // The initiator must send first.
        self.plan_simple(0, Verb::Send);
        for _ in 0..steps {
            let who = usize::from(self.rng.below(2) == 0);
            match self.rng.below(16) {
                0 | 1 => self.plan_window(who),
                2 | 3 => self.plan_registration(who),
                4 => self.plan_count(who),
                _ => {
                    let verb = pick(self.rng, &SIMPLE);
                    self.plan_simple(who, verb);
                }
            }
        }
    }

    /// Returns the maximum length of a message.
    fn max_len(&self) -> usize {
        self.programs[0].rules.max_len
    }

    /// Appends a request to the plan of a program. Returns its index.
    fn push(&mut self, who: usize, request: Request) -> usize {
        self.programs[who].add(self.connection, request)
    }

    /// Plans a request with this verb, which has memory of its own at both programs. Returns its index.
    fn plan_simple(&mut self, who: usize, verb: Verb) -> usize {
        let verb = match verb {
            Verb::SendImmediate if !self.programs[who].rules.immediate => Verb::WriteImmediate,
            verb => verb,
        };
        let len = if matches!(verb, Verb::FetchAdd | Verb::CompareSwap) { 8 } else { self.random_len() };
        let needed = match verb {
            Verb::Write | Verb::WriteImmediate => Some(LOCAL_ACCESS | Rights::REMOTE_WRITE),
            Verb::Read => Some(Rights::LOCAL_READ | Rights::REMOTE_READ),
            _ => None,
        };
        let connection = self.connection;
        let target = needed.map(|rights| self.programs[1 - who].open(len, rights, connection));
        self.plan_access(who, verb, len, target, After::Nothing)
    }

    /// Returns a random message length.
    fn random_len(&mut self) -> usize {
        let max_len = self.max_len();
        random_len(self.rng, max_len)
    }

    /// Plans a request with this verb, for the remote memory `target` if the verb needs one. Returns its index.
    fn plan_access(
        &mut self,
        who: usize,
        verb: Verb,
        len: usize,
        target: Option<(Span, RemoteAddr)>,
        after: After,
    ) -> usize {
        let (connection, pattern) = (self.connection, self.rng.next());
        let here =
            self.programs[who].slot(len, if verb.has_response() { LOCAL_ACCESS } else { Rights::LOCAL_READ });
        if !verb.has_response() {
            self.programs[who].arena.fill_pattern(here.span, pattern);
        }
        let (operation, effect) = match (verb, target) {
            (Verb::Write | Verb::WriteImmediate, Some((to, addr))) => {
                (Operation::Write(addr), Effect::Write { to })
            }
            (Verb::Read, Some((from, addr))) => {
                self.programs[1 - who].arena.fill_pattern(from, pattern);
                (Operation::Read(addr), Effect::Read)
            }
            (Verb::FetchAdd | Verb::CompareSwap, _) => {
                let connection = &mut self.programs[who].connections[connection];
                let before = *connection.values.last().expect("a value");
                let (op, then) = random_atomic(self.rng, verb, before);
                connection.values.push(then);
                let target =
                    RemoteAddr { offset: connection.word.span.addr + 8, ..connection.word.remote_addr() };
                (Operation::Atomic { target, op }, Effect::Atomic { before })
            }
            _ => (Operation::Send { invalidate: None }, Effect::None),
        };
        let named = match operation {
            Operation::Write(addr) | Operation::Read(addr) if len > 0 => Some(addr.tag),
            _ => None, // many requests use the word of the connection
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

    /// Plans an increment of the peer's counter, which all connections share.
    fn plan_count(&mut self, who: usize) {
        let (verb, target) = (Verb::FetchAdd, self.programs[1 - who].counter_addr());
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

    /// Plans a local operation, which is signaled. Returns its index.
    fn plan_local(&mut self, who: usize, verb: Verb, operation: Operation, after: After) -> usize {
        let posted = WorkRequest::new(0, operation, Data::Memory(<&[_]>::default().into()));
        let (effect, here, named, defect) = (Effect::None, Slot::NOWHERE, None, None);
        let (pattern, once, retry) = (0, false, None);
        self.push(who, Request { verb, effect, pattern, here, named, after, defect, once, retry, posted })
    }

    /// Plans a sequence: the owner binds a window, the peer accesses it, and one of them may invalidate it.
    fn plan_window(&mut self, owner: usize) {
        let (len, verb) = (1 + self.random_len(), pick(self.rng, &THROUGH));
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
        let bound = self.plan_local(owner, Verb::Bind, Operation::Bind { window, binding }, After::Nothing);
        let table = self.programs[owner].device.table();
        let tag = table.reserve_next_tag(window).expect("a free tag");
        let addr = RemoteAddr { tag, offset: if binding.zero_based { 0 } else { binding.at } };
        let access =
            self.plan_access(1 - owner, verb, len, Some((region.span, addr)), After::PeerSucceeded(bound));
        self.programs[1 - owner].connections[self.connection].requests[access].once = binding.one_touch;
        let unbind = Operation::Bind { window: tag, binding: Binding { len: 0, ..binding } };
        match self.rng.below(4) {
            0 | 3 if scope == Scope::Stream && !binding.one_touch => {
                self.plan_remote_invalidate(1 - owner, tag);
            }
            1 => self.plan_close(owner, access, Verb::Invalidate, Operation::Invalidate(tag)),
            2 => self.plan_close(owner, access, Verb::Bind, unbind),
            _ => {}
        }
    }

    /// Plans a sequence: the owner registers memory by a request, the peer accesses it, and one of them may invalidate
    /// it. With strict windows, the peer may not access it.
    fn plan_registration(&mut self, owner: usize) {
        let (len, verb) = (1 + self.random_len(), pick(self.rng, &THROUGH));
        let region = self.programs[owner].unregistered(len);
        let tag = self.programs[owner].new_tag();
        let one_touch = self.rng.below(3) == 0;
        let memory = Memory { one_touch, ..memory(region, LOCAL_ACCESS | Rights::REMOTE) };
        let registered = self.plan_register(owner, tag, memory);
        if self.programs[owner].rules.strict_windows {
            self.plan_local(owner, Verb::Invalidate, Operation::Invalidate(tag), After::Nothing);
            return;
        }
        let addr = RemoteAddr { tag, offset: region.addr };
        let access =
            self.plan_access(1 - owner, verb, len, Some((region, addr)), After::PeerSucceeded(registered));
        self.programs[1 - owner].connections[self.connection].requests[access].once = one_touch;
        match self.rng.below(4) {
            0 | 3 if !one_touch => self.plan_remote_invalidate(1 - owner, tag),
            1 => self.plan_close(owner, access, Verb::Invalidate, Operation::Invalidate(tag)),
            _ => {}
        }
    }

    /// Plans a registration, alone or with a Send. If the program retries refused registrations, half of them are
    /// planned to be refused first. Returns the index of the request.
    fn plan_register(&mut self, owner: usize, tag: Tag, memory: Memory) -> usize {
        let combined = self.rng.below(2) == 0;
        let operation = |tag, memory| match combined {
            true => Operation::RegisterSend { tag, memory, invalidate: None },
            false => Operation::Register { tag, memory },
        };
        let right = operation(tag, memory.clone());
        let refused = self.programs[owner].rules.reactive && self.rng.below(2) == 0;
        let (first, retry) =
            if refused { (operation(next_tag(tag), memory), Some(right)) } else { (right, None) };
        let index = if combined {
            let verb = pick(self.rng, &[Verb::Send, Verb::SendImmediate]);
            let verb = if self.programs[owner].rules.immediate { verb } else { Verb::Send };
            let index = self.plan_simple(owner, verb);
            let request = &mut self.programs[owner].connections[self.connection].requests[index];
            (request.verb, request.posted.operation) = (Verb::RegisterSend, first);
            request.posted.signaled = true; // the peer waits for its success
            index
        } else {
            self.plan_local(owner, Verb::Register, first, After::Nothing)
        };
        self.programs[owner].connections[self.connection].requests[index].retry = retry;
        index
    }

    /// Plans a Send of `user` that invalidates a tag of its peer, after the Reads of `user` have completed.
    fn plan_remote_invalidate(&mut self, user: usize, tag: Tag) {
        let index = self.plan_simple(user, Verb::Send);
        let request = &mut self.programs[user].connections[self.connection].requests[index];
        request.verb = Verb::SendInvalidate;
        request.posted.operation = Operation::Send { invalidate: Some(tag) };
        request.posted.srq = 0; // on the wire, the tag takes the field that would name a queue
        request.posted.fence = true;
        if self.programs[user].rules.receiving == Receiving::Named {
            request.posted.operation = Operation::Send { invalidate: None };
            request.verb = Verb::Send;
            request.posted.srq = 1;
        }
    }

    /// Plans an operation with which the owner invalidates memory, after the peer's request with index `request` has
    /// accessed it. If that request has no response, the peer sends a message after it.
    fn plan_close(&mut self, owner: usize, request: usize, verb: Verb, operation: Operation) {
        let user = 1 - owner;
        let access = &mut self.programs[user].connections[self.connection].requests[request];
        let after = if access.verb.has_response() {
            access.posted.signaled = true;
            After::PeerSucceeded(request)
        } else {
            let message = self.plan_simple(user, Verb::Send);
            After::Received(self.programs[user].connections[self.connection].messages_before(message) + 1)
        };
        self.plan_local(owner, verb, operation, after);
    }

    /// Injects a defect into the plan of a program, so that one of its requests must fail.
    pub(super) fn inject_defect(&mut self, who: usize) {
        let rules = self.programs[who].rules;
        let own = rules.receiving == Receiving::Own;
        if rules.strict_receive && own && self.rng.below(2) == 0 {
            // The peer posts one receive too few.
            let connection = &mut self.programs[who].connections[self.connection];
            let last = connection.messages().last().map(|(index, _)| index);
            if let Some(index) = last {
                connection.requests[index].defect = Some(Defect::NoReceive);
            }
        } else if !rules.immediate && self.rng.below(3) == 0 {
            self.plan_unsupported_send(who);
        } else if match self.rng.below(5) {
            0 => !self.plan_second_touch(who),
            1 => !self.plan_old_tag(who),
            _ => true,
        } {
            let (left, right) = self.programs.split_at_mut(1);
            let (program, peer) =
                if who == 0 { (&mut left[0], &mut right[0]) } else { (&mut right[0], &mut left[0]) };
            program.inject_defect(self.rng, self.connection, peer);
        }
    }

    /// Plans a second access to one-touch memory, which must fail. Returns false if the plan has no one-touch memory.
    fn plan_second_touch(&mut self, who: usize) -> bool {
        let connection = &mut self.programs[who].connections[self.connection];
        let Some(first) = connection.requests.iter().position(|request| request.once) else { return false };
        // The second access has another verb, because a peer that does not acknowledge reports only the address, which is
        // the same.
        let (addr, verb) = match connection.requests[first].posted.operation {
            Operation::Write(addr) => (addr, Verb::Read),
            Operation::Read(addr) => (addr, pick(self.rng, &[Verb::Write, Verb::WriteImmediate])),
            _ => return false,
        };
        let index = self.plan_access(who, verb, 1, Some((Span::new(0, 0), addr)), After::Nothing);
        let request = &mut self.programs[who].connections[self.connection].requests[index];
        (request.effect, request.defect) = (Effect::None, Some(Defect::Touched));
        true
    }

    /// Plans an access to memory of the peer by a tag that the peer had before, which must fail (requirement M4). If the
    /// memory has an old tag, against the rules, it is that tag. Returns false if the peer has no old tags.
    fn plan_old_tag(&mut self, who: usize) -> bool {
        let connection = self.connection;
        let (span, addr) = self.programs[1 - who].open(8, LOCAL_ACCESS | Rights::REMOTE, connection);
        let Some(tag) = self.programs[1 - who].old_tag_like(addr.tag) else { return false };
        let verb = pick(self.rng, &THROUGH);
        let target = Some((span, RemoteAddr { tag, ..addr }));
        let index = self.plan_access(who, verb, 8, target, After::Nothing);
        let request = &mut self.programs[who].connections[connection].requests[index];
        (request.effect, request.defect) = (Effect::None, Some(Defect::OldTag));
        true
    }

    /// Plans a Send with Immediate to a peer that does not support it.
    fn plan_unsupported_send(&mut self, who: usize) {
        let index = self.plan_simple(who, Verb::Send);
        let request = &mut self.programs[who].connections[self.connection].requests[index];
        request.verb = Verb::SendImmediate;
        request.posted.immediate = Some(1);
        request.defect = Some(Defect::ForeignPeer);
    }
}

/// Verbs of single requests, as often as they are to be planned.
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

/// Verbs that access memory through a window or a registration of the peer.
const THROUGH: [Verb; 3] = [Verb::Write, Verb::WriteImmediate, Verb::Read];
