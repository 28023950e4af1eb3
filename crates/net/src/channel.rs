//! A channel of a session: a queue pair, its completion queue, and its posted receives.

use ironwarp::completion::{Arm, Completion, CompletionHandler, CompletionQueue};
use ironwarp::config::ConfigError;
use ironwarp::memory::{Access, Buffer, MemoryRegion};
use ironwarp::prelude::ProtectionDomain;
use ironwarp::queue::{Completes, PostError, QueuePair, WorkRequest};
use ironwarp::{Adapter, Config};
use ironwarp_io_unit::message::{MAX_INLINE_FRAME, MAX_MESSAGE, Mode, SEND_DATA_HEADER};
use std::error::Error;
use std::time::{Duration, Instant};

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Requests that the send queue of a data channel holds.
pub(crate) const SEND_QUEUE: usize = 256;
/// Requests that the send queue of a control channel holds: more than a session ever has outstanding.
const CONTROL_QUEUE: usize = 80;
/// Posted receives of a control channel.
const CONTROL_RECEIVES: usize = 32;
/// Posted receives of a data channel. Each frame uses one. In Send mode, frames use elements of pools instead.
const DATA_RECEIVES: usize = 256;
/// Maximum number of elements that are posted to a data channel in Send mode.
pub(crate) const MAX_POSTED: usize = 512;
/// Length of the receives of a data channel, except the first.
const DATA_RECEIVE: usize = SEND_DATA_HEADER + MAX_INLINE_FRAME;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Control,
    Data(Mode),
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

/// The adapter, the handler that is told of the completions of all channels, and the time.
#[derive(Debug)]
pub(crate) struct Io {
    pub(crate) adapter: Adapter,
    pub(crate) handler: CompletionHandler,
    start: Instant,
}

impl Io {
    pub(crate) fn open() -> Result<Self, Failure> {
        let adapter = Adapter::open(settings()?)?;
        let handler = adapter.completion_handler()?;
        Ok(Self { adapter, handler, start: Instant::now() })
    }

    /// Returns the time since the start.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

/// Reads the settings of the environment. A name that no setting has is ignored, with a warning, as `ironwarp run` does.
fn settings() -> Result<Config, ConfigError> {
    let (config, errors) = Config::from_env_leniently();
    for error in errors {
        match error {
            ConfigError::Unknown { .. } => eprintln!("ironwarp-net: {error}; ignored"),
            invalid => return Err(invalid),
        }
    }
    Ok(config)
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
        let (sends, receives, posted, memory) = match kind {
            Kind::Control => (CONTROL_QUEUE, CONTROL_RECEIVES, 0, CONTROL_RECEIVES * MAX_MESSAGE),
            Kind::Data(Mode::Rdma) => {
                (SEND_QUEUE, DATA_RECEIVES, 0, MAX_MESSAGE + (DATA_RECEIVES - 1) * DATA_RECEIVE)
            }
            Kind::Data(Mode::Send) => (SEND_QUEUE, 1, MAX_POSTED, MAX_MESSAGE),
        };
        let completes = match kind {
            Kind::Control | Kind::Data(Mode::Rdma) => Completes::WhenAcknowledged,
            Kind::Data(Mode::Send) => Completes::WhenSent,
        };
        let capacity = sends + receives + posted;
        let cq = io.adapter.completion_queue_builder(capacity).handler(&io.handler).create()?;
        let qp = domain
            .queue_pair(&cq)
            .send_depth(sends)
            .receive_depth(receives + posted)
            .completes(completes)
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

    /// Posts a receive of the channel again after it was used. In Send mode, a data channel needs it for the Join only: one more
    /// receive would get the frame that is meant for an element.
    pub(crate) fn post_again(&self, id: u64) -> Result<(), Failure> {
        if self.kind == Kind::Data(Mode::Send) { Ok(()) } else { self.post_receive(id) }
    }

    fn post_receive(&self, id: u64) -> Result<(), Failure> {
        let (at, len) = self.place(id);
        Ok(self.qp.post_receive(id, &[self.receives.slice(at..at + len)?])?)
    }

    /// Returns whether a completion is one of the channel's own receives, and not of an element.
    pub(crate) fn is_own(&self, completion: &Completion) -> bool {
        self.kind != Kind::Data(Mode::Send) || completion.wr_id == 0
    }

    /// Returns the bytes that a receive has got.
    pub(crate) fn received(&self, completion: &Completion) -> Result<Vec<u8>, Failure> {
        let (at, len) = self.place(completion.wr_id);
        let mut bytes = vec![0; len.min(completion.byte_len as usize)];
        self.receives.read(at, &mut bytes)?;
        Ok(bytes)
    }

    /// Sends a message whose bytes are copied.
    pub(crate) fn send(&self, message: &[u8]) -> Result<(), PostError> {
        self.qp.post_inline(WorkRequest::send(0, &[]), message)
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
            (Kind::Data(_), 0) => (0, MAX_MESSAGE),
            (Kind::Data(_), _) => (MAX_MESSAGE + (index - 1) * DATA_RECEIVE, DATA_RECEIVE),
        }
    }
}
