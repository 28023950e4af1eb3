//! The connection of a queue pair: its socket, from the end of the handshake until both directions are closed.
//! `lifecycle.rs` has the states, `connection/timeouts.rs` the timers.

use super::cq::CompletionQueue;
use super::error::ConnectError;
use super::event::Established;
use super::lifecycle::Lifecycle;
use crate::logical::shaper::Shaper;
use crate::reactor::class::Class;
use crate::reactor::command::Command;
use crate::reactor::handle::LaneHandle;
use crate::reactor::member::{Member, Movable, Placement, ServedBy};
use crate::reactor::poll_set::{Arriving, PollSet};
use crate::reactor::source::Drive;
use crate::shm::OFFER_LEN;
use crate::shm::link::RoutedLink;
use crate::sys::socket::TcpLink;
use ironwarp_rnic::bug;
use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::connect::Role;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::fault::Pacer;
use ironwarp_rnic::fault::Stream;
use ironwarp_rnic::link::Link;
use ironwarp_rnic::qp::{Qp, Ready, StreamDriver};
use ironwarp_rnic::queue::Cq;
use ironwarp_rnic::sync::lock;
use ironwarp_wire::mpa::Framing;
use ironwarp_wire::private::Capabilities;
use shaped::ShapedLink;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

mod moving;
mod port;
mod shaped;
mod sharing;
mod timeouts;

/// The interface of a connection to its queue pair.
pub(crate) trait ConnectionOwner: fmt::Debug + Send + Sync + Sized + 'static {
    /// Returns the device.
    fn device(&self) -> &Arc<Device>;

    /// Returns the device's queue pair. A reset replaces it.
    fn qp(&self) -> Arc<Qp>;

    /// Returns the completion queue of the send queue.
    fn send_cq(&self) -> &Arc<CompletionQueue>;

    /// Returns the completion queue of the receive queue.
    fn receive_cq(&self) -> &Arc<CompletionQueue>;

    /// Returns a number for the next stream of the queue pair. The number selects a sequence of injected faults.
    fn next_stream_number(&self) -> u64;

    /// Stores the connection in the queue pair.
    fn set_connection(&self, connection: &Arc<Connection<Self>>);

    /// Returns whether the program has disconnected the queue pair, perhaps before it had a connection.
    fn is_disconnect_requested(&self) -> bool;

    /// Reports that the connection is established.
    fn on_connected(&self, established: Established);

    /// Reports that the stream has ended, and why.
    fn on_stream_ended(&self, error: &Arc<QpError>);

    /// A message of the peer waits for a receive.
    fn on_receive_missing(&self);

    /// Reports that both directions of the socket are closed.
    fn on_closed(&self);

    /// Reports that the peer closed a manual connection. The queue pair stays usable: its receives stay posted.
    fn on_peer_closed(&self);

    /// Returns the settings of the device.
    fn config(&self) -> &DeviceConfig {
        self.device().config()
    }
}

/// The connection of a queue pair. Its socket is in a poll set until both directions are closed.
#[derive(Debug)]
pub(crate) struct Connection<P> {
    /// Identifies the socket in its poll set.
    token: u64,
    tcp: Arc<TcpLink>,
    /// The device's queue pair that this connection was made for. After a reset, `pair` has another one.
    qp: Arc<Qp>,
    pair: Arc<P>,
    state: Mutex<State>,
    /// Number of times that the connection was served since steering last took the count.
    served: AtomicU32,
    /// The connection is in the queue of its lane, which drives it when its turn comes.
    queued: AtomicBool,
    /// This end initiated the connection.
    is_initiator: bool,
    /// What is known for an offer of shared memory (`sharing.rs`).
    sharing: AtomicU8,
    /// Timers that run: [`RECEIVE_TIMER`], [`PATH_TIMER`].
    timers: AtomicU8,
}

/// Flag in [`Connection::timers`]: a check of an awaited receive is pending (`timeouts.rs`).
const RECEIVE_TIMER: u8 = 1;
/// Flag in [`Connection::timers`]: a check of the path to the peer is pending (`port.rs`).
const PATH_TIMER: u8 = 2;

/// The part of a connection that changes together, under one lock.
#[derive(Debug)]
struct State {
    /// The poll set that the socket is in, or will be added to.
    set: Arc<PollSet>,
    lifecycle: Lifecycle,
    /// The link of the stream, with the channel in shared memory if there is one.
    link: Arc<RoutedLink>,
}

/// Passes calls of the device to the connection. The reference is weak because the device's queue pair, which the
/// connection holds, holds the driver.
#[derive(Debug)]
struct Driver<P>(Weak<Connection<P>>);

