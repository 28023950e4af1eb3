//! Forwards connection events to the connection manager of a queue pair.

use ironwarp_engine::{ConnectionEvent, EventSink};
use ironwarp_rnic::sync::lock;
use std::sync::{Arc, Mutex};

/// Forwards the connection events of a queue pair to its connection manager. The manager can change: a program may
/// create a queue pair with one id of librdmacm and connect it with another (uDAPL does).
#[derive(Debug)]
pub(crate) struct EventRelay {
    manager: Mutex<Arc<dyn EventSink<ConnectionEvent>>>,
}

impl EventRelay {
    pub(crate) fn new(manager: Arc<dyn EventSink<ConnectionEvent>>) -> Arc<Self> {
        Arc::new(Self { manager: Mutex::new(manager) })
    }

    /// Forwards later events to another manager.
    pub(crate) fn redirect(&self, manager: Arc<dyn EventSink<ConnectionEvent>>) {
        *lock(&self.manager) = manager;
    }
}

impl EventSink<ConnectionEvent> for EventRelay {
    fn send(&self, event: ConnectionEvent) {
        // Unlock before sending, because the manager may call `redirect`.
        let manager = Arc::clone(&lock(&self.manager));
        manager.send(event);
    }
}
