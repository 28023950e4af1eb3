//! A queue pair and its socket, from the end of the handshake to the last byte (`life.rs`).

use super::cq::CompletionQueue;
use super::error::ConnectError;
use super::event::Established;
use super::life::Life;
use crate::reactor::class::Class;
use crate::reactor::command::Command;
use crate::reactor::handle::LaneHandle;
use crate::reactor::member::{Member, Movable, Placement, ServedBy};
use crate::reactor::poll_set::PollSet;
use crate::reactor::source::Drive;
use crate::sys::socket::TcpLink;
use ironwarp_rnic::bug;
use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::fault::Pacer;
use ironwarp_rnic::link::Link;
use ironwarp_rnic::qp::{Qp, Ready, StreamDriver};
use ironwarp_rnic::sync::lock;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

mod timeouts;

/// The queue pair that a connection belongs to, as the connection sees it.
pub(crate) trait Owner: fmt::Debug + Send + Sync + Sized + 'static {
    fn device(&self) -> &Arc<Device>;

    /// The device's queue pair that is behind it now.
    fn qp(&self) -> Arc<Qp>;

    fn send_cq(&self) -> &Arc<CompletionQueue>;

    fn receive_cq(&self) -> &Arc<CompletionQueue>;

    /// The number of its next stream, which selects a sequence of injected faults.
    fn next_stream(&self) -> u64;

    fn set_connection(&self, connection: &Arc<Connection<Self>>);

    /// Whether the program wants no connection, or no more.
    fn is_given_up(&self) -> bool;

    /// The connection is established.
    fn connected(&self, established: Established);

    /// The stream is over.
    fn ended(&self, error: &Arc<QpError>);

    /// Both directions are closed.
    fn closed(&self);

    /// The peer closed, and the queue pair goes on without it.
    fn peer_gone(&self);

    fn config(&self) -> &DeviceConfig {
        self.device().config()
    }
}

/// A connected queue pair. It is in its poll set until both directions of the socket are closed.
#[derive(Debug)]
pub(crate) struct Connection<P> {
    token: u64,
    link: Arc<TcpLink>,
    /// The device's queue pair that this connection is for: a reset gives `pair` another one.
    qp: Arc<Qp>,
    pair: Arc<P>,
    place: Mutex<Place>,
    /// Number of times it was served since steering last asked.
    served: AtomicU32,
    /// Its lane will drive it when its turn comes.
    queued: AtomicBool,
    /// A check of an awaited receive is pending.
    receive_timer: AtomicBool,
}

/// Where a connection is: in its life, and in which poll set.
#[derive(Debug)]
struct Place {
    /// The set in which its socket is, or will be.
    set: Arc<PollSet>,
    life: Life,
}

/// What the device calls for a connection. It is weak, because the queue pair holds it.
#[derive(Debug)]
struct Driver<P>(Weak<Connection<P>>);

/// The clock of a connection with injected faults.
#[derive(Debug)]
struct FaultClock<P> {
    connection: Weak<Connection<P>>,
    began: Instant,
}

impl<P: Owner> Connection<P> {
    /// Starts the stream of `pair` on a link whose handshake is done. `early` is what came behind the handshake.
    pub(crate) fn start(
        pair: &Arc<P>,
        link: &Arc<TcpLink>,
        established: Established,
        early: Vec<u8>,
    ) -> Result<(), ConnectError> {
        let connection = Self::begin(pair, link, established, early)?;
        connection.drive_all();
        // The lane that is to serve the connection may have ended before the connection was in its poll set.
        if pair.device().events().is_stopped() || pair.receive_cq().steering().is_stopped() {
            connection.cut(QpError::Stopped);
        }
        if pair.is_given_up() {
            connection.disconnect();
        }
        Ok(())
    }

