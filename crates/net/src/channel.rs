//! A channel of a session: a queue pair, its completion queue, and its posted receives.

use ironwarp::Adapter;
use ironwarp::completion::{Arm, Completion, CompletionHandler, CompletionQueue};
use ironwarp::memory::{Access, Buffer, MemoryRegion, RemoteAddr};
use ironwarp::prelude::ProtectionDomain;
use ironwarp::queue::{Completes, PostError, QueuePair, WorkRequest};
use ironwarp_io_unit::message::{MAX_INLINE_FRAME, MAX_MESSAGE, SEND_DATA_HEADER};
use std::error::Error;
use std::time::Duration;

pub(crate) type Failure = Box<dyn Error>;

/// Requests that the send queue of a data channel holds.
pub(crate) const SEND_QUEUE: usize = 256;
/// Requests that the send queue of a control channel holds: more than a session ever has outstanding.
const CONTROL_QUEUE: usize = 80;
/// Posted receives of a control channel.
const CONTROL_RECEIVES: usize = 32;
/// Posted receives of a data channel. Each frame uses one.
const DATA_RECEIVES: usize = 256;
/// Length of the receives of a data channel, except the first.
const DATA_RECEIVE: usize = SEND_DATA_HEADER + MAX_INLINE_FRAME;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Control,
    Data,
}

/// Private data of a connection: which channel it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hello {
    Control,
    /// Tells the unit in which protection domain the queue pair has to be. Only the Join proves that it may.
    Data {
        session: u64,
    },
}

impl Hello {
    pub(crate) fn encode(self) -> Vec<u8> {
        match self {
            Self::Control => vec![0],
            Self::Data { session } => [&[1], &session.to_be_bytes()[..]].concat(),
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0] => Some(Self::Control),
            [1, session @ ..] => Some(Self::Data { session: u64::from_be_bytes(session.try_into().ok()?) }),
            _ => None,
        }
    }
}

/// The adapter, and the handler that is told of the completions of all channels.
#[derive(Debug)]
pub(crate) struct Io {
    pub(crate) adapter: Adapter,
    pub(crate) handler: CompletionHandler,
}

impl Io {
    pub(crate) fn open() -> Result<Self, Failure> {
        let adapter = Adapter::new()?;
        let handler = adapter.completion_handler()?;
        Ok(Self { adapter, handler })
    }
}

/// The queue pair comes first: it is dropped, and its connection closed, before the memory that it uses.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) qp: QueuePair,
    pub(crate) cq: CompletionQueue,
    receives: MemoryRegion,
    kind: Kind,
}

impl Channel {
    /// Creates a channel that is not connected, with all of its receives. Its peer may not access memory yet.
    pub(crate) fn new(io: &Io, domain: &ProtectionDomain, kind: Kind) -> Result<Self, Failure> {
        let (sends, receives, memory) = match kind {
            Kind::Control => (CONTROL_QUEUE, CONTROL_RECEIVES, CONTROL_RECEIVES * MAX_MESSAGE),
            Kind::Data => (SEND_QUEUE, DATA_RECEIVES, MAX_MESSAGE + (DATA_RECEIVES - 1) * DATA_RECEIVE),
        };
        let cq = io.adapter.completion_queue_builder(sends + receives).handler(&io.handler).create()?;
        let qp = domain
            .queue_pair(&cq)
            .send_depth(sends)
            .receive_depth(receives)
            .completes(Completes::WhenAcknowledged)
            .access(Access::empty())
            .create()?;
        let region = domain.register(Buffer::new(memory)?, Access::LOCAL_WRITE)?;
        let channel = Self { qp, cq, receives: region, kind };
        for id in 0..receives as u64 {
            channel.post_receive(id)?;
        }
        Ok(channel)
    }

    /// Lets the peer write to memory in the protection domain of the channel.
    pub(crate) fn allow_writes(&self) {
        self.qp.set_access(Access::REMOTE_WRITE);
    }

    /// Posts a receive, again after it was used.
    pub(crate) fn post_receive(&self, id: u64) -> Result<(), Failure> {
        let (at, len) = self.place(id);
        Ok(self.qp.post_receive(id, &[self.receives.slice(at..at + len)?])?)
    }

    /// Returns the bytes that a receive has got.
    pub(crate) fn received(&self, completion: &Completion) -> Result<Vec<u8>, Failure> {
        let (at, len) = self.place(completion.wr_id);
        let mut bytes = vec![0; len.min(completion.byte_len as usize)];
        self.receives.read(at, &mut bytes)?;
        Ok(bytes)
    }

    /// Sends a message.
    pub(crate) fn send(&self, message: &[u8]) -> Result<(), PostError> {
        self.qp.post_inline(WorkRequest::send(0, &[]), message)
    }

    /// Writes a frame to memory of the peer.
    pub(crate) fn write(
        &self,
        frame: &[u8],
        to: RemoteAddr,
        immediate: Option<u32>,
    ) -> Result<(), PostError> {
        match immediate {
            Some(value) => self.qp.post_inline(WorkRequest::write_immediate(0, &[], to, value), frame),
            None => self.qp.post_inline(WorkRequest::write(0, &[], to), frame),
        }
    }

    /// Asks for an event of the next completion. Returns whether there is a completion already.
    pub(crate) fn arm(&self) -> bool {
        self.cq.arm(Arm::Next)
    }

    /// Returns whether the connection is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.qp.wait_closed(Duration::ZERO)
    }

    /// Place of a receive in the region: the first receive of a data channel is as long as any message.
    fn place(&self, id: u64) -> (usize, usize) {
        let index = usize::try_from(id).expect("64-bit systems only");
        match (self.kind, index) {
            (Kind::Control, _) => (index * MAX_MESSAGE, MAX_MESSAGE),
            (Kind::Data, 0) => (0, MAX_MESSAGE),
            (Kind::Data, _) => (MAX_MESSAGE + (index - 1) * DATA_RECEIVE, DATA_RECEIVE),
        }
    }
}
