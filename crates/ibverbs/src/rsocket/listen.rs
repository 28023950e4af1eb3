//! Listening. Connections are accepted on the lanes, as the kernel does for TCP: a peer does not wait for the
//! program.

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
    me: Weak<Self>,
    waiters: Arc<Waiters>,
    options: Arc<Mutex<Options>>,
    queue: Mutex<Queue>,
    listening: Mutex<Vec<Listening>>,
}

#[derive(Debug, Default)]
struct Queue {
    backlog: usize,
    /// Requests that are not answered yet, because the backlog is full.
    waiting: VecDeque<Incoming>,
    /// Accepted and not established yet, by queue pair number.
    accepting: HashMap<u32, Arc<Stream>>,
    /// Established, and not taken by the program yet.
    ready: VecDeque<Arc<Stream>>,
    /// The program has closed the socket.
    closed: bool,
}

impl Listener {
    /// Listens on all of these addresses.
    pub(super) fn open(
        at: &[SocketAddr],
        backlog: usize,
        options: &Arc<Mutex<Options>>,
        waiters: &Arc<Waiters>,
    ) -> Result<Arc<Self>, Errno> {
        let listener = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            waiters: Arc::clone(waiters),
            options: Arc::clone(options),
            queue: Mutex::new(Queue { backlog, ..Queue::default() }),
            listening: Mutex::default(),
        });
        for at in at {
            let handler = Arc::new(RequestHandler(Weak::clone(&listener.me)));
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

    pub(super) fn options(&self) -> Options {
        *lock(&self.options)
    }

    pub(super) fn is_ready(&self) -> bool {
        !lock(&self.queue).ready.is_empty()
    }

    /// Takes the next connection.
    pub(super) fn take(&self) -> Option<Arc<Stream>> {
        let stream = lock(&self.queue).ready.pop_front()?;
        self.admit();
        Some(stream)
    }

    /// Puts a connection back that could not get a descriptor.
    pub(super) fn put_back(&self, stream: Arc<Stream>) {
        lock(&self.queue).ready.push_front(stream);
    }

    /// Stops listening. Returns the connections that the program did not take.
    pub(super) fn close(&self) -> Vec<Arc<Stream>> {
        lock(&self.listening).clear();
        let mut queue = lock(&self.queue);
        queue.closed = true;
        let waiting = std::mem::take(&mut queue.waiting);
        let ready = std::mem::take(&mut queue.ready).into_iter().collect();
        drop(queue);
        drop(waiting); // rejects them
        ready
    }

    /// Accepts waiting requests while the backlog has room.
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

    fn accept(&self, incoming: Incoming) {
        if Hello::from_bytes(incoming.private_data()).is_none() {
            tracing::warn!(peer = %incoming.peer(), "rejected a peer that is not an rsocket of Ironwarp");
            let _ = incoming.reject(b"this port accepts only rsockets of Ironwarp");
            return;
        }
        let stream = Stream::new(&self.options(), &Arc::default(), Some(Weak::<Self>::clone(&self.me)));
        let (stream, engine) = match (stream, engine()) {
            (Ok(stream), Ok(engine)) => (stream, engine),
            (Err(errno), _) | (_, Err(errno)) => {
                tracing::warn!(peer = %incoming.peer(), errno = errno.0, "failed to create a connection");
                return; // dropping it rejects it
            }
        };
        let number = stream.pair().id();
        lock(&self.queue).accepting.insert(number, Arc::clone(&stream));
        let terms = engine.terms(None, None);
        if let Err(error) = incoming.accept(stream.pair(), terms, &stream.hello()) {
            tracing::debug!(%error, "failed to accept a connection");
            lock(&self.queue).accepting.remove(&number);
        }
    }
}

impl Acceptor for Listener {
    fn connection_changed(&self, qp: u32, what: &ConnectionEventKind) {
        let mut queue = lock(&self.queue);
        let Some(stream) = queue.accepting.remove(&qp) else { return };
        if queue.closed {
            drop(queue);
            stream.pair().disconnect();
            return;
        }
        if matches!(what, ConnectionEventKind::Connected(_)) {
            queue.ready.push_back(stream);
            drop(queue);
            self.waiters.wake();
        } else {
            drop(queue);
            self.admit();
        }
    }
}

/// Receives requests. The lanes may hold this longer than the program has the socket.
#[derive(Debug)]
struct RequestHandler(Weak<Listener>);

impl EventSink<Incoming> for RequestHandler {
    fn send(&self, incoming: Incoming) {
        let Some(listener) = self.0.upgrade() else { return };
        {
            let mut queue = lock(&listener.queue);
            if queue.closed {
                drop(queue);
                return; // dropping it rejects it
            }
            queue.waiting.push_back(incoming);
        }
        listener.admit();
    }

    fn revoke(&self, is_gone: &dyn Fn(&Incoming) -> bool) {
        if let Some(listener) = self.0.upgrade() {
            lock(&listener.queue).waiting.retain(|incoming| !is_gone(incoming));
        }
    }
}