    fn begin(
        pair: &Arc<P>,
        link: &Arc<TcpLink>,
        established: Established,
        early: Vec<u8>,
    ) -> Result<Arc<Self>, ConnectError> {
        let cq = pair.receive_cq();
        let set = cq.set_for(pair.send_cq(), established.peer, established.local)?;
        let qp = pair.qp();
        let connection = Arc::new(Self {
            token: set.lane().new_token(),
            link: Arc::clone(link),
            qp: Arc::clone(&qp),
            pair: Arc::clone(pair),
            place: Mutex::new(Place { set, life: Life::new() }),
            served: AtomicU32::new(0),
            queued: AtomicBool::new(false),
            receive_timer: AtomicBool::new(false),
        });
        let mut carrier: Arc<dyn Link> = Arc::<TcpLink>::clone(link);
        if let Some(faults) = pair.device().faults() {
            let stream = pair.next_stream();
            let clock =
                Arc::new(FaultClock { connection: Arc::downgrade(&connection), began: Instant::now() });
            carrier = faults.link(stream, carrier, Arc::<FaultClock<P>>::clone(&clock));
            qp.set_faults(faults.receive_faults(stream, clock));
        }
        let driver = Arc::new(Driver(Arc::downgrade(&connection)));
        qp.connect(&carrier, &established.agreed, early, driver)?;
        pair.set_connection(&connection);
        let agreed = established.agreed;
        // Before another thread can find the socket: what it finds may be the end, which must be reported after this.
        pair.connected(established);
        match connection.enter() {
            Ok(true) => {
                connection.await_first_word(&agreed);
                // The class of its completion queue may have changed before the connection was in the set.
                let movable: Arc<dyn Movable> = Arc::<Self>::clone(&connection);
                cq.steering().steer_new(&movable)?;
            }
            Ok(false) => {} // another thread found it closed meanwhile
            Err(error) => connection.cut(QpError::Lost(error.raw_os_error().unwrap_or_default())),
        }
        Ok(connection)
    }

    /// The lane that serves it while the program does not.
    pub(crate) fn lane(&self) -> Arc<LaneHandle> {
        Arc::clone(lock(&self.place).set.lane())
    }

    /// Has its lane drive it when its turn comes. It is queued once at most, however fast a peer makes work that threads of the program
    /// leave to the lane.
    pub(crate) fn schedule(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            self.submit_drive(&self.lane());
        }
    }

    fn submit_drive(self: &Arc<Self>, lane: &LaneHandle) {
        lane.submit(Command::Drive(Arc::<Self>::clone(self)));
    }

    /// Whether its lane will drive it when its turn comes, whatever its socket reports meanwhile.
    pub(crate) fn is_queued(&self) -> bool {
        self.queued.load(Ordering::SeqCst)
    }

    // --- Its poll set ---

    /// Adds it to its set. Returns false if it is closed.
    fn enter(self: &Arc<Self>) -> io::Result<bool> {
        let mut place = lock(&self.place);
        if !place.life.enter() {
            return Ok(false);
        }
        let (set, only) = (Arc::clone(&place.set), place.set.only_member());
        let added = set.insert(self.token, &self.as_member());
        drop(place);
        set.queue_owed_ack_of(only);
        added.map(|()| true)
    }

    fn as_member(self: &Arc<Self>) -> Arc<dyn Member> {
        Arc::<Self>::clone(self)
    }

    /// Removes it from its set. From now on it is closed.
    fn leave(&self) {
        let mut place = lock(&self.place);
        if place.life.close() {
            place.set.remove(self.token);
        }
    }

    /// Moves it to another set, whose lane serves it from then on (requirement I9). Returns false if it is closed.
    ///
    /// Only the set that waits for its socket changes. What the socket reported in between, the new set reports again; the new
    /// lane drives it once, in case something was missed.
    fn move_to_set(self: &Arc<Self>, to: &Arc<PollSet>) -> io::Result<bool> {
        let only = to.only_member();
        {
            // Against a release, which must find it in its set.
            let mut place = lock(&self.place);
            if Arc::ptr_eq(&place.set, to) {
                return Ok(true);
            }
            if place.life.is_closed() {
                return Ok(false);
            }
            if place.life.is_in_set() {
                place.set.remove(self.token);
                if let Err(error) = to.insert(self.token, &self.as_member()) {
                    to.remove(self.token);
                    if place.set.insert(self.token, &self.as_member()).is_err() {
                        self.lose(to.lane(), &error);
                    }
                    return Err(error);
                }
            }
            place.set = Arc::clone(to);
        }
        // It may have been polled as the only member of the old set, and another as the only member of the new one: the thread that polled
        // sees the change and acknowledges, or what came of the poll is acknowledged now. On the lane, because the caller may hold locks.
        if let Some(only) = only {
            to.lane().call(move || only.qp.acknowledge());
        }
        self.submit_drive(to.lane());
        Ok(true)
    }

    /// No set can wait for its socket. It ends, on a lane because the caller holds locks.
    fn lose(self: &Arc<Self>, lane: &LaneHandle, error: &io::Error) {
        let (connection, errno) = (Arc::clone(self), error.raw_os_error().unwrap_or_default());
        lane.call(move || connection.cut(QpError::Lost(errno)));
    }

    // --- Driving ---

    /// Does something that belongs to this connection alone. A panic ends the connection, and nothing else.
    fn guard(&self, doing: &'static str, act: impl FnOnce()) {
        let Err(bug) = bug::catch(doing, act) else { return };
        tracing::error!(qp = self.qp.id(), %bug, "connection ended by a panic");
        let steps: [&dyn Fn(); 5] = [
            &|| self.qp.abort(QpError::Bug(bug.clone())),
            &|| self.link.abort(),
            &|| self.leave(),
            &|| self.qp.release(),
            &|| self.pair.closed(),
        ];
        for step in steps {
            // Whatever state the panic has left, the other steps are tried.
            if let Err(bug) = bug::catch("ending a connection", step) {
                tracing::error!(qp = self.qp.id(), %bug, "failed to end a connection after a panic");
            }
        }
    }

    /// Does all there is to do: after the start, or when work was left.
    fn drive_all(&self) {
        self.qp.take_turn(Ready { readable: true, writable: true, ended: true });
        self.qp.acknowledge();
    }

    // --- Closing ---

    /// Ends it at once, without telling the peer why.
    pub(crate) fn cut(&self, error: QpError) {
        // The reason first: a thread that polls meanwhile would find a lost connection.
        self.qp.abort(error);
        self.link.abort();
        self.release();
    }

    /// Both directions are closed: the socket goes.
    pub(crate) fn release(&self) {
        self.leave();
        self.qp.release();
        self.pair.closed();
        if self.qp.peer_has_closed() {
            self.pair.peer_gone();
        }
    }
}

