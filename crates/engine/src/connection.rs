//! A queue pair and its socket, from the end of the startup to the last byte.

use crate::engine::Engine;
use crate::event::{ConnectError, Established};
use crate::lane::{Call, Due, Job, Lane};
use crate::pair::QueuePair;
use crate::set::{Set, lock};
use crate::sys::socket::TcpLink;
use ironwarp_rnic::bug;
use ironwarp_rnic::connect::{Agreed, Role, Setup};
use ironwarp_rnic::error::Fault;
use ironwarp_rnic::fault::Pacer;
use ironwarp_rnic::link::Link;
use ironwarp_rnic::qp::{Attendant, Qp, Ready};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// How long what was sent may wait for a receive of the peer's, once this end has hung up.
const HANG_UP: Duration = Duration::from_millis(100);
/// A peer that has sent nothing is nudged after so much time, then after twice as much, and so on, in case it missed what
/// this end began with. Not any more when it would be longer than the last.
const FIRST_NUDGE: Duration = Duration::from_millis(50);
const LAST_NUDGE: Duration = Duration::from_secs(4);
/// How often a message that waits for a receive of the peer's is looked at before it is given up.
const RECEIVE_LOOKS: u32 = 4;
/// An initiator that agreed to no RTR, and has sent nothing for so long, is ready to receive, whoever has to speak first.
const FIRST_WORD: Duration = Duration::from_millis(500);

/// A connected queue pair. Lives in its set until both directions of the socket are closed.
#[derive(Debug)]
pub(crate) struct Connection {
    token: u64,
    link: Arc<TcpLink>,
    /// The queue pair behind `pair` that this connection is for: a reset puts another in its place.
    qp: Arc<Qp>,
    pair: Arc<QueuePair>,
    /// Where its socket is waited for. A [move](Self::move_to) puts another in its place.
    home: Mutex<Arc<Set>>,
    /// The same set's token, for the fast path.
    place: AtomicU64,
    /// How often it was served since somebody last asked.
    served: AtomicU32,
    /// It was added to its set, and may have been removed since. Read and written by who has the lock of `home`.
    entered: AtomicBool,
    /// Its lane will drive it when its turn comes.
    waits: AtomicBool,
    /// A [`Due::Receive`] of it is pending.
    receive_timer: AtomicBool,
}

/// A message that waits for a receive of the peer's: the one behind `number`, which is looked at this many more times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AwaitedReceive {
    number: u64,
    looks: u32,
}

/// Whom the device tells of a connection. It holds nothing alive: the queue pair holds it.
#[derive(Debug)]
struct Watch(Weak<Connection>);

/// The clock of a connection with faults.
#[derive(Debug)]
struct FaultClock {
    connection: Weak<Connection>,
    began: Instant,
}

