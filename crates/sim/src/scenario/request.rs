//! What the programs ask of their adapters, made up at random before the run.

use super::crime::Crime;
use crate::arena::Arena;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::memory::{Domain, Memory, Rights};
use ironwarp_rnic::queue::{Data, Opcode, Operation, Sge, Sges, WorkRequest};
use ironwarp_wire::{AtomicOp, Place, Tag};

/// What a program may post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Send,
    SendInvalidate,
    SendImmediate,
    Write,
    WriteImmediate,
    Read,
    FetchAdd,
    CompareSwap,
    Bind,
    Register,
    Invalidate,
    Receive,
    ReceiveShared,
    ReceiveNamed,
}

impl Verb {
    pub(super) const ALL: [Self; 14] = [
        Self::Send,
        Self::SendInvalidate,
        Self::SendImmediate,
        Self::Write,
        Self::WriteImmediate,
        Self::Read,
        Self::FetchAdd,
        Self::CompareSwap,
        Self::Bind,
        Self::Register,
        Self::Invalidate,
        Self::Receive,
        Self::ReceiveShared,
        Self::ReceiveNamed,
    ];

    /// It uses up a receive of the peer's.
    pub(super) const fn uses_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendInvalidate | Self::SendImmediate | Self::WriteImmediate)
    }

    /// The peer answers it.
    pub(super) const fn asks(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd | Self::CompareSwap)
    }

    /// What its completion says.
    pub(super) const fn opcode(self) -> Opcode {
        match self {
            Self::Send | Self::SendInvalidate | Self::SendImmediate => Opcode::Send,
            Self::Write | Self::WriteImmediate => Opcode::Write,
            Self::Read => Opcode::Read,
            Self::FetchAdd => Opcode::FetchAdd,
            Self::CompareSwap => Opcode::CompareSwap,
            Self::Bind => Opcode::Bind,
            Self::Register => Opcode::Register,
            Self::Invalidate => Opcode::Invalidate,
            Self::Receive | Self::ReceiveShared | Self::ReceiveNamed => Opcode::Receive,
        }
    }
}

/// Registered memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) span: Span,
    pub(super) tag: Tag,
}

/// A request, and how to know whether it was done.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) verb: Verb,
    pub(super) effect: Effect,
    /// Which pattern its bytes have.
    pub(super) pattern: u64,
    /// What is sent from here, or comes back to here.
    pub(super) here: Slot,
    /// The tag of the peer's that it names; no other request of the line does, unless the memory is shared.
    pub(super) named: Option<Tag>,
    pub(super) after: After,
    pub(super) crime: Option<Crime>,
    /// The memory of the peer's serves this request, and is closed then (requirement M10).
    pub(super) once: bool,
    /// It is refused at first, and the program tries again with this.
    pub(super) retry: Option<Operation>,
    pub(super) posted: WorkRequest,
}

/// What it does with memory of the peer's.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effect {
    /// Nothing that can be said before it is known which receive it gets.
    None,
    Write {
        to: Span,
    },
    Read,
    /// The word that only this line changes held this before.
    Atomic {
        before: u64,
    },
    /// One more on the counter that all lines share.
    Count,
}

/// When it may be posted, besides in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Nothing,
    /// The peer's request of this number succeeded.
    PeerDid(usize),
    /// So many messages came from the peer.
    Got(usize),
}

impl Slot {
    pub(super) const NOWHERE: Self = Self { span: Span { addr: 0, len: 0 }, tag: Tag(0) };

    pub(super) fn new(arena: &Arena, device: &Device, domain: Domain, len: usize, rights: Rights) -> Self {
        let span = arena.alloc(len);
        if len == 0 {
            return Self { span, tag: Tag(0) }; // nobody may look at it
        }
        Self { span, tag: device.register(domain, memory(span, rights)).expect("it is mapped") }
    }

    pub(super) fn place(&self) -> Place {
        Place { tag: self.tag, offset: self.span.addr }
    }

    /// All of it, in up to three elements.
    pub(super) fn sges(&self, rng: &mut Rng) -> Sges {
        let mut list = Vec::new();
        let mut done = 0;
        while done < self.span.len {
            let rest = self.span.len - done;
            let len = if list.len() == 2 || rng.below(2) == 0 { rest } else { rng.part_of(rest) };
            let addr = self.span.addr + done as u64;
            list.push(Sge { tag: self.tag, addr, len: u32::try_from(len).expect("it is short") });
            done += len;
        }
        list.as_slice().into()
    }
}

pub(super) fn memory(span: Span, rights: Rights) -> Memory {
    Memory::direct(span.addr, span.len as u64, rights).expect("it does not wrap")
}

/// Lengths of all magnitudes: none, what fits a segment, what is placed directly.
pub(super) fn some_len(rng: &mut Rng, longest: usize) -> usize {
    match rng.below(8) {
        0 => 0,
        1..=5 => rng.part_of(longest.min(6000)),
        _ => rng.part_of(longest),
    }
}

/// The request that is posted for an operation with the bytes at `here`.
pub(super) fn work_request(rng: &mut Rng, arena: &Arena, operation: Operation, here: &Slot) -> WorkRequest {
    let comes_back = matches!(operation, Operation::Read(_) | Operation::Atomic { .. });
    let inline = !comes_back && here.span.len < 500 && rng.below(2) == 0;
    let data = if inline { Data::Inline(arena.read(here.span).into()) } else { Data::Memory(here.sges(rng)) };
    let [signaled, solicited] = [(); 2].map(|()| rng.below(2) == 0);
    let fence = rng.below(8) == 0;
    WorkRequest { signaled, fence, solicited, ..WorkRequest::new(0, operation, data) }
}

/// An atomic operation that is likely to change a word which holds `word`, and what it makes of it.
pub(super) fn some_atomic(rng: &mut Rng, verb: Verb, word: u64) -> (AtomicOp, u64) {
    let masked = rng.below(2) == 0;
    let mut mask = || if masked { rng.next() } else { u64::MAX };
    if verb == Verb::CompareSwap {
        let (swap_mask, compare_mask) = (mask(), mask());
        // Every third one compares with something else.
        let (swap, compare) = (rng.next(), if rng.below(3) == 0 { rng.next() } else { word });
        let equal = word & compare_mask == compare & compare_mask;
        let after = if equal { word & !swap_mask | swap & swap_mask } else { word };
        return (AtomicOp::CompareSwap { swap, swap_mask, compare, compare_mask }, after);
    }
    let mask = if masked { rng.next() & rng.next() & rng.next() } else { 0 };
    let add = rng.next();
    (AtomicOp::FetchAdd { add, mask }, add_by_fields(word, add, mask))
}

/// RFC 7306 §5.2.1 bit by bit: no carry leaves a field, whose top bit is marked.
fn add_by_fields(word: u64, add: u64, mask: u64) -> u64 {
    let (mut sum, mut carry) = (0, 0);
    for bit in 0..u64::BITS {
        let ones = (word >> bit & 1) + (add >> bit & 1) + carry;
        sum |= (ones & 1) << bit;
        carry = if mask >> bit & 1 == 1 { 0 } else { ones >> 1 };
    }
    sum
}
