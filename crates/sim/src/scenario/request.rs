//! What the programs ask of their adapters, made up at random before the run.

use crate::arena::Arena;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::host::Span;
use ironwarp_rnic::memory::{Domain, Memory, Rights};
use ironwarp_rnic::queue::{Data, Operation, Sge, Sges, WorkRequest};
use ironwarp_wire::{Place, Tag};

/// No message is longer.
pub(super) const LONGEST: usize = 100_000;

/// Registered memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) span: Span,
    pub(super) tag: Tag,
}

/// A request, and how to know whether it was done.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) kind: Kind,
    /// Which pattern its bytes have.
    pub(super) pattern: u64,
    /// What is sent from here, or read to here.
    pub(super) here: Slot,
    pub(super) posted: WorkRequest,
}

/// What it does with memory of the peer's.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Send,
    Write { to: Span },
    Read { from: Span },
}

impl Kind {
    /// In a trace.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Send => "Send",
            Self::Write { .. } => "Write",
            Self::Read { .. } => "Read",
        }
    }
}

impl Slot {
    /// Memory that peers reach is for one message, as one is all that it gets, if `once` says so.
    pub(super) fn new(
        arena: &Arena,
        device: &Device,
        domain: Domain,
        len: usize,
        rights: Rights,
        once: bool,
    ) -> Self {
        let span = arena.alloc(len);
        if len == 0 {
            return Self { span, tag: Tag(0) }; // nobody may look at it
        }
        let memory = Memory::direct(span.addr, len as u64, rights).expect("it does not wrap");
        let memory = Memory { one_touch: once && rights.intersects(Rights::REMOTE), ..memory };
        Self { span, tag: device.register(domain, memory).expect("it is mapped") }
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

/// Lengths of all magnitudes: none, what fits a segment, what is placed directly.
pub(super) fn some_len(rng: &mut Rng) -> usize {
    match rng.below(8) {
        0 => 0,
        1..=5 => rng.part_of(6000),
        _ => rng.part_of(LONGEST),
    }
}

pub(super) fn work_request(
    rng: &mut Rng,
    arena: &Arena,
    id: u64,
    operation: Operation,
    here: &Slot,
) -> WorkRequest {
    let reads = matches!(operation, Operation::Read(_));
    let inline = !reads && here.span.len < 500 && rng.below(2) == 0;
    let data = if inline { Data::Inline(arena.read(here.span).into()) } else { Data::Memory(here.sges(rng)) };
    let (signaled, fence, solicited) = (rng.below(2) == 0, rng.below(8) == 0, id.is_multiple_of(2));
    WorkRequest { signaled, fence, solicited, ..WorkRequest::new(id, operation, data) }
}
