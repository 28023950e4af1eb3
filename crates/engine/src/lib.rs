//! The engine of Ironwarp: the threads, sockets, pollers and timers that drive the device over TCP and UDP.
//!
//! The modules are layers. Each uses only those above it in this table.
//!
//! | module | for |
//! |---|---|
//! | [`config`] | settings: the device's, the engine's and the drop-in's, by name and from the environment |
//! | `util` | timers |
//! | [`sys`] | system calls |
//! | `reactor` | the event loop: lanes, poll sets, and threads that wait for completions |
//! | `shm` | shared memory with other processes of the host, which carries streams |
//! | `capture` | packet capture of the adapter's own traffic |
//! | [`gid`] | the GIDs of this host |
//! | [`logical`] | the logical devices of the process, and changes to their ports |
//! | [`steering`] | starts the lanes of an adapter, and decides which of them serves what |
//! | `notify` | event channels and completion handlers |
//! | `verbs` | completion queues, queue pairs and their connections |
//! | [`hand_over`] | the protocol by which a function moves to another process |
//! | [`status`] | the status of an adapter, for `ironwarp show` |
//! | `cm` | connection management |
//! | [`engine`] | an open adapter: the facade over all of them |
//! | `fuzzing` | entry points for fuzz targets |

mod capture;
mod cm;
pub mod config;
pub mod engine;
#[doc(hidden)]
pub mod fuzzing;
pub mod gid;
pub mod hand_over;
pub mod logical;
mod notify;
mod reactor;
mod shm;
pub mod status;
pub mod steering;
pub mod sys;
mod util;
mod verbs;

pub use cm::dial::ConnectOptions;
pub use cm::incoming::Incoming;
pub use cm::listen::{Listener, Listening, MAX_BACKLOG};
pub use cm::manual::BringUpError;
pub use config::Config;
pub use engine::listening::{ListenersBusy, PausedListeners};
pub use engine::moving::{Arrived, ArrivedSocket, FreezeError, FrozenEngine, LoadError, RestoredEngine};
pub use engine::shutdown::Shutdown;
pub use engine::take_in::TakeInError;
pub use engine::{Engine, Statistics};
pub use notify::channel::{EventChannel, EventFdWake, EventSink};
pub use notify::handler::{AsyncEventQueue, CompletionHandler};
pub use notify::sockets::ChannelSockets;
pub use notify::taking::HeldEvents;
pub use reactor::class::Class;
pub use reactor::lane::LaneLoad;
pub use steering::{LeaveError, LeaveFailure, MoveError, NoLaneWithin, NoSuchLane, Steering};
pub use verbs::control::{ControlAction, ControlQueue, FailureCause, Prepared};
pub use verbs::cq::{CompletionQueue, WaitError};
pub use verbs::datagram::{DatagramQueuePair, DatagramQueuePairAttributes};
pub use verbs::error::ConnectError;
pub use verbs::event::{ConnectionEvent, ConnectionEventKind, Established};
pub use verbs::event_queues::{EventQueues, SetMapError};
pub use verbs::iscsi::{IscsiQueuePair, IscsiQueuePairAttributes};
pub use verbs::manual::{BringUpOptions, Local, Remote};
pub use verbs::qpn;
pub use verbs::queue_pair::{PairNotMovable, Peer, QueuePair, QueuePairAttributes, QueuePairOptions};
