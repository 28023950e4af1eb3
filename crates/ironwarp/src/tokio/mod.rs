//! Asynchronous connections and requests, for programs that use tokio. Needs the feature `tokio`.
//!
//! | type | its methods |
//! |---|---|
//! | [`Driver`] | one per completion queue: a task that passes completions to the futures that wait for them |
//! | [`QueuePair`] | `connect`, `send`, `receive`, `write`, `read`, `disconnect` … as futures |
//! | [`ReceiveQueue`] | `recv` returns messages in order, from receives that stay posted |
//! | [`Listener`], [`Incoming`] | `accept` |
//!
//! ```
//! use ironwarp::tokio::{Driver, Listener};
//! use ironwarp::memory::Pool;
//! use ironwarp::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let adapter = Adapter::new()?;
//! let (domain, driver) = (adapter.protection_domain(), Driver::new(adapter.completion_queue(64)?)?);
//! let region = domain.register(Buffer::new(1 << 16)?, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
//! let pool = Pool::new(region, 4096);
//!
//! // The server: receives are posted before it accepts.
//! let listener = Listener::new(adapter.listen("127.0.0.1:0".parse()?)?)?;
//! let address = listener.local_addr()?;
//! let server = driver.create(domain.queue_pair(driver.cq()))?;
//! let messages = server.receive_queue((0..4).map_while(|_| pool.take()))?;
//! let serving = tokio::spawn(async move {
//!     listener.accept().await?.accept(&server, &AcceptOptions::new()).await?;
//!     while let Some(message) = messages.recv().await? {
//!         let _sent = server.send(message)?.await?; // then its chunk receives another message
//!     }
//!     Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! });
//!
//! // The client.
//! let client = driver.create(domain.queue_pair(driver.cq()))?;
//! let answers = client.receive_queue(pool.take())?;
//! client.connect(address, &ConnectOptions::new()).await?;
//! client.send_inline(b"hello")?.await?;
//! let answer = answers.recv().await?.expect("an answer");
//! assert_eq!(answer.chunk().to_vec()?, b"hello");
//! client.disconnect().await;
//! # serving.await?.unwrap();
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! # Cancellation
//! Any future can be dropped at any time.
//! - **Requests.** A method such as [`QueuePair::send`] posts its request when it is called, and returns a future.
//!   Dropping that future never cancels the request: its buffers stay with the driver until it completes, and then
//!   return to their pool. No request uses memory that the program has got back. So after a timeout, an atomic
//!   operation may still take effect, and a pool has fewer free chunks for a while.
//! - **Receives.** A [`QueuePair::receive`] whose future is dropped keeps its place in the queue, and its message is
//!   lost. [`ReceiveQueue::recv`] is cancel-safe: a message that was not returned stays in the queue. Servers should
//!   use it.
//! - **Connections.** [`Listener::accept`], [`QueuePair::connected`] and [`QueuePair::closed`] are cancel-safe. After a
//!   dropped [`connect`](QueuePair::connect), [`accept`](Incoming::accept) or [`disconnect`](QueuePair::disconnect),
//!   the connection is established or closed in the background.
//!
//! # Runtimes
//! The driver needs a runtime with `enable_io`, with one thread or several. Other runtimes can use the descriptors of
//! completion queues, listeners and event channels, as [`CompletionQueue`](crate::completion::CompletionQueue) shows:
//! the rest of this crate depends on no runtime.

mod buffers;
mod driver;
mod error;
mod inbox;
mod link;
mod listener;
mod posted;
mod queue_pair;
mod receive_queue;
mod table;

pub use buffers::{Buffers, Message};
pub use driver::Driver;
pub use error::{Error, Failed, Refused};
pub use listener::{Incoming, Listener};
pub use posted::Posted;
pub use queue_pair::QueuePair;
pub use receive_queue::ReceiveQueue;
