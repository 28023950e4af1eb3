//! Lanes: the threads, sockets, pollers and timers that drive the device over the kernel's TCP.
//!
//! | file | for |
//! |---|---|
//! | [`engine`] | one per adapter: the device, its lanes, what is connected |
//! | [`steering`] | its lanes, and which of them serves what |
//! | `lane` | a thread that waits for sockets and moves what they have, while the program does not |
//! | `set` | the sockets that one completion queue has on one lane, as one entry of the lane |
//! | [`cq`] | a completion queue that makes progress when it is polled |
//! | `sleep` | threads that sleep until it has something |
//! | `class` | how urgent handlers are: a lane of their own, or a share of all lanes' turns |
//! | [`event_queues`] | event queues by function and lane, and the vectors that wake who reads them |
//! | [`handler`] | completion handlers and asynchronous events, for programs that wait on a descriptor |
//! | [`pair`] | a queue pair of the verbs: its number, its states, the device's queue pair behind it |
//! | [`control`] | operations that may take long, done in order by a thread of their own |
//! | `connection` | a queue pair and its socket |
//! | [`datagram`] | a connectionless queue pair and its sockets |
//! | `admission` | how many connections that peers begin may be in the making, and which one goes when there are too many |
//! | `setup` | the first bytes of a connection, from dialling or accepting to a stream |
//! | [`byhand`] | a queue pair that is told the GID and the number of its peer, and no more |
//! | `port` | the port of such queue pairs, and who asks for them there |
//! | `search` | the listener of an RDMA port, which need not be at the TCP port of that number |
//! | [`qpn`] | numbers of queue pairs |
//! | [`gid`] | the addresses of this host, and what happens to them |
//! | `capture` | its traffic in a file, for packet analysers |
//! | [`show`] | what an adapter is doing, for whoever asks |
//! | [`traffic`] | what this process has sent and received |
//! | `timers` | what has to happen by when |
//! | [`sys`] | system calls |
//! | `fuzzing` | what fuzz targets reach of private modules |

mod admission;
pub mod byhand;
mod capture;
mod class;
mod connection;
pub mod control;
pub mod cq;
pub mod datagram;
pub mod engine;
pub mod event;
pub mod event_queues;
#[doc(hidden)]
pub mod fuzzing;
pub mod gid;
pub mod handler;
mod lane;
pub mod pair;
mod port;
pub mod qpn;
mod search;
mod set;
mod setup;
pub mod show;
mod sleep;
pub mod steering;
pub mod sys;
mod timers;
pub mod traffic;

pub use byhand::{BringUpError, BringUpOptions, Local, Remote};
pub use class::Class;
pub use control::ControlQueue;
pub use cq::{CompletionQueue, WaitError};
pub use datagram::{DatagramQueuePair, DatagramQueuePairAttributes};
pub use engine::{ConnectOptions, Engine, Listener, Listening, MAX_BACKLOG, Statistics};
pub use event::{ConnectError, ConnectionEvent, Established, EventChannel, Watcher, What};
pub use event_queues::SetMapError;
pub use handler::{AsyncEventQueue, CompletionHandler};
pub use pair::{Peer, QueuePair, QueuePairAttributes};
pub use setup::Incoming;
pub use steering::{LaneLoad, MoveError, NoSuchLane, Steering};
