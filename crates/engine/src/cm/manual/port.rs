//! A TCP port for up to 240 manually connected queue pairs, whose numbers contain it. Receives the hellos of peers that
//! dial them.
//!
//! A hello names a queue pair, which decides whether the hello comes from its peer. If that queue pair does not expect
//! a peer yet, the hello is parked. Every other hello is refused, and a genuine peer dials again.

use crate::cm::context::CmContext;
use crate::cm::incoming::Incoming;
use crate::cm::listen::Listening;
use crate::notify::channel::EventSink;
use crate::sys::reserve::{Kind, Reservation};
use crate::verbs::qpn::QpPort;
use ironwarp_rnic::sync::lock;
use ironwarp_wire::private::{Hello, HelloKind, Reason, Secret, Unreadable};
use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

/// Maximum number of parked hellos at a port: one for each queue pair, and some for peers that dial again.
const MAX_PARKED: usize = 256;
/// Maximum number of parked hellos for one queue pair. More than one: the hello of a stranger must not keep out the
/// peer.
const MAX_PARKED_PER_QP: usize = 8;

/// An attempt to connect a queue pair, as its port sees it.
pub(super) trait Expecting: Send + Sync + fmt::Debug {
    /// Accepts the connection if the hello comes from the expected peer, and refuses it otherwise.
    fn accept_or_refuse(self: Arc<Self>, hello: &Hello, incoming: Incoming);
}

/// The ports of an adapter for manually connected queue pairs, by port number. Some may have been dropped.
#[derive(Debug, Default)]
pub(crate) struct ManualPorts(Mutex<HashMap<u16, Weak<ManualPort>>>);

impl ManualPorts {
    /// Reserves another port.
    pub(crate) fn open(&self, ctx: &Arc<CmContext>) -> io::Result<Arc<ManualPort>> {
        let reservation = Reservation::new(Kind::Stream, ctx.config().ports)?;
        let port = ManualPort::new(reservation, Arc::downgrade(ctx));
        let mut ports = lock(&self.0);
        ports.retain(|_, port| port.strong_count() > 0);
        ports.insert(port.number(), Arc::downgrade(&port));
        Ok(port)
    }

    /// Returns the port with this number.
    pub(crate) fn find(&self, number: u16) -> Option<Arc<ManualPort>> {
        lock(&self.0).get(&number)?.upgrade()
    }
}

/// A port for manually connected queue pairs.
#[derive(Debug)]
pub(crate) struct ManualPort {
    reservation: Reservation,
    ctx: Weak<CmContext>,
    state: Mutex<State>,
    /// The refusal of a peer of another release was logged. Further ones are not, so that a stranger cannot fill the
    /// log.
    other_release_logged: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The listeners, by their addresses.
    listeners: HashMap<SocketAddr, Listening>,
    /// The queue pairs whose numbers contain this port, by number.
    queue_pairs: HashMap<u32, QpEntry>,
    /// Hellos for queue pairs that do not expect a peer yet, oldest first.
    parked: VecDeque<Parked>,
}

/// A queue pair, as its port sees it.
#[derive(Debug, Default)]
struct QpEntry {
    /// The attempt to connect the queue pair; `None` until the program names a peer.
    expecting: Option<Weak<dyn Expecting>>,
    /// The secret that the connection managers of both ends exchanged, if any.
    secret: Option<Secret>,
}

/// A hello that waits for its queue pair to expect a peer.
#[derive(Debug)]
struct Parked {
    hello: Hello,
    /// The connection that the hello came on. It is not read from while the hello is parked.
    incoming: Incoming,
    /// When the hello is refused.
    deadline: Instant,
}

/// Receives the connections that peers begin at a port.
#[derive(Debug)]
struct PortSink(Weak<ManualPort>);

impl EventSink<Incoming> for PortSink {
    fn send(&self, incoming: Incoming) {
        match self.0.upgrade() {
            Some(port) => port.on_incoming(incoming),
            None => incoming.refuse(Reason::NoQueuePair),
        }
    }

    /// Drops parked hellos whose connections have failed.
    fn revoke(&self, is_gone: &dyn Fn(&Incoming) -> bool) {
        if let Some(port) = self.0.upgrade() {
            lock(&port.state).parked.retain(|one| !is_gone(&one.incoming));
        }
    }
}

impl QpPort for ManualPort {
    fn number(&self) -> u16 {
        self.reservation.port()
    }

    fn assign_number(&self, qpn: u32) {
        lock(&self.state).queue_pairs.insert(qpn, QpEntry::default());
    }

    fn release_number(&self, qpn: u32) {
        let mut state = lock(&self.state);
        state.queue_pairs.remove(&qpn);
        let parked = state.take_parked(qpn);
        drop(state);
        for one in parked {
            one.incoming.refuse(Reason::NoQueuePair);
        }
    }

    fn stop_expecting(&self, qpn: u32) {
        if let Some(entry) = lock(&self.state).queue_pairs.get_mut(&qpn) {
            *entry = QpEntry::default();
        }
    }

    fn keep_secret(&self, qpn: u32, secret: Secret) {
        lock(&self.state).queue_pairs.entry(qpn).or_default().secret = Some(secret);
    }
}