/// The clock and timer for the injected faults of a connection, and for its adversary. Times count from `start`.
#[derive(Debug)]
struct FaultClock<P> {
    connection: Weak<Connection<P>>,
    start: Instant,
}

/// The clock and timer of a connection whose device has a rate or a delay.
#[derive(Debug)]
struct ShapeClock<P> {
    connection: Weak<Connection<P>>,
    shaper: Arc<Shaper>,
}

impl<P: ConnectionOwner> Connection<P> {
    /// Makes a connection for `pair` of a link whose handshake is done, and drives it once. `early` are the bytes that
    /// were received after the handshake.
    pub(crate) fn start(
        pair: &Arc<P>,
        link: &Arc<TcpLink>,
        established: Established,
        early: Vec<u8>,
    ) -> Result<(), ConnectError> {
        // Until the end of this function: a thread that waits for completions of a stopped adapter must know that this
        // connection will flush its requests.
        let (connection, _arriving) = Self::open(pair, link, established, early)?;
        connection.drive_all();
        // What happened before the connection was in its poll set is done here: the adapter failed, the lane of the set
        // ended, or all connections in the sets were disconnected because the adapter closes.
        if pair.device().events().is_stopped() || connection.lane().is_closed() {
            connection.abort(QpError::Stopped);
        }
        if pair.is_disconnect_requested() || pair.receive_cq().steering().is_stopped() {
            connection.disconnect();
        }
        Ok(())
    }

    /// Connects the device's queue pair to the link, reports the connection, and adds the socket to its poll set, to which it
    /// has been announced before.
    fn open(
        pair: &Arc<P>,
        link: &Arc<TcpLink>,
        established: Established,
        early: Vec<u8>,
    ) -> Result<(Arc<Self>, Arriving), ConnectError> {
        let is_initiator = matches!(established.agreed.role, Role::Initiator { .. });
        let addresses = (established.peer, established.local);
        let framing = Some(established.agreed.receive);
        let (connection, stream_link) = Self::assemble(pair, link, is_initiator, addresses, framing)?;
        connection.qp.connect(&stream_link, &established.agreed, early, connection.driver())?;
        pair.set_connection(&connection);
        let arriving = lock(&connection.state).set.announce();
        let this: Weak<Self> = Arc::downgrade(&connection);
        // The program may use the connection once it was reported, and take its port down, before it is in its set.
        let logical = pair.receive_cq().steering().logical();
        logical.while_observed(this, || connection.report(established))?;
        Ok((connection, arriving))
    }

    /// Creates a connection for a link between these addresses, remote and local. Returns it with the link for the stream,
    /// to which faults, the adversary and the limits of the device are added. `framing` is that of the receiving direction;
    /// `None` if the stream has begun elsewhere.
    fn assemble(
        pair: &Arc<P>,
        link: &Arc<TcpLink>,
        is_initiator: bool,
        (peer, local): (SocketAddr, SocketAddr),
        framing: Option<Framing>,
    ) -> Result<(Arc<Self>, Arc<dyn Link>), ConnectError> {
        let cq = pair.receive_cq();
        let set = cq.find_or_create_set(pair.send_cq(), peer, local)?;
        let qp = pair.qp();
        qp.set_lane(set.lane().event_lane());
        let routed = Arc::new(RoutedLink::new(Arc::clone(link)));
        let connection = Arc::new(Self {
            token: set.lane().new_token(),
            tcp: Arc::clone(link),
            qp: Arc::clone(&qp),
            pair: Arc::clone(pair),
            state: Mutex::new(State { set, lifecycle: Lifecycle::new(), link: Arc::clone(&routed) }),
            served: AtomicU32::new(0),
            queued: AtomicBool::new(false),
            is_initiator,
            sharing: AtomicU8::new(0),
            timers: AtomicU8::new(0),
        });
        let mut stream_link: Arc<dyn Link> = routed;
        if let Some(shaper) = cq.steering().logical().shaper() {
            let pacer = ShapeClock { connection: Arc::downgrade(&connection), shaper: Arc::clone(shaper) };
            stream_link = Arc::new(ShapedLink::new(stream_link, shaper, pair.device(), Arc::new(pacer)));
        }
        let device = pair.device();
        if device.faults().is_none() && device.adversary().is_none() {
            return Ok((connection, stream_link));
        }
        let stream = Stream { number: pair.next_stream_number(), qp: qp.id() };
        let clock = Arc::new(FaultClock { connection: Arc::downgrade(&connection), start: Instant::now() });
        stream_link = qp.wrap_link(stream.number, stream_link, framing, Arc::<FaultClock<P>>::clone(&clock));
        if let Some(faults) = device.faults() {
            stream_link = faults.wrap_link(stream, stream_link, Arc::<FaultClock<P>>::clone(&clock));
            qp.set_faults(faults.receive_faults(stream, clock));
        }
        Ok((connection, stream_link))
    }

