//! The port in the numbers of up to 240 manually connected queue pairs, and the hellos of peers that dial them.
//!
//! A hello is offered to the queue pair that it names, which decides whether it is its peer's. If that queue pair does not wait for a peer yet, the
//! hello is parked; the connection is not read from meanwhile. Every other hello is refused, and a peer in good faith dials again.

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
const MOST_PARKED: usize = 256;
/// Maximum number of parked hellos for one queue pair: a stranger that comes first must not keep out the peer.
const MOST_PARKED_EACH: usize = 8;

/// A queue pair that waits for its peer.
pub(super) trait Expecting: Send + Sync + fmt::Debug {
    /// Accepts the connection if the hello is its peer's, and refuses it otherwise.
    fn offer(self: Arc<Self>, hello: &Hello, incoming: Incoming);
}

/// The ports of an adapter, by number.
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
    /// A peer of another release came: only the first is logged, so that a stranger cannot fill the log.
    other_release: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// By the addresses at which they listen.
    listeners: HashMap<SocketAddr, Listening>,
    /// The queue pairs that have a number with this port.
    known: HashMap<u32, Known>,
    /// Hellos for queue pairs that do not wait for a peer yet, oldest first.
    parked: VecDeque<Parked>,
}

#[derive(Debug, Default)]
struct Known {
    /// Waits for its peer, once it was told which.
    expecting: Option<Weak<dyn Expecting>>,
    /// What the connection managers of both ends exchanged.
    secret: Option<Secret>,
}

#[derive(Debug)]
struct Parked {
    hello: Hello,
    incoming: Incoming,
    until: Instant,
}

/// Receives the connections that peers begin at a port.
#[derive(Debug)]
struct PortSink(Weak<ManualPort>);

impl EventSink<Incoming> for PortSink {
    fn send(&self, incoming: Incoming) {
        match self.0.upgrade() {
            Some(port) => port.hello(incoming),
            None => incoming.refuse(Reason::NoQueuePair),
        }
    }

    /// Drops parked hellos whose connections are gone.
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
        lock(&self.state).known.insert(qpn, Known::default());
    }

    fn release_number(&self, qpn: u32) {
        let mut state = lock(&self.state);
        state.known.remove(&qpn);
        let parked = state.take_parked(qpn);
        drop(state);
        for one in parked {
            one.incoming.refuse(Reason::NoQueuePair);
        }
    }

    fn stop_expecting(&self, qpn: u32) {
        if let Some(known) = lock(&self.state).known.get_mut(&qpn) {
            *known = Known::default();
        }
    }

    fn keep_secret(&self, qpn: u32, secret: Secret) {
        lock(&self.state).known.entry(qpn).or_default().secret = Some(secret);
    }
}

impl ManualPort {
    pub(super) fn new(reservation: Reservation, ctx: Weak<CmContext>) -> Arc<Self> {
        let other_release = AtomicBool::new(false);
        Arc::new(Self { reservation, ctx, state: Mutex::default(), other_release })
    }

    /// Listens at an address, if it does not yet.
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
            vacant.insert(Listening::reserved(&ctx, &self.reservation, at, sink)?);
        }
        Ok(())
    }

    /// A queue pair was told its peer, whose hello may be parked. If the queue pair dials, it accepts no hello.
    pub(super) fn expect(&self, qpn: u32, expecting: &Arc<dyn Expecting>) {
        let parked = {
            let mut state = lock(&self.state);
            state.known.entry(qpn).or_default().expecting = Some(Arc::downgrade(expecting));
            state.take_parked(qpn)
        };
        // The newest first: the senders of the others may be gone.
        for Parked { hello, incoming, .. } in parked.into_iter().rev() {
            Arc::clone(expecting).offer(&hello, incoming);
        }
    }

    pub(super) fn secret(&self, qpn: u32) -> Option<Secret> {
        lock(&self.state).known.get(&qpn)?.secret
    }

    /// A peer connected, and names a queue pair. Called on a lane's thread.
    fn hello(self: &Arc<Self>, incoming: Incoming) {
        let Some(ctx) = self.ctx.upgrade() else { return incoming.refuse(Reason::NoQueuePair) };
        let hello = match Hello::parse(incoming.private_data()) {
            Ok(hello) if hello.kind == HelloKind::Dial => hello,
            Ok(_) => return incoming.refuse(Reason::MustUnderstand),
            Err(why) => return self.refuse_unreadable(why, incoming),
        };
        let mut state = lock(&self.state);
        let Some(known) = state.known.get(&hello.destination) else {
            tracing::debug!(peer = %incoming.peer(), %hello, "refused a peer: no such queue pair");
            return incoming.refuse(Reason::NoQueuePair);
        };
        if let Some(expecting) = known.expecting.as_ref().and_then(Weak::upgrade) {
            drop(state);
            return expecting.offer(&hello, incoming);
        }
        let each = state.parked.iter().filter(|one| one.hello.destination == hello.destination).count();
        if state.parked.len() >= MOST_PARKED || each >= MOST_PARKED_EACH {
            tracing::debug!(peer = %incoming.peer(), %hello, "refused a peer: too many are waiting");
            return incoming.refuse(Reason::Busy);
        }
        let until = Instant::now() + ctx.config().startup;
        state.parked.push_back(Parked { hello, incoming, until });
        drop(state);
        let this = Arc::downgrade(self);
        ctx.remind(until, move || {
            this.upgrade().iter().for_each(|port| port.expire(Instant::now()));
        });
    }

    fn refuse_unreadable(&self, why: Unreadable, incoming: Incoming) {
        let reason = match why {
            Unreadable::Foreign | Unreadable::Malformed => {
                tracing::debug!(peer = %incoming.peer(), "refused a stranger at a port of queue pairs: {why}");
                return incoming.refuse(Reason::MustUnderstand);
            }
            Unreadable::Version(_) => Reason::Version,
            _ => Reason::MustUnderstand,
        };
        if !self.other_release.swap(true, Ordering::Relaxed) {
            tracing::warn!(peer = %incoming.peer(), "refused a queue pair: {why}");
        }
        incoming.refuse(reason);
    }

    /// Refuses hellos that were parked for too long.
    fn expire(&self, now: Instant) {
        let mut expired = Vec::new();
        let mut state = lock(&self.state);
        while state.parked.front().is_some_and(|one| one.until <= now) {
            expired.extend(state.parked.pop_front());
        }
        drop(state);
        for one in expired {
            one.incoming.refuse(Reason::NotExpected);
        }
    }
}

impl State {
    fn take_parked(&mut self, qpn: u32) -> VecDeque<Parked> {
        let all = std::mem::take(&mut self.parked);
        let (its, others) = all.into_iter().partition(|one| one.hello.destination == qpn);
        self.parked = others;
        its
    }
}
