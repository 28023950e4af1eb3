//! A program: an adapter with its memory, completion queues, receives and queue pairs. It posts what was planned.

use super::coverage::{Coverage, Trait};
use super::crime::Crime;
use super::line::Line;
use super::memory::WHOLE;
use super::request::{Request, Slot, Verb};
use super::rules::Rules;
use super::supply::{Receiving, Supply};
use super::watch::{Awake, Watch};
use crate::arena::Arena;
use crate::clock::Timers;
use crate::tags::tag_cipher;
use crate::trace::Trace;
use ironwarp_rnic::config::Config;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::memory::{Domain, Rights};
use ironwarp_rnic::qp::{Attributes, Completes, Qp, Receives, RegistrationFailure, State};
use ironwarp_rnic::queue::{Cq, Data, Operation, SharedReceiveQueue, XrcDomain};
use ironwarp_wire::AtomicOp;
use std::fmt;
use std::sync::Arc;

/// Room in the queues: less than there is work.
pub(super) const DEPTH: usize = 6;
/// Of all shared receive queues of an adapter; the first has number 1.
const QUEUES: u32 = 2;

pub(super) struct Program {
    pub(super) number: usize,
    pub(super) rules: Rules,
    pub(super) arena: Arc<Arena>,
    pub(super) device: Arc<Device>,
    pub(super) domain: Domain,
    /// Another one, for shared receive queues.
    pub(super) other: Domain,
    pub(super) completes: Completes,
    pub(super) watches: Vec<Watch>,
    pub(super) timers: Arc<Timers>,
    pub(super) supplies: Vec<Supply>,
    xrc: Arc<XrcDomain>,
    pub(super) lines: Vec<Line>,
    /// A word that all lines of the peer count on, and what they were told it was.
    pub(super) counter: Slot,
    pub(super) counted: Vec<u64>,
    /// Everything that is registered for one request or receive.
    pub(super) slots: Vec<Slot>,
    /// What the adapter may read and write.
    pub(super) readable: Vec<Span>,
    pub(super) writable: Vec<Span>,
    /// What was taken from the adapter in the middle of the run, and what it held then, if it is still there.
    pub(super) taken: Option<(Slot, Option<Vec<u8>>)>,
    pub(super) coverage: Coverage,
    trace: Option<Trace>,
}

impl Program {
    pub(super) fn new(
        number: usize,
        config: Config,
        completes: Completes,
        rules: Rules,
        timers: &Arc<Timers>,
    ) -> Self {
        let arena = Arena::new(u16::try_from(number).expect("there are two"));
        let device = Device::new(config, arena.clone(), tag_cipher(number));
        device.events().open(Box::new(Awake));
        let (domain, other) = (device.allocate_domain(), device.allocate_domain());
        let cqs = if rules.one_cq { 1 } else { 2 };
        let watches = (0..cqs).map(|id| Watch::new(Cq::new(id, rules.room[number]))).collect();
        let mut program = Self {
            number,
            rules,
            arena,
            device,
            domain,
            other,
            completes,
            watches,
            timers: Arc::clone(timers),
            supplies: Vec::new(),
            xrc: XrcDomain::new(),
            lines: Vec::new(),
            counter: Slot::NOWHERE,
            counted: Vec::new(),
            slots: Vec::new(),
            readable: Vec::new(),
            writable: Vec::new(),
            taken: None,
            coverage: Coverage::default(),
            trace: None,
        };
        program.make_supplies();
        for line in 0..rules.lines {
            let qp = program.new_qp(line);
            program.lines.push(Line::new(line, qp, 0));
        }
        let (span, place) = program.open(16, WHOLE | Rights::REMOTE_ATOMIC, 0);
        program.counter = Slot { span, tag: place.tag };
        program
    }

