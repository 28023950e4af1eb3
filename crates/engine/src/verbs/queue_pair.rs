//! A queue pair of the verbs: its number, its attributes, and the device's queue pair behind it.
//!
//! A device's queue pair has one stream, so a reset puts a new [`Qp`] under the same number; the one before it ends silently.

use super::connection::{Connection, Owner};
use super::cq::CompletionQueue;
use super::error::ConnectError;
use super::event::{ConnectionEvent, ConnectionEventKind, Established};
use super::manual::{BringUpOptions, ManualConnect, Remote};
use super::qpn::Number;
use crate::notify::channel::EventSink;
use crate::reactor::member::Movable;
use crate::steering::{MoveError, Steering};
use crate::sys::random::random;
use crate::sys::socket::TcpLink;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::{PostError, QpError};
use ironwarp_rnic::qp::{Attributes, IllegalTransition, Qp, Retries, State};
use ironwarp_rnic::queue::WorkRequest;
use ironwarp_rnic::sync::{self, lock};
use ironwarp_wire::private::Secret;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock, Weak};
use std::time::{Duration, Instant};

/// A queue pair, its completion queues and its connection.
#[derive(Debug)]
pub struct QueuePair {
    number: Number,
    /// Number of queue pairs of the adapter that were created before it.
    place: u32,
    /// Number of streams it has had; a reset lets it have another.
    streams: AtomicU32,
    device: Arc<Device>,
    send_cq: Arc<CompletionQueue>,
    receive_cq: Arc<CompletionQueue>,
    /// Receives the events of its connection.
    events: Option<Arc<dyn EventSink<ConnectionEvent>>>,
    /// Has the other attributes. Replaced by a reset.
    qp: RwLock<Arc<Qp>>,
    connection: Mutex<Weak<Connection<Self>>>,
    /// Its manual connection, if it was told to make one.
    manual: Mutex<Option<Arc<ManualConnect>>>,
    /// The program wants no connection, or no more.
    given_up: AtomicBool,
    progress: Mutex<Progress>,
    changed: Condvar,
}

/// What has happened to a connection.
#[derive(Clone, Debug, Default)]
struct Progress {
    outcome: Option<Result<Arc<Established>, Arc<ConnectError>>>,
    closed: bool,
}

/// The other end of a connection, as the program named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A queue pair, by its GID and number.
    Qp(Remote),
    /// An address.
    At(SocketAddr),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Qp(Remote { gid, qpn }) => match gid.ip() {
                Some(ip) => write!(f, "{ip} qp {qpn:#08x}"),
                None => write!(f, "{gid} qp {qpn:#08x}"),
            },
            Self::At(address) => address.fmt(f),
        }
    }
}

/// The attributes of a queue pair.
pub type QueuePairAttributes = Attributes<Arc<CompletionQueue>>;

/// Options of a queue pair that its device does not know.
#[derive(Clone, Debug, Default)]
pub struct QueuePairOptions {
    /// The queue pair number includes a port, as that of a manually connected queue pair always does, although this one is
    /// connected by address: a manually connected peer can reach it.
    pub reachable: bool,
    /// Receives events of the connection.
    pub events: Option<Arc<dyn EventSink<ConnectionEvent>>>,
}

