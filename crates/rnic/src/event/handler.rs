//! Completion handlers: through which completion queues tell that they have what they were armed for (requirements N1 to
//! N4). Before this: `queue/cq.rs`, which decides that an event is due. After it: the program's thread that
//! [takes](CompletionHandler::next) it.

use super::asynchronous::{AsyncEvent, AsyncEvents};
use super::code::{Code, Event};
use super::consumer::Consumer;
use super::queue::{Refused, Sizes, Standing, Ticket};
use super::wake::{Moderated, Timer, Wake};
use std::sync::Arc;
use std::time::Duration;

/// What tells a completion handler from the others of its adapter (requirement N2): the number of its event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandlerId(pub u16);

impl HandlerId {
    /// What handlers have that serve one completion queue and nothing else: they cannot be named.
    pub const PRIVATE: Self = Self(super::register::LAST_NUMBER);
}

/// A completion queue has what it was armed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqEvent {
    /// Its number.
    pub cq: u32,
}

/// A completion handler: serves any number of completion queues, each of which has at most one (requirement N3).
///
/// Its queue does not overflow. It holds at most one event of each completion queue that it serves, and one more each
/// time a queue left it and came back; and it grows.
#[derive(Debug)]
pub struct CompletionHandler {
    id: HandlerId,
    consumer: Consumer,
    /// Where an overflow is reported.
    reports: Option<Arc<AsyncEvents>>,
}

impl CompletionHandler {
    /// A handler that makes itself noticed through `wake`.
    pub fn new(id: HandlerId, wake: Box<dyn Wake>, reports: Option<&Arc<AsyncEvents>>) -> Arc<Self> {
        let consumer = Consumer::new(id.0, Sizes::default(), wake);
        consumer.open();
        Arc::new(Self { id, consumer, reports: reports.cloned() })
    }

    /// What no other handler of the adapter has, unless it is [private](HandlerId::PRIVATE).
    pub fn id(&self) -> HandlerId {
        self.id
    }

    /// Takes the oldest event, if there is one. Does not wait: its descriptor is readable exactly while there is one.
    pub fn next(&self) -> Option<CqEvent> {
        loop {
            let event = self.consumer.next()?;
            // The other that there can be is the last one, and says that the queue overflowed: the adapter has stopped.
            if event.code == Code::Completion {
                return Some(CqEvent { cq: event.object });
            }
        }
    }

    /// What its event queue has done so far.
    pub fn standing(&self) -> Standing {
        self.consumer.queue().standing()
    }

    /// Takes back the events of a completion queue that has left.
    pub fn revoke(&self, cq: u32) -> usize {
        self.consumer.revoke(|event| event == Event { code: Code::Completion, object: cq })
    }

    /// At most one wake in each interval (requirement I10); `None`: one whenever the last event was taken.
    pub fn moderate(&self, moderation: Option<(Duration, Arc<dyn Timer>)>) {
        self.consumer.moderate(moderation);
    }

    /// From now on no event is raised here (requirement N11). What is there can still be taken.
    pub fn shut_down(&self) {
        self.consumer.queue().shut_down();
    }

    /// A completion queue has what it was armed for. `last` is its event before this one: as long as nobody took that, it
    /// will do.
    pub(crate) fn raise(&self, cq: u32, last: &mut Option<Ticket>) {
        if last.is_some_and(|last| !self.consumer.queue().is_taken(last)) {
            return;
        }
        match self.consumer.post(Event { code: Code::Completion, object: cq }) {
            Ok(ticket) => *last = Some(ticket),
            Err(Refused::Undefined) => {}
            Err(Refused::Overflow) => {
                if let Some(reports) = &self.reports {
                    reports.stop(Some(AsyncEvent::EventQueueOverflow(self.consumer.queue().number())));
                }
            }
        }
    }
}

impl Moderated for CompletionHandler {
    /// The interval of [`moderate`](Self::moderate) is over.
    fn expired(&self) {
        self.consumer.queue().expired();
    }
}