impl ManualPort {
    /// Creates a port that was reserved. It does not listen yet.
    pub(super) fn new(reservation: Reservation, ctx: Weak<CmContext>) -> Arc<Self> {
        let other_release_logged = AtomicBool::new(false);
        Arc::new(Self { reservation, ctx, state: Mutex::default(), other_release_logged })
    }

    /// Listens at an address, or at the wildcard address if the settings say so (`listen_everywhere`), unless the port
    /// listens there.
    pub(super) fn listen(self: &Arc<Self>, at: SocketAddr) -> io::Result<()> {
        let Some(ctx) = self.ctx.upgrade() else { return Ok(()) };
        let at = match at.ip() {
            IpAddr::V4(_) if ctx.config().listen_everywhere => (Ipv4Addr::UNSPECIFIED, at.port()).into(),
            IpAddr::V6(_) if ctx.config().listen_everywhere => (Ipv6Addr::UNSPECIFIED, at.port()).into(),
            _ => at,
        };
        let mut state = lock(&self.state);
        if let Entry::Vacant(vacant) = state.listeners.entry(at) {
            let sink = Arc::new(PortSink(Arc::downgrade(self)));
            vacant.insert(Listening::at_reserved_port(&ctx, &self.reservation, at, sink)?);
        }
        Ok(())
    }

    /// Registers the attempt to connect a queue pair, and passes it the parked hellos. An attempt that dials refuses
    /// them.
    pub(super) fn start_expecting(&self, qpn: u32, expecting: &Arc<dyn Expecting>) {
        let parked = {
            let mut state = lock(&self.state);
            state.queue_pairs.entry(qpn).or_default().expecting = Some(Arc::downgrade(expecting));
            state.take_parked(qpn)
        };
        // The newest first: the peer may have dialled again, and closed the connections of older hellos.
        for Parked { hello, incoming, .. } in parked.into_iter().rev() {
            Arc::clone(expecting).accept_or_refuse(&hello, incoming);
        }
    }

    /// Returns the secret of a queue pair, if it has one.
    pub(super) fn secret(&self, qpn: u32) -> Option<Secret> {
        lock(&self.state).queue_pairs.get(&qpn)?.secret
    }

    /// Passes the hello of a new connection to the queue pair that it names, parks it, or refuses it. Called on a
    /// lane's thread.
    fn on_incoming(self: &Arc<Self>, incoming: Incoming) {
        let Some(ctx) = self.ctx.upgrade() else { return incoming.refuse(Reason::NoQueuePair) };
        let hello = match Hello::parse(incoming.private_data()) {
            Ok(hello) if hello.kind == HelloKind::Dial => hello,
            Ok(_) => return incoming.refuse(Reason::MustUnderstand),
            Err(why) => return self.refuse_unreadable(why, incoming),
        };
        let mut state = lock(&self.state);
        let Some(entry) = state.queue_pairs.get(&hello.destination) else {
            tracing::debug!(peer = %incoming.peer(), %hello, "refused a peer: no such queue pair");
            return incoming.refuse(Reason::NoQueuePair);
        };
        if let Some(expecting) = entry.expecting.as_ref().and_then(Weak::upgrade) {
            drop(state);
            return expecting.accept_or_refuse(&hello, incoming);
        }
        let parked_for_qp =
            state.parked.iter().filter(|one| one.hello.destination == hello.destination).count();
        if state.parked.len() >= MAX_PARKED || parked_for_qp >= MAX_PARKED_PER_QP {
            tracing::debug!(peer = %incoming.peer(), %hello, "refused a peer: too many are waiting");
            return incoming.refuse(Reason::Busy);
        }
        let deadline = Instant::now() + ctx.config().startup;
        state.parked.push_back(Parked { hello, incoming, deadline });
        drop(state);
        let this = Arc::downgrade(self);
        ctx.call_at_or_log(deadline, move || {
            this.upgrade().iter().for_each(|port| port.refuse_expired(Instant::now()));
        });
    }

    /// Refuses a connection whose private data is not a hello of this release.
    fn refuse_unreadable(&self, why: Unreadable, incoming: Incoming) {
        let reason = match why {
            Unreadable::Foreign | Unreadable::Malformed => {
                tracing::debug!(peer = %incoming.peer(), "refused a stranger at a port of queue pairs: {why}");
                return incoming.refuse(Reason::MustUnderstand);
            }
            Unreadable::Version(_) => Reason::Version,
            _ => Reason::MustUnderstand,
        };
        if !self.other_release_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(peer = %incoming.peer(), "refused a queue pair: {why}");
        }
        incoming.refuse(reason);
    }

    /// Refuses parked hellos whose deadline is over.
    fn refuse_expired(&self, now: Instant) {
        let mut expired = Vec::new();
        let mut state = lock(&self.state);
        while state.parked.front().is_some_and(|one| one.deadline <= now) {
            expired.extend(state.parked.pop_front());
        }
        drop(state);
        for one in expired {
            one.incoming.refuse(Reason::NotExpected);
        }
    }
}

impl State {
    /// Removes and returns the parked hellos for a queue pair, oldest first.
    fn take_parked(&mut self, qpn: u32) -> VecDeque<Parked> {
        let all = std::mem::take(&mut self.parked);
        let (taken, others) = all.into_iter().partition(|one| one.hello.destination == qpn);
        self.parked = others;
        taken
    }
}
