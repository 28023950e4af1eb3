//! Who wants to connect. Connections are accepted on the lanes, as the kernel's TCP does it: a peer need not wait until the
//! program asks for it.

use super::options::Options;
use super::stream::Stream;
use super::wait::Waiters;
use super::wire::Hello;
use super::{engine, lock};
use crate::errno::Errno;
use ironwarp_engine::{Incoming, Listening, MAX_BACKLOG, Watcher, What};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};

/// Where peers come to.
#[derive(Debug)]
pub(super) struct Desk {
    me: Weak<Self>,
    waiters: Arc<Waiters>,
    options: Arc<Mutex<Options>>,
    queue: Mutex<Queue>,
    listening: Mutex<Vec<Listening>>,
}

#[derive(Debug, Default)]
struct Queue {
    backlog: usize,
    /// Not answered yet: there are too many before them.
    waiting: VecDeque<Incoming>,
    /// Answered; by the numbers of their queue pairs.
    accepting: HashMap<u32, Arc<Stream>>,
    /// Connected, and not taken yet.
    ready: VecDeque<Arc<Stream>>,
    /// The program closed.
    closed: bool,
}

impl Desk {
    /// Listens at all of these addresses.
    pub(super) fn open(
        at: &[SocketAddr],
        backlog: usize,
        options: &Arc<Mutex<Options>>,
        waiters: &Arc<Waiters>,
    ) -> Result<Arc<Self>, Errno> {
        let desk = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            waiters: Arc::clone(waiters),
            options: Arc::clone(options),
            queue: Mutex::new(Queue { backlog, ..Queue::default() }),
            listening: Mutex::default(),
        });
        for at in at {
            let guest = Arc::new(Door(Weak::clone(&desk.me)));
            let listening = engine()?.listen_and_tell(*at, guest, MAX_BACKLOG)?;
            lock(&desk.listening).push(listening);
        }
        Ok(desk)
    }

    /// A listening socket may be told another backlog.
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

    /// The next connection.
    pub(super) fn take(&self) -> Option<Arc<Stream>> {
        let stream = lock(&self.queue).ready.pop_front()?;
        self.admit();
        Some(stream)
    }

    /// Back to the front: there is no descriptor for it now.
    pub(super) fn put_back(&self, stream: Arc<Stream>) {
        lock(&self.queue).ready.push_front(stream);
    }

    /// Nobody will take these.
    pub(super) fn close(&self) -> Vec<Arc<Stream>> {
        lock(&self.listening).clear();
        let mut queue = lock(&self.queue);
        queue.closed = true;
        let waiting = std::mem::take(&mut queue.waiting);
        let ready = std::mem::take(&mut queue.ready).into_iter().collect();
        drop(queue);
        drop(waiting); // rejected
        ready
    }

    /// What happened to a connection that was accepted here.
    pub(super) fn tell_of(&self, qp: u32, what: &What) {
        let mut queue = lock(&self.queue);
        let Some(stream) = queue.accepting.remove(&qp) else { return };
        if queue.closed {
            drop(queue);
            stream.pair().disconnect();
            return;
        }
        if matches!(what, What::Connected(_)) {
            queue.ready.push_back(stream);
            drop(queue);
            self.waiters.wake();
        } else {
            drop(queue);
            self.admit();
        }
    }

    /// Answers those who wait, as long as there is room.
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
            tracing::warn!(peer = %incoming.peer(), "a peer that is no rsocket of Ironwarp's was turned away");
            let _ = incoming.reject(b"an rsocket of Ironwarp listens here, and knows no other protocol");
            return;
        }
        let stream = Stream::new(&self.options(), &Arc::default(), Some(Weak::clone(&self.me)));
        let (stream, engine) = match (stream, engine()) {
            (Ok(stream), Ok(engine)) => (stream, engine),
            (Err(errno), _) | (_, Err(errno)) => {
                tracing::warn!(peer = %incoming.peer(), errno = errno.0, "no memory for a connection");
                return; // dropped, it is rejected
            }
        };
        let number = stream.pair().id();
        lock(&self.queue).accepting.insert(number, Arc::clone(&stream));
        let terms = engine.terms(None, None);
        if let Err(error) = incoming.accept(stream.pair(), terms, &stream.hello()) {
            tracing::debug!(%error, "a connection was not accepted");
            lock(&self.queue).accepting.remove(&number);
        }
    }
}

/// What the lanes know of a desk: they keep a listening socket alive that is being closed.
#[derive(Debug)]
struct Door(Weak<Desk>);

impl Watcher<Incoming> for Door {
    fn tell(&self, incoming: Incoming) {
        let Some(desk) = self.0.upgrade() else { return };
        {
            let mut queue = lock(&desk.queue);
            if queue.closed {
                drop(queue);
                return; // dropped, it is rejected
            }
            queue.waiting.push_back(incoming);
        }
        desk.admit();
    }

    fn withdraw(&self, is_gone: &dyn Fn(&Incoming) -> bool) {
        if let Some(desk) = self.0.upgrade() {
            lock(&desk.queue).waiting.retain(|incoming| !is_gone(incoming));
        }
    }
}
