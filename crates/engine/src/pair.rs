//! A queue pair of the verbs: a number, what it was created with, and the device's queue pair that stands behind it.
//!
//! A stream is for once, so a reset puts a new [`Qp`] under the same number; the one before it goes silently.

use crate::byhand::{BringUp, Remote};
use crate::connection::Connection;
use crate::cq::CompletionQueue;
use crate::event::{ConnectError, ConnectionEvent, Established, Watcher, What};
use crate::qpn::Number;
use crate::set::lock;
use ironwarp_rnic::config::Config;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::{Fault, PostError};
use ironwarp_rnic::memory::{Domain, Rights};
use ironwarp_rnic::qp::{Attributes, Completes, IllegalTransition, Qp, Receives, RegistrationFailure, State};
use ironwarp_rnic::queue::{SharedSendQueue, WorkRequest};
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

/// A queue pair, its completion queues, and what happens to its connection.
#[derive(Debug)]
pub struct QueuePair {
    number: Number,
    /// How many queue pairs of the adapter were created before it.
    place: u32,
    /// How many streams it has had; a reset lets it have another.
    streams: AtomicU32,
    device: Arc<Device>,
    send_cq: Arc<CompletionQueue>,
    receive_cq: Arc<CompletionQueue>,
    /// Who is told what happens to its connection.
    events: Option<Arc<dyn Watcher<ConnectionEvent>>>,
    /// With all else that it was created with. Replaced by a reset.
    qp: RwLock<Arc<Qp>>,
    connection: Mutex<Weak<Connection>>,
    /// What it was told of its peer, if it is brought up by hand.
    bring_up: Mutex<Option<Arc<BringUp>>>,
    /// The program wants no connection, or no more.
    given_up: AtomicBool,
    progress: Mutex<Progress>,
    changed: Condvar,
}

/// What happened to a connection so far.
#[derive(Clone, Debug, Default)]
struct Progress {
    outcome: Option<Result<Arc<Established>, Arc<ConnectError>>>,
    closed: bool,
}

/// The other end of a connection, in the words that its program used for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A queue pair, by its number and GID.
    ByHand(Remote),
    /// An address.
    At(SocketAddr),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByHand(Remote { gid, qpn }) => match gid.ip() {
                Some(ip) => write!(f, "{ip} qp {qpn:#08x}"),
                None => write!(f, "{gid} qp {qpn:#08x}"),
            },
            Self::At(address) => address.fmt(f),
        }
    }
}

/// What a queue pair is created with.
#[derive(Clone, Debug)]
pub struct QueuePairAttributes {
    /// Its protection domain.
    pub domain: Domain,
    /// Where its send queue's completions go.
    pub send_cq: Arc<CompletionQueue>,
    /// Where its receive queue's completions go.
    pub receive_cq: Arc<CompletionQueue>,
    /// How many work requests its send queue holds.
    pub send_depth: usize,
    /// The send queue that feeds it instead of one of its own.
    pub shared_send: Option<Arc<SharedSendQueue>>,
    /// Where its receives come from.
    pub receives: Receives,
    /// How many scatter/gather elements a request has at most.
    pub max_sges: usize,
    /// When Sends and Writes complete.
    pub completes: Completes,
    /// What becomes of it if a registration by work request is refused.
    pub registration_failure: RegistrationFailure,
    /// What its peer may do with memory that allows it.
    pub rights: Rights,
    /// The program moves it through its states, from reset on.
    pub by_hand: bool,
    /// Its number tells where it is, as that of one that is brought up by hand always does, although it is connected by address:
    /// a peer that is brought up by hand can reach it.
    pub reachable: bool,
    /// Who is told what happens to its connection, besides the queue pair itself.
    pub events: Option<Arc<dyn Watcher<ConnectionEvent>>>,
}

