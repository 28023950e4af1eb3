//! Where the events of a completion queue go: its handler, which can change.

use crate::event::{CompletionHandler, HandlerId, Ticket};
use std::sync::Arc;

/// Where the events of a queue go.
#[derive(Debug, Default)]
pub(super) struct EventTarget {
    /// `None` if the queue has no handler.
    handler: Option<Arc<CompletionHandler>>,
    /// The last event that the handler got. While that is not taken, another event would be redundant.
    last: Option<Ticket>,
    /// An event was raised while there was no handler. The next handler gets it.
    event_pending: bool,
    /// Whether the queue is shut down. Then it has no handler and gets none any more, so no event is delivered.
    closed: bool,
}

impl EventTarget {
    /// Raises an event of the queue `cq` at its handler, or keeps the event for the next handler.
    pub(super) fn raise(&mut self, cq: u32) {
        match &self.handler {
            Some(handler) => handler.raise(cq, &mut self.last),
            None => self.event_pending = true,
        }
    }

    /// Moves the queue `cq` to another handler, or to none. An event that is due goes to the new handler.
    pub(super) fn set_handler(&mut self, cq: u32, handler: Option<Arc<CompletionHandler>>) {
        if self.closed {
            return;
        }
        self.handler = handler;
        self.last = None;
        if std::mem::take(&mut self.event_pending) {
            self.raise(cq);
        }
    }

    /// Removes the events of the queue `cq` that were not taken from its handler, and raises no more.
    pub(super) fn shut_down(&mut self, cq: u32) {
        let before = std::mem::replace(self, Self { closed: true, ..Self::default() });
        if let Some(handler) = before.handler {
            handler.revoke(cq);
        }
    }

    /// The identifier of the handler, if there is one.
    pub(super) fn handler(&self) -> Option<HandlerId> {
        self.handler.as_ref().map(|handler| handler.id())
    }
}
