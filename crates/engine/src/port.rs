//! The port in the numbers of up to 240 queue pairs, and the desk at which their peers ask for them. Before this: a listener
//! took a connection and read its Request; after: `byhand.rs`, if the peer is the one that a queue pair was told.
//!
//! A hello is served only if it names a queue pair that waits and `byhand/judge.rs` finds that it is the peer's. If the queue pair does not wait yet, the hello does: the
//! connection is not read from meanwhile. Everything else is turned away, and a peer in good faith dials again.

use crate::byhand::{BringUp, Reminder};
use crate::engine::{Engine, Listening};
use crate::set::lock;
use crate::setup::Incoming;
use crate::sys::reserve::Reservation;
use ironwarp_wire::private::{Hello, HelloKind, Reason, Secret, Unreadable};
use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

/// How many hellos wait at a port: one for each queue pair, and some for peers that dial again.
const MOST_PARKED: usize = 256;
/// How many of them for one queue pair: whoever comes first shall not keep out the right one.
const MOST_PARKED_EACH: usize = 8;

/// A port.
#[derive(Debug)]
pub(crate) struct Port {
    reservation: Reservation,
    engine: Weak<Engine>,
    desk: Mutex<Desk>,
    /// A peer of another release came: the first is logged, so that a stranger cannot fill the log.
    other_release: AtomicBool,
}

#[derive(Debug, Default)]
struct Desk {
    /// Where it listens.
    listeners: HashMap<SocketAddr, Listening>,
    /// The queue pairs that have a number of this port, and what they are told, once they are.
    known: HashMap<u32, Known>,
    /// Hellos that came early, the oldest first.
    parked: VecDeque<Parked>,
}

#[derive(Debug, Default)]
struct Known {
    up: Weak<BringUp>,
    /// What the connection managers of both ends exchanged.
    secret: Option<Secret>,
}

#[derive(Debug)]
struct Parked {
    hello: Hello,
    incoming: Incoming,
    until: Instant,
}

impl Port {
    pub(crate) fn new(reservation: Reservation, engine: Weak<Engine>) -> Arc<Self> {
        let other_release = AtomicBool::new(false);
        Arc::new(Self { reservation, engine, desk: Mutex::default(), other_release })
    }

    pub(crate) fn number(&self) -> u16 {
        self.reservation.port()
    }

    /// There is a queue pair with this number.
    pub(crate) fn admit(&self, number: u32) {
        lock(&self.desk).known.insert(number, Known::default());
    }

    /// There is no more.
    pub(crate) fn dismiss(&self, number: u32) {
        let mut desk = lock(&self.desk);
        desk.known.remove(&number);
        let parked = desk.take_parked(number);
        drop(desk);
        for one in parked {
            one.incoming.refuse(Reason::NoQueuePair);
        }
    }

    /// Listens at an address, if that was not needed before.
    pub(crate) fn listen(self: &Arc<Self>, at: SocketAddr) -> io::Result<()> {
        let Some(engine) = self.engine.upgrade() else { return Ok(()) };
        let at = match at.ip() {
            IpAddr::V4(_) if engine.config().listen_everywhere => (Ipv4Addr::UNSPECIFIED, at.port()).into(),
            IpAddr::V6(_) if engine.config().listen_everywhere => (Ipv6Addr::UNSPECIFIED, at.port()).into(),
            _ => at,
        };
        let mut desk = lock(&self.desk);
        if let Entry::Vacant(place) = desk.listeners.entry(at) {
            place.insert(engine.listen_for((&self.reservation, at), self)?);
        }
        Ok(())
    }

    /// A queue pair was told its peer. The peer's hello may be here already; if the queue pair dials, nobody's is served.
    pub(crate) fn expect(&self, up: &Arc<BringUp>) {
        let parked = {
            let mut desk = lock(&self.desk);
            desk.known.entry(up.number()).or_default().up = Arc::downgrade(up);
            desk.take_parked(up.number())
        };
        // The newest first: whoever sent the others may be gone.
        for Parked { hello, incoming, .. } in parked.into_iter().rev() {
            serve(up, &hello, incoming);
        }
    }

