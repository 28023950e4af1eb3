//! A connected queue pair, as programs see it: its number, its connection, and the device's queue pair.
//!
//! A device's queue pair ([`Qp`]) has one stream. A reset therefore replaces it with a new one under the same number;
//! the old one ends without completions.

use super::connection::{Connection, ConnectionOwner};
use super::cq::CompletionQueue;
use super::device_qp::DeviceQp;
use super::error::ConnectError;
use super::event::{ConnectionEvent, ConnectionEventKind, Established};
use super::manual::{BringUpOptions, ManualConnect, Remote};
use super::qpn::Number;
use crate::notify::channel::EventSink;
use crate::reactor::member::Movable;
use crate::steering::{LeaveError, Leaving, MoveError, Steering};
use crate::sys::fork::Creator;
use crate::sys::random::random;
use crate::sys::socket::TcpLink;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::{PostError, QpError};
use ironwarp_rnic::event::AsyncEvent;
use ironwarp_rnic::qp::{Attributes, IllegalTransition, Qp, Retries, State};
use ironwarp_rnic::queue::{InlineData, ReceiveRequest, WorkRequest};
use ironwarp_rnic::quota::Resource;
use ironwarp_rnic::sync::lock;
use ironwarp_wire::private::Secret;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

mod moving;

pub use moving::PairNotMovable;
pub(crate) use moving::{FrozenPair, MOVABLE_CHECK, PairImage, RestoredPair};

/// A queue pair, its completion queues and its connection.
#[derive(Debug)]
pub struct QueuePair {
    number: Number,
    /// Number of queue pairs that the adapter created before this one.
    creation_index: u32,
    /// Number of streams that the queue pair has had. It can have another after a reset.
    streams: AtomicU32,
    creator: Creator,
    device: Arc<Device>,
    send_cq: Arc<CompletionQueue>,
    receive_cq: Arc<CompletionQueue>,
    /// Receives the events of the connection; `None` if the program wants none.
    events: Option<Arc<dyn EventSink<ConnectionEvent>>>,
    /// The device's queue pair, which has the other attributes. A reset replaces it.
    qp: DeviceQp,
    /// Dangling if there is no connection.
    connection: Mutex<Weak<Connection<Self>>>,
    /// The manual connection, if the program named a peer.
    manual: Mutex<Option<Arc<ManualConnect>>>,
    /// The program has disconnected the queue pair, perhaps before it had a connection.
    disconnect_requested: AtomicBool,
    progress: Mutex<Progress>,
    /// Wakes threads that wait for a change of `progress`.
    changed: Condvar,
}

/// What has happened to the connection since the last reset.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// Whether the connection was established; `None` before that is known.
    outcome: Option<Result<Arc<Established>, Arc<ConnectError>>>,
    /// Both directions are closed, or the connection was not established.
    closed: bool,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A queue pair, by its GID and number: the peer of a manual connection.
    Qp(Remote),
    /// The address that the queue pair is connected to.
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

/// Options of a queue pair, besides the attributes that its device has.
#[derive(Clone, Debug, Default)]
pub struct QueuePairOptions {
    /// Puts a port into the queue pair number although the queue pair is connected by address, so that a manually
    /// connected peer can dial it. The number of a manually connected queue pair always contains a port.
    pub reachable: bool,
    /// Receives events of the connection.
    pub events: Option<Arc<dyn EventSink<ConnectionEvent>>>,
}

impl QueuePair {
    /// Creates a queue pair, and the device's queue pair. `creation_index` is the number of queue pairs that were
    /// created before it. The caller has charged its function for it.
    pub(crate) fn new(
        number: Number,
        creation_index: u32,
        device: &Arc<Device>,
        attributes: QueuePairAttributes,
        events: Option<Arc<dyn EventSink<ConnectionEvent>>>,
    ) -> Arc<Self> {
        let cqs = [Arc::clone(&attributes.send_cq), Arc::clone(&attributes.receive_cq)];
        let qp = Qp::new(number.value(), device, attributes.map_cqs(|cq| Arc::clone(cq.cq())));
        Arc::new(Self::with_qp(number, creation_index, device, qp, cqs, events))
    }

