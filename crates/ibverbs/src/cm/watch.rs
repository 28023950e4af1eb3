//! What the adapter tells of connections, on the threads of lanes: it becomes events of ids. Before this: the adapter;
//! after: the program's thread, in `channel.rs`.

use super::address::canonical;
use super::attr::address_handle;
use super::connect::{LAST_PAUSE, redial_after};
use super::device::CmDevice;
use super::event::{Connection, Datagram, Event, Param};
use super::state::{Attempt, Depths, Link, Phase, Purpose, Request, Shared, State};
use crate::abi::*;
use crate::errno::Errno;
use crate::persona::{config, is_iwarp};
use crate::report;
use crate::sync::lock;
use ironwarp_engine::{ConnectError, ConnectionEvent, Established, Incoming, QueuePair, Watcher, What};
use ironwarp_rnic::config::Persona;
use ironwarp_rnic::qp::State as QpState;
use ironwarp_wire::private::{Aside, AsideKind, Unreadable};
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// What InfiniBand's connection manager says where nobody listens.
const INVALID_SERVICE_ID: i32 = 8;
/// And what it says for a program that does not want it.
const CONSUMER_DEFINED: i32 = 28;
/// How long the end of a connection is kept from a program that has not polled what came before it, and how often that is looked at.
const UNSEEN: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(1);
/// How long after its end a connection's last packets could still come, on Ethernet.
const TIME_WAIT: Duration = Duration::from_secs(2);

/// Hears of the connections of an id.
#[derive(Debug)]
pub(crate) struct Watch(Mutex<Weak<Shared>>);

impl Watch {
    pub(super) fn new(id: &Arc<Shared>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Arc::downgrade(id))))
    }

    /// Another id is told from now on: a program may make a queue pair with one id and connect it by another (uDAPL).
    pub(super) fn follow(&self, id: &Arc<Shared>) {
        *lock(&self.0) = Arc::downgrade(id);
    }
}

impl Watcher<ConnectionEvent> for Watch {
    fn tell(&self, event: ConnectionEvent) {
        let id = lock(&self.0).upgrade();
        let Some(id) = id else { return };
        match event.what {
            What::Connected(established) => connected(&id, event.qp, &established),
            What::Failed(error) => failed(&id, event.qp, &error),
            What::Ended(_) => ended(&id, event.qp),
            _ => {}
        }
    }
}

/// Hears of peers that want to connect to an id.
#[derive(Debug)]
pub(super) struct Desk(pub(super) Weak<Shared>);

impl Watcher<Incoming> for Desk {
    fn tell(&self, incoming: Incoming) {
        if let Some(id) = self.0.upgrade() {
            requested(&id, incoming);
        }
    }

    fn withdraw(&self, is_gone: &dyn Fn(&Incoming) -> bool) {
        if let Some(id) = self.0.upgrade() {
            let queue = Arc::clone(&id.lock().queue);
            queue.withdraw(|request| is_gone(&request.incoming));
        }
    }
}

fn number(depth: u16) -> u8 {
    u8::try_from(depth).unwrap_or(u8::MAX)
}

fn event(id: &Arc<Shared>, kind: rdma_cm_event_type, param: Param, private_data: &[u8]) -> Event {
    Event { about: Arc::clone(id), kind, status: 0, param, private_data: private_data.into(), request: None }
}

// --- Peers that come ---