    /// Returns the driver, by which the device calls this connection.
    fn driver(self: &Arc<Self>) -> Arc<dyn StreamDriver> {
        Arc::new(Driver(Arc::downgrade(self)))
    }

    /// Reports the connection, and adds the socket to its poll set.
    fn report(self: &Arc<Self>, established: Established) -> Result<(), ConnectError> {
        let agreed = established.agreed;
        // Before the socket is in the set: another thread may find the end of the connection there, which must be
        // reported second.
        self.pair.on_connected(established);
        match self.join_set() {
            Ok(true) => {
                self.start_first_message_timer(&agreed);
                self.watch_port();
                // Class or processors of its handler may have changed before the connection was in the set.
                let movable: Arc<dyn Movable> = Arc::<Self>::clone(self);
                self.pair.receive_cq().steering().steer(&movable)?;
            }
            Ok(false) => {} // another thread has closed the connection meanwhile
            Err(error) => self.abort(QpError::Lost(error.raw_os_error().unwrap_or_default())),
        }
        Ok(())
    }

    /// Returns the lane that serves the connection while no thread of the program does.
    pub(crate) fn lane(&self) -> Arc<LaneHandle> {
        Arc::clone(lock(&self.state).set.lane())
    }

    /// Has the lane of the connection drive it when its turn comes. A connection that is queued is not queued again:
    /// otherwise a fast peer could fill the lane's queue.
    pub(crate) fn schedule(self: &Arc<Self>) {
        // The lane clears the flag just before it drives the connection, so that no later work is missed.
        if !self.queued.swap(true, Ordering::SeqCst) {
            self.submit_drive(&self.lane());
        }
    }

    /// Adds the connection to the queue of a lane, even if it is queued already.
    fn submit_drive(self: &Arc<Self>, lane: &LaneHandle) {
        lane.submit(Command::Drive(Arc::<Self>::clone(self)));
    }

    /// Returns whether the connection is in the queue of its lane.
    pub(crate) fn is_queued(&self) -> bool {
        self.queued.load(Ordering::SeqCst)
    }

    // --- Poll set ---

    /// Adds the socket to its poll set. Returns false if the connection is closed.
    fn join_set(self: &Arc<Self>) -> io::Result<bool> {
        let mut state = lock(&self.state);
        if !state.lifecycle.enter_set() {
            return Ok(false);
        }
        let (set, only) = (Arc::clone(&state.set), state.set.only_member());
        let added = set.insert(self.token, &self.as_member());
        drop(state);
        set.queue_ack_of_former_only_member(only);
        added.map(|()| true)
    }

    /// Converts the reference, for a poll set.
    fn as_member(self: &Arc<Self>) -> Arc<dyn Member> {
        Arc::<Self>::clone(self)
    }

    /// Marks the connection as closed, and removes the socket from its poll set.
    fn leave_set(&self) {
        let mut state = lock(&self.state);
        if state.lifecycle.close() {
            state.set.remove(self.token);
        }
    }

    /// Moves the socket to another poll set, whose lane serves the connection from then on (requirement I9). Returns
    /// false if the connection is closed.
    ///
    /// No event of the socket is lost: epoll reports its state again when the socket is added to the new set, and the
    /// new lane drives the connection once.
    fn move_to_set(self: &Arc<Self>, to: &Arc<PollSet>) -> io::Result<bool> {
        let only = to.only_member();
        {
            // Held during the whole move: `leave_set` on another thread must find the socket in the set that `state`
            // names.
            let mut state = lock(&self.state);
            if Arc::ptr_eq(&state.set, to) {
                return Ok(true);
            }
            if state.lifecycle.is_closed() {
                return Ok(false);
            }
            if state.lifecycle.is_in_set() {
                state.set.remove(self.token);
                if let Err(error) = to.insert(self.token, &self.as_member()) {
                    to.remove(self.token);
                    // Back to the old set. If that fails too, no lane can wait for the socket.
                    if state.set.insert(self.token, &self.as_member()).is_err() {
                        self.abort_on_lane(to.lane(), &error);
                    }
                    return Err(error);
                }
            }
            state.set = Arc::clone(to);
            self.qp.set_lane(to.lane().event_lane());
            // The carrier stays with the lane that it was made for, but the program may poll it in the new set.
            if let Some(channel) = state.link.channel() {
                let carrier = Arc::clone(channel.carrier()).as_carrier();
                to.add_carrier(&carrier)?;
            }
        }
        // The new set may have had one member, which a thread polled without listing its acknowledgements. That thread
        // acknowledges if it sees that the member is not the only one any more. If it does not, the member
        // acknowledges on the lane: `PollSet::queue_ack_of_former_only_member` may send, and the caller may hold locks.
        if let Some(only) = only {
            to.lane().call(move || only.qp.acknowledge());
        }
        self.submit_drive(to.lane());
        Ok(true)
    }

