//! Where the events of a completion queue go: its handler, or a handler for each lane. Both can change.

use crate::broken;
use crate::event::{CompletionHandler, HandlerId, Ticket};
use std::sync::Arc;

/// Where the events of a queue go.
#[derive(Debug, Default)]
pub(super) struct EventTarget {
    /// None if the queue has no handler, one that has all events, or one for each lane (requirement I8).
    handlers: Vec<Target>,
    /// Whether the queue may raise events: it was armed once. Its handlers then have memory for them (requirement I2).
    raises: bool,
    /// An event of this lane was raised while there was no handler. The next handler gets it.
    pending: Option<u16>,
    /// Whether the queue is shut down. Then it has no handler and gets none any more, so no event is delivered.
    closed: bool,
}

/// A handler, for one lane or for all.
#[derive(Debug)]
struct Target {
    handler: Arc<CompletionHandler>,
    /// The last event that the handler got for this lane. While that is not taken, another event would be redundant.
    last: Option<Ticket>,
}

impl EventTarget {
    /// Makes the handlers, and each that follows them, ready for events. Call before the first event.
    pub(super) fn prepare(&mut self) {
        self.raises = true;
        self.open_handlers();
    }

    /// Gives the event queues of the handlers memory, if the queue may raise events.
    fn open_handlers(&self) {
        if self.raises {
            self.handlers.iter().for_each(|target| target.handler.open());
        }
    }

    /// Raises an event of the queue `cq` at its handler for this lane, or keeps the event for the next handler. Lanes
    /// that are out of range wrap around, as in the event map.
    pub(super) fn raise(&mut self, cq: u32, lane: u16) {
        match self.handlers.len() {
            0 => self.pending = Some(lane),
            count => {
                let Target { handler, last } = &mut self.handlers[usize::from(lane) % count];
                handler.raise(cq, lane, last);
            }
        }
    }

    /// Returns whether an event was raised that the consumer has not taken, and forgets an event that waits for a handler.
    pub(super) fn take_untaken(&mut self) -> bool {
        let waits = self.pending.take().is_some();
        waits || self.handlers.iter().any(|target| target.handler.has(target.last))
    }

    /// Moves the queue `cq` to another handler, to one for each lane, or to none. An event that is due goes to the new
    /// handler.
    pub(super) fn set_handlers(&mut self, cq: u32, handlers: impl Iterator<Item = Arc<CompletionHandler>>) {
        if self.closed {
            return;
        }
        self.handlers = handlers.map(|handler| Target { handler, last: None }).collect();
        if !broken::is("memory") {
            self.open_handlers();
        }
        if let Some(lane) = self.pending.take() {
            self.raise(cq, lane);
        }
    }

    /// Removes the events of the queue `cq` that were not taken from its handlers, and raises no more.
    pub(super) fn shut_down(&mut self, cq: u32) {
        let before = std::mem::replace(self, Self { closed: true, ..Self::default() });
        for Target { handler, .. } in before.handlers {
            handler.revoke(cq);
        }
    }

    /// The identifier of the handler, if there is one. If there is one for each lane, that of lane 0.
    pub(super) fn handler(&self) -> Option<HandlerId> {
        self.handlers.first().map(|target| target.handler.id())
    }
}