/// A peer wants to connect. Dropped, it is turned away.
fn requested(id: &Arc<Shared>, incoming: Incoming) {
    let data = incoming.private_data();
    let (header, data) = match Aside::parse(data) {
        Ok((header, data)) => (Some(header), data),
        Err(Unreadable::Foreign) => (None, data),
        Err(why) => return report::not_taken(incoming.peer(), why),
    };
    let private_data: Box<[u8]> = data.into();
    let state = id.lock();
    let datagrams = matches!(state.port_space, RDMA_PS_UDP | RDMA_PS_IPOIB);
    let lookup = header.is_some_and(|header| header.kind == AsideKind::Lookup);
    let known = header.is_none_or(|header| matches!(header.kind, AsideKind::Pair | AsideKind::Lookup));
    if state.phase != Phase::Listening || datagrams != lookup || !known {
        tracing::debug!(peer = %incoming.peer(), "not what the id waits for");
        return;
    }
    let param = if lookup {
        Param::Datagram(Datagram { address: ibv_ah_attr::zeroed(), qpn: 0, qkey: 0 })
    } else {
        let depths = incoming.depths();
        // One that the peer did not tell is as deep as can be.
        let depth = |depth: Option<u16>| depth.map_or(u8::MAX, number);
        let mut of = Connection {
            depths: Depths { initiator: depth(depths.ird), responder: depth(depths.ord) },
            ..Connection::default()
        };
        of.depths = of.depths.at_most(CmDevice::get().map_or(u8::MAX, CmDevice::depth));
        if let Some(header) = header.or_else(|| defaults().map(|kind| Aside::new(kind, 0))) {
            of.flow_control = header.flow_control;
            of.retry_count = header.retry_count;
            of.rnr_retry_count = header.rnr_retry_count;
            of.srq = header.srq;
            of.qpn = header.qpn;
        }
        Param::Connection(of)
    };
    let request = Some(Request { incoming, header });
    let request = Event {
        about: Arc::clone(id),
        kind: RDMA_CM_EVENT_CONNECT_REQUEST,
        status: 0,
        param,
        private_data,
        request,
    };
    state.queue.push(request);
}

/// An adapter on Ethernet tells of retries; an iWARP one has none.
fn defaults() -> Option<AsideKind> {
    (!is_iwarp()).then_some(AsideKind::Pair)
}

// --- A connection is there ---

fn connected(id: &Arc<Shared>, qp: u32, established: &Established) {
    let mut state = id.lock();
    if !state.is_about(qp) {
        return;
    }
    let mut spoilt = None;
    match state.phase {
        Phase::Connecting => {
            let Some(attempt) = state.attempt.take() else { return };
            state.local = Some(canonical(established.local));
            if let Err(pair) = answered(id, &mut state, attempt, established) {
                spoilt = Some(pair);
            }
        }
        Phase::Accepting => {
            state.phase = Phase::Connected;
            let param = Param::Connection(agreed(&state, established));
            state.queue.push(event(id, RDMA_CM_EVENT_ESTABLISHED, param, &[]));
        }
        _ => return,
    }
    let over = std::mem::take(&mut state.ended_early) && spoilt.is_none();
    drop(state);
    if let Some(pair) = spoilt {
        pair.disconnect();
    }
    if over {
        ended(id, qp);
    }
}

/// The peer accepted. Fails with the connection that is no good.
fn answered(
    id: &Arc<Shared>,
    state: &mut State,
    attempt: Attempt,
    established: &Established,
) -> Result<(), Arc<QueuePair>> {
    let Attempt { pair, purpose, options, .. } = attempt;
    let reply = Aside::parse(&established.private_data);
    state.link = Some(Link { pair: Arc::clone(&pair), purpose });
    match (purpose, reply) {
        (Purpose::Managed, _) => {
            state.phase = Phase::Connected;
            let param = Param::Connection(agreed(state, established));
            state.queue.push(event(id, RDMA_CM_EVENT_ESTABLISHED, param, &established.private_data));
            Ok(())
        }
        (Purpose::Aside, Ok((header, data))) => {
            state.peer = Some(header);
            if header.keeps_secret {
                keep_secret(&options.private_data);
            }
            let mut of = agreed(state, established);
            of.qpn = header.qpn;
            of.rnr_retry_count = header.rnr_retry_count;
            of.flow_control = header.flow_control;
            of.srq = header.srq;
            // Where the adapter is no InfiniBand one, there is no such event, and nobody waits for an answer to it.
            let waits = !is_iwarp();
            let (phase, kind) = match waits {
                true => (Phase::Responded, RDMA_CM_EVENT_CONNECT_RESPONSE),
                false => (Phase::Connected, RDMA_CM_EVENT_ESTABLISHED),
            };
            state.phase = phase;
            state.queue.push(event(id, kind, Param::Connection(of), data));
            Ok(())
        }
        // A peer that does not know what was asked of it.
        (_, reply) => {
            let why = reply.err().unwrap_or(Unreadable::Foreign);
            report::not_reached(established.peer, &ConnectError::OtherRelease(why));
            state.phase = Phase::Failed;
            state.queue.push(Event {
                status: -libc::EPROTO,
                ..event(id, RDMA_CM_EVENT_CONNECT_ERROR, Param::None, &[])
            });
            Err(pair)
        }
    }
}