impl Connection {
    /// Begins the stream of `pair` on a link whose startup is done.
    pub(crate) fn begin(
        engine: &Engine,
        link: &Arc<TcpLink>,
        pair: &Arc<QueuePair>,
        established: Established,
        early: Vec<u8>,
    ) -> Result<Arc<Self>, ConnectError> {
        let cqs = (&**pair.receive_cq(), &**pair.send_cq());
        let set = engine.set_for(cqs, (established.peer, established.local))?;
        let qp = pair.qp();
        let connection = Arc::new(Self {
            token: set.lane().token(),
            link: Arc::clone(link),
            qp: Arc::clone(&qp),
            pair: Arc::clone(pair),
            place: AtomicU64::new(set.token()),
            home: Mutex::new(set),
            served: AtomicU32::new(0),
            entered: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            receive_timer: AtomicBool::new(false),
        });
        let mut carrier: Arc<dyn Link> = Arc::<TcpLink>::clone(link);
        if let Some(faults) = engine.device().faults() {
            let stream = pair.next_stream();
            let clock =
                Arc::new(FaultClock { connection: Arc::downgrade(&connection), began: Instant::now() });
            carrier = faults.link(stream, carrier, Arc::<FaultClock>::clone(&clock));
            qp.set_faults(faults.asks(stream, clock));
        }
        let watch = Arc::new(Watch(Arc::downgrade(&connection)));
        qp.connect(&carrier, &established.agreed, early, watch)?;
        pair.set_connection(&connection);
        let agreed = established.agreed;
        // Told before another thread can find the socket: what that finds may be the end, which comes after it.
        pair.connected(established);
        match connection.enter() {
            // Another lane may have found it closed meanwhile, and have let go of it before it was here.
            Ok(()) if qp.is_closed() => connection.leave(),
            Ok(()) => {
                connection.await_first_word(&agreed);
                // The class of its completion queue may have been changed before it could be found there.
                engine.steering().settle_new(&connection)?;
            }
            Err(error) => connection.cut(Fault::Lost(error.raw_os_error().unwrap_or_default())),
        }
        Ok(connection)
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn link(&self) -> &TcpLink {
        &self.link
    }

    /// The lane that serves it while the program does not.
    pub(crate) fn lane(&self) -> Arc<Lane> {
        Arc::clone(lock(&self.home).lane())
    }

    pub(crate) fn pair(&self) -> &Arc<QueuePair> {
        &self.pair
    }

    /// Whether nobody else is in the set that it was found in, and it is there still. If not, that set does not acknowledge for it.
    #[inline]
    pub(crate) fn is_alone_in(&self, set: &Set) -> bool {
        self.place.load(Ordering::SeqCst) == set.token() && set.len() == 1
    }

    /// It is served. (Counts of two threads at once may be one too few: it is for comparison.)
    #[inline]
    pub(crate) fn count(&self) {
        self.served.store(self.served.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// How often it was served since this was last asked.
    pub(crate) fn take_count(&self) -> u64 {
        self.served.swap(0, Ordering::Relaxed).into()
    }

    /// Has its lane drive it when its turn comes. It waits for one turn at most, however fast a peer makes work that threads of the
    /// program leave to the lane.
    pub(crate) fn call_again(self: &Arc<Self>) {
        if !self.waits.swap(true, Ordering::SeqCst) {
            self.lane().submit(Job::Drive(Arc::clone(self)));
        }
    }

    /// It is left with work, and its lane will drive it when its turn comes; or that is now.
    pub(crate) fn awaits_turn(&self, waits: bool) {
        self.waits.store(waits, Ordering::SeqCst);
    }

    /// Whether its lane will drive it in a while, whatever its socket tells meanwhile.
    pub(crate) fn waits(&self) -> bool {
        self.waits.load(Ordering::SeqCst)
    }

    /// Adds it to its set.
    fn enter(self: &Arc<Self>) -> io::Result<()> {
        let home = lock(&self.home);
        self.entered.store(true, Ordering::Relaxed);
        let (set, only) = (Arc::clone(&home), home.only());
        let added = set.insert(self);
        drop(home);
        set.has_company(only.as_deref());
        added
    }

    /// Nobody waits for its socket any more.
    fn leave(&self) {
        lock(&self.home).remove(self);
    }

    /// Moves it to another set, whose lane serves it from then on (requirement I9). False if it is closed.
    ///
    /// Between two calls a stream is plain data, and whoever drives it finds it where the last one left it; so it can be moved at any
    /// time, in the middle of a message too. Only who is told of its socket changes. What the socket told in between is told by the
    /// new set again; what nobody heard, the new lane looks for.
    pub(crate) fn move_to(self: &Arc<Self>, to: &Arc<Set>) -> io::Result<bool> {
        let only = to.only();
        {
            // Against a release, which must find it where it is.
            let mut home = lock(&self.home);
            if Arc::ptr_eq(&home, to) {
                return Ok(true);
            }
            if self.entered.load(Ordering::Relaxed) {
                if !home.remove(self) {
                    return Ok(false);
                }
                if let Err(error) = to.insert(self) {
                    to.remove(self);
                    if home.insert(self).is_err() {
                        self.lose(to.lane(), &error);
                    }
                    return Err(error);
                }
            }
            self.place.store(to.token(), Ordering::SeqCst);
            *home = Arc::clone(to);
        }
        // It may have been polled as the only one of the old set, and another as the only one of the new: who did either sees the
        // change and acknowledges, or what came of it is acknowledged now. On the lane, because the caller may hold locks.
        for connection in only.iter().chain([self]) {
            to.lane().submit(Job::Drive(Arc::clone(connection)));
        }
        Ok(true)
    }

    /// Nobody can wait for its socket. It ends, on a lane because the caller holds locks.
    fn lose(self: &Arc<Self>, lane: &Lane, error: &io::Error) {
        let (connection, errno) = (Arc::clone(self), error.raw_os_error().unwrap_or_default());
        let cut = move || connection.cut(Fault::Lost(errno));
        lane.submit(Job::Remind(Instant::now(), Due::Call(Call(Box::new(cut)))));
    }

    pub(crate) fn qp(&self) -> &Arc<Qp> {
        &self.qp
    }

    /// Does something that belongs to this connection alone. After a panic it is over, and nothing else is.
    pub(crate) fn guard(&self, doing: &'static str, act: impl FnOnce()) {
        let Err(bug) = bug::catch(doing, act) else { return };
        tracing::error!(qp = self.qp.id(), %bug, "connection ended");
        let steps: [&dyn Fn(); 5] = [
            &|| self.qp.abort(Fault::Bug(bug.clone())),
            &|| self.link.abort(),
            &|| self.leave(),
            &|| self.qp.release(),
            &|| self.pair.closed(),
        ];
        for step in steps {
            // Whatever state the panic has left, the others are tried.
            if let Err(bug) = bug::catch("ending a connection", step) {
                tracing::error!(qp = self.qp.id(), %bug, "connection did not end as it should");
            }
        }
    }

    /// Everything there is to do: after the beginning, or when a half was left with work.
    pub(crate) fn drive(&self) {
        self.qp().take_turn(Ready { readable: true, writable: true, ended: true });
        self.qp().acknowledge();
    }

    /// The peer had time to close, and did not. As long as it still takes what this end has to send, it has more;
    /// one that takes nothing is given up by the kernel (TCP_USER_TIMEOUT).
    pub(crate) fn close_is_due(self: &Arc<Self>) {
        if self.qp().is_closing() && !self.qp().is_finished() {
            return self.remind();
        }
        tracing::debug!(qp = self.qp().id(), "the peer did not close in time");
        self.cut(Fault::TimedOut("closing the connection"));
    }

    /// Ends it at once, without a word to the peer.
    pub(crate) fn cut(&self, fault: Fault) {
        // The reason first: whoever polls meanwhile would find a connection that is lost.
        self.qp().abort(fault);
        self.link.abort();
        self.release();
    }

    /// Both directions are closed: the socket goes.
    pub(crate) fn release(&self) {
        self.leave();
        self.qp().release();
        self.pair.closed();
        if self.qp().is_gone()
            && let Some(up) = self.pair.bring_up()
        {
            up.peer_gone();
        }
    }

    /// The program closes; the peer has so much time to do the same.
    pub(crate) fn disconnect(self: &Arc<Self>) {
        self.qp().disconnect();
        self.remind();
    }

    /// The same; but what waits for a receive of the peer's is not waited for: its program may post none before it is told that
    /// this end has closed.
    pub(crate) fn hang_up(self: &Arc<Self>) {
        self.disconnect();
        self.hang_up_later();
    }

    fn hang_up_later(self: &Arc<Self>) {
        let due = Due::HangUp(Arc::downgrade(self));
        self.lane().submit(Job::Remind(Instant::now() + HANG_UP, due));
    }

    /// The peer had time to post receives for what it was sent before this end closed.
    pub(crate) fn hang_up_is_due(self: &Arc<Self>) {
        if self.qp().is_finished() || self.qp().fault().is_some() {
            return;
        }
        if self.qp().awaits_receive().is_some() {
            self.cut(Fault::Disconnected);
        } else {
            self.hang_up_later();
        }
    }

    /// A message begins to wait for a receive of the peer's. One timer serves all that do, because the peer decides how many do: it
    /// looks at the one that waits several times, and gives it up if it is the same at all of them. So the peer has at least the
    /// patience of the queue pair, and at most a quarter more.
    fn peer_not_ready(self: &Arc<Self>) {
        if let Some(number) = self.qp.awaits_receive()
            && !self.receive_timer.swap(true, Ordering::SeqCst)
        {
            self.await_receive(AwaitedReceive { number, looks: RECEIVE_LOOKS });
        }
    }

    fn await_receive(self: &Arc<Self>, awaited: AwaitedReceive) {
        match self.qp.receive_patience() {
            Some(patience) => {
                let due = Due::Receive(Arc::downgrade(self), awaited);
                self.lane().submit(Job::Remind(Instant::now() + patience / RECEIVE_LOOKS, due));
            }
            None => self.receive_timer.store(false, Ordering::SeqCst),
        }
    }

    /// A quarter of the patience is over since the last look.
    pub(crate) fn receive_is_due(self: &Arc<Self>, AwaitedReceive { number, looks }: AwaitedReceive) {
        match self.qp.awaits_receive() {
            Some(same) if same == number && looks <= 1 => self.qp.receive_is_due(number),
            Some(same) if same == number => self.await_receive(AwaitedReceive { number, looks: looks - 1 }),
            Some(number) => self.await_receive(AwaitedReceive { number, looks: RECEIVE_LOOKS }),
            None => {
                self.receive_timer.store(false, Ordering::SeqCst);
                // One that began to wait before this line found the timer pending.
                self.peer_not_ready();
            }
        }
    }

    /// The peer had so much time to send something.
    pub(crate) fn nudge(self: &Arc<Self>, time: Duration) {
        if self.qp().nudge() {
            tracing::debug!(qp = self.qp().id(), "nothing came from the peer yet: nudged");
            self.listen_for(2 * time);
        }
    }

    /// The peer had time to get ready, and its program speaks second.
    pub(crate) fn speak_unasked(&self) {
        if self.qp().speak_unasked() {
            tracing::debug!(qp = self.qp().id(), "nothing came from the peer yet: it is spoken to");
        }
    }

    /// Who may wait for the other's first message, and what is done about it.
    fn await_first_word(self: &Arc<Self>, agreed: &Agreed) {
        match agreed.role {
            Role::Initiator { .. } => self.listen_for(FIRST_NUDGE),
            // Who wants nothing but the RFCs on the wire waits for ever, as RFC 5044 §7.1.2 has it.
            Role::Responder { .. } if agreed.setup != Setup::PeerToPeer && self.pair.config().private => {
                let due = Due::Speak(Arc::downgrade(self));
                self.lane().submit(Job::Remind(Instant::now() + FIRST_WORD, due));
            }
            Role::Responder { .. } => {}
        }
    }

    fn listen_for(self: &Arc<Self>, time: Duration) {
        if time <= LAST_NUDGE {
            self.lane().submit(Job::Remind(Instant::now() + time, Due::Hear(Arc::downgrade(self), time)));
        }
    }

    fn remind(self: &Arc<Self>) {
        let at = Instant::now() + self.pair.config().close;
        self.lane().submit(Job::Remind(at, Due::Close(Arc::downgrade(self))));
    }
}

impl Attendant for Watch {
    fn call_again(&self) {
        if let Some(connection) = self.0.upgrade() {
            connection.call_again();
        }
    }

    fn opened(&self) {}

    fn peer_not_ready(&self) {
        if let Some(connection) = self.0.upgrade() {
            connection.peer_not_ready();
        }
    }

    fn ended(&self, fault: &Arc<Fault>) {
        if let Some(connection) = self.0.upgrade() {
            connection.pair.ended(fault);
            connection.remind();
        }
    }

    fn closed(&self) {
        // Told by a half that is being driven: it is let go of when nobody does.
        if let Some(connection) = self.0.upgrade() {
            let lane = connection.lane();
            lane.submit(Job::Release(connection));
        }
    }
}

impl Pacer for FaultClock {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn call_again(&self, after: Duration) {
        if let Some(connection) = self.connection.upgrade() {
            let due = Due::Drive(Weak::clone(&self.connection));
            connection.lane().submit(Job::Remind(Instant::now() + after, due));
        }
    }
}

/// What an idle queue pair takes, beside the device's part of it (`a_queue_pair_stays_small`): there may be 100,000 of them.
#[cfg(all(test, target_pointer_width = "64"))]
#[test]
fn a_connection_stays_small() {
    let small = [
        (size_of::<Connection>(), 64),
        (size_of::<Watch>(), 8),
        (size_of::<TcpLink>(), 24),
        (size_of::<QueuePair>(), 168),
        (size_of::<Established>(), 104),
    ];
    assert!(small.iter().all(|(size, most)| size <= most), "{small:?}");
}
