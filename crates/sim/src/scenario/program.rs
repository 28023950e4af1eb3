//! A program: an adapter with memory, completion queues, receives and queue pairs, and code that posts the planned
//! requests.

use super::connection::Connection;
use super::coverage::{Coverage, Feature};
use super::cq_model::{Awake, CqModel};
use super::defect::Defect;
use super::request::{LOCAL_ACCESS, Request, Slot};
use super::rules::{DEPTH, Rules};
use super::supply::{Receiving, Supply};
use super::verb::Verb;
use crate::arena::Arena;
use crate::clock::Timers;
use crate::tags::tag_cipher;
use crate::trace::Trace;
use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::memory::{Domain, Rights};
use ironwarp_rnic::qp::{Attributes, Completes, Qp, Receives, RegistrationFailure, State};
use ironwarp_rnic::queue::{Cq, Data, Operation, SharedReceiveQueue, SrqSize, XrcDomain};
use ironwarp_wire::AtomicOp;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Number of shared receive queues of an adapter. The first one has number 1.
const QUEUES: u32 = 2;

/// One of the two programs of a run, with a model of what its adapter must do.
pub(super) struct Program {
    /// 0 or 1.
    pub(super) number: usize,
    /// The settings of the run.
    pub(super) rules: Rules,
    pub(super) arena: Arc<Arena>,
    pub(super) device: Arc<Device>,
    pub(super) domain: Domain,
    /// Another protection domain, for shared receive queues and some memory.
    pub(super) other: Domain,
    pub(super) completes: Completes,
    /// The completion queue of sends, and that of receives, or one for both.
    pub(super) cqs: Vec<CqModel>,
    pub(super) timers: Arc<Timers>,
    /// The receive queues.
    pub(super) supplies: Vec<Supply>,
    xrc: Arc<XrcDomain>,
    pub(super) connections: Vec<Connection>,
    /// Memory with a counter, which all connections of the peer increment.
    pub(super) counter: Slot,
    /// The values of the peer's counter that this program's increments returned.
    pub(super) counted: Vec<u64>,
    /// All memory that is registered for a single request or receive.
    pub(super) slots: Vec<Slot>,
    /// Memory that the adapter may read.
    pub(super) readable: Vec<Span>,
    /// Memory that the adapter may write.
    pub(super) writable: Vec<Span>,
    /// Memory that was revoked during the run: unmapped, or deregistered, in which case the contents at that time
    /// follow.
    pub(super) taken: Option<(Slot, Option<Vec<u8>>)>,
    /// Tags that the program had before the run, and that must never be valid again (requirement M4).
    pub(super) old_tags: BTreeSet<u32>,
    pub(super) coverage: Coverage,
    trace: Option<Trace>,
}

impl Program {
    /// Creates a program with its queue pairs, which are not connected yet.
    pub(super) fn new(
        number: usize,
        config: DeviceConfig,
        completes: Completes,
        rules: Rules,
        timers: &Arc<Timers>,
    ) -> Self {
        let arena = Arena::new(u16::try_from(number).expect("a small number"));
        let device = Device::new(config, arena.clone(), tag_cipher(number));
        let (domain, other) = (device.allocate_domain(), device.allocate_domain());
        let cqs = if rules.one_cq { 1 } else { 2 };
        let cqs = (0..cqs).map(|id| CqModel::new(Cq::new(id, rules.room[number]))).collect();
        let mut program = Self {
            number,
            rules,
            arena,
            device,
            domain,
            other,
            completes,
            cqs,
            timers: Arc::clone(timers),
            supplies: Vec::new(),
            xrc: XrcDomain::new(),
            connections: Vec::new(),
            counter: Slot::NOWHERE,
            counted: Vec::new(),
            slots: Vec::new(),
            readable: Vec::new(),
            writable: Vec::new(),
            taken: None,
            old_tags: BTreeSet::new(),
            coverage: Coverage::default(),
            trace: None,
        };
        program.open_events();
        program.use_up_tags();
        program.create_supplies();
        for connection in 0..rules.connections {
            let qp = program.new_qp(connection);
            program.connections.push(Connection::new(connection, qp, 0));
        }
        let (span, addr) = program.open(16, LOCAL_ACCESS | Rights::REMOTE_ATOMIC, 0);
        program.counter = Slot { span, tag: addr.tag };
        program
    }

    /// Opens the queue of asynchronous events.
    pub(super) fn open_events(&self) {
        self.device.events().open(Box::new(Awake));
    }

    /// Sets the XRC domain, for queue pairs that are created later.
    pub(super) fn set_xrc_domain(&mut self, xrc: &Arc<XrcDomain>) {
        self.xrc = Arc::clone(xrc);
    }