    /// Creates a queue pair for a device's queue pair with these completion queues, for sends and for receives.
    fn with_qp(
        number: Number,
        creation_index: u32,
        device: &Arc<Device>,
        qp: Arc<Qp>,
        [send_cq, receive_cq]: [Arc<CompletionQueue>; 2],
        events: Option<Arc<dyn EventSink<ConnectionEvent>>>,
    ) -> Self {
        Self {
            device: Arc::clone(device),
            qp: DeviceQp::new(qp),
            number,
            creation_index,
            streams: AtomicU32::new(0),
            creator: Creator::this(),
            send_cq,
            receive_cq,
            events,
            connection: Mutex::default(),
            manual: Mutex::default(),
            disconnect_requested: AtomicBool::new(false),
            progress: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Returns the queue pair number.
    pub fn id(&self) -> u32 {
        self.number.value()
    }

    /// Returns the device's queue pair. A reset replaces it.
    pub fn qp(&self) -> Arc<Qp> {
        self.qp.get()
    }

    /// Posts requests to the send queue: all of them, or none if one is refused.
    pub fn post_send(&self, requests: impl IntoIterator<Item = WorkRequest>) -> Result<(), PostError> {
        self.check_process()?;
        let qp = self.qp.borrow();
        let posted = qp.post_send(requests);
        self.receive_cq.record_post(|| qp.is_blocked());
        posted
    }

    /// Copies the data of an inline request to memory of the send queue: see [`Qp::inline_data`]. In a forked child, which
    /// cannot post the request, a thread of the parent may have locked the queue at the fork.
    pub fn inline_data(&self, len: usize, max: usize, write: impl FnOnce(&mut [u8])) -> InlineData {
        if self.creator.is_parent() {
            return InlineData::allocate(len, write);
        }
        self.qp.borrow().inline_data(len, max, write)
    }

    /// Posts a receive.
    #[inline]
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        self.check_process()?;
        self.qp.borrow().post_receive(request)
    }

    /// Fails in a forked child, which has neither the connection nor the buffers of its parent.
    #[inline]
    fn check_process(&self) -> Result<(), PostError> {
        if self.creator.is_parent() { Err(PostError::Inherited) } else { Ok(()) }
    }

    /// Returns the completion queue of the send queue.
    pub fn send_cq(&self) -> &Arc<CompletionQueue> {
        &self.send_cq
    }

    /// Returns the completion queue of the receive queue.
    pub fn receive_cq(&self) -> &Arc<CompletionQueue> {
        &self.receive_cq
    }

    // --- States ---

    /// Moves the queue pair to another state. A reset closes its connection; an error cancels a manual connection in
    /// progress.
    pub fn modify(&self, to: State) -> Result<(), IllegalTransition> {
        if to == State::Reset {
            self.reset();
            return Ok(());
        }
        if to != State::Error && self.device.is_shut_down() {
            return Err(IllegalTransition { from: self.qp().state(), to });
        }
        if to == State::Error
            && let Some(manual) = self.manual()
        {
            manual.attempt.cancel();
        }
        self.qp().modify(to)
    }

    /// Empties the queues, removes unpolled completions and closes the connection. Afterwards the queue pair can be
    /// connected again.
    fn reset(&self) {
        self.end_manual();
        let fresh = Qp::new(self.id(), &self.device, self.qp().attributes().clone());
        self.qp.replace(Arc::clone(&fresh)).reset();
        if self.device.is_shut_down() {
            fresh.shut_down(); // the shutdown may have found the one before
        }
        let connection = std::mem::take(&mut *lock(&self.connection));
        if let Some(connection) = connection.upgrade() {
            connection.release();
        }
        self.disconnect_requested.store(false, Ordering::SeqCst);
        *lock(&self.progress) = Progress::default();
    }

    // --- Connecting ---

    /// Sends the posted requests, then closes the connection. Aborts the connection if the peer does not close within
    /// the time of the settings. A connection in progress is closed once it is established.
    pub fn disconnect(&self) {
        self.close(Connection::disconnect);
    }

    /// Disconnects, like `rdma_disconnect`: does not wait for the remote program to post receives for messages that
    /// were sent, because it may be waiting for the end of the connection.
    pub fn hang_up(&self) {
        self.close(Connection::hang_up);
    }

    /// Closes the connection by calling `close`, and cancels a manual connection in progress. Does nothing in a forked
    /// child, which has no connection: a thread of the parent may have held a lock of it at the fork.
    /// Returns whether the program has asked to disconnect.
    pub fn is_disconnecting(&self) -> bool {
        self.disconnect_requested.load(Ordering::SeqCst)
    }

    fn close(&self, close: impl FnOnce(&Arc<Connection<Self>>)) {
        if self.creator.is_parent() {
            return;
        }
        // Before the lookup of the connection. A thread that starts a connection does the reverse: it stores the
        // connection and then checks this flag. So at least one of the two threads closes the connection.
        self.disconnect_requested.store(true, Ordering::SeqCst);
        let was_pending = self.end_manual();
        if was_pending {
            self.qp().abort(QpError::Disconnected);
            self.connect_failed(ConnectError::GivenUp);
        }
        let connection = lock(&self.connection).upgrade();
        if let Some(connection) = connection {
            close(&connection);
        }
    }

    /// Has the connection leave shared memory for good (requirement X2), and waits until both directions are on TCP and the
    /// memory is given back, at most until the deadline. The connection can be used meanwhile, and nothing is lost. The
    /// lanes drive it while no thread of the program does.
    ///
    /// Does nothing if there is no connection. Fails if the peer does not know the request, or does not answer in time; it
    /// may leave later in the second case.
    pub fn leave_shared_memory(&self, deadline: Instant) -> Result<(), LeaveError> {
        let connection = lock(&self.connection).upgrade();
        let Some(connection) = connection.filter(|_| !self.creator.is_parent()) else { return Ok(()) };
        let mut leaving = Leaving::of(connection);
        leaving.wait(self.receive_cq().steering(), deadline);
        leaving.errors().pop().map_or(Ok(()), Err)
    }

    /// Suppresses all further completions and [disconnects](Self::disconnect). Called when the program destroys the
    /// queue pair: messages that were sent still arrive, and those that were received are still acknowledged.
    pub fn retire(&self) {
        self.qp().retire();
        self.disconnect();
    }

    /// Ends the queue pair because the adapter is shut down: flushes what was posted, and closes the connection.
    pub(crate) fn shut_down(&self) {
        self.qp().shut_down();
        self.close(|connection| connection.abort(QpError::Stopped));
    }

    /// Returns the number, which is released when the queue pair is dropped.
    pub(crate) fn number(&self) -> &Number {
        &self.number
    }

    /// Starts the stream on a link whose handshake is done. `early` are the bytes that were received after the
    /// handshake.
    pub(crate) fn start_stream(
        self: &Arc<Self>,
        link: &Arc<TcpLink>,
        established: Established,
        early: Vec<u8>,
    ) -> Result<(), ConnectError> {
        Connection::start(self, link, established, early)
    }

    /// Returns the lane that serves the connection while the program does not poll; `None` if there is no connection.
    pub fn lane(&self) -> Option<usize> {
        Some(self.connection()?.lane().number())
    }

    /// Returns the connection, if there is one.
    pub(crate) fn connection(&self) -> Option<Arc<Connection<Self>>> {
        lock(&self.connection).upgrade()
    }

    /// Waits until the connection is established or has failed. Returns [`ConnectError::TimedOut`] if the timeout
    /// expires first.
    pub fn wait_connected(&self, timeout: impl Into<Option<Duration>>) -> Result<Established, ConnectError> {
        match self.wait(timeout.into(), |progress| progress.outcome.clone()) {
            Some(outcome) => outcome.map(Arc::unwrap_or_clone).map_err(Arc::unwrap_or_clone),
            None => Err(ConnectError::TimedOut),
        }
    }

    /// Returns the peer: the queue pair that the program named for a manual connection, or the address that the queue
    /// pair is connected to.
    pub fn peer(&self) -> Option<Peer> {
        if let Some(remote) = self.remote() {
            return Some(Peer::Qp(remote));
        }
        self.addresses().map(|(_, remote)| Peer::At(remote))
    }

    /// Returns the local and the remote address of the connection, also after it has ended, until the queue pair is reset
    /// (requirement N10). `None` if there was no connection yet. A connection in shared memory has the addresses of
    /// its TCP connection.
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        match &lock(&self.progress).outcome {
            Some(Ok(established)) => Some((established.local, established.peer)),
            _ => None,
        }
    }