/// The peer keeps the secret that this end's Request offered, so this end does, too.
fn keep_secret(request: &[u8]) {
    if let Ok((Aside { qpn, secret: Some(secret), .. }, _)) = Aside::parse(request)
        && let Some(own) = report::find_pair(qpn)
    {
        own.keep_secret(secret);
    }
}

/// What the event says. The kernel's iWARP names the depths the other way round.
fn agreed(state: &State, established: &Established) -> Connection {
    let (ird, ord) = (number(established.agreed.ird), number(established.agreed.ord));
    let iwarp = is_iwarp();
    let (initiator, responder) = if iwarp { (ird, ord) } else { (ord, ird) };
    Connection {
        depths: Depths { initiator, responder },
        flow_control: !iwarp,
        retry_count: 0,
        rnr_retry_count: if iwarp { 0 } else { 7 },
        srq: false,
        qpn: state.peer.map_or(0, |peer| peer.qpn),
    }
}

// --- There is none ---

/// A connection was not made.
pub(super) fn failed(id: &Arc<Shared>, qp: u32, error: &ConnectError) {
    let mut state = id.lock();
    if !state.is_about(qp) {
        return;
    }
    let pair = match state.phase {
        Phase::Connecting => {
            let Some(attempt) = &mut state.attempt else { return };
            if is_refused(error) && Instant::now() < attempt.until {
                let pause = attempt.pause;
                attempt.pause = (2 * pause).min(LAST_PAUSE);
                drop(state);
                return redial_after(id, pause);
            }
            let Some(attempt) = state.attempt.take() else { return };
            let ConnectError::Rejected { private_data, .. } = error else {
                report::not_reached(attempt.to, error);
                return give_up(id, state, &attempt.pair, reason(error), &[]);
            };
            match (attempt.purpose, Aside::parse(private_data)) {
                (Purpose::Lookup, Ok((header, data))) if header.kind == AsideKind::Found => {
                    return found(id, &mut state, header, data);
                }
                _ => {}
            }
            report::not_reached(attempt.to, error);
            return give_up(id, state, &attempt.pair, reason(error), private_data);
        }
        Phase::Accepting => state.link.as_ref().map(|link| Arc::clone(&link.pair)),
        _ => return,
    };
    if let Some(pair) = pair {
        report::not_connected(qp, error);
        give_up(id, state, &pair, (RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT), &[]);
    }
}

/// What was posted is flushed, then the program is told.
fn give_up(
    id: &Arc<Shared>,
    mut state: std::sync::MutexGuard<'_, State>,
    pair: &Arc<QueuePair>,
    (kind, status): (rdma_cm_event_type, i32),
    private_data: &[u8],
) {
    state.phase = Phase::Failed;
    drop(state);
    let _ = pair.modify(QpState::Error);
    id.push_event(Event { status, ..event(id, kind, Param::None, private_data) });
}