    fn make_supplies(&mut self) {
        let queue = |program: &Self, number, domain, cq| {
            let depth = (program.rules.receive_depth(), 3);
            SharedReceiveQueue::new(number, &program.device, domain, depth, cq)
        };
        match self.rules.receiving {
            Receiving::Own => {
                let supply = |number| Supply::new(number, None, self.domain);
                self.supplies = (0..self.rules.lines).map(supply).collect();
            }
            Receiving::Shared => {
                let domain = if self.rules.foreign { self.other } else { self.domain };
                let queue = queue(self, 1, domain, None);
                self.supplies.push(Supply::new(0, Some(queue), domain));
            }
            Receiving::Named => {
                for number in 1..=QUEUES {
                    let domain = if number == 1 || !self.rules.foreign { self.domain } else { self.other };
                    let cq = self.watches.last().map(|watch| Arc::clone(&watch.cq));
                    let queue = queue(self, number, domain, cq);
                    self.xrc.add(&queue);
                    self.supplies.push(Supply::new(number as usize - 1, Some(queue), domain));
                }
            }
        }
    }

    /// A queue pair for a line: of the same number, however often it was reset.
    pub(super) fn new_qp(&self, line: usize) -> Arc<Qp> {
        let cq = |watch: Option<&Watch>| Arc::clone(&watch.expect("there is one").cq);
        let attributes = Attributes {
            domain: self.domain,
            send_cq: cq(self.watches.first()),
            receive_cq: cq(self.watches.last()),
            send_depth: DEPTH,
            shared_send: None,
            max_sges: 3,
            completes: self.completes,
            registration_failure: if self.rules.reactive {
                RegistrationFailure::Reactive
            } else {
                RegistrationFailure::Anticipatory
            },
            receives: match (&self.rules.receiving, &self.supplies[..]) {
                (Receiving::Shared, [Supply { shared: Some(queue), .. }]) => {
                    Receives::Shared(Arc::clone(queue))
                }
                (Receiving::Named, _) => Receives::Named(Arc::clone(&self.xrc)),
                _ => Receives::Own(self.rules.receive_depth()),
            },
            rights: Rights::REMOTE,
            by_hand: self.rules.by_hand,
        };
        Qp::new(self.qp_number(line), &self.device, attributes)
    }

    pub(super) fn qp_number(&self, line: usize) -> u32 {
        u32::try_from(16 * (self.number + 1) + line).expect("a small number")
    }

    pub(super) fn line_of(&self, qp: u32) -> usize {
        (0..self.lines.len()).find(|line| self.qp_number(*line) == qp).expect("it is one of ours")
    }

    pub(super) fn set_trace(&mut self, trace: &Trace) {
        self.trace = Some(trace.clone());
        self.arena.record();
    }

    pub(super) fn note(&self, what: fmt::Arguments<'_>) {
        if let Some(trace) = &self.trace {
            trace.note(self.number, what);
        }
    }

    // --- Posting ---

    /// Adds a request to a line; returns its number.
    pub(super) fn add(&mut self, line: usize, mut request: Request) -> usize {
        let line = &mut self.lines[line];
        let index = line.requests.len();
        request.posted.id = line.id(index);
        line.requests.push(request);
        line.outcomes.push(None);
        index
    }

    /// Posts some requests. False: there are none, or there is no room, or the end has begun.
    pub(super) fn post_requests(&mut self, rng: &mut Rng, line: usize, peer: &Self) -> bool {
        let this = &self.lines[line];
        let most = this.requests.len().min(this.posted + 4);
        let may = (this.posted..most).take_while(|index| this.may_post(*index, &peer.lines[line])).count();
        if may == 0 || this.fate.reset {
            return false;
        }
        let count = rng.part_of(may);
        let some = this.posted..this.posted + count;
        let list: Vec<_> = this.requests[some.clone()].iter().map(|request| request.posted.clone()).collect();
        for request in &this.requests[some.clone()] {
            let (id, len) = (request.posted.id, request.here.span.len);
            self.note(format_args!("posts {id:x}, {:?}, {len} bytes, {:?}", request.verb, request.crime));
        }
        // What is posted may complete before the call returns.
        self.lines[line].posted += count;
        let (state, taken) = (self.lines[line].qp.state(), self.lines[line].qp.post_send(list));
        let Err(refusal) = taken else {
            if state == State::Error {
                self.lines[line].late.get_or_insert(some.start);
            }
            some.for_each(|index| self.count_variants(line, index));
            return true;
        };
        self.lines[line].posted -= count;
        for index in some {
            self.coverage.refused(self.lines[line].requests[index].verb);
        }
        match refusal {
            PostError::Full { .. } => {}
            PostError::NotConnected if state == State::Init => self.coverage.met(Trait::PostedTooEarly),
            PostError::NotConnected => assert!(self.lines[line].qp.is_closing()),
            PostError::State(found) => {
                assert_eq!(found, state);
                assert!(
                    self.rules.by_hand && matches!(state, State::Reset | State::Init | State::ReadyToReceive)
                );
                self.coverage.met(Trait::PostedTooEarly);
            }
            other => panic!("{other}"),
        }
        false
    }

