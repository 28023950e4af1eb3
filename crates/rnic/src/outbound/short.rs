//! Short requests: work requests whose message is one segment, for the fast path in `stream/tx/short.rs`.

use super::UNUSED_ADDR;
use crate::queue::{Data, InlineData, Operation, Sge, WorkRequest};
use ironwarp_wire::{Header, RemoteAddr, Send, SendWord, Tagged};
use std::borrow::Borrow;

/// The parts of a work request that are needed to build its only segment. `I` is its inline data, owned or borrowed.
#[derive(Debug)]
pub(crate) struct ShortRequest<I = InlineData> {
    /// What the segment is.
    pub(crate) message: Message,
    /// The payload of the segment.
    pub(crate) data: Payload<I>,
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
pub(crate) enum Payload<I = InlineData> {
    Nothing,
    /// One scatter/gather element.
    Memory(Sge),
    /// Bytes of the request itself.
    Inline(I),
}

impl<'a> ShortRequest<&'a InlineData> {
    /// Converts a Send or Write with at most `room` bytes in at most one scatter/gather element. `None` if the request
    /// needs something else, such as a fence or immediate data.
    #[inline(always)] // so that the result is not built in memory
    pub(crate) fn of(request: &'a WorkRequest, room: usize) -> Option<Self> {
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
            Data::Inline(bytes) => Payload::Inline(bytes),
            Data::Memory(sges) => match sges.as_slice() {
                [one] if one.len as usize > room => return None,
                [one] if one.len > 0 => Payload::Memory(*one),
                list if list.iter().all(|sge| sge.len == 0) => Payload::Nothing,
                _ => return None,
            },
        };
        Some(Self { message, data })
    }

    /// Copies the inline data, for use after the request was unlocked.
    #[inline]
    pub(crate) fn into_owned(self) -> ShortRequest {
        let data = match self.data {
            Payload::Nothing => Payload::Nothing,
            Payload::Memory(sge) => Payload::Memory(sge),
            Payload::Inline(bytes) => Payload::Inline(bytes.clone()),
        };
        ShortRequest { message: self.message, data }
    }
}

impl<I: Borrow<InlineData>> ShortRequest<I> {
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

impl<I: Borrow<InlineData>> Payload<I> {
    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Memory(sge) => sge.len as usize,
            Self::Inline(bytes) => bytes.borrow().len(),
        }
    }
}
