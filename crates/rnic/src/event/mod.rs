//! Events, by which the adapter notifies the program: completion events, asynchronous events and connection events.
//! `queue/cq.rs` decides when a completion event is due; the program waits on a [`CompletionHandler`].
//!
//! | file | purpose |
//! |---|---|
//! | `queue` | event queues: a ring in memory, whose reader is woken at most once each time it arms the queue |
//! | `reader` | the side of an event queue that takes events and arms it |
//! | `register`, `ring`, `code` | the word that reader and writers share; the ring; the encoding of events |
//! | `consumer` | an event queue and its descriptor, which is readable exactly while there is an event |
//! | `handler` | completion handlers |
//! | `asynchronous`, `early` | asynchronous events of queue pairs, queues, ports and the adapter |
//! | `program_queue` | event queues that the program opens by number |
//! | `map`, `routing` | which event goes to which queue, and which vector wakes its reader |
//! | `channel` | connection events |
//! | `wake` | traits through which the device wakes threads and starts timers |

mod asynchronous;
mod channel;
mod code;
mod consumer;
mod early;
mod handler;
mod map;
mod program_queue;
mod queue;
mod reader;
mod register;
mod ring;
mod routing;
mod wake;

pub use asynchronous::{AdminCommand, AsyncEvent, AsyncEvents, Stop};
pub use channel::Channel;
pub use code::{Cause, Code, Event, Function};
pub use consumer::Consumer;
pub use handler::{CompletionHandler, CqEvent, HandlerId};
pub use map::{
    ASYNC_QUEUE, CHANNEL_QUEUE, EventMap, GLOBAL_QUEUE, HANDLER_QUEUES, LANE_QUEUE, MapError, PROGRAM_QUEUES,
    Route, Shape, Vector,
};
pub use program_queue::{ProgramQueue, TooManyQueues};
pub use queue::{EventQueue, EventQueueStats, PostEventError, QueueState, ResizeQueueError, Sizes, Ticket};
pub use reader::Reader;
pub use routing::{Interrupt, Routing};
pub use wake::{Moderated, Moderation, Timer, Wake};