fn is_refused(error: &ConnectError) -> bool {
    matches!(error, ConnectError::System(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}

/// The event for an error, and its status.
fn reason(error: &ConnectError) -> (rdma_cm_event_type, i32) {
    let (by_program, by_nobody) = match config().persona {
        Persona::Roce => (CONSUMER_DEFINED, INVALID_SERVICE_ID),
        Persona::Iwarp => (-libc::ECONNREFUSED, -libc::ECONNREFUSED),
    };
    match error {
        ConnectError::Rejected { .. } => (RDMA_CM_EVENT_REJECTED, by_program),
        ConnectError::Closed | ConnectError::Elsewhere => (RDMA_CM_EVENT_REJECTED, by_nobody),
        ConnectError::TimedOut => (RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
        ConnectError::System(system) => match system.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => {
                (RDMA_CM_EVENT_REJECTED, by_nobody)
            }
            _ => (RDMA_CM_EVENT_UNREACHABLE, -Errno::from(error).0),
        },
        _ => (RDMA_CM_EVENT_CONNECT_ERROR, -Errno::from(error).0),
    }
}

/// The number and key of a connectionless queue pair.
fn found(id: &Arc<Shared>, state: &mut State, header: Aside, private_data: &[u8]) {
    if header.status != 0 {
        state.phase = Phase::Failed;
        let status = i32::try_from(header.status).unwrap_or(i32::MAX);
        state.queue.push(Event { status, ..event(id, RDMA_CM_EVENT_UNREACHABLE, Param::None, private_data) });
        return;
    }
    state.phase = Phase::Connected;
    state.peer = Some(header);
    let address = address_handle(state).unwrap_or_else(|_| ibv_ah_attr::zeroed());
    let param = Param::Datagram(Datagram { address, qpn: header.qpn, qkey: header.qkey });
    state.queue.push(event(id, RDMA_CM_EVENT_ESTABLISHED, param, private_data));
}

// --- It is over ---

fn ended(id: &Arc<Shared>, qp: u32) {
    tell_end(id, qp, Instant::now() + UNSEEN);
}

/// Tells the end of a connection, once the program has polled what went well before it, or at that time.
///
/// An adapter in hardware tells of completions within microseconds, and of the end within milliseconds. Programs count on that: libfabric
/// closes its endpoint when it is told, and then never sees what the queue had for it.
fn tell_end(id: &Arc<Shared>, qp: u32, at_the_latest: Instant) {
    let mut state = id.lock();
    if !state.is_about(qp) {
        return;
    }
    match state.phase {
        Phase::Connected | Phase::Responded
            if Instant::now() < at_the_latest
                && state.link.as_ref().is_some_and(|link| link.pair.qp().has_unseen()) =>
        {
            drop(state);
            let about = Arc::downgrade(id);
            let call = move || {
                if let Some(id) = about.upgrade() {
                    tell_end(&id, qp, at_the_latest);
                }
            };
            if let Ok(device) = CmDevice::get() {
                let _ = device.context.engine().call_at(Instant::now() + LOOK, call);
            }
            return;
        }
        Phase::Connected | Phase::Responded => {
            state.phase = Phase::Disconnected;
            state.queue.push(event(id, RDMA_CM_EVENT_DISCONNECTED, Param::None, &[]));
        }
        Phase::Connecting | Phase::Accepting => {
            state.ended_early = true;
            return;
        }
        _ => return,
    }
    drop(state);
    if !is_iwarp() {
        exit_time_wait_later(id);
    }
}

/// A while after its end, the queue pair of a connection may have another.
fn exit_time_wait_later(id: &Arc<Shared>) {
    let about = Arc::downgrade(id);
    let call = move || {
        let Some(id) = about.upgrade() else { return };
        let over = id.lock().phase == Phase::Disconnected;
        if over {
            id.push(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
        }
    };
    if let Ok(device) = CmDevice::get() {
        let _ = device.context.engine().call_at(Instant::now() + TIME_WAIT, call);
    }
}
