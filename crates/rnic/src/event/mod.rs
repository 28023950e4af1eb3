//! Events: how a consumer that sleeps learns that something happened (step 8 of the path). Before this: `queue/cq.rs`,
//! which decides that an event is due. After it: the consumer, which waits on a [`CompletionHandler`].
//!
//! | file | for |
//! |---|---|
//! | `queue` | event queues: a ring in memory, armed and unarmed, one wake for each time it was armed |
//! | `register`, `ring`, `code` | the word that reader and writers share; the memory; what is written there |
//! | `consumer` | a queue and its descriptor, which is readable exactly while there is an event |
//! | `handler` | completion handlers |
//! | `asynchronous` | events of queue pairs, queues, ports and the adapter |
//! | `map`, `routing` | which event goes to which queue, and which vector wakes its reader |
//! | `channel` | events of connections |

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
pub use code::{Code, Event};
pub use consumer::Consumer;
pub use handler::{CompletionHandler, CqEvent, HandlerId};
pub use map::{ASYNC_QUEUE, EventMap, Function, GLOBAL_QUEUE, LANE_QUEUE, MapError, Route, Shape, Vector};
pub use queue::{EventQueue, QueueState, Reader, Refused, Sizes, Standing, Ticket};
pub use routing::{Interrupt, Routing};
pub use wake::{Moderated, Timer, Wake};
