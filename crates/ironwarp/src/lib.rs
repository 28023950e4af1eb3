//! RDMA on any Linux machine, without RDMA hardware, kernel modules or root: an iWARP adapter in user space, over the
//! kernel's TCP, with the verbs that RDMA programs use.
//!
//! ```text
//!  Adapter ─┬─ protection_domain() ─┬─ register(Buffer) ─▶ MemoryRegion ─┬─ slice() ─▶ local scatter/gather element
//!           │                       │                                    └─ place() ─▶ remote address, for the peer
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
//! use ironwarp::{AcceptOptions, Access, Adapter, Buffer, ConnectOptions, Place, WorkRequest};
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
//! let incoming = listener.accept(timeout).expect("the client connects");
//! server.post_receive(1, &[])?;
//! incoming.accept(&server, &AcceptOptions::new().private_data(&region.place(0)?.to_bytes()))?;
//! let place = Place::from_bytes(&client.wait_connected(timeout)?.private_data).expect("a valid place");
//!
//! // The client writes to the server's memory, and notifies the server with a Send.
//! client.post_send(WorkRequest::write_inline(2, b"hello", place).unsignaled())?;
//! client.post_send(WorkRequest::send(3, &[]).unsignaled())?;
//!
//! let received = cq.wait(timeout)?.expect("the message arrives").success()?;
//! assert_eq!(received.wr_id, 1);
//! assert_eq!(&region.to_vec()?[..5], b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Concepts
//! - Polling a completion queue and posting requests make progress. The adapter's threads make progress while the
//!   program does neither.
//! - Objects keep the objects they depend on alive. Dropping a queue pair sends all posted requests and disconnects it;
//!   dropping a region deregisters it, after which no peer can access its memory.
//! - A failed request ends its connection. The completion of the request contains the reason: [`Completion::cause`].
//! - A message that arrives before its receive is posted waits for the receive. With [`Config::strict_receive`] such a
//!   message ends the connection, as the RFC demands.
#![deny(missing_docs)]

mod adapter;
mod connect;
mod deferred_dereg;
pub mod detail;
mod error;
mod events;
#[doc(hidden)]
pub mod example;
mod memory;
#[cfg(doctest)]
mod misuse;
mod protection_domain;
mod queue;
mod shared;
mod steering;
#[cfg(feature = "tokio")]
pub mod tokio;

pub use adapter::{Adapter, Limits};
pub use connect::{AcceptOptions, BringUpOptions, ConnectOptions, Incoming, Listener};
pub use error::{AccessError, AllocateError, ChangeError, ControlError, CreateError, OutOfMemory};
pub use events::{AsyncEvents, VectorDescriptor};
pub use memory::{
    ArrayView, Buffer, BufferBuilder, Chunk, Contents, FastRegion, MemoryRegion, Pool, RegionChange, View,
    Window,
};
pub use protection_domain::ProtectionDomain;
pub use queue::{CompletionHandler, CompletionQueue, ControlQueue, Pending, QueuePairInfo};
pub use queue::{DatagramQueuePair, DatagramQueuePairBuilder, DatagramRequest, QueuePair, QueuePairBuilder};
pub use queue::{SendRequest, WorkRequest, WriteImmRequest};
pub use queue::{SharedReceiveQueue, SharedSendQueue, XrcDomain};
pub use steering::Steering;

pub use ironwarp_engine::Class;
pub use ironwarp_engine::config::{
    ClusterKey, Config, ConfigError, DeviceName, LogLevel, Persona, PortPolicy, PortRange, Setting,
    Stability, Users,
};
pub use ironwarp_engine::gid::GidEntry;
pub use ironwarp_engine::{BringUpError, Remote};
pub use ironwarp_engine::{
    ConnectError, ConnectionEvent, ConnectionEventKind, Established, EventChannel, Statistics,
};
pub use ironwarp_engine::{LaneLoad, MoveError, NoSuchLane, SetMapError, WaitError};
pub use ironwarp_rnic::bug::Bug;
pub use ironwarp_rnic::connect::{Agreed, Depths, MpaMode, StartupError};
pub use ironwarp_rnic::datagram::{AddressHandle, Destination, DropCounts, Grh};
pub use ironwarp_rnic::error::{ErrorOrigin, PostError, Protocol, QpError};
pub use ironwarp_rnic::event::{AsyncEvent, CqEvent, EventQueueStats, HandlerId, QueueState};
pub use ironwarp_rnic::event::{
    Code as EventCode, EventMap, Function as EventFunction, MapError, Route as EventRoute, Shape as MapShape,
    Vector as EventVector,
};
pub use ironwarp_rnic::fault::FaultPlan;
pub use ironwarp_rnic::gid::Gid;
pub use ironwarp_rnic::memory::{
    Check, Denied, DeregisterError, RegisterError, ReregisterError, Rights as Access,
};
pub use ironwarp_rnic::qp::{Completes, IllegalTransition, RegistrationFailure, Retries, State};
pub use ironwarp_rnic::queue::{
    Arm, Completion, Opcode, Overrun, RequestError, Sender, Sge, SrqStatus, Status, TooSmall,
};
pub use ironwarp_rnic::steering::{HashKey, NoHashKey, RedirectionTable};
pub use ironwarp_wire::{AtomicOp, Cause, Place, Tag, Terminate};
