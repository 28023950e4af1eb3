//! Logs requests that failed, and connections that ended or could not be established.

use super::pairs;
use crate::check;
use ironwarp_engine::{ConnectError, ConnectionEvent, ConnectionEventKind, EventSink};
use ironwarp_rnic::adversary;
use ironwarp_rnic::error::{ErrorOrigin, PostError, QpError};
use ironwarp_rnic::fault::{Counts, FaultPlan};
use ironwarp_rnic::queue::{Completion, RequestError, Status, WrId};
use ironwarp_rnic::recorded::Recorded;
use ironwarp_rnic::sync::lock;
use ironwarp_wire::private::Unreadable;
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tracing::field::display;

/// Maximum number of events that are logged with an error.
const MAX_EVENTS: usize = 8;
/// Maximum number of queue pairs whose events are logged.
const MAX_QUEUE_PAIRS: usize = 16;

/// Logs a request that failed: as a warning, unless it was flushed because another request or the connection failed.
pub(crate) fn log_failed_request(completion: &Completion) {
    let qp = completion.qp;
    let (vendor_err, peer) = (format_args!("{:#010x}", vendor_err(completion)), pairs::peer(qp).map(display));
    let error = RequestError(completion.clone());
    if completion.status == Status::Flushed {
        tracing::info!(qp = %Hex(qp), peer, %vendor_err, "{error}");
    } else {
        tracing::warn!(qp = %Hex(qp), peer, %vendor_err, "{error}");
        log_last_events(qp);
    }
}

/// Logs the last events of a queue pair, once: what happened before its error.
fn log_last_events(qp: u32) {
    static LOGGED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
    let mut logged = lock(&LOGGED);
    if logged.len() >= MAX_QUEUE_PAIRS || !logged.insert(qp) {
        return;
    }
    drop(logged);
    let events = ironwarp_recorder::last_events(qp, MAX_EVENTS + 2);
    let last = events.iter().filter_map(|event| event.time).max().unwrap_or_default();
    for event in &events {
        let before = event.time.map_or(0, |time| last.saturating_sub(time)) / 1000;
        let recorded = Recorded { kind: event.kind, argument: event.argument };
        // Two events: the line above says the same.
        if recorded.is_failure() {
            continue;
        }
        tracing::warn!(qp = %Hex(qp), "  {before} µs before: {recorded}");
    }
}

/// Logs the end of a connection: as a warning, unless one end closed the connection, or the error is logged with
/// the request that failed because of it.
fn log_ended(qp: u32, error: &QpError) {
    let Some(pair) = pairs::find(qp) else { return };
    let peer = pair.peer().map(display);
    let vendor_err = format_args!("{:#010x}", error.vendor_err());
    if error.origin() == ErrorOrigin::Nobody || pair.qp().blames_a_request() {
        tracing::info!(qp = %Hex(qp), peer, %vendor_err, "the connection ended: {error}");
    } else {
        tracing::warn!(qp = %Hex(qp), peer, %vendor_err, "the connection ended: {error}");
    }
}

/// Logs that a queue pair could not be connected to its peer.
pub(crate) fn log_not_connected(qp: u32, error: &ConnectError) {
    let peer = pairs::peer(qp).map(display);
    match error {
        // The program disconnected the queue pair, or a request that timed out is logged instead.
        ConnectError::GivenUp | ConnectError::TimedOut => {
            tracing::info!(qp = %Hex(qp), peer, "not connected: {error}");
        }
        _ => tracing::warn!(qp = %Hex(qp), peer, "not connected: {error}"),
    }
}

/// Logs that an id of librdmacm could not be connected to an address.
pub(crate) fn log_connect_failure(peer: SocketAddr, error: &ConnectError) {
    tracing::warn!(%peer, "rdma_connect failed: {error}");
}

/// Logs that a connection request was rejected because this release cannot read it. Only the first is a warning,
/// because anyone can send such requests.
pub(crate) fn log_rejected_peer(peer: SocketAddr, why: Unreadable) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if LOGGED.swap(true, Ordering::Relaxed) {
        tracing::debug!(%peer, "rejected a connection: {why}");
    } else {
        tracing::warn!(%peer, "rejected a connection: {why}");
    }
}

/// Logs how many faults of each kind were injected.
pub(crate) fn log_injected_faults(plan: &FaultPlan, seed: u64, counts: &Counts) {
    tracing::warn!("faults {plan}, seed {seed}: {counts}");
}

/// Logs how many choices of each kind the adversary has made.
pub(crate) fn log_adversary(seed: u64, counts: &adversary::Counts) {
    tracing::warn!("adversary {seed}: {counts}");
}

/// Logs that a request was not posted: as a warning, unless the queue is full, because some programs post until they
/// get that error.
pub(crate) fn log_not_posted(qp: u32, wr_id: u64, error: &PostError) {
    let (peer, id) = (pairs::peer(qp).map(display), WrId(wr_id));
    match error {
        PostError::Full { .. } => tracing::info!(qp = %Hex(qp), peer, "request {id} was not posted: {error}"),
        _ => tracing::warn!(qp = %Hex(qp), peer, "request {id} was not posted: {error}"),
    }
}

/// Returns the cause of a failed request as a number that programs print and `ironwarp explain` explains. Zero if the
/// cause is unknown.
pub(crate) fn vendor_err(completion: &Completion) -> u32 {
    completion.cause.as_ref().map_or(0, |cause| cause.vendor_err())
}

/// A queue pair number. Displays it as most programs print it.
pub(crate) struct Hex(pub(crate) u32);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Logs that a program accepts a connection without a queue pair of its id, although the peer's id has one. Such a
/// connection cannot be established.
pub(crate) fn log_missing_qp(peer: SocketAddr) {
    tracing::error!(%peer, "the peer's queue pair was created by its id (rdma_create_qp): create one for this id as well before accepting");
}

/// Logs the connection events of a queue pair, and forwards them to its connection manager, if it has one.
#[derive(Debug)]
pub(crate) struct ConnectionLog {
    manager: Option<Arc<dyn EventSink<ConnectionEvent>>>,
}

impl ConnectionLog {
    pub(crate) fn new(manager: Option<Arc<dyn EventSink<ConnectionEvent>>>) -> Arc<Self> {
        Arc::new(Self { manager })
    }
}

impl EventSink<ConnectionEvent> for ConnectionLog {
    fn on_receive_missing(&self, qp: u32) {
        if let Some(checker) = check::active() {
            checker.receive_missing(qp);
        }
    }

    fn send(&self, event: ConnectionEvent) {
        match (&event.kind, &self.manager) {
            (ConnectionEventKind::Ended(error), _) => log_ended(event.qp, error),
            // A connection manager may retry, and logs its final failure itself.
            (ConnectionEventKind::Failed(error), None) => log_not_connected(event.qp, error),
            _ => {}
        }
        if let Some(manager) = &self.manager {
            manager.send(event);
        }
    }
}
