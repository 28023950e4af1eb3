//! RDMA on any Linux machine: no RDMA card, no kernel module, no root. An iWARP adapter in this process, over the kernel's
//! TCP, with the verbs that RDMA programs know.
//!
//! ```text
//!  Adapter ─┬─ protection_domain() ─┬─ register(Buffer) ─▶ MemoryRegion ─ slice() ─▶ lists of requests
//!           │                       │                                  └─ place() ─▶ sent to the peer
//!           │                       ├─ queue_pair(&cq) ─▶ QueuePair ─ connect(), post_send(), post_receive()
//!           │                       └─ datagram_queue_pair(&cq) ─▶ DatagramQueuePair ─ address_handle(), …
//!           ├─ completion_queue() ─▶ CompletionQueue ─ poll(), wait(), arm()
//!           ├─ control_queue(&cq) ─▶ ControlQueue ─ register() and more, posted
//!           ├─ completion_handler() ─▶ CompletionHandler ─ wait() for many completion queues
//!           ├─ async_events() ─▶ AsyncEvents ─ wait()
//!           ├─ steering() ─▶ Steering ─ which of its threads serves which queue pair
//!           └─ listen() ─▶ Listener ─ accept() ─▶ Incoming ─ accept(&queue_pair) or reject()
//! ```
//!
//! # A message, there and back
//! ```
//! use ironwarp::{AcceptOptions, Access, Adapter, Buffer, ConnectOptions, Place, WorkRequest};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let soon = Duration::from_secs(5);
//! let adapter = Adapter::new()?;
//! let domain = adapter.protection_domain();
//! let cq = adapter.completion_queue(64)?;
//! let (client, server) = (domain.queue_pair(&cq).create()?, domain.queue_pair(&cq).create()?);
//!
//! // The server has memory that its peer may write, and says where in its answer to the connection.
//! let region = domain.register(Buffer::new(4096)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! let listener = adapter.listen("127.0.0.1:0".parse()?)?;
//! client.connect_start(listener.local_addr()?, &ConnectOptions::new())?;
//! let incoming = listener.accept(soon).expect("the client connects");
//! server.post_receive(1, &[])?;
//! incoming.accept(&server, &AcceptOptions::new().private_data(&region.place(0)?.to_bytes()))?;
//! let place = Place::from_bytes(&client.wait_connected(soon)?.private_data).expect("a place");
//!
//! // The client writes there, and tells.
//! client.post_send(WorkRequest::write_inline(2, b"hello", place).unsignaled())?;
//! client.post_send(WorkRequest::send(3, &[]).unsignaled())?;
//!
//! let received = cq.wait(soon)?.expect("the server is told").success()?;
//! assert_eq!(received.wr_id, 1);
//! assert_eq!(&region.to_vec()?[..5], b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # What to know
//! - Polling a completion queue makes progress, and so does posting. Threads of the adapter's do it while the program does
//!   neither.
//! - Objects keep alive what they need. Dropping one gives it back: a queue pair is disconnected after what was posted is
//!   sent, a region is deregistered and no peer touches it any more.
//! - A request that fails ends its connection. Its completion says why, in words and as data: [`Completion::cause`].
//! - A message for which no receive is posted waits; [`Config::strict_receive`] has the RFC's way.
#![deny(missing_docs)]

mod adapter;
mod attic;
mod bring_up;
mod change;
mod completion_handler;
mod completion_queue;
mod connect;
mod control_queue;
mod datagram;
pub mod detail;
mod error;
#[doc(hidden)]
pub mod example;
mod fast_region;
mod listener;
mod memory;
#[cfg(doctest)]
mod misuse;
mod name;
mod protection_domain;
mod query;
mod queue_pair;
mod region;
mod shared_receive_queue;
mod shared_send_queue;
mod steering;
mod window;
mod work_request;

pub use adapter::{Adapter, Limits, VectorDescriptor};
pub use bring_up::BringUpOptions;
pub use change::RegionChange;
pub use completion_handler::{AsyncEvents, CompletionHandler};
pub use completion_queue::CompletionQueue;
pub use connect::{AcceptOptions, ConnectOptions};
pub use control_queue::{ControlQueue, Pending};
pub use datagram::{DatagramQueuePair, DatagramQueuePairBuilder, DatagramRequest};
pub use error::{AccessError, ChangeError, ControlError, CreateError, OutOfMemory};
pub use fast_region::FastRegion;
pub use listener::{Incoming, Listener};
pub use memory::{Buffer, Contents};
pub use protection_domain::ProtectionDomain;
pub use query::Context;
pub use queue_pair::{QueuePair, QueuePairBuilder};
pub use region::MemoryRegion;
pub use shared_receive_queue::{SharedReceiveQueue, XrcDomain};
pub use shared_send_queue::SharedSendQueue;
pub use steering::Steering;
pub use window::Window;
pub use work_request::{NoticeRequest, SendRequest, WorkRequest};

pub use ironwarp_engine::Class;
pub use ironwarp_engine::gid::GidEntry;
pub use ironwarp_engine::{BringUpError, Remote};
pub use ironwarp_engine::{ConnectError, ConnectionEvent, Established, EventChannel, Statistics, What};
pub use ironwarp_engine::{LaneLoad, MoveError, NoSuchLane, SetMapError, WaitError};
pub use ironwarp_rnic::bug::Bug;
pub use ironwarp_rnic::config::{
    ClusterKey, Config, ConfigError, DeviceName, LogLevel, Persona, PortPolicy, PortRange, Users,
};
pub use ironwarp_rnic::connect::{Agreed, Depths, Setup, StartupError};
pub use ironwarp_rnic::datagram::{AddressHandle, Destination, Drops, Grh};
pub use ironwarp_rnic::error::{Culprit, Fault, PostError, Protocol};
pub use ironwarp_rnic::event::{AsyncEvent, CqEvent, HandlerId, QueueState, Standing};
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
