//! Events: how a sleeping consumer learns that something happened. `queue/cq.rs` decides that an event is
//! due; the consumer waits on a [`CompletionHandler`].
//!
//! | file | purpose |
//! |---|---|
//! | `queue` | event queues: a ring in memory that wakes its reader at most once each time it is armed |
//! | `register`, `ring`, `code` | the word shared by reader and writers; the memory; the encoding of events |
//! | `consumer` | a queue and its descriptor, which is readable exactly while there is an event |
//! | `handler` | completion handlers |
//! | `asynchronous` | events of queue pairs, queues, ports and the adapter |
//! | `map`, `routing` | which event goes to which queue, and which vector wakes its reader |
//! | `channel` | connection events |

mod asynchronous;
mod channel;
mod code;
mod consumer;
mod handler;
mod map;
mod queue;
mod register;
mod ring;
mod routing;
mod wake;

pub use asynchronous::{AsyncEvent, AsyncEvents, Stop};
pub use channel::Channel;
pub use code::{Code, Event, Function};
pub use consumer::Consumer;
pub use handler::{CompletionHandler, CqEvent, HandlerId};
pub use map::{ASYNC_QUEUE, EventMap, GLOBAL_QUEUE, LANE_QUEUE, MapError, Route, Shape, Vector};
pub use queue::{EventQueue, EventQueueStats, PostEventError, QueueState, Reader, Sizes, Ticket};
pub use routing::{Interrupt, Routing};
pub use wake::{Moderated, Timer, Wake};
