//! The requests of the programs, which are chosen at random before the run.

use super::defect::Defect;
use super::verb::Verb;
use crate::arena::Arena;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::memory::{Domain, Memory, Rights};
use ironwarp_rnic::queue::{Data, Operation, Sge, Sges, WorkRequest};
use ironwarp_wire::{AtomicOp, Place, Tag};

/// Access rights of the program itself.
pub(super) const LOCAL_ACCESS: Rights = Rights::LOCAL_READ.union(Rights::LOCAL_WRITE);

/// Registered memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) span: Span,
    pub(super) tag: Tag,
}

/// A request, and how to verify it.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) verb: Verb,
    pub(super) effect: Effect,
    /// The pattern of its payload.
    pub(super) pattern: u64,
    /// The local buffer.
    pub(super) here: Slot,
    /// The remote tag. No other request of the connection uses it, unless the memory is shared.
    pub(super) named: Option<Tag>,
    pub(super) after: After,
    pub(super) defect: Option<Defect>,
    /// The remote memory is one-touch: it serves only this request (requirement M10).
    pub(super) once: bool,
    /// It is refused first, and the program retries with this operation.
    pub(super) retry: Option<Operation>,
    pub(super) posted: WorkRequest,
}

/// Its effect on remote memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effect {
    /// Unknown until it is known which receive it gets.
    None,
    Write {
        to: Span,
    },
    Read,
    /// Changes the word of this connection, which had this value before.
    Atomic {
        before: u64,
    },
    /// Increments the counter that all connections share.
    Count,
}

/// What must happen before it may be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Nothing,
    /// This request of the peer has succeeded.
    PeerDid(usize),
    /// This many messages have arrived from the peer.
    Got(usize),
}

impl Slot {
    pub(super) const NOWHERE: Self = Self { span: Span { addr: 0, len: 0 }, tag: Tag(0) };

    pub(super) fn new(arena: &Arena, device: &Device, domain: Domain, len: usize, rights: Rights) -> Self {
        let span = arena.alloc(len);
        if len == 0 {
            return Self { span, tag: Tag(0) }; // must not be accessed
        }
        Self { span, tag: device.register(domain, memory(span, rights)).expect("mapped memory") }
    }

    pub(super) fn place(&self) -> Place {
        Place { tag: self.tag, offset: self.span.addr }
    }

    /// Returns up to three elements that cover it.
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

pub(super) fn memory(span: Span, rights: Rights) -> Memory {
    Memory::direct(span.addr, span.len as u64, rights).expect("no wrap")
}

/// Returns a random length: zero, within a segment, or long enough to be placed directly.
pub(super) fn some_len(rng: &mut Rng, longest: usize) -> usize {
    match rng.below(8) {
        0 => 0,
        1..=5 => rng.part_of(longest.min(6000)),
        _ => rng.part_of(longest),
    }
}

/// Returns the work request for an operation with the buffer `here`.
pub(super) fn work_request(rng: &mut Rng, arena: &Arena, operation: Operation, here: &Slot) -> WorkRequest {
    let comes_back = matches!(operation, Operation::Read(_) | Operation::Atomic { .. });
    let inline = !comes_back && here.span.len < 500 && rng.below(2) == 0;
    let data = if inline { Data::Inline(arena.read(here.span).into()) } else { Data::Memory(here.sges(rng)) };
    let [signaled, solicited] = [(); 2].map(|()| rng.below(2) == 0);
    let fence = rng.below(8) == 0;
    WorkRequest { signaled, fence, solicited, ..WorkRequest::new(0, operation, data) }
}

/// Returns an atomic operation that is likely to change `word`, and its result.
pub(super) fn some_atomic(rng: &mut Rng, verb: Verb, word: u64) -> (AtomicOp, u64) {
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

/// Adds bit by bit (RFC 7306 §5.2.1): no carry propagates from the top bit of a field.
fn add_by_fields(word: u64, add: u64, mask: u64) -> u64 {
    let (mut sum, mut carry) = (0, 0);
    for bit in 0..u64::BITS {
        let ones = (word >> bit & 1) + (add >> bit & 1) + carry;
        sum |= (ones & 1) << bit;
        carry = if mask >> bit & 1 == 1 { 0 } else { ones >> 1 };
    }
    sum
}
