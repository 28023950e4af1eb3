//! Short requests: work requests whose message is one segment, for the fast path in `stream/tx/short.rs`.

use super::UNUSED_ADDR;
use crate::queue::{Data, InlineData, Operation, Sge, WorkRequest};
use ironwarp_wire::{Header, RemoteAddr, Send, SendWord, Tagged};

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
    #[inline]
    pub(crate) fn of(request: &WorkRequest, room: usize) -> Option<Self> {
        if request.fence || request.immediate.is_some() {
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
            Data::Inline(bytes) if bytes.len() > room => return None,
            Data::Inline(bytes) if bytes.is_empty() => Payload::Nothing,
            Data::Inline(bytes) => Payload::Inline(bytes.clone()),
            Data::Memory(sges) => match sges.as_slice() {
                [one] if one.len as usize > room => return None,
                [one] if one.len > 0 => Payload::Memory(*one),
                list if list.iter().all(|sge| sge.len == 0) => Payload::Nothing,
                _ => return None,
            },
        };
        Some(Self { message, data })
    }

    /// Returns the header of the segment. A Send has the message sequence number `msn`.
    pub(crate) fn header(&self, msn: u32) -> Header {
        match self.message {
            Message::Send { solicited, word } => {
                Header::Send(Send { msn, last: true, offset: 0, solicited, word })
            }
            // An empty Write carries no address: see `add_request_segment`.
            Message::Write(addr) => {
                let addr = if self.data.len() == 0 { UNUSED_ADDR } else { addr };
                Header::Write(Tagged { last: true, addr })
            }
        }
    }

    /// Number of message sequence numbers that the request uses: a Write has none.
    pub(crate) fn msns(&self) -> u32 {
        u32::from(matches!(self.message, Message::Send { .. }))
    }
}

impl Payload {
    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Memory(sge) => sge.len as usize,
            Self::Inline(bytes) => bytes.len(),
        }
    }
}
