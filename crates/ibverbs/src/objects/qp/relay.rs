//! Forwards connection events to the connection manager of a queue pair.

use ironwarp_engine::{ConnectionEvent, EventSink};
use ironwarp_rnic::sync::lock;
use std::sync::{Arc, Mutex};

/// Forwards the connection events of a queue pair to its connection manager. That can change: a program may
/// create a queue pair with one id of librdmacm and connect it with another (uDAPL).
#[derive(Debug)]
pub(crate) struct EventRelay(Mutex<Arc<dyn EventSink<ConnectionEvent>>>);

impl EventRelay {
    pub(crate) fn new(to: Arc<dyn EventSink<ConnectionEvent>>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(to)))
    }

    /// Forwards to another manager from now on.
    pub(crate) fn redirect(&self, to: Arc<dyn EventSink<ConnectionEvent>>) {
        *lock(&self.0) = to;
    }
}

impl EventSink<ConnectionEvent> for EventRelay {
    fn send(&self, event: ConnectionEvent) {
        let to = Arc::clone(&lock(&self.0));
        to.send(event);
    }
}
