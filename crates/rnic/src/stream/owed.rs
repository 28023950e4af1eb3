//! What the rx half owes the peer and the tx half pays: answers, acknowledgements, the last word.

use crate::connect::{Agreed, Role, Rtr};
use crate::memory::Touch;
use crate::stream::NOWHERE;
use ironwarp_wire::private::{Capabilities, ReadV2Request, Signal};
use ironwarp_wire::{AtomicRequest, Header, ReadRequest, Tagged, Terminate};
use std::collections::VecDeque;

/// A Write of nothing to nowhere.
const EMPTY_WRITE: Header = Header::Write(Tagged { last: true, place: NOWHERE });

/// Shared by the two halves of a stream, under a lock that is held for a few instructions.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    /// This end may send. A responder must have received a message first (RFC 5044 §7.1.2).
    pub(crate) open: bool,
    /// This end may send all the same: a responder that waited long enough.
    pub(crate) unasked: bool,
    /// The stream is to be opened by an empty Read: the peer takes nothing else for an RTR (RFC 6581 §9.2).
    pub(crate) read_rtr: bool,
    /// The first message: the signal of what this end understands, or an empty Write where an RTR is due.
    pub(crate) opening: Option<Opening>,
    /// The peer has sent something.
    pub(crate) heard: bool,
    /// The first message is to be sent once more.
    pub(crate) nudge: bool,
    /// What the peer understands, since its signal came.
    pub(crate) peer: Option<Capabilities>,
    /// It has spoken, and not as one of our kind does.
    pub(crate) stranger: bool,
    /// Read and Atomic Requests to be answered, in order (requirement M11). The first may be half answered.
    pub(crate) answers: VecDeque<Answer>,
    /// How many of the peer's Reads count against its limit. The end of an answer counts as sent before it is: the next
    /// request may be here before that call returns.
    pub(crate) held: usize,
    /// So many messages of the request class were delivered.
    pub(crate) delivered: u64,
    /// The message behind so many waits for a receive.
    pub(crate) not_ready: Option<u64>,
    /// So many of them the peer was told of, or is about to be.
    pub(crate) told: u64,
    /// Somebody knows that an acknowledgement is due, and will ask for it before going idle.
    pub(crate) noted: bool,
    /// The acknowledgement shall not wait for company any longer.
    pub(crate) flush: bool,
    /// The last message of the stream. Few streams have one, and all would have the room for it.
    pub(crate) terminate: Option<Box<Terminate>>,
    /// When all is sent, say so and send nothing more.
    pub(crate) finish: bool,
}

/// What a stream begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    Signal(Capabilities),
    EmptyWrite,
}

impl Opening {
    pub(crate) fn header(self) -> Header {
        match self {
            Self::Signal(capabilities) => Signal::Capabilities(capabilities).header(),
            Self::EmptyWrite => EMPTY_WRITE,
        }
    }
}

/// An answer to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) to: Question,
    /// What the question has touched since it came, until this is out.
    pub(crate) touch: Touch,
}

/// What the peer asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Question {
    Read(ReadRequest),
    ReadV2(ReadV2Request),
    Atomic(AtomicRequest),
    /// An atomic operation that was done, and what the word was before.
    Served {
        id: u32,
        original: u64,
    },
}

/// What is owed at one moment, for a train: what comes later is for the next one, which whoever owes it sees to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct View {
    pub(crate) open: bool,
    pub(crate) read_rtr: bool,
    pub(crate) opening: bool,
    pub(crate) nudge: bool,
    pub(crate) answers: usize,
    pub(crate) large: bool,
    /// Whether the peer understands a Send with Immediate, once that is known.
    pub(crate) immediate: Option<bool>,
    /// Whether it understands Read V2.
    pub(crate) read_v2: bool,
    pub(crate) not_ready: Option<u64>,
    /// The count that the peer wants to be told.
    pub(crate) delivered: Option<u64>,
    pub(crate) flush: bool,
    pub(crate) finish: bool,
}

impl Owed {
    pub(crate) fn view(&self) -> View {
        let acknowledges = self.acknowledges();
        View {
            open: self.open || self.unasked,
            read_rtr: self.read_rtr,
            opening: self.opening.is_some(),
            nudge: self.nudge,
            answers: self.answers.len(),
            large: self.takes_large_fpdus(),
            immediate: self.takes_immediate(),
            read_v2: self.takes_read_v2(),
            not_ready: self.not_ready.filter(|_| acknowledges),
            delivered: acknowledges.then_some(self.delivered),
            flush: self.flush,
            finish: self.finish,
        }
    }

    /// At the beginning of a stream. A responder answers a signal, and never begins with one: its peer may be a stranger.
    pub(crate) fn new(agreed: &Agreed, signal: Option<Capabilities>) -> Self {
        let mut owed = Self { stranger: signal.is_none(), ..Self::default() };
        if let Role::Initiator { rtr } = agreed.role {
            owed.open = true;
            owed.read_rtr = rtr == Some(Rtr::Read);
            owed.opening = match (signal, rtr) {
                (Some(capabilities), _) => Some(Opening::Signal(capabilities)),
                (None, Some(Rtr::Write)) => Some(Opening::EmptyWrite),
                (None, _) => None,
            };
        }
        owed
    }

    /// Whether the peer may have missed what this end began with.
    pub(crate) fn is_unheard(&self) -> bool {
        self.open && !self.heard
    }

    /// What makes the peer look, and means nothing the second time: to others of our kind the signal, to strangers an empty
    /// Write.
    pub(crate) fn take_nudge(&mut self) -> Option<Header> {
        std::mem::take(&mut self.nudge).then(|| self.opening.unwrap_or(Opening::EmptyWrite).header())
    }

    /// Whether the peer wants to be told what was delivered.
    pub(crate) fn acknowledges(&self) -> bool {
        self.peer.is_some_and(|peer| peer.contains(Capabilities::WANTS_ACKNOWLEDGE))
    }

    /// How many messages were delivered, for a peer that understands the count.
    pub(crate) fn counted(&self) -> Option<u64> {
        self.is_acknowledged().then_some(self.delivered)
    }

    /// Whether the peer waits to be told.
    pub(crate) fn owes_acknowledgement(&self) -> bool {
        self.acknowledges() && self.delivered > self.told
    }

    /// Whether the peer tells what it delivered.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.peer.is_some_and(|peer| peer.contains(Capabilities::ACKNOWLEDGE))
    }

    /// Whether a Send may carry immediate data (requirement X8), once the peer has shown what it is.
    fn takes_immediate(&self) -> Option<bool> {
        match self.peer {
            Some(peer) => Some(peer.contains(Capabilities::SEND_IMMEDIATE)),
            None => self.stranger.then_some(false),
        }
    }

    /// Whether a Read may leave without its sink (requirement X4). One that leaves before the peer has shown what it is does not.
    fn takes_read_v2(&self) -> bool {
        self.peer.is_some_and(|peer| peer.contains(Capabilities::READ_V2))
    }

    /// Whether FPDUs may be larger than the segments of the path.
    pub(crate) fn takes_large_fpdus(&self) -> bool {
        self.peer.is_some_and(|peer| peer.contains(Capabilities::LARGE_FPDU))
    }
}