    /// Creates the receive queues: one per queue pair, one shared by all, or several in an XRC domain.
    fn create_supplies(&mut self) {
        let queue = |program: &Self, number, domain, cq| {
            let size = SrqSize { depth: program.rules.receive_depth(), max_sges: 3 };
            SharedReceiveQueue::new(number, program.device.events(), domain, size, cq)
        };
        match self.rules.receiving {
            Receiving::Own => {
                let supply = |number| Supply::new(number, None, self.domain);
                self.supplies = (0..self.rules.connections).map(supply).collect();
            }
            Receiving::Shared => {
                let domain = if self.rules.foreign { self.other } else { self.domain };
                let queue = queue(self, 1, domain, None);
                self.supplies.push(Supply::new(0, Some(queue), domain));
            }
            Receiving::Named => {
                for number in 1..=QUEUES {
                    let domain = if number == 1 || !self.rules.foreign { self.domain } else { self.other };
                    let cq = self.cqs.last().map(|model| Arc::clone(&model.cq));
                    let queue = queue(self, number, domain, cq);
                    self.xrc.add(&queue);
                    self.supplies.push(Supply::new(number as usize - 1, Some(queue), domain));
                }
            }
        }
    }

    /// Creates a queue pair for a connection, with the same number after each reset.
    pub(super) fn new_qp(&self, connection: usize) -> Arc<Qp> {
        let cq = |model: Option<&CqModel>| Arc::clone(&model.expect("a completion queue").cq);
        let attributes = Attributes {
            domain: self.domain,
            send_cq: cq(self.cqs.first()),
            receive_cq: cq(self.cqs.last()),
            send_depth: DEPTH,
            shared_send: None,
            max_sges: 3,
            completes: self.completes,
            registration_by_request: true,
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
            manual: self.rules.manual,
        };
        Qp::new(self.qp_number(connection), &self.device, attributes)
    }

    /// Returns the queue pair number of a connection.
    pub(super) fn qp_number(&self, connection: usize) -> u32 {
        u32::try_from(16 * (self.number + 1) + connection).expect("a small number")
    }

    /// Returns the index of the connection with this queue pair number.
    pub(super) fn connection_of(&self, qp: u32) -> usize {
        (0..self.connections.len())
            .find(|connection| self.qp_number(*connection) == qp)
            .expect("a known queue pair")
    }

    /// Sets the trace, and starts to record which memory the adapter accesses.
    pub(super) fn set_trace(&mut self, trace: &Trace) {
        self.trace = Some(trace.clone());
        self.arena.record();
    }

    /// Adds a line to the trace.
    pub(super) fn note(&self, what: fmt::Arguments<'_>) {
        if let Some(trace) = &self.trace {
            trace.note(self.number, what);
        }
    }

    // --- Posting ---

    /// Appends a request to the plan of a connection. Returns its index.
    pub(super) fn add(&mut self, connection: usize, mut request: Request) -> usize {
        let connection = &mut self.connections[connection];
        let index = connection.requests.len();
        request.posted.id = connection.id(index);
        connection.requests.push(request);
        connection.outcomes.push(None);
        index
    }

    /// Posts one to four planned requests of a connection. Returns false if none may be posted now, the queue is full,
    /// or the state of the queue pair does not allow it.
    pub(super) fn post_requests(&mut self, rng: &mut Rng, connection: usize, peer: &Self) -> bool {
        let this = &self.connections[connection];
        let end = this.requests.len().min(this.posted + 4);
        let postable = (this.posted..end)
            .take_while(|index| this.may_post(*index, &peer.connections[connection]))
            .count();
        if postable == 0 || this.fate.reset {
            return false;
        }
        let count = rng.part_of(postable);
        let range = this.posted..this.posted + count;
        let list: Vec<_> =
            this.requests[range.clone()].iter().map(|request| request.posted.clone()).collect();
        for request in &this.requests[range.clone()] {
            let (id, len) = (request.posted.id, request.here.span.len);
            self.note(format_args!("posts {id:x}, {:?}, {len} bytes, {:?}", request.verb, request.defect));
        }
        // Requests may complete before the call returns.
        self.connections[connection].posted += count;
        let (state, taken) =
            (self.connections[connection].qp.state(), self.connections[connection].qp.post_send(list));
        let Err(refusal) = taken else {
            if state == State::Error {
                self.connections[connection].late.get_or_insert(range.start);
            }
            range.for_each(|index| self.count_variants(connection, index));
            return true;
        };
        self.connections[connection].posted -= count;
        for index in range {
            self.coverage.record_refusal(self.connections[connection].requests[index].verb);
        }
        match refusal {
            PostError::Full { .. } => {}
            PostError::NotConnected if state == State::Init => self.coverage.record(Feature::PostedTooEarly),
            PostError::NotConnected => assert!(self.connections[connection].qp.is_closing()),
            PostError::State(found) => {
                assert_eq!(found, state);
                assert!(
                    self.rules.manual && matches!(state, State::Reset | State::Init | State::ReadyToReceive)
                );
                self.coverage.record(Feature::PostedTooEarly);
            }
            other => panic!("{other}"),
        }
        false
    }

