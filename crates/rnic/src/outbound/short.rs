//! A request of one segment, reduced to what its segment needs.

use crate::queue::{Data, InlineData, Operation, Sge, WorkRequest};
use ironwarp_wire::{Place, SendWord};

/// The parts of a work request that are needed to build its segment.
#[derive(Debug)]
pub(crate) struct ShortRequest {
    pub(crate) message: Message,
    pub(crate) data: Payload,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Message {
    Send { solicited: bool, word: SendWord },
    Write(Place),
}

#[derive(Debug)]
pub(crate) enum Payload {
    Nothing,
    Memory(Sge),
    Inline(InlineData),
}

impl ShortRequest {
    /// Returns `None` if the request does not qualify for the fast path.
    pub(crate) fn of(request: &WorkRequest, room: usize) -> Option<Self> {
        if request.fence || request.immediate.is_some() || request.data.len() > room as u64 {
            return None;
        }
        let message = match request.operation {
            Operation::Send { invalidate } => {
                let word = invalidate.map_or(SendWord::Srq(request.srq), SendWord::Invalidate);
                Message::Send { solicited: request.solicited, word }
            }
            Operation::Write(to) => Message::Write(to),
            _ => return None,
        };
        let data = match &request.data {
            data if data.is_empty() => Payload::Nothing,
            Data::Inline(bytes) => Payload::Inline(bytes.clone()),
            Data::Memory(sges) => match sges.as_slice() {
                [one] => Payload::Memory(*one),
                _ => return None,
            },
        };
        Some(Self { message, data })
    }
}