impl QueuePair {
    pub(crate) fn new(
        number: Number,
        place: u32,
        device: &Arc<Device>,
        attributes: QueuePairAttributes,
        events: Option<Arc<dyn EventSink<ConnectionEvent>>>,
    ) -> Arc<Self> {
        let (send_cq, receive_cq) = (Arc::clone(&attributes.send_cq), Arc::clone(&attributes.receive_cq));
        let attributes = attributes.map_cqs(|cq| Arc::clone(cq.cq()));
        Arc::new(Self {
            device: Arc::clone(device),
            qp: RwLock::new(Qp::new(number.value(), device, attributes)),
            number,
            place,
            streams: AtomicU32::new(0),
            send_cq,
            receive_cq,
            events,
            connection: Mutex::default(),
            manual: Mutex::default(),
            given_up: AtomicBool::new(false),
            progress: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Returns its number.
    pub fn id(&self) -> u32 {
        self.number.value()
    }

    /// Returns the device's queue pair behind it. A reset replaces it.
    pub fn qp(&self) -> Arc<Qp> {
        Arc::clone(&sync::read(&self.qp))
    }

    /// Posts requests to the send queue: all of them, or none.
    pub fn post_send(&self, requests: impl IntoIterator<Item = WorkRequest>) -> Result<(), PostError> {
        self.qp().post_send(requests)
    }

    /// Returns the completion queue of its send queue.
    pub fn send_cq(&self) -> &Arc<CompletionQueue> {
        &self.send_cq
    }

    /// Returns the completion queue of its receive queue.
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
            && let Some(manual) = self.manual()
        {
            manual.attempt.cancel();
        }
        self.qp().modify(to)
    }

    /// Empties its queues, takes its completions back and closes its connection. It may be connected again.
    fn reset(&self) {
        self.end_manual();
        let fresh = Qp::new(self.id(), &self.device, self.qp().attributes().clone());
        let before = {
            let mut qp = sync::write(&self.qp);
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

    /// Sends what was posted, then closes the connection. The peer has the time in the settings to do the same. A connection that is being
    /// made is closed once it is made.
    pub fn disconnect(&self) {
        self.close(Connection::disconnect);
    }

    /// Disconnects as the verbs do: gives up messages for which the remote program has posted no receive, because it may be waiting
    /// for the end of the connection.
    pub fn hang_up(&self) {
        self.close(Connection::hang_up);
    }

    fn close(&self, close: impl FnOnce(&Arc<Connection<Self>>)) {
        // Before the connection is looked up: a thread that starts one stores it first, and then looks at this.
        self.given_up.store(true, Ordering::SeqCst);
        if self.end_manual() {
            self.qp().abort(QpError::Disconnected);
            self.connect_failed(ConnectError::GivenUp);
        }
        let connection = lock(&self.connection).upgrade();
        if let Some(connection) = connection {
            close(&connection);
        }
    }

    /// The program destroys it: nothing completes any more. It is [disconnected](Self::disconnect), so that what it has sent and
    /// received so far arrives and is acknowledged.
    pub fn retire(&self) {
        self.qp().suppress_completions();
        self.disconnect();
    }

    pub(crate) fn number(&self) -> &Number {
        &self.number
    }

    /// Starts its stream on a link whose handshake is done. `early` is what came behind the handshake.
    pub(crate) fn start_stream(
        self: &Arc<Self>,
        link: &Arc<TcpLink>,
        established: Established,
        early: Vec<u8>,
    ) -> Result<(), ConnectError> {
        Connection::start(self, link, established, early)
    }

    /// Returns the lane that serves its connection while the program does not poll; `None` if it has no connection.
    pub fn lane(&self) -> Option<usize> {
        Some(self.connection()?.lane().number())
    }

    pub(crate) fn connection(&self) -> Option<Arc<Connection<Self>>> {
        lock(&self.connection).upgrade()
    }

    /// Waits until the connection is established or has failed.
    pub fn wait_connected(&self, timeout: Duration) -> Result<Arc<Established>, Arc<ConnectError>> {
        self.wait(timeout, |progress| progress.outcome.clone())
            .unwrap_or_else(|| Err(Arc::new(ConnectError::TimedOut)))
    }

    /// Returns the peer: the queue pair that it was told to connect to, or the address that it is connected to.
    pub fn peer(&self) -> Option<Peer> {
        if let Some(remote) = self.remote() {
            return Some(Peer::Qp(remote));
        }
        match &lock(&self.progress).outcome {
            Some(Ok(established)) => Some(Peer::At(established.peer)),
            _ => None,
        }
    }

    /// Waits until both directions of the connection are closed. Returns false if the timeout expires first.
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

    pub(crate) fn connect_failed(&self, error: ConnectError) {
        tracing::debug!(qp = self.id(), %error, "queue pair not connected");
        let error = Arc::new(error);
        self.change(|progress| {
            progress.outcome = Some(Err(Arc::clone(&error)));
            progress.closed = true;
        });
        self.send(ConnectionEventKind::Failed(error));
    }

    fn change(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut lock(&self.progress));
        self.changed.notify_all();
    }

    fn send(&self, kind: ConnectionEventKind) {
        if let Some(events) = &self.events {
            events.send(ConnectionEvent { qp: self.id(), kind });
        }
    }

    // --- Manual connections ---

    /// Sets how often and how long it tries, from now on.
    pub fn set_retries(&self, retries: Retries) {
        self.qp().set_retries(retries);
        if let Some(manual) = self.manual() {
            Arc::clone(&manual.attempt).patience_changed();
        }
    }

    /// Sets the first packet sequence number of this end (sq_psn): see [`BringUpOptions::receive_psn`].
    pub fn set_send_psn(&self, psn: u32) {
        if let Some(manual) = self.manual() {
            manual.attempt.set_send_psn(psn);
        }
    }

    /// Returns a new secret to exchange with its peer; `None` if it cannot be connected manually.
    pub fn new_secret(&self) -> Option<Secret> {
        self.number.port()?;
        random().ok().map(Secret)
    }

    /// Keeps a secret that its peer has, too, until it is reset: both then prove that they know it. Returns false if it cannot be
    /// connected manually.
    pub fn keep_secret(&self, secret: Secret) -> bool {
        let port = self.number.port();
        if let Some(port) = port {
            port.keep_secret(self.id(), secret);
        }
        port.is_some()
    }

    /// Returns the queue pair that it was told to connect to.
    pub fn remote(&self) -> Option<Remote> {
        self.manual().map(|manual| manual.remote)
    }

    /// Returns the options of its manual connection.
    pub fn bring_up_options(&self) -> Option<BringUpOptions> {
        self.manual().map(|manual| manual.options)
    }

    fn manual(&self) -> Option<Arc<ManualConnect>> {
        lock(&self.manual).clone()
    }

    pub(crate) fn set_manual(&self, manual: ManualConnect) {
        *lock(&self.manual) = Some(Arc::new(manual));
    }

    /// Ends its manual connection, after which it can be told to make another. Returns whether none was made yet.
    fn end_manual(&self) -> bool {
        if let Some(port) = self.number.port() {
            port.forget(self.id());
        }
        let manual = lock(&self.manual).take();
        manual.is_some_and(|manual| manual.attempt.cancel())
    }
}

impl Owner for QueuePair {
    fn device(&self) -> &Arc<Device> {
        &self.device
    }

    fn qp(&self) -> Arc<Qp> {
        Self::qp(self)
    }

    fn send_cq(&self) -> &Arc<CompletionQueue> {
        &self.send_cq
    }

    fn receive_cq(&self) -> &Arc<CompletionQueue> {
        &self.receive_cq
    }

    /// It follows from what the program does, and not from the queue pair's number, which contains a port that the kernel chose: the same seed
    /// must have the same effect tomorrow.
    fn next_stream(&self) -> u64 {
        u64::from(self.streams.fetch_add(1, Ordering::Relaxed)) << 32 | u64::from(self.place)
    }

    fn set_connection(&self, connection: &Arc<Connection<Self>>) {
        *lock(&self.connection) = Arc::downgrade(connection);
    }

    fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::SeqCst)
    }

    fn connected(&self, established: Established) {
        let established = Arc::new(established);
        self.change(|progress| {
            progress.outcome = Some(Ok(Arc::clone(&established)));
            progress.closed = false; // an earlier attempt may have failed
        });
        self.send(ConnectionEventKind::Connected(established));
    }

    fn ended(&self, error: &Arc<QpError>) {
        self.send(ConnectionEventKind::Ended(Arc::clone(error)));
    }

    fn closed(&self) {
        self.change(|progress| progress.closed = true);
    }

    fn peer_gone(&self) {
        if let Some(manual) = self.manual() {
            Arc::clone(&manual.attempt).peer_gone();
        }
    }
}

impl Steering {
    /// Moves the connection of a queue pair to another lane while traffic flows: no message is lost, doubled or reordered. Its completion
    /// queues are polled and waited on as before. Connectionless queue pairs cannot be moved.
    pub fn move_queue_pair(&self, pair: &QueuePair, to: usize) -> Result<(), MoveError> {
        self.check_lane(to)?;
        let connection: Arc<dyn Movable> = pair.connection().ok_or(MoveError::NotConnected)?;
        self.move_connection(&connection, to)
    }
}

impl Drop for QueuePair {
    /// Its events that nobody took are of no use any more.
    fn drop(&mut self) {
        self.device.events().revoke(|event| event.queue_pair() == Some(self.id()));
    }
}

/// What an idle queue pair takes, besides the device's part of it (`a_queue_pair_stays_small`): there may be 100,000 of them.
#[cfg(all(test, target_pointer_width = "64"))]
#[test]
fn a_connection_stays_small() {
    let small = [
        (size_of::<Connection<QueuePair>>(), 64),
        (size_of::<TcpLink>(), 24),
        (size_of::<QueuePair>(), 168),
        (size_of::<Established>(), 104),
    ];
    assert!(small.iter().all(|(size, most)| size <= most), "{small:?}");
}
