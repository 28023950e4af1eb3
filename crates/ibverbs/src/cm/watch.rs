//! Connection events of the adapter. They arrive on the threads of lanes and become events of ids.

use super::ended::ended;
use super::established::connected;
use super::failed::failed;
use super::incoming::requested;
use super::state::Shared;
use crate::objects::qp::Qp;
use ironwarp_engine::{ConnectionEvent, ConnectionEventKind, EventSink, Incoming};
use std::sync::{Arc, Weak};

/// Receives the connection events of an id.
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
            ConnectionEventKind::Connected(established) => connected(&id, event.qp, &established),
            ConnectionEventKind::Failed(error) => failed(&id, event.qp, &error),
            ConnectionEventKind::Ended(_) => ended(&id, event.qp),
            _ => {}
        }
    }
}

/// Has an id receive the connection events of a queue pair, whichever id created it.
pub(super) fn follow(qp: &Qp, id: &Arc<Shared>) {
    if let Some(relay) = qp.relay() {
        relay.redirect(Watch::new(id));
    }
}

/// Receives the requests of peers that want to connect to an id.
#[derive(Debug)]
pub(super) struct RequestHandler(pub(super) Weak<Shared>);

impl EventSink<Incoming> for RequestHandler {
    fn send(&self, incoming: Incoming) {
        if let Some(id) = self.0.upgrade() {
            requested(&id, incoming);
        }
    }

    fn revoke(&self, is_gone: &dyn Fn(&Incoming) -> bool) {
        if let Some(id) = self.0.upgrade() {
            let queue = Arc::clone(&id.lock().queue);
            drop(
                queue.extract(|event| {
                    event.request.as_ref().is_some_and(|request| is_gone(&request.incoming))
                }),
            );
        }
    }
}
