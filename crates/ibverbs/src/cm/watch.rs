//! Receives the connection events of the adapter, on lanes, and dispatches them to the modules that turn them
//! into events of ids.

use super::ended::on_ended;
use super::established::on_connected;
use super::failed::on_failed;
use super::incoming::on_request;
use super::state::{Event, Shared};
use crate::objects::qp::Qp;
use ironwarp_engine::{ConnectionEvent, ConnectionEventKind, EventSink, Incoming};
use std::sync::{Arc, Weak};

/// Receives the connection events of the queue pair of an id. Ignores them once the id is gone.
#[derive(Debug)]
pub(super) struct Watch(Weak<Shared>);

impl Watch {
    pub(super) fn new(id: &Arc<Shared>) -> Arc<Self> {
        Arc::new(Self(Arc::downgrade(id)))
    }
}

impl EventSink<ConnectionEvent> for Watch {
    fn send(&self, event: ConnectionEvent) {
        let Some(id) = self.0.upgrade() else { return };
        match event.kind {
            ConnectionEventKind::Connected(established) => on_connected(&id, event.qp, &established),
            ConnectionEventKind::Failed(error) => on_failed(&id, event.qp, &error),
            ConnectionEventKind::Ended(_) => on_ended(&id, event.qp),
            _ => {}
        }
    }
}

/// Sends the connection events of a queue pair to `id` from now on, even if another id created the queue pair.
pub(super) fn redirect_events(qp: &Qp, id: &Arc<Shared>) {
    if let Some(relay) = qp.relay() {
        relay.redirect(Watch::new(id));
    }
}

/// Receives the connection requests of peers for a listening id.
#[derive(Debug)]
pub(super) struct RequestHandler(pub(super) Weak<Shared>);

impl EventSink<Incoming> for RequestHandler {
    fn send(&self, incoming: Incoming) {
        if let Some(id) = self.0.upgrade() {
            on_request(&id, incoming);
        }
    }

    /// Removes the events of peers that have closed their connections meanwhile.
    fn revoke(&self, is_gone: &dyn Fn(&Incoming) -> bool) {
        if let Some(id) = self.0.upgrade() {
            let queue = Arc::clone(&id.lock().queue);
            let matches =
                |event: &Event| event.request.as_ref().is_some_and(|request| is_gone(&request.incoming));
            drop(queue.extract(matches));
        }
    }
}