    /// Aborts the connection after a failed system call. Runs on a lane, because the caller holds locks.
    fn abort_on_lane(self: &Arc<Self>, lane: &LaneHandle, error: &io::Error) {
        let (connection, errno) = (Arc::clone(self), error.raw_os_error().unwrap_or_default());
        lane.call(move || connection.abort(QpError::Lost(errno)));
    }

    // --- Driving ---

    /// Calls `act`. If it panics, ends this connection; the lane and its other connections go on. `doing` is for the
    /// log.
    fn catch_panic(&self, doing: &'static str, act: impl FnOnce()) {
        let Err(bug) = bug::catch(doing, act) else { return };
        tracing::error!(qp = self.qp.id(), %bug, "connection ended by a panic");
        // The steps of `abort` and `release`.
        let steps: [&dyn Fn(); 5] = [
            &|| self.qp.abort(QpError::Bug(bug.clone())),
            &|| self.tcp.abort(),
            &|| self.leave_set(),
            &|| self.qp.release(),
            &|| self.pair.on_closed(),
        ];
        for step in steps {
            // The panic may have left any state: a step that panics, too, must not prevent the others.
            if let Err(bug) = bug::catch("ending a connection", step) {
                tracing::error!(qp = self.qp.id(), %bug, "failed to end a connection after a panic");
            }
        }
    }

    /// Sends and receives one turn's share, whether the socket reported anything or not, and acknowledges. Used after
    /// the start, when a thread left work, and when the delay of an injected fault is over.
    fn drive_all(&self) {
        self.qp.take_turn(Ready { readable: true, writable: true, ended: true });
        self.qp.acknowledge();
    }

    // --- Closing ---

    /// Ends the connection at once: the peer sees a TCP reset, and gets no Terminate. While the port is down, it sees
    /// nothing.
    pub(crate) fn abort(&self, error: QpError) {
        if lock(&self.state).lifecycle.is_frozen() {
            return; // the socket may belong to another process
        }
        // The error first: a thread that polls meanwhile would report the aborted link as a lost connection.
        self.qp.abort(error);
        if !self.is_port_down() {
            self.tcp.abort();
        }
        self.release();
    }

    /// Ends the connection for this process: drops the stream, and reports to the owner that the connection is closed.
    /// Called when both directions of the socket are closed, after an abort, and at a reset of the queue pair. The
    /// socket itself closes when the last reference to this connection is dropped.
    pub(crate) fn release(&self) {
        self.leave_set();
        self.keep_socket_while_down();
        self.stop_sharing();
        self.qp.release(); // drops both halves, and their references to the link
        self.pair.on_closed();
        if self.qp.peer_has_closed() {
            self.pair.on_peer_closed();
        }
    }
}

impl<P: ConnectionOwner> Drive for Connection<P> {
    fn class(&self) -> Class {
        self.pair.receive_cq().class()
    }

    fn set_queued(&self, queued: bool) {
        self.queued.store(queued, Ordering::SeqCst);
    }

    fn drive(&self) {
        self.catch_panic("driving a connection", || {
            self.drive_all();
            if self.qp.is_blocked() {
                let set = Arc::clone(&lock(&self.state).set);
                set.leave_blocked_to_lane();
            }
        });
    }
}

impl<P> AsFd for Connection<P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}

impl<P: ConnectionOwner> Member for Connection<P> {
    #[inline]
    fn qp(&self) -> Option<&Arc<Qp>> {
        Some(&self.qp)
    }

