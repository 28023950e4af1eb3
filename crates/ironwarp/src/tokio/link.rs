//! The connection of an asynchronous queue pair, as its futures see it.

use super::inbox::Inbox;
use super::table::Table;
use ::tokio::sync::Notify;
use ironwarp_engine::{
    ConnectError, ConnectionEvent, ConnectionEventKind, Established, EventChannel, EventSink,
    QueuePair as Inner,
};
use ironwarp_rnic::qp::State as QpState;
use ironwarp_rnic::sync::lock;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// What has happened to the connection of a queue pair. The engine reports it by calls, so that a queue pair needs no
/// descriptor.
#[derive(Debug)]
pub(super) struct Link {
    table: Arc<Table>,
    /// Number of the queue pair; unset until it is created.
    pair: OnceLock<(u32, Weak<Inner>)>,
    /// Where the program wants the events as well.
    events: Option<Arc<EventChannel<ConnectionEvent>>>,
    progress: Mutex<Progress>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Progress {
    /// Whether the connection was established; `None` before that is known.
    outcome: Option<Result<Established, ConnectError>>,
    /// The connection is closed, or was not established.
    closed: bool,
    /// The receive queue, if there is one.
    inbox: Weak<Inbox>,
}

impl Link {
    pub(super) fn new(table: &Arc<Table>, events: Option<Arc<EventChannel<ConnectionEvent>>>) -> Self {
        Self {
            table: Arc::clone(table),
            pair: OnceLock::new(),
            events,
            progress: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Sets the queue pair. Called once, before it connects.
    pub(super) fn set_pair(&self, pair: &Arc<Inner>) {
        let _ = self.pair.set((pair.id(), Arc::downgrade(pair)));
    }

    /// Sets the receive queue, which is told when the connection is closed.
    pub(super) fn set_inbox(&self, inbox: &Arc<Inbox>) {
        let mut progress = lock(&self.progress);
        progress.inbox = Arc::downgrade(inbox);
        let closed = progress.closed;
        drop(progress);
        if closed {
            inbox.end(None);
        }
    }

    /// Waits until it is known whether the connection was established.
    pub(super) async fn outcome(&self) -> Result<Established, ConnectError> {
        self.wait(|progress| progress.outcome.clone()).await
    }

    /// Waits until the connection is closed, or was not established.
    pub(super) async fn closed(&self) {
        self.wait(|progress| progress.closed.then_some(())).await;
    }

    async fn wait<T>(&self, done: impl Fn(&Progress) -> Option<T>) -> T {
        loop {
            // Created before the check, so that no change in between is missed.
            let changed = self.changed.notified();
            if let Some(result) = done(&lock(&self.progress)) {
                return result;
            }
            changed.await;
        }
    }

    /// Changes the progress, and wakes those that wait.
    fn update(&self, update: impl FnOnce(&mut Progress)) {
        update(&mut lock(&self.progress));
        self.changed.notify_waiters();
    }

    /// Records that the connection is closed, or was not established.
    fn close(&self, outcome: Option<ConnectError>) {
        // First, so that those that wait for the end find the buffers in their pools.
        if let Some((number, _)) = self.pair.get() {
            self.table.close(*number);
        }
        let mut inbox = Weak::new();
        self.update(|progress| {
            progress.closed = true;
            if let Some(error) = outcome {
                progress.outcome = Some(Err(error));
            }
            inbox = Weak::clone(&progress.inbox);
        });
        if let Some(inbox) = inbox.upgrade() {
            inbox.end(None);
        }
    }
}

impl EventSink<ConnectionEvent> for Link {
    fn send(&self, event: ConnectionEvent) {
        if let Some(events) = &self.events {
            events.send(event.clone());
        }
        match event.kind {
            ConnectionEventKind::Connected(established) => {
                self.update(|progress| progress.outcome = Some(Ok(established)));
            }
            ConnectionEventKind::Failed(error) => {
                // The queue pair will not connect. Flush its receives.
                if let Some(pair) = self.pair.get().and_then(|(_, pair)| pair.upgrade()) {
                    let _ = pair.modify(QpState::Error);
                }
                self.close(Some(error));
            }
            _ => {} // after the end of the stream, the connection is closed
        }
    }

    fn revoke(&self, is_gone: &dyn Fn(&ConnectionEvent) -> bool) {
        if let Some(events) = &self.events {
            events.revoke(is_gone);
        }
    }

    fn on_closed(&self) {
        self.close(None);
    }
}

impl Drop for Link {
    /// The engine drops the link with its queue pair, perhaps without a report while the adapter closes.
    fn drop(&mut self) {
        if let Some((number, _)) = self.pair.get() {
            self.table.close(*number);
        }
    }
}