    fn count_variants(&mut self, line: usize, index: usize) {
        let recognised = self.lines[line].qp.recognised();
        let Request { verb, posted, .. } = &self.lines[line].requests[index];
        let variants = [
            (Trait::ReadV2, *verb == Verb::Read && !posted.data.is_empty() && recognised),
            (Trait::Inline, matches!(&posted.data, Data::Inline(bytes) if !bytes.is_empty())),
            (Trait::ManyElements, matches!(&posted.data, Data::Memory(sges) if sges.as_slice().len() > 1)),
            (Trait::Fence, posted.fence),
            (Trait::Unsignalled, !posted.signaled),
            (Trait::Empty, posted.data.is_empty()),
            (Trait::Masked, is_masked(&posted.operation)),
        ];
        for (variant, _) in variants.into_iter().filter(|(_, is)| *is) {
            self.coverage.met(variant);
        }
    }

    /// Posts a receive. False: no message needs one, or there is no room.
    pub(super) fn post_receive(&mut self, rng: &mut Rng, peer: &Self) -> bool {
        let first = usize::try_from(rng.below(self.supplies.len() as u64)).expect("an index");
        let count = self.supplies.len();
        let mut supplies = (0..count).map(|number| (first + number) % count);
        supplies
            .any(|number| self.supplies[number].ready() < self.needed(number, peer) && self.supply(number))
    }

    fn supply(&mut self, number: usize) -> bool {
        let slot = self.slot_in(self.supplies[number].domain, self.rules.longest, Rights::LOCAL_WRITE);
        let line = number.min(self.lines.len() - 1); // looked at only if the queue is its own
        self.note(format_args!("posts a receive to supply {number}"));
        match self.supplies[number].post(slot, &self.lines[line].qp) {
            Ok(()) => return true,
            Err(PostError::Full { .. }) => {}
            Err(PostError::State(state)) => {
                assert_eq!((state, self.lines[line].qp.state()), (State::Reset, State::Reset));
                self.coverage.met(Trait::PostedTooEarly);
            }
            Err(other) => panic!("{other}"),
        }
        self.coverage.refused(self.rules.receiving.verb());
        false
    }

    /// How many messages are still to come that use a receive of this supply.
    pub(super) fn needed(&self, number: usize, peer: &Self) -> usize {
        let lines = self.lines.iter().zip(&peer.lines).filter(|(line, _)| line.is_well());
        let messages = lines.flat_map(|(line, peer)| {
            let to_come = peer.messages().skip(line.received);
            to_come.filter(|(_, request)| self.supply_of(line.number, request) == Some(number))
        });
        messages.filter(|(_, request)| request.crime != Some(Crime::NoReceive)).count()
    }

    /// Which supply a message that comes on a line is for.
    pub(super) fn supply_of(&self, line: usize, request: &Request) -> Option<usize> {
        match self.rules.receiving {
            Receiving::Own => Some(line),
            Receiving::Shared => Some(0),
            Receiving::Named => {
                Some(request.posted.srq as usize - 1).filter(|number| *number < self.supplies.len())
            }
        }
    }
}

fn is_masked(operation: &Operation) -> bool {
    let Operation::Atomic { op, .. } = operation else { return false };
    match *op {
        AtomicOp::FetchAdd { mask, .. } => mask != 0,
        AtomicOp::CompareSwap { swap_mask, compare_mask, .. } => swap_mask & compare_mask != u64::MAX,
    }
}
