//! The buffers that a request owns until it completes.

use crate::memory::Chunk;
use ironwarp_rnic::queue::{Completion, Sge, Sges};
use std::fmt;
use std::sync::Weak;

/// Buffers that an asynchronous request can own: a [`Chunk`], several in a `Vec`, a received [`Message`], or `()` for a
/// request without buffers. The request uses all bytes of each, up to its length ([`Chunk::set_len`]).
///
/// Only this crate can implement the trait.
pub trait Buffers: Sized + Send + Unpin {
    /// Returns the scatter/gather list of all bytes.
    #[doc(hidden)]
    fn list(&self) -> Sges;

    /// Converts the buffers, to store them in the table of requests. Other crates cannot name the type.
    #[doc(hidden)]
    fn into_held(self) -> Held;

    /// Converts them back.
    #[doc(hidden)]
    fn from_held(held: Held) -> Option<Self>;
}

/// Buffers in the table of requests.
#[doc(hidden)]
#[derive(Debug)]
pub enum Held {
    /// The request has no buffers.
    None,
    /// The buffers were released because the driver has ended.
    Released,
    One(Chunk),
    Many(Vec<Chunk>),
    Message(Message),
}

/// Where a chunk goes when its message is dropped: back to the receive queue that it came from.
pub(super) trait Home: Send + Sync + fmt::Debug {
    /// Posts the chunk again. Returns it to its pool if that is not possible.
    fn take_back(&self, chunk: Chunk);
}

/// A received message, from [`ReceiveQueue::recv`](super::ReceiveQueue::recv). Dropping it posts its chunk to the
/// receive queue again, for another message.
///
/// A message can be sent like a chunk: its chunk is posted for another message when the request has completed.
#[must_use = "dropping a message discards it"]
pub struct Message {
    completion: Completion,
    /// `None` only while the message is taken apart.
    chunk: Option<Chunk>,
    home: Weak<dyn Home>,
}

impl Message {
    /// Creates a message, whose chunk has the length of the message.
    pub(super) fn new(completion: Completion, chunk: Chunk, home: Weak<dyn Home>) -> Self {
        Self { completion, chunk: Some(chunk), home }
    }

    /// Returns the completion of the receive: the queue pair, the length, and the immediate data of the message.
    pub fn completion(&self) -> &Completion {
        &self.completion
    }

    /// Returns the number of the queue pair that received the message.
    pub fn qp(&self) -> u32 {
        self.completion.qp
    }

    /// Returns the chunk with the bytes of the message. Its length is that of the message.
    pub fn chunk(&self) -> &Chunk {
        self.chunk.as_ref().expect("only `into_chunk` takes the chunk")
    }

    /// Returns the chunk with the bytes of the message, to change them before the message is sent.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// # let messages = server.qp.receive_queue(server.chunks(1))?;
    /// # let answers = client.qp.receive_queue(client.chunks(1))?;
    /// # client.qp.send_inline(b"hello")?.await?;
    /// let mut message = messages.recv().await?.expect("a message");
    /// message.chunk_mut().write(0, b"J")?;
    /// drop(server.qp.send(message)?);
    /// assert_eq!(answers.recv().await?.expect("an answer").chunk().to_vec()?, b"Jello");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn chunk_mut(&mut self) -> &mut Chunk {
        self.chunk.as_mut().expect("only `into_chunk` takes the chunk")
    }

    /// Takes the chunk out of the message. The receive queue then has one chunk less:
    /// [add](super::ReceiveQueue::add) another.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # ironwarp::example::run_async(async |client, server| {
    /// # let messages = server.qp.receive_queue(server.chunks(1))?;
    /// # client.qp.send_inline(b"hello")?.await?;
    /// let chunk = messages.recv().await?.expect("a message").into_chunk();
    /// messages.add(server.pool.take().expect("a free chunk"))?;
    /// assert_eq!(chunk.to_vec()?, b"hello");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn into_chunk(mut self) -> Chunk {
        self.chunk.take().expect("only `into_chunk` takes the chunk")
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let (Some(chunk), Some(home)) = (self.chunk.take(), self.home.upgrade()) {
            home.take_back(chunk);
        }
    }
}

// Not derived: omits the receive queue.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("qp", &self.qp()).field("chunk", &self.chunk).finish_non_exhaustive()
    }
}

impl Buffers for () {
    fn list(&self) -> Sges {
        Sges::default()
    }

    fn into_held(self) -> Held {
        Held::None
    }

    fn from_held(held: Held) -> Option<Self> {
        matches!(held, Held::None).then_some(())
    }
}

impl Buffers for Chunk {
    fn list(&self) -> Sges {
        self.as_sge().into()
    }

    fn into_held(self) -> Held {
        Held::One(self)
    }

    fn from_held(held: Held) -> Option<Self> {
        if let Held::One(chunk) = held { Some(chunk) } else { None }
    }
}

impl Buffers for Vec<Chunk> {
    fn list(&self) -> Sges {
        Sges::from(&self.iter().map(Chunk::as_sge).collect::<Vec<Sge>>()[..])
    }

    fn into_held(self) -> Held {
        Held::Many(self)
    }

    fn from_held(held: Held) -> Option<Self> {
        if let Held::Many(chunks) = held { Some(chunks) } else { None }
    }
}

impl Buffers for Message {
    fn list(&self) -> Sges {
        self.chunk().as_sge().into()
    }

    fn into_held(self) -> Held {
        Held::Message(self)
    }

    fn from_held(held: Held) -> Option<Self> {
        if let Held::Message(message) = held { Some(message) } else { None }
    }
}
