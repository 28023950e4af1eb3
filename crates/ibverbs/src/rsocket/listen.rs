//! Listening sockets. Lanes accept connections, up to the backlog, before the program calls `raccept`, as the kernel
//! does for TCP: a peer does not wait for the program.

use super::adapter::engine;
use super::options::Options;
use super::stream::{Acceptor, Stream};
use super::waiters::Waiters;
use super::wire::Hello;
use crate::support::errno::Errno;
use ironwarp_engine::{ConnectionEventKind, EventSink, Incoming, Listening, MAX_BACKLOG};
use ironwarp_rnic::sync::lock;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};

/// A listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    /// This listener, for its connections to refer to.
    this: Weak<Self>,
    /// Threads that wait in `raccept`.
    waiters: Arc<Waiters>,
    /// Options of the listening socket, which accepted connections inherit.
    options: Arc<Mutex<Options>>,
    queue: Mutex<Queue>,
    /// The listeners of the adapter, one for each address.
    listening: Mutex<Vec<Listening>>,
}

/// The connections that the program has not taken yet.
#[derive(Debug, Default)]
struct Queue {
    /// Maximum number of accepted connections.
    backlog: usize,
    /// Requests that are not accepted yet, because the backlog is full.
    waiting: VecDeque<Incoming>,
    /// Connections that are accepted and not established yet, by queue pair number.
    accepting: HashMap<u32, Arc<Stream>>,
    /// Established connections.
    ready: VecDeque<Arc<Stream>>,
    /// Whether the program has closed the socket.
    closed: bool,
}

impl Listener {
    /// Listens on all of these addresses, or on none if one of them fails. Called by `rlisten`, with two addresses if
    /// an IPv6 socket also serves IPv4. `options` and `waiters` are those of the socket.
    pub(super) fn open(
        addresses: &[SocketAddr],
        backlog: usize,
        options: &Arc<Mutex<Options>>,
        waiters: &Arc<Waiters>,
    ) -> Result<Arc<Self>, Errno> {
        let listener = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            waiters: Arc::clone(waiters),
            options: Arc::clone(options),
            queue: Mutex::new(Queue { backlog, ..Queue::default() }),
            listening: Mutex::default(),
        });
        for at in addresses {
            let handler = Arc::new(RequestHandler(Weak::clone(&listener.this)));
            // Not `backlog`, which limits accepted connections: requests that exceed it wait in `Queue::waiting`.
            // A failure drops `listener`, and with it the listeners of the adapter that exist already, which stops
            // them, and the requests that have arrived there.
            let listening = engine()?.listen_with(*at, handler, MAX_BACKLOG)?;
            lock(&listener.listening).push(listening);
        }
        Ok(listener)
    }

    /// Changes the backlog of a listening socket.
    pub(super) fn set_backlog(&self, backlog: usize) {
        lock(&self.queue).backlog = backlog;
        self.admit();
    }

    /// Returns the current options of the listening socket.
    pub(super) fn options(&self) -> Options {
        *lock(&self.options)
    }

    /// Returns whether there is a connection to take. For `rpoll`, and for a thread that waits in `raccept`.
    pub(super) fn is_ready(&self) -> bool {
        !lock(&self.queue).ready.is_empty()
    }

    /// Takes the next established connection, for `raccept`, and accepts a waiting request in its place. `None` if
    /// there is no established connection.
    pub(super) fn take(&self) -> Option<Arc<Stream>> {
        let stream = lock(&self.queue).ready.pop_front()?;
        self.admit();
        Some(stream)
    }

    /// Puts a connection back that [`take`](Self::take) has returned. Called if no descriptor could be created for it.
    pub(super) fn put_back(&self, stream: Arc<Stream>) {
        lock(&self.queue).ready.push_front(stream);
    }

    /// Stops listening, and rejects waiting requests. Returns the established connections, for the caller to close.
    pub(super) fn close(&self) -> Vec<Arc<Stream>> {
        lock(&self.listening).clear();
        let mut queue = lock(&self.queue);
        queue.closed = true;
        let waiting = std::mem::take(&mut queue.waiting);
        let ready = std::mem::take(&mut queue.ready).into_iter().collect();
        drop(queue);
        drop(waiting); // rejects them, after the lock is released
        ready
    }

    /// Accepts waiting requests while the backlog has room. Called after every change that may make room.
    fn admit(&self) {
        loop {
            let mut queue = lock(&self.queue);
            if queue.closed || queue.accepting.len() + queue.ready.len() >= queue.backlog {
                return;
            }
            let Some(incoming) = queue.waiting.pop_front() else { return };
            drop(queue);
            self.accept(incoming);
        }
    }

    /// Accepts a request, or rejects it if the peer is not an rsocket or no connection can be created.
    fn accept(&self, incoming: Incoming) {
        if Hello::from_bytes(incoming.private_data()).is_none() {
            tracing::warn!(peer = %incoming.peer(), "rejected a peer that is not an rsocket of Ironwarp");
            let _ = incoming.reject(b"this port accepts only rsockets of Ironwarp");
            return;
        }
        let stream = Stream::new(&self.options(), &Arc::default(), Some(Weak::<Self>::clone(&self.this)));
        let (stream, engine) = match (stream, engine()) {
            (Ok(stream), Ok(engine)) => (stream, engine),
            (Err(errno), _) | (_, Err(errno)) => {
                tracing::warn!(peer = %incoming.peer(), errno = errno.0, "failed to create a connection");
                return; // dropping `incoming` rejects it
            }
        };
        let number = stream.pair().id();
        lock(&self.queue).accepting.insert(number, Arc::clone(&stream));
        let terms = engine.terms(None, None); // the depths of the settings
        if let Err(error) = incoming.accept(stream.pair(), terms, &stream.hello()) {
            tracing::debug!(%error, "failed to accept a connection");
            lock(&self.queue).accepting.remove(&number);
        }
    }
}

impl Acceptor for Listener {
    /// Moves an accepted connection to the established ones, or drops it if it failed. Closes it if the program has
    /// closed the listening socket meanwhile.
    fn on_connection_event(&self, qp: u32, event: &ConnectionEventKind) {
        let mut queue = lock(&self.queue);
        let Some(stream) = queue.accepting.remove(&qp) else { return };
        if queue.closed {
            drop(queue);
            stream.pair().disconnect();
            return;
        }
        if matches!(event, ConnectionEventKind::Connected(_)) {
            queue.ready.push_back(stream);
            drop(queue);
            self.waiters.wake_all();
        } else {
            drop(queue);
            self.admit();
        }
    }
}

/// Receives the requests of peers, on lanes. It refers weakly to the listener, because lanes may hold it after the
/// program has closed the socket.
#[derive(Debug)]
struct RequestHandler(Weak<Listener>);

impl EventSink<Incoming> for RequestHandler {
    /// Queues the request of a peer, and accepts it at once if the backlog has room. Rejects the request, by dropping
    /// it, if the program has closed the socket.
    fn send(&self, incoming: Incoming) {
        let Some(listener) = self.0.upgrade() else { return };
        let mut queue = lock(&listener.queue);
        if queue.closed {
            drop(queue);
            return; // drops `incoming`, without the lock
        }
        queue.waiting.push_back(incoming);
        drop(queue);
        listener.admit();
    }

    /// Removes waiting requests of peers that have closed their connections.
    fn revoke(&self, is_gone: &dyn Fn(&Incoming) -> bool) {
        if let Some(listener) = self.0.upgrade() {
            lock(&listener.queue).waiting.retain(|incoming| !is_gone(incoming));
        }
    }
}
