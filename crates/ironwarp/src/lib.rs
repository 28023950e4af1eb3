//! RDMA on any Linux machine, without RDMA hardware, kernel modules or root: an iWARP adapter in user space, over the
//! kernel's TCP, with the verbs that RDMA programs use.
//!
//! ```text
//!  Adapter ─┬─ protection_domain() ─┬─ register(Buffer) ─▶ MemoryRegion ─┬─ slice() ─▶ local scatter/gather element
//!           │                       │                                    └─ remote_addr() ─▶ for the peer
//!           │                       ├─ queue_pair(&cq) ─▶ QueuePair ─ connect(), post_send(), post_receive()
//!           │                       └─ datagram_queue_pair(&cq) ─▶ DatagramQueuePair ─ address_handle(), …
//!           ├─ completion_queue() ─▶ CompletionQueue ─ poll(), wait(), arm()
//!           ├─ control_queue(&cq) ─▶ ControlQueue ─ register(), … in the background
//!           ├─ completion_handler() ─▶ CompletionHandler ─ wait() for many completion queues
//!           ├─ async_events() ─▶ AsyncEvents ─ wait()
//!           ├─ steering() ─▶ Steering ─ load(), move_queue_pair(), …
//!           └─ listen() ─▶ Listener ─ accept() ─▶ Incoming ─ accept(&queue_pair) or reject()
//! ```
//!
//! # Sending a message
//! ```
//! use ironwarp::prelude::*;
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let timeout = Duration::from_secs(5);
//! let adapter = Adapter::new()?;
//! let domain = adapter.protection_domain();
//! let cq = adapter.completion_queue(64)?;
//! let (client, server) = (domain.queue_pair(&cq).create()?, domain.queue_pair(&cq).create()?);
//!
//! // The server registers memory that its peer may write, and sends its location when it accepts the connection.
//! let region = domain.register(Buffer::new(4096)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! let listener = adapter.listen("127.0.0.1:0".parse()?)?;
//! client.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
//! let incoming = listener.accept(timeout)?;
//! server.post_receive(1, &[])?;
//! incoming.accept(&server, &AcceptOptions::new().private_data(&region.remote_addr(0)?.to_bytes()))?;
//! let addr = RemoteAddr::from_bytes(&client.wait_connected(timeout)?.private_data).expect("an address");
//!
//! // The client writes to the server's memory, and notifies the server with a Send.
//! client.post_send(WorkRequest::write_inline(2, b"hello", addr).unsignaled())?;
//! client.post_send(WorkRequest::send(3, &[]).unsignaled())?;
//!
//! let received = cq.wait(timeout)?.success()?;
//! assert_eq!(received.wr_id, 1);
//! assert_eq!(&region.to_vec()?[..5], b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//! | module | contents |
//! |---|---|
//! | [`prelude`] | the names that a first program needs |
//! | [`memory`] | buffers, regions, windows, scatter/gather elements, remote addresses |
//! | [`queue`] | queue pairs, shared queues, work requests |
//! | [`completion`] | completion queues and handlers, completions |
//! | [`connection`] | listening, connecting, disconnecting |
//! | [`datagram`] | queue pairs without a connection |
//! | [`iscsi`] | queue pairs in iSCSI mode: memory that belongs to a command |
//! | [`control`] | registration and creation in the background |
//! | [`event`] | asynchronous events, the event map |
//! | [`steering`] | lanes: the threads of the adapter, and which connections they serve |
//! | [`hand_over`] | moving an adapter to another process, with its connections |
//! | [`config`] | settings |
//! | [`device`] | logical devices: several adapters in one process, each at its own addresses |
//! | [`function`] | functions: parts of an adapter with objects and quotas of their own |
//! | `tokio` | asynchronous connections and requests (feature `tokio`) |
//! | [`protocol`] | causes of protocol errors, as data |
//!
//! # Concepts
//! - Each method returns its own error type; [`Error`] can hold all of them. Methods that wait take a timeout as
//!   `impl Into<Option<Duration>>`: a [`Duration`](std::time::Duration), or `None` to wait forever.
//! - Polling a completion queue and posting requests make progress. The adapter's threads make progress while the
//!   program does neither.
//! - Objects keep the objects they depend on alive. Dropping a queue pair sends all posted requests and disconnects it;
//!   dropping a region deregisters it, after which no peer can access its memory.
//! - A failed request ends its connection. The completion of the request contains the reason:
//!   [`Completion::cause`](completion::Completion::cause).
//! - A message that arrives before its receive is posted waits for the receive. With [`Config::strict_receive`] such a
//!   message ends the connection, as the RFC demands.
#![deny(missing_docs)]

mod adapter;
pub mod completion;
pub mod config;
pub mod connection;
pub mod control;
pub mod datagram;
mod deferred_dereg;
pub mod device;
mod error;
pub mod event;
#[doc(hidden)]
pub mod example;
pub mod function;
pub mod hand_over;
pub mod iscsi;
pub mod memory;
#[cfg(doctest)]
mod misuse;
pub mod prelude;
mod protection_domain;
pub mod protocol;
pub mod queue;
mod shared;
pub mod steering;
#[cfg(feature = "tokio")]
pub mod tokio;
mod wait;

pub use adapter::{Adapter, AdapterBuilder, Limits};
pub use config::Config;
pub use error::{Error, Result};
pub use ironwarp_engine::{Shutdown, Statistics};
pub use protection_domain::ProtectionDomain;
pub use wait::WaitError;