impl QueuePairAttributes {
    /// Sixteen requests in each queue, of up to four buffers; whatever memory allows, the peer may do.
    pub fn new(domain: Domain, cq: &Arc<CompletionQueue>) -> Self {
        Self {
            domain,
            send_cq: Arc::clone(cq),
            receive_cq: Arc::clone(cq),
            send_depth: 16,
            shared_send: None,
            receives: Receives::Own(16),
            max_sges: 4,
            completes: Completes::WhenSent,
            registration_failure: RegistrationFailure::default(),
            rights: Rights::REMOTE,
            by_hand: false,
            reachable: false,
            events: None,
        }
    }

    fn for_device(&self) -> Attributes {
        Attributes {
            domain: self.domain,
            send_cq: Arc::clone(self.send_cq.cq()),
            receive_cq: Arc::clone(self.receive_cq.cq()),
            send_depth: self.send_depth,
            shared_send: self.shared_send.clone(),
            max_sges: self.max_sges,
            completes: self.completes,
            registration_failure: self.registration_failure,
            receives: self.receives.clone(),
            rights: self.rights,
            by_hand: self.by_hand,
        }
    }
}

impl QueuePair {
    pub(crate) fn new(
        number: Number,
        place: u32,
        device: &Arc<Device>,
        attributes: QueuePairAttributes,
    ) -> Arc<Self> {
        Arc::new(Self {
            device: Arc::clone(device),
            qp: RwLock::new(Qp::new(number.value(), device, attributes.for_device())),
            number,
            place,
            streams: AtomicU32::new(0),
            send_cq: attributes.send_cq,
            receive_cq: attributes.receive_cq,
            events: attributes.events,
            connection: Mutex::default(),
            bring_up: Mutex::default(),
            given_up: AtomicBool::new(false),
            progress: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.number.value()
    }

    /// Which sequence of faults its next stream has. It follows from what the program does, and not from the queue pair's
    /// number, in which there is a port that the kernel chose: the same seed is to mean the same tomorrow.
    pub(crate) fn next_stream(&self) -> u64 {
        u64::from(self.streams.fetch_add(1, Ordering::Relaxed)) << 32 | u64::from(self.place)
    }

    /// The device's queue pair that stands behind it now.
    pub fn qp(&self) -> Arc<Qp> {
        Arc::clone(&self.qp.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Posts requests to the send queue, all or none.
    pub fn post_send(&self, requests: impl IntoIterator<Item = WorkRequest>) -> Result<(), PostError> {
        self.qp().post_send(requests)
    }

    /// Where its send queue's completions go.
    pub fn send_cq(&self) -> &Arc<CompletionQueue> {
        &self.send_cq
    }

    /// Where its receive queue's completions go.
    pub fn receive_cq(&self) -> &Arc<CompletionQueue> {
        &self.receive_cq
    }

    // --- States ---

    /// Moves it to another state.
    pub fn modify(&self, to: State) -> Result<(), IllegalTransition> {
        if to == State::Reset {
            self.reset();
            return Ok(());
        }
        if to == State::Error
            && let Some(up) = self.bring_up()
        {
            up.cancel();
        }
        self.qp().modify(to)
    }

    /// As new: its queues are empty, its completions are taken back, its connection is closed, and it may have another.
    fn reset(&self) {
        self.end_bring_up();
        let fresh = Qp::new(self.id(), &self.device, self.qp().attributes().clone());
        let before = {
            let mut qp = self.qp.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *qp, fresh)
        };
        before.reset();
        let connection = std::mem::take(&mut *lock(&self.connection));
        if let Some(connection) = connection.upgrade() {
            connection.release();
        }
        self.given_up.store(false, Ordering::SeqCst);
        *lock(&self.progress) = Progress::default();
    }

    // --- Connecting ---

    /// Sends what was posted, then closes. The peer has the time that the settings give it to do the same. A connection that
    /// is in the making is closed when it is made: this comes before the look for it, there it is the other way round.
    pub fn disconnect(&self) {
        self.close(Connection::disconnect);
    }

    /// The same, as the verbs have it: a message for which the peer's program has no receive is given up. The program may be
    /// waiting for the end of the connection.
    pub fn hang_up(&self) {
        self.close(Connection::hang_up);
    }

    fn close(&self, close: impl FnOnce(&Arc<Connection>)) {
        self.given_up.store(true, Ordering::SeqCst);
        if self.end_bring_up() {
            self.qp().abort(Fault::Disconnected);
            self.failed(ConnectError::GivenUp);
        }
        let connection = lock(&self.connection).upgrade();
        if let Some(connection) = connection {
            close(&connection);
        }
    }

    /// The program destroys it: nothing completes any more. It closes as with [`disconnect`](Self::disconnect), so that what
    /// it has sent and received so far arrives and is acknowledged.
    pub fn retire(&self) {
        self.qp().hush();
        self.disconnect();
    }

    pub(crate) fn number(&self) -> &Number {
        &self.number
    }

    pub(crate) fn bring_up(&self) -> Option<Arc<BringUp>> {
        lock(&self.bring_up).clone()
    }

    pub(crate) fn set_bring_up(&self, up: &Arc<BringUp>) {
        *lock(&self.bring_up) = Some(Arc::clone(up));
    }

    pub(crate) fn take_bring_up(&self) -> Option<Arc<BringUp>> {
        lock(&self.bring_up).take()
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::SeqCst)
    }

    pub(crate) fn set_connection(&self, connection: &Arc<Connection>) {
        *lock(&self.connection) = Arc::downgrade(connection);
    }

    /// The lane that serves its connection while the program does not; `None` if there is none.
    pub fn lane(&self) -> Option<usize> {
        Some(self.connection()?.lane().number())
    }

    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        lock(&self.connection).upgrade()
    }

    /// Waits until the connection is there or will not be.
    pub fn wait_connected(&self, timeout: Duration) -> Result<Arc<Established>, Arc<ConnectError>> {
        self.wait(timeout, |progress| progress.outcome.clone())
            .unwrap_or_else(|| Err(Arc::new(ConnectError::TimedOut)))
    }

    /// Who is at the other end: the queue pair that it was told to connect to, or else the address that it is connected to.
    pub fn peer(&self) -> Option<Peer> {
        if let Some(remote) = self.remote() {
            return Some(Peer::ByHand(remote));
        }
        match &lock(&self.progress).outcome {
            Some(Ok(established)) => Some(Peer::At(established.peer)),
            _ => None,
        }
    }

    /// Waits until both directions of the connection are closed; false if that takes longer.
    pub fn wait_closed(&self, timeout: Duration) -> bool {
        self.wait(timeout, |progress| progress.closed.then_some(())).is_some()
    }

    fn wait<T>(&self, timeout: Duration, done: impl Fn(&Progress) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + timeout;
        let mut progress = lock(&self.progress);
        loop {
            if let Some(result) = done(&progress) {
                return Some(result);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            progress = match self.changed.wait_timeout(progress, left) {
                Ok((progress, _)) => progress,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    pub(crate) fn config(&self) -> &Config {
        self.device.config()
    }

    pub(crate) fn connected(&self, established: Established) {
        let established = Arc::new(established);
        self.change(|progress| {
            progress.outcome = Some(Ok(Arc::clone(&established)));
            progress.closed = false; // an attempt before this one may have failed
        });
        self.tell(What::Connected(established));
    }

    pub(crate) fn failed(&self, error: ConnectError) {
        tracing::debug!(qp = self.id(), %error, "not connected");
        let error = Arc::new(error);
        self.change(|progress| {
            progress.outcome = Some(Err(Arc::clone(&error)));
            progress.closed = true;
        });
        self.tell(What::Failed(error));
    }

    pub(crate) fn ended(&self, fault: &Arc<Fault>) {
        self.tell(What::Ended(Arc::clone(fault)));
    }

    pub(crate) fn closed(&self) {
        self.change(|progress| progress.closed = true);
    }

    fn change(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut lock(&self.progress));
        self.changed.notify_all();
    }

    fn tell(&self, what: What) {
        if let Some(events) = &self.events {
            events.tell(ConnectionEvent { qp: self.id(), what });
        }
    }
}

impl Drop for QueuePair {
    /// Events that nobody took are about nothing any more.
    fn drop(&mut self) {
        self.device.events().revoke(|event| event.queue_pair() == Some(self.id()));
    }
}
