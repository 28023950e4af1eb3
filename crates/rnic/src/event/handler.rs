//! Completion handlers (verbs: completion channels), through which armed completion queues notify the program
//! (requirements N1 to N4). `queue/cq.rs` decides when an event is due; a thread of the program
//! [takes](CompletionHandler::try_next) the event.

use super::asynchronous::AsyncEvents;
use super::code::{Code, Event};
use super::consumer::Consumer;
use super::queue::{EventQueueStats, QueueState, ResizeQueueError, Sizes, Ticket};
use super::register::MAX_NUMBER;
use super::wake::{Moderated, Timer, Wake};
use std::sync::Arc;
use std::time::Duration;

/// Identifies a completion handler within its adapter (requirement N2). No two handlers that exist at the same time have
/// the same identifier.
///
/// Below [`FIRST_PRIVATE`](Self::FIRST_PRIVATE) it is the number of the handler's [event queue](Self::event_queue). Private
/// handlers, with which completion queues are created, have identifiers from there on, and no number that the event map
/// can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandlerId(pub u64);

impl HandlerId {
    /// The lowest identifier of a private handler. 64 bits suffice to never use one twice.
    pub const FIRST_PRIVATE: Self = Self(MAX_NUMBER as u64 + 1);

    /// Returns the number of the handler's event queue, as the event map has it. `None` for a private handler.
    pub fn event_queue(self) -> Option<u16> {
        u16::try_from(self.0).ok().filter(|_| !self.is_private())
    }

    /// Returns whether this is the handler that a completion queue was created with.
    pub fn is_private(self) -> bool {
        self >= Self::FIRST_PRIVATE
    }
}

/// A completion event: a completion queue has the completions that it was armed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CqEvent {
    /// The number of the completion queue.
    pub cq: u32,
}

impl CqEvent {
    /// Creates the event of the completion queue with this number.
    #[doc(hidden)]
    pub const fn new(cq: u32) -> Self {
        Self { cq }
    }
}

/// A completion handler. It serves any number of completion queues; a completion queue has at most one handler
/// (requirement N3).
///
/// Its event queue grows as needed. It holds at most one event of each completion queue that the handler serves,
/// plus one for each time a completion queue was assigned to another handler and back.
#[derive(Debug)]
pub struct CompletionHandler {
    id: HandlerId,
    consumer: Consumer,
    /// Where an overflow of the event queue is reported. `None` in tests only.
    reports: Option<Arc<AsyncEvents>>,
}

impl CompletionHandler {
    /// Creates a handler that wakes its consumer through `wake` and reports an overflow to `reports`.
    pub fn new(id: HandlerId, wake: Box<dyn Wake>, reports: Option<&Arc<AsyncEvents>>) -> Arc<Self> {
        // The event queues of private handlers share a number, by which nothing refers to them.
        let consumer = Consumer::new(id.event_queue().unwrap_or(MAX_NUMBER), Sizes::default(), wake);
        Arc::new(Self { id, consumer, reports: reports.cloned() })
    }

    /// Returns the identifier, unique within the adapter.
    pub fn id(&self) -> HandlerId {
        self.id
    }

    /// Takes the oldest event, if there is one. Does not block. The descriptor is readable exactly while there is an
    /// event.
    pub fn try_next(&self) -> Option<CqEvent> {
        loop {
            let event = self.consumer.try_next()?;
            // The only other event reports an overflow of this queue. Skip it: `raise` has reported it elsewhere.
            if event.code == Code::Completion {
                return Some(CqEvent { cq: event.object });
            }
        }
    }

    /// Takes the oldest event, if there is one, whether the consumer was woken for it or not. Does not block. Leaves the
    /// event queue unarmed until [`arm`](Self::arm) (requirement I10).
    pub fn poll_one(&self) -> Option<CqEvent> {
        std::iter::from_fn(|| self.consumer.poll_one())
            .find(|event| event.code == Code::Completion)
            .map(|event| CqEvent { cq: event.object })
    }

    /// Arms the event queue, unless it is armed or the consumer was woken for an event that was not taken. Needed only
    /// after [`poll_one`](Self::poll_one).
    pub fn arm(&self) {
        self.consumer.arm();
    }

    /// Switches the event queue to a ring with `size` entries: see [`EventQueue::resize`](super::EventQueue::resize).
    pub fn resize(&self, size: usize) -> Result<(), ResizeQueueError> {
        self.consumer.queue().resize(size)
    }

    /// Gives the event queue memory and arms it, unless it has memory. A completion queue calls this before it raises an
    /// event for the first time (requirement I2); the handlers of completion queues that are only polled need no memory.
    pub(crate) fn open(&self) {
        if self.consumer.queue().state() == QueueState::Undefined {
            self.consumer.open();
        }
    }

    /// Returns state and statistics of the event queue.
    pub fn stats(&self) -> EventQueueStats {
        self.consumer.queue().stats()
    }

    /// Removes the events of a completion queue that no longer uses this handler, and returns their number.
    pub fn revoke(&self, cq: u32) -> usize {
        self.consumer.revoke(|event| event == Event { code: Code::Completion, object: cq })
    }

    /// Limits wakeups of the consumer to one per interval (requirement I10). `None` removes the limit.
    pub fn moderate(&self, moderation: Option<(Duration, Arc<dyn Timer>)>) {
        self.consumer.moderate(moderation);
    }

    /// Shuts the event queue down, so that no more events are written (requirement N11). Remaining events can still
    /// be taken.
    pub fn shut_down(&self) {
        self.consumer.queue().shut_down();
    }

    /// Writes an event of this lane for a completion queue, unless the previous event of that queue was not taken yet.
    /// `last` identifies the previous event, and then the new one.
    pub(crate) fn raise(&self, cq: u32, lane: u16, last: &mut Option<Ticket>) {
        if self.has(*last) {
            return;
        }
        match self.consumer.post_from(lane, Event { code: Code::Completion, object: cq }) {
            Ok(ticket) => *last = Some(ticket),
            Err(error) => {
                if let Some(reports) = &self.reports {
                    reports.on_post_error(error, Some(self.consumer.queue().number()));
                }
            }
        }
    }
}

impl CompletionHandler {
    /// Returns whether the handler has an event that was not taken.
    pub(crate) fn has(&self, event: Option<Ticket>) -> bool {
        event.is_some_and(|event| !self.consumer.queue().is_taken(event))
    }
}

impl Moderated for CompletionHandler {
    /// Wakes the consumer if a wakeup was held back. Called when the interval of [`moderate`](Self::moderate) is over.
    fn on_timer(&self) {
        self.consumer.queue().on_timer();
    }
}
