//! Short requests: work requests whose message is one segment, for the fast path in `stream/tx/short.rs`.

use crate::queue::{Data, InlineData, Operation, Sge, WorkRequest};
use ironwarp_wire::{RemoteAddr, SendWord};

/// The parts of a work request that are needed to build its only segment.
#[derive(Debug)]
pub(crate) struct ShortRequest {
    /// What the segment is.
    pub(crate) message: Message,
    /// The payload of the segment.
    pub(crate) data: Payload,
}

/// The message of a short request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Message {
    /// A Send, with the tag to invalidate or the number of the shared receive queue.
    Send { solicited: bool, word: SendWord },
    /// A Write to this address.
    Write(RemoteAddr),
}

/// The payload of a short request.
#[derive(Debug)]
pub(crate) enum Payload {
    Nothing,
    /// One scatter/gather element.
    Memory(Sge),
    /// Bytes of the request itself.
    Inline(InlineData),
}

impl ShortRequest {
    /// Converts a Send or Write with at most `room` bytes in at most one scatter/gather element. `None` if the request
    /// needs something else, such as a fence or immediate data.
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