    /// Records in the coverage which variants of its verb a posted request uses.
    fn count_variants(&mut self, connection: usize, index: usize) {
        let recognised = self.connections[connection].qp.is_peer_ironwarp();
        let Request { verb, posted, .. } = &self.connections[connection].requests[index];
        let variants = [
            (Feature::ReadV2, *verb == Verb::Read && !posted.data.is_empty() && recognised),
            (Feature::Inline, matches!(&posted.data, Data::Inline(bytes) if !bytes.is_empty())),
            (Feature::ManyElements, matches!(&posted.data, Data::Memory(sges) if sges.as_slice().len() > 1)),
            (Feature::Fence, posted.fence),
            (Feature::Unsignalled, !posted.signaled),
            (Feature::Empty, posted.data.is_empty()),
            (Feature::Masked, is_masked(&posted.operation)),
        ];
        for (variant, _) in variants.into_iter().filter(|(_, is)| *is) {
            self.coverage.record(variant);
        }
    }

    /// Posts a receive to one of the receive queues. Returns false if no message needs another receive, or the queues
    /// that need one are full.
    pub(super) fn post_receive(&mut self, rng: &mut Rng, peer: &Self) -> bool {
        let first = usize::try_from(rng.below(self.supplies.len() as u64)).expect("an index");
        let count = self.supplies.len();
        let mut supplies = (0..count).map(|number| (first + number) % count);
        supplies.any(|number| {
            self.supplies[number].ready() < self.receives_needed(number, peer) && self.post_to_supply(number)
        })
    }

    /// Posts a receive to this receive queue. Returns false if the queue is full, or its queue pair is reset.
    fn post_to_supply(&mut self, number: usize) -> bool {
        let slot = self.slot_in(self.supplies[number].domain, self.rules.max_len, Rights::LOCAL_WRITE);
        let connection = number.min(self.connections.len() - 1); // used only if the queue pair has its own queue
        self.note(format_args!("posts a receive to supply {number}"));
        match self.supplies[number].post(slot, &self.connections[connection].qp) {
            Ok(()) => return true,
            Err(PostError::Full { .. }) => {}
            Err(PostError::State(state)) => {
                assert_eq!((state, self.connections[connection].qp.state()), (State::Reset, State::Reset));
                self.coverage.record(Feature::PostedTooEarly);
            }
            Err(other) => panic!("{other}"),
        }
        self.coverage.record_refusal(self.rules.receiving.verb());
        false
    }

    /// Returns how many messages that have not been received will use a receive of this receive queue.
    pub(super) fn receives_needed(&self, number: usize, peer: &Self) -> usize {
        let connections =
            self.connections.iter().zip(&peer.connections).filter(|(connection, _)| connection.is_well());
        let messages = connections.flat_map(|(connection, peer)| {
            let to_come = peer.messages().skip(connection.received);
            to_come.filter(|(_, request)| self.supply_of(connection.number, request) == Some(number))
        });
        messages.filter(|(_, request)| request.defect != Some(Defect::NoReceive)).count()
    }

    /// Returns the receive queue whose receive a message of the peer uses; `None` if the message names a queue that
    /// does not exist.
    pub(super) fn supply_of(&self, connection: usize, request: &Request) -> Option<usize> {
        match self.rules.receiving {
            Receiving::Own => Some(connection),
            Receiving::Shared => Some(0),
            Receiving::Named => {
                Some(request.posted.srq as usize - 1).filter(|number| *number < self.supplies.len())
            }
        }
    }
}

/// Returns whether an atomic operation has a mask that limits it to some bits or splits the word into fields.
fn is_masked(operation: &Operation) -> bool {
    let Operation::Atomic { op, .. } = operation else { return false };
    match *op {
        AtomicOp::FetchAdd { mask, .. } => mask != 0,
        AtomicOp::CompareSwap { swap_mask, compare_mask, .. } => swap_mask & compare_mask != u64::MAX,
    }
}