    /// Waits until both directions of the connection are closed. Returns false if the timeout expires first.
    pub fn wait_closed(&self, timeout: impl Into<Option<Duration>>) -> bool {
        self.wait(timeout.into(), |progress| progress.closed.then_some(())).is_some()
    }

    /// Waits until `done` returns a value, and returns it; `None` if the timeout expires first.
    fn wait<T>(&self, timeout: Option<Duration>, done: impl Fn(&Progress) -> Option<T>) -> Option<T> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut progress = lock(&self.progress);
        loop {
            if let Some(result) = done(&progress) {
                return Some(result);
            }
            // Without a deadline, the maximum is forever.
            let left = match deadline {
                Some(deadline) => deadline.checked_duration_since(Instant::now())?,
                None => Duration::MAX,
            };
            progress = match self.changed.wait_timeout(progress, left) {
                Ok((progress, _)) => progress,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// Records that no connection was established, wakes threads that wait, and sends the event.
    pub(crate) fn connect_failed(&self, error: ConnectError) {
        tracing::debug!(qp = self.id(), %error, "queue pair not connected");
        let error = Arc::new(error);
        self.update_progress(|progress| {
            progress.outcome = Some(Err(Arc::clone(&error)));
            progress.closed = true;
        });
        self.send_event(|| ConnectionEventKind::Failed(Arc::unwrap_or_clone(error)));
    }

    /// Changes the progress, and wakes threads that wait.
    fn update_progress(&self, update: impl FnOnce(&mut Progress)) {
        update(&mut lock(&self.progress));
        self.changed.notify_all();
    }

    /// Sends an event of the connection, and raises a channel event (requirement I6).
    fn send_event(&self, kind: impl FnOnce() -> ConnectionEventKind) {
        self.device.raise_from(self.qp().lane(), AsyncEvent::ConnectionChange(self.id()));
        if let Some(events) = &self.events {
            events.send(ConnectionEvent { qp: self.id(), kind: kind() });
        }
    }

    // --- Manual connections ---

    /// Sets the timeouts and the retry counts. They apply from now on, also to a manual connection in progress.
    pub fn set_retries(&self, retries: Retries) {
        self.qp().set_retries(retries);
        if let Some(manual) = self.manual() {
            Arc::clone(&manual.attempt).on_retries_changed();
        }
    }

    /// Sets the first packet sequence number that this end sends (sq_psn). The peer compares it with its
    /// [`receive_psn`](BringUpOptions::receive_psn). Has no effect without a manual connection.
    pub fn set_send_psn(&self, psn: u32) {
        if let Some(manual) = self.manual() {
            manual.attempt.set_send_psn(psn);
        }
    }

    /// Returns a new random secret to share with the peer of a manual connection; `None` if the queue pair cannot be
    /// connected manually.
    pub fn new_secret(&self) -> Option<Secret> {
        self.number.port()?;
        random().ok().map(Secret)
    }

    /// Stores a secret that the peer has, too, until the queue pair is reset or disconnected. Both ends then prove that
    /// they know the secret when they connect manually. Returns false if the queue pair cannot be connected manually.
    pub fn keep_secret(&self, secret: Secret) -> bool {
        let port = self.number.port();
        if let Some(port) = port {
            port.keep_secret(self.id(), secret);
        }
        port.is_some()
    }

    /// Returns the peer of the manual connection.
    pub fn remote(&self) -> Option<Remote> {
        self.manual().map(|manual| manual.remote)
    }

    /// Returns the options of the manual connection.
    pub fn bring_up_options(&self) -> Option<BringUpOptions> {
        self.manual().map(|manual| manual.options)
    }

    /// Returns the manual connection, if the program named a peer.
    fn manual(&self) -> Option<Arc<ManualConnect>> {
        lock(&self.manual).clone()
    }

    /// Stores a manual connection that begins.
    pub(crate) fn set_manual(&self, manual: ManualConnect) {
        *lock(&self.manual) = Some(Arc::new(manual));
    }

    /// Removes the manual connection, if there is one, and cancels its attempt. Returns true if the attempt was still
    /// in progress: then nothing else reports its end. False if it has connected the queue pair or
    /// ended, or there is none.
    fn end_manual(&self) -> bool {
        if let Some(port) = self.number.port() {
            port.stop_expecting(self.id());
        }
        let manual = lock(&self.manual).take();
        manual.is_some_and(|manual| manual.attempt.cancel())
    }
}

impl ConnectionOwner for QueuePair {
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

    /// Derived from the order in which the program creates and resets queue pairs, and not from the queue pair number,
    /// which may contain a port that the kernel chose: one seed must inject the same faults in every run.
    fn next_stream_number(&self) -> u64 {
        u64::from(self.streams.fetch_add(1, Ordering::Relaxed)) << 32 | u64::from(self.creation_index)
    }

    fn set_connection(&self, connection: &Arc<Connection<Self>>) {
        *lock(&self.connection) = Arc::downgrade(connection);
    }

    fn is_disconnect_requested(&self) -> bool {
        self.disconnect_requested.load(Ordering::SeqCst)
    }

    fn on_connected(&self, established: Established) {
        let established = Arc::new(established);
        self.update_progress(|progress| {
            progress.outcome = Some(Ok(Arc::clone(&established)));
            progress.closed = false; // `connect_failed` has set it if an earlier attempt failed
        });
        self.send_event(|| ConnectionEventKind::Connected(Arc::unwrap_or_clone(established)));
    }

    fn on_stream_ended(&self, error: &Arc<QpError>) {
        self.send_event(|| ConnectionEventKind::Ended(error.as_ref().clone()));
    }

    fn on_receive_missing(&self) {
        if let Some(events) = &self.events {
            events.on_receive_missing(self.id());
        }
    }

    fn on_closed(&self) {
        self.update_progress(|progress| progress.closed = true);
        if let Some(events) = &self.events {
            events.on_closed();
        }
    }

    fn on_peer_closed(&self) {
        if let Some(manual) = self.manual() {
            Arc::clone(&manual.attempt).on_peer_closed();
        }
    }
}

impl Steering {
    /// Moves the connection of a queue pair to another lane while traffic flows: no message is lost, doubled or
    /// reordered. The program polls and waits on the completion queues as before.
    pub fn move_queue_pair(self: &Arc<Self>, pair: &QueuePair, to: usize) -> Result<(), MoveError> {
        self.check_lane(to)?;
        let connection: Arc<dyn Movable> = pair.connection().ok_or(MoveError::NotConnected)?;
        self.move_within(&connection, to)
    }
}

impl Drop for QueuePair {
    /// Removes asynchronous events of the queue pair that the program has not taken, and gives back its place in the quota
    /// of its function.
    fn drop(&mut self) {
        self.device.events().revoke(&AsyncEvent::of_queue_pair(self.id()));
        self.device.account().release(Resource::QueuePairs, 1);
    }
}

/// Checks the memory of an idle queue pair, besides the device's part of it (`a_queue_pair_stays_small`): there may be
/// 100,000 of them.
#[cfg(all(test, target_pointer_width = "64"))]
#[test]
fn a_connection_stays_small() {
    let small = [
        (size_of::<Connection<QueuePair>>(), 72), // the C library allocates as much for 64
        (size_of::<TcpLink>(), 24),
        (size_of::<QueuePair>(), 176),
        (size_of::<Established>(), 104),
    ];
    assert!(small.iter().all(|(size, max)| size <= max), "{small:?}");
}
