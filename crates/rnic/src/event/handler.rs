//! Completion handlers, through which armed completion queues notify the program (requirements N1 to N4).
//! `queue/cq.rs` decides that an event is due; a thread of the program [takes](CompletionHandler::try_next) it.

use super::asynchronous::{AsyncEvent, AsyncEvents};
use super::code::{Code, Event};
use super::consumer::Consumer;
use super::queue::{EventQueueStats, PostEventError, Sizes, Ticket};
use super::wake::{Moderated, Timer, Wake};
use std::sync::Arc;
use std::time::Duration;

/// Identifies a completion handler within its adapter (requirement N2): the number of its event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandlerId(pub u16);

impl HandlerId {
    /// The identifier of handlers that serve a single completion queue and cannot be named.
    pub const PRIVATE: Self = Self(super::register::LAST_NUMBER);
}

/// A completion queue has the completions that it was armed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqEvent {
    /// The number of the completion queue.
    pub cq: u32,
}

/// A completion handler: serves any number of completion queues, each of which has at most one (requirement
/// N3).
///
/// Its event queue grows and does not overflow: it holds at most one event of each completion queue that it
/// serves, plus one for each time a completion queue left it and came back.
#[derive(Debug)]
pub struct CompletionHandler {
    id: HandlerId,
    consumer: Consumer,
    /// Where an overflow is reported.
    reports: Option<Arc<AsyncEvents>>,
}

impl CompletionHandler {
    /// Creates a handler that wakes its consumer through `wake`.
    pub fn new(id: HandlerId, wake: Box<dyn Wake>, reports: Option<&Arc<AsyncEvents>>) -> Arc<Self> {
        let consumer = Consumer::new(id.0, Sizes::default(), wake);
        consumer.open();
        Arc::new(Self { id, consumer, reports: reports.cloned() })
    }

    /// The identifier, unique within the adapter unless it is [private](HandlerId::PRIVATE).
    pub fn id(&self) -> HandlerId {
        self.id
    }

    /// Takes the oldest event, if there is one. Does not block: the descriptor is readable exactly while
    /// there is one.
    pub fn try_next(&self) -> Option<CqEvent> {
        loop {
            let event = self.consumer.try_next()?;
            // The only other event is the last one, which reports an overflow: the adapter has stopped.
            if event.code == Code::Completion {
                return Some(CqEvent { cq: event.object });
            }
        }
    }

    /// State and statistics of its event queue.
    pub fn stats(&self) -> EventQueueStats {
        self.consumer.queue().stats()
    }

    /// Removes the events of a completion queue that has left, and returns their number.
    pub fn revoke(&self, cq: u32) -> usize {
        self.consumer.revoke(|event| event == Event { code: Code::Completion, object: cq })
    }

    /// Wakes the consumer at most once per interval (requirement I10). `None` removes the limit.
    pub fn moderate(&self, moderation: Option<(Duration, Arc<dyn Timer>)>) {
        self.consumer.moderate(moderation);
    }

    /// Stops raising events (requirement N11). Remaining events can still be taken.
    pub fn shut_down(&self) {
        self.consumer.queue().shut_down();
    }

    /// Raises an event for a completion queue. `last` is its previous event: if that was not taken yet, it
    /// suffices.
    pub(crate) fn raise(&self, cq: u32, last: &mut Option<Ticket>) {
        if last.is_some_and(|last| !self.consumer.queue().is_taken(last)) {
            return;
        }
        match self.consumer.post(Event { code: Code::Completion, object: cq }) {
            Ok(ticket) => *last = Some(ticket),
            Err(PostEventError::Undefined) => {}
            Err(PostEventError::Overflow) => {
                if let Some(reports) = &self.reports {
                    reports.stop(Some(AsyncEvent::EventQueueOverflow(self.consumer.queue().number())));
                }
            }
        }
    }
}

impl Moderated for CompletionHandler {
    /// Called when the interval of [`moderate`](Self::moderate) is over.
    fn on_timer(&self) {
        self.consumer.queue().on_timer();
    }
}