impl<P: Owner> Drive for Connection<P> {
    fn class(&self) -> Class {
        self.pair.receive_cq().class()
    }

    fn set_queued(&self, queued: bool) {
        self.queued.store(queued, Ordering::SeqCst);
    }

    fn drive(&self) {
        self.guard("driving a connection", || self.drive_all());
    }
}

impl<P> AsFd for Connection<P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

impl<P: Owner> Member for Connection<P> {
    #[inline]
    fn qp(&self) -> Option<&Arc<Qp>> {
        Some(&self.qp)
    }

    fn serve(&self, ready: Ready, by: ServedBy) -> Option<&Arc<Qp>> {
        if by == ServedBy::Lane && self.is_queued() {
            return None; // it is driven when its turn comes, for all that its socket has
        }
        // Two threads at once may count one too few: it is for comparison.
        self.served.store(self.served.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        match by {
            ServedBy::Lane => self.qp.take_turn(ready),
            ServedBy::Program => self.qp.drive(ready),
        }
        Some(&self.qp)
    }

    fn disconnect(self: Arc<Self>) -> bool {
        Self::disconnect(&self);
        true
    }

    fn abort(&self) {
        Self::cut(self, QpError::Stopped);
    }

    fn movable(self: Arc<Self>) -> Option<Arc<dyn Movable>> {
        Some(self)
    }
}

impl<P: Owner> Movable for Connection<P> {
    fn qpn(&self) -> u32 {
        self.qp.id()
    }

    fn lane(&self) -> usize {
        Self::lane(self).number()
    }

    fn placement(&self) -> Placement {
        self.pair.receive_cq().placement()
    }

    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.link.peer_addr().ok().zip(self.link.local_addr().ok())
    }

    fn take_serve_count(&self) -> u64 {
        self.served.swap(0, Ordering::Relaxed).into()
    }

    fn move_to(self: Arc<Self>, lane: usize) -> io::Result<bool> {
        let cq = self.pair.receive_cq();
        let set = cq.set_on(cq.steering().lane(lane)?, self.pair.send_cq())?;
        self.move_to_set(&set)
    }

    fn abort(&self, error: QpError) {
        Self::cut(self, error);
    }
}

impl<P: Owner> StreamDriver for Driver<P> {
    fn schedule(&self) {
        if let Some(connection) = self.0.upgrade() {
            connection.schedule();
        }
    }

    fn on_first_message(&self) {}

    fn on_peer_not_ready(&self) {
        if let Some(connection) = self.0.upgrade() {
            connection.peer_not_ready();
        }
    }

    fn on_stream_ended(&self, error: &Arc<QpError>) {
        if let Some(connection) = self.0.upgrade() {
            connection.pair.ended(error);
            connection.drain();
        }
    }

    fn on_link_closed(&self) {
        // Called while a half is being driven: it is released later.
        if let Some(connection) = self.0.upgrade() {
            let lane = connection.lane();
            lane.call(move || connection.guard("closing a connection", || connection.release()));
        }
    }
}

impl<P: Owner> Pacer for FaultClock<P> {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn schedule(&self, after: Duration) {
        if let Some(connection) = self.connection.upgrade() {
            connection.after(after, |connection| connection.drive_all());
        }
    }
}
