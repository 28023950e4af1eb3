//! Every operation of the matrix. Both processes use this table; a step refers to its row.

use ironwarp::completion::Opcode;

/// Message sizes of the matrix. 64 MiB and 1 GiB have separate tests.
pub(crate) const SIZES: [usize; 8] = [0, 1, 7, 64, 4095, 4096, 65_535, 1 << 20];
pub(crate) const LARGE: usize = 64 << 20;
/// Size of an atomic operation.
pub(crate) const WORD: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Send,
    Write,
    Read,
    FetchAdd,
    /// Two compare-and-swap operations: one that matches, then one that does not.
    CompareSwap,
    /// An unsignaled Write and an unsignaled Read, then a fenced Send of the data that was read.
    Sequence,
}

/// What the passive end exposes to the active end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Region,
    /// Bound by a work request.
    Window,
    /// Registered by a work request.
    FastRegion,
}

/// The source of the passive end's receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receives {
    Own,
    Shared,
    /// The queue that the message addresses.
    Xrc,
}

pub(crate) const RECEIVES: [Receives; 3] = [Receives::Own, Receives::Shared, Receives::Xrc];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) name: &'static str,
    pub(crate) verb: Verb,
    pub(crate) target: Target,
    pub(crate) inline: bool,
    /// Uneven scatter/gather lists at both ends, and several buffers at the passive one.
    pub(crate) list: bool,
    pub(crate) solicited: bool,
    pub(crate) invalidate: bool,
    pub(crate) immediate: bool,
}

const SEND: Op = Op {
    name: "Send",
    verb: Verb::Send,
    target: Target::Region,
    inline: false,
    list: false,
    solicited: false,
    invalidate: false,
    immediate: false,
};
const INVALIDATE: Op = Op { name: "Send with Invalidate", invalidate: true, ..SEND };
const IMMEDIATE: Op = Op { name: "Send with Immediate", immediate: true, ..SEND };
const WRITE: Op = Op { name: "Write", verb: Verb::Write, ..SEND };
const NOTICE: Op = Op { name: "Write with Immediate", immediate: true, ..WRITE };
const READ: Op = Op { name: "Read", verb: Verb::Read, ..SEND };
const FETCH_ADD: Op = Op { name: "FetchAdd", verb: Verb::FetchAdd, ..SEND };
const COMPARE_SWAP: Op = Op { name: "CompareSwap", verb: Verb::CompareSwap, ..SEND };

pub(crate) const OPS: &[Op] = &[
    SEND,
    Op { name: "Send, solicited", solicited: true, ..SEND },
    Op { name: "Send, inline", inline: true, ..SEND },
    Op { name: "Send, lists", list: true, ..SEND },
    INVALIDATE,
    Op { name: "Send with Invalidate, solicited", solicited: true, ..INVALIDATE },
    IMMEDIATE,
    Op { name: "Send with Immediate, solicited", solicited: true, ..IMMEDIATE },
    Op { name: "Send with Immediate and Invalidate", invalidate: true, ..IMMEDIATE },
    Op {
        name: "Send with Immediate and Invalidate, solicited",
        solicited: true,
        invalidate: true,
        ..IMMEDIATE
    },
    Op { name: "Send with Immediate, inline, lists", inline: true, list: true, ..IMMEDIATE },
    WRITE,
    Op { name: "Write, inline", inline: true, ..WRITE },
    Op { name: "Write, lists", list: true, ..WRITE },
    Op { name: "Write through a window", target: Target::Window, ..WRITE },
    Op { name: "Write to a region registered by work request", target: Target::FastRegion, ..WRITE },
    NOTICE,
    Op { name: "Write with Immediate, solicited, lists", solicited: true, list: true, ..NOTICE },
    Op { name: "Write with Immediate through a window", target: Target::Window, ..NOTICE },
    READ,
    Op { name: "Read, lists", list: true, ..READ },
    Op { name: "Read through a window", target: Target::Window, ..READ },
    Op { name: "Read of a region registered by work request", target: Target::FastRegion, ..READ },
    FETCH_ADD,
    Op { name: "FetchAdd through a window", target: Target::Window, ..FETCH_ADD },
    COMPARE_SWAP,
    Op {
        name: "CompareSwap in a region registered by work request",
        target: Target::FastRegion,
        ..COMPARE_SWAP
    },
    Op { name: "Write and Read unsignalled, then a fenced Send", verb: Verb::Sequence, list: true, ..SEND },
];

/// Returns the row of the operation with this name.
pub(crate) fn row(name: &str) -> usize {
    OPS.iter().position(|op| op.name == name).unwrap()
}

impl Op {
    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self.verb, Verb::FetchAdd | Verb::CompareSwap)
    }

    /// Returns those of `sizes` that apply.
    pub(crate) fn sizes<'a>(&self, sizes: &'a [usize]) -> &'a [usize] {
        if self.is_atomic() { &[WORD] } else { sizes }
    }

    /// Whether it consumes a receive of the passive end.
    pub(crate) fn is_message(&self) -> bool {
        matches!(self.verb, Verb::Send | Verb::Sequence) || self.immediate
    }

    /// A Send with Immediate works between Ironwarp ends only (requirement X8); a Write with Immediate is standard.
    pub(crate) fn needs_recognition(&self) -> bool {
        self.verb == Verb::Send && self.immediate
    }

    /// Operations that use no receive need not be run with all sources of receives. A message addresses a tag or a
    /// queue, not both.
    pub(crate) fn goes_with(&self, receives: Receives) -> bool {
        match receives {
            Receives::Own => true,
            Receives::Shared => self.is_message(),
            Receives::Xrc => self.is_message() && !self.invalidate,
        }
    }

    /// Returns the opcode of the last completion.
    pub(crate) fn opcode(&self) -> Opcode {
        match self.verb {
            Verb::Send | Verb::Sequence => Opcode::Send,
            Verb::Write => Opcode::Write,
            Verb::Read => Opcode::Read,
            Verb::FetchAdd => Opcode::FetchAdd,
            Verb::CompareSwap => Opcode::CompareSwap,
        }
    }

    /// Returns the RDMAP opcodes of its messages, in both directions (RFC 5040 figure 4, RFC 7306 figure 1,
    /// docs/wire.md), except empty Reads, because the adapter sends some of its own.
    pub(crate) fn on_the_wire(&self, size: usize) -> Vec<u8> {
        let solicited = u8::from(self.solicited);
        match self.verb {
            Verb::Send if self.immediate => vec![0xf],
            Verb::Send => vec![3 + 2 * solicited + u8::from(self.invalidate)],
            Verb::Write if self.immediate => vec![0, 8 + solicited],
            Verb::Write => vec![0],
            Verb::Read if size == 0 => vec![],
            Verb::Read => vec![1, 2],
            Verb::FetchAdd => vec![0xa, 0xb],
            Verb::CompareSwap => vec![0xa, 0xb, 0xa, 0xb],
            Verb::Sequence if size == 0 => vec![0, 3],
            Verb::Sequence => vec![0, 1, 2, 3],
        }
    }
}