    fn serve(&self, ready: Ready, by: ServedBy) -> Option<&Arc<Qp>> {
        if ready.ended {
            lock(&self.state).link.on_tcp_end();
        }
        if by == ServedBy::Lane && self.is_queued() {
            return None; // when its turn comes, the lane drives both directions
        }
        // Not atomic: if two threads serve at once, one may not count. Steering only compares the counts.
        self.served.store(self.served.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        match by {
            ServedBy::Lane => self.qp.take_turn(ready),
            ServedBy::Program => self.qp.drive(ready),
        }
        Some(&self.qp)
    }

    fn take_received(&self) -> bool {
        self.tcp.take_received()
    }

    fn disconnect(self: Arc<Self>) -> bool {
        Self::disconnect(&self);
        true
    }

    fn abort(&self) {
        Self::abort(self, QpError::Stopped);
    }

    fn route(&self) -> (String, (u64, u64)) {
        (self.describe_route(), self.channel().map(|channel| channel.traffic()).unwrap_or_default())
    }

    fn leave_shared_memory(self: Arc<Self>) -> bool {
        Self::leave_shared_memory(&self)
    }

    fn has_left_shared_memory(&self) -> bool {
        Self::has_left_shared_memory(self)
    }

    fn apply_port_state(self: Arc<Self>) {
        Self::apply_port_state(&self);
    }

    fn movable(self: Arc<Self>) -> Option<Arc<dyn Movable>> {
        Some(self)
    }
}

impl<P: ConnectionOwner> Movable for Connection<P> {
    fn qpn(&self) -> u32 {
        self.qp.id()
    }

    fn lane(&self) -> usize {
        Self::lane(self).number()
    }

    fn receives_on(&self, cq: &Arc<Cq>) -> bool {
        Arc::ptr_eq(&self.qp.attributes().receive_cq, cq)
    }

    fn placement(&self) -> Placement {
        self.pair.receive_cq().placement()
    }

    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.tcp.peer_addr().ok().zip(self.tcp.local_addr().ok())
    }

    fn take_serve_count(&self) -> u64 {
        self.served.swap(0, Ordering::Relaxed).into()
    }

    fn move_to(self: Arc<Self>, lane: usize) -> io::Result<bool> {
        let cq = self.pair.receive_cq();
        let set = cq.find_or_create_set_on(cq.steering().lane(lane)?, self.pair.send_cq())?;
        self.move_to_set(&set)
    }

    fn abort(&self, error: QpError) {
        Self::abort(self, error);
    }
}

/// The calls of the device, for a connection that still exists.
impl<P: ConnectionOwner> StreamDriver for Driver<P> {
    fn schedule(&self) {
        if let Some(connection) = self.0.upgrade() {
            connection.schedule();
        }
    }

    fn on_first_message(&self) {}

    fn on_peer_capabilities(&self, peer: Capabilities) {
        if let Some(connection) = self.0.upgrade() {
            connection.on_peer_capabilities(peer);
        }
    }

    fn on_traffic(&self) {
        if let Some(connection) = self.0.upgrade() {
            connection.on_traffic();
        }
    }

    fn on_offer(&self, offer: [u8; OFFER_LEN]) {
        if let Some(connection) = self.0.upgrade() {
            connection.on_offer(&offer);
        }
    }

    fn on_leaving(&self, has_left: bool) {
        if let Some(connection) = self.0.upgrade() {
            connection.on_leaving(has_left);
        }
    }

    fn on_peer_not_ready(&self) {
        if let Some(connection) = self.0.upgrade() {
            connection.on_peer_not_ready();
        }
    }

    fn on_receive_missing(&self) {
        if let Some(connection) = self.0.upgrade() {
            connection.pair.on_receive_missing();
        }
    }

    fn on_stream_ended(&self, error: &Arc<QpError>) {
        if let Some(connection) = self.0.upgrade() {
            connection.pair.on_stream_ended(error);
            connection.begin_draining();
        }
    }

    fn on_link_closed(&self) {
        // On the lane, later: the caller is driving a half of the queue pair, and `release` drops the link.
        if let Some(connection) = self.0.upgrade() {
            let lane = connection.lane();
            lane.call(move || connection.catch_panic("closing a connection", || connection.release()));
        }
    }
}

impl<P: ConnectionOwner> Pacer for ShapeClock<P> {
    fn now(&self) -> Duration {
        self.shaper.now()
    }

    fn schedule(&self, after: Duration) {
        let Some(connection) = self.connection.upgrade() else { return };
        let this = Weak::clone(&self.connection);
        connection.lane().call_exactly_at(Instant::now() + after, move || {
            if let Some(connection) = this.upgrade() {
                connection.catch_panic("serving a timer", || connection.drive_all());
            }
        });
    }
}

impl<P: ConnectionOwner> Pacer for FaultClock<P> {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Makes the lane of the connection drive both halves after this time: an injected fault holds them up until then.
    fn schedule(&self, after: Duration) {
        if let Some(connection) = self.connection.upgrade() {
            connection.call_after(after, |connection| connection.drive_all());
        }
    }
}
