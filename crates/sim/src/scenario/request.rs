//! The planned requests of a program, with all that is needed to check their results.

use super::defect::Defect;
use super::verb::Verb;
use crate::arena::Arena;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::memory::{Domain, Memory, Rights};
use ironwarp_rnic::queue::{Data, Operation, Sge, Sges, WorkRequest};
use ironwarp_wire::{AtomicOp, RemoteAddr, Tag};

/// Rights that let a program's own requests read and write memory.
pub(super) const LOCAL_ACCESS: Rights = Rights::LOCAL_READ.union(Rights::LOCAL_WRITE);

/// Registered memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) span: Span,
    pub(super) tag: Tag,
}

/// A planned request, and how to check its result.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) verb: Verb,
    pub(super) effect: Effect,
    /// The seed of the pattern of its payload.
    pub(super) pattern: u64,
    /// The local buffer.
    pub(super) here: Slot,
    /// The tag of the remote memory, if no other request of the connection uses that memory.
    pub(super) named: Option<Tag>,
    /// What must happen before the request may be posted.
    pub(super) after: After,
    /// Why the request must fail; `None` if it must succeed.
    pub(super) defect: Option<Defect>,
    /// Whether the remote memory is one-touch: it serves only this request (requirement M10).
    pub(super) once: bool,
    /// If the request is planned to be refused, the operation with which the program retries it.
    pub(super) retry: Option<Operation>,
    /// The work request to be posted.
    pub(super) posted: WorkRequest,
}

/// The effect of a request on memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effect {
    /// No effect on memory that is known in advance. A Send goes to a receive that the peer chooses.
    None,
    /// Writes to this remote memory.
    Write { to: Span },
    /// Reads remote memory into the local buffer.
    Read,
    /// Changes the word of the connection, which has the value `before` then.
    Atomic { before: u64 },
    /// Increments the counter that all connections share.
    Count,
}

/// What must happen before a request may be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Nothing,
    /// The request of the peer with this index must have succeeded.
    PeerSucceeded(usize),
    /// This many messages of the peer must have been received.
    Received(usize),
}

impl Slot {
    /// Memory of length zero.
    pub(super) const NOWHERE: Self = Self { span: Span::new(0, 0), tag: Tag(0) };

    /// Allocates memory and registers it in a domain.
    pub(super) fn new(arena: &Arena, device: &Device, domain: Domain, len: usize, rights: Rights) -> Self {
        let span = arena.alloc(len);
        if len == 0 {
            return Self { span, tag: Tag(0) }; // memory of length zero cannot be registered
        }
        Self { span, tag: device.register(domain, memory(span, rights)).expect("mapped memory") }
    }

    /// Returns the remote address of the first byte.
    pub(super) fn remote_addr(&self) -> RemoteAddr {
        RemoteAddr { tag: self.tag, offset: self.span.addr }
    }

    /// Returns up to three scatter/gather elements, of random lengths, that cover the memory.
    pub(super) fn sges(&self, rng: &mut Rng) -> Sges {
        let mut list = Vec::new();
        let mut done = 0;
        while done < self.span.len {
            let rest = self.span.len - done;
            let len = if list.len() == 2 || rng.below(2) == 0 { rest } else { rng.part_of(rest) };
            let addr = self.span.addr + done as u64;
            list.push(Sge { tag: self.tag, addr, len: u32::try_from(len).expect("a short length") });
            done += len;
        }
        list.as_slice().into()
    }
}

/// Returns the parameters with which the device registers memory.
pub(super) fn memory(span: Span, rights: Rights) -> Memory {
    Memory::direct(span.addr, span.len as u64, rights).expect("no wrap")
}

/// Returns a random length: zero, within a segment, or long enough to be placed directly.
pub(super) fn random_len(rng: &mut Rng, max_len: usize) -> usize {
    match rng.below(8) {
        0 => 0,
        1..=5 => rng.part_of(max_len.min(6000)),
        _ => rng.part_of(max_len),
    }
}

/// Returns a work request for an operation with the local buffer `here` and random options.
pub(super) fn work_request(rng: &mut Rng, arena: &Arena, operation: Operation, here: &Slot) -> WorkRequest {
    let has_response = matches!(operation, Operation::Read(_) | Operation::Atomic { .. });
    let inline = !has_response && here.span.len < 500 && rng.below(2) == 0;
    let data = if inline { Data::Inline(arena.read(here.span).into()) } else { Data::Memory(here.sges(rng)) };
    let [signaled, solicited] = [(); 2].map(|()| rng.below(2) == 0);
    let fence = rng.below(8) == 0;
    WorkRequest { signaled, fence, solicited, ..WorkRequest::new(0, operation, data) }
}

/// Returns a random atomic operation that is likely to change `word`, and the value of the word after it.
pub(super) fn random_atomic(rng: &mut Rng, verb: Verb, word: u64) -> (AtomicOp, u64) {
    let masked = rng.below(2) == 0;
    let mut mask = || if masked { rng.next() } else { u64::MAX };
    if verb == Verb::CompareSwap {
        let (swap_mask, compare_mask) = (mask(), mask());
        // One in three compares with a different value.
        let (swap, compare) = (rng.next(), if rng.below(3) == 0 { rng.next() } else { word });
        let equal = word & compare_mask == compare & compare_mask;
        let after = if equal { word & !swap_mask | swap & swap_mask } else { word };
        return (AtomicOp::CompareSwap { swap, swap_mask, compare, compare_mask }, after);
    }
    let mask = if masked { rng.next() & rng.next() & rng.next() } else { 0 };
    let add = rng.next();
    (AtomicOp::FetchAdd { add, mask }, add_by_fields(word, add, mask))
}

/// Returns the sum of `word` and `add`, computed bit by bit (RFC 7306 §5.2.1). The mask has the top bit of each field,
/// from which no carry propagates.
fn add_by_fields(word: u64, add: u64, mask: u64) -> u64 {
    let (mut sum, mut carry) = (0, 0);
    for bit in 0..u64::BITS {
        let ones = (word >> bit & 1) + (add >> bit & 1) + carry;
        sum |= (ones & 1) << bit;
        carry = if mask >> bit & 1 == 1 { 0 } else { ones >> 1 };
    }
    sum
}