    /// A queue pair does not wait any more; it may do so again.
    pub(crate) fn forget(&self, number: u32) {
        if let Some(known) = lock(&self.desk).known.get_mut(&number) {
            *known = Known::default();
        }
    }

    /// Keeps a secret for a queue pair, until it is reset.
    pub(crate) fn keep_secret(&self, number: u32, secret: Secret) {
        lock(&self.desk).known.entry(number).or_default().secret = Some(secret);
    }

    pub(crate) fn secret(&self, number: u32) -> Option<Secret> {
        lock(&self.desk).known.get(&number)?.secret
    }

    /// Somebody connected, and says who they are. Called from a lane.
    pub(crate) fn hello(self: &Arc<Self>, incoming: Incoming) {
        let Some(engine) = self.engine.upgrade() else { return incoming.refuse(Reason::NoQueuePair) };
        let hello = match Hello::parse(incoming.private_data()) {
            Ok(hello) if hello.kind == HelloKind::Dial => hello,
            Ok(_) => return incoming.refuse(Reason::MustUnderstand),
            Err(why) => return self.refuse_unreadable(why, incoming),
        };
        let mut desk = lock(&self.desk);
        let Some(known) = desk.known.get(&hello.destination) else {
            tracing::debug!(peer = %incoming.peer(), %hello, "no such queue pair");
            return incoming.refuse(Reason::NoQueuePair);
        };
        if let Some(up) = known.up.upgrade() {
            drop(desk);
            return serve(&up, &hello, incoming);
        }
        let each = desk.parked.iter().filter(|one| one.hello.destination == hello.destination).count();
        if desk.parked.len() >= MOST_PARKED || each >= MOST_PARKED_EACH {
            tracing::debug!(peer = %incoming.peer(), %hello, "too many wait");
            return incoming.refuse(Reason::Busy);
        }
        let until = Instant::now() + engine.config().startup;
        desk.parked.push_back(Parked { hello, incoming, until });
        drop(desk);
        engine.remind(until, Reminder::Parked(Arc::downgrade(self)));
    }

    fn refuse_unreadable(&self, why: Unreadable, incoming: Incoming) {
        let reason = match why {
            Unreadable::Foreign | Unreadable::Malformed => {
                tracing::debug!(peer = %incoming.peer(), "a stranger at the port of queue pairs: {why}");
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

    /// Drops a hello that waits, if its connection is gone.
    pub(crate) fn withdraw(&self, is_gone: &dyn Fn(&Incoming) -> bool) {
        lock(&self.desk).parked.retain(|one| !is_gone(&one.incoming));
    }

    /// Refuses those that waited for too long.
    pub(crate) fn expire(&self, now: Instant) {
        let mut expired = Vec::new();
        let mut desk = lock(&self.desk);
        while desk.parked.front().is_some_and(|one| one.until <= now) {
            expired.extend(desk.parked.pop_front());
        }
        drop(desk);
        for one in expired {
            one.incoming.refuse(Reason::NotExpected);
        }
    }
}

impl Desk {
    fn take_parked(&mut self, number: u32) -> VecDeque<Parked> {
        let all = std::mem::take(&mut self.parked);
        let (its, others) = all.into_iter().partition(|one| one.hello.destination == number);
        self.parked = others;
        its
    }
}

fn serve(up: &Arc<BringUp>, hello: &Hello, incoming: Incoming) {
    match up.judge(hello, &incoming) {
        Ok(answer) if up.claim() => up.accept(incoming, &answer),
        Ok(_) => incoming.refuse(Reason::Busy),
        Err(said) => {
            tracing::debug!(peer = %incoming.peer(), %hello, %said, "turned away a peer");
            incoming.turn_away(&said);
        }
    }
}
