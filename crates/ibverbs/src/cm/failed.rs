//! Handles connections that the adapter failed to establish: redials, or reports the failure to the program.
//! Also handles the answers to lookups, which arrive as rejections. Runs on lanes.

use super::device::CmDevice;
use super::state::{Datagram, Event, Param, Phase, Purpose, Shared, State};
use crate::abi::*;
use crate::support::errno::Errno;
use crate::support::persona::config;
use crate::support::report;
use ironwarp_engine::config::Persona;
use ironwarp_engine::{ConnectError, QueuePair};
use ironwarp_rnic::qp::State as QpState;
use ironwarp_wire::private::{CmHeader, CmKind};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Reject reason of InfiniBand's connection manager if no program listens.
const INVALID_SERVICE_ID: i32 = 8;
/// Reject reason of InfiniBand's connection manager if the program rejects.
const CONSUMER_DEFINED: i32 = 28;
/// Maximum pause before a redial.
const MAX_PAUSE: Duration = Duration::from_millis(64);

/// Handles the failure to establish the connection of the queue pair `qp`: redials if the peer does not listen
/// yet, evaluates the answer to a lookup, or reports the failure.
pub(super) fn on_failed(id: &Arc<Shared>, qp: u32, error: &ConnectError) {
    let mut state = id.lock();
    if !state.is_current(qp) {
        return;
    }
    let pair = match state.phase {
        Phase::Connecting => {
            let Some(attempt) = &mut state.attempt else { return };
            if is_refused(error) && Instant::now() < attempt.redial_until {
                let pause = attempt.redial_pause;
                attempt.redial_pause = (2 * pause).min(MAX_PAUSE);
                drop(state);
                return redial_after(id, pause);
            }
            let Some(attempt) = state.attempt.take() else { return };
            let ConnectError::Rejected { private_data, .. } = error else {
                report::log_connect_failure(attempt.to, error);
                return give_up(id, state, &attempt.pair, error.into(), &[]);
            };
            match (attempt.purpose, CmHeader::parse(private_data)) {
                (Purpose::Lookup, Ok((header, data))) if header.kind == CmKind::Found => {
                    return on_lookup_answer(id, &mut state, header, data);
                }
                _ => {}
            }
            report::log_connect_failure(attempt.to, error);
            return give_up(id, state, &attempt.pair, error.into(), private_data);
        }
        Phase::Accepting => state.link.as_ref().map(|link| Arc::clone(&link.pair)),
        _ => return,
    };
    if let Some(pair) = pair {
        report::log_not_connected(qp, error);
        let reason = Reason { event: RDMA_CM_EVENT_UNREACHABLE, status: -libc::ETIMEDOUT };
        give_up(id, state, &pair, reason, &[]);
    }
}

/// Moves the queue pair to the error state, which flushes its requests, then reports the failure.
fn give_up(
    id: &Arc<Shared>,
    mut state: std::sync::MutexGuard<'_, State>,
    pair: &Arc<QueuePair>,
    reason: Reason,
    private_data: &[u8],
) {
    state.phase = Phase::Failed;
    drop(state); // before the adapter is called, which may call back
    let _ = pair.modify(QpState::Error);
    id.push_event(Event { status: reason.status, ..Event::new(id, reason.event, Param::None, private_data) });
}

/// Whether no process listens on the TCP port.
fn is_refused(error: &ConnectError) -> bool {
    matches!(error, ConnectError::System(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}

/// The event and status that report a failure to the program.
struct Reason {
    event: rdma_cm_event_type,
    status: i32,
}

impl From<&ConnectError> for Reason {
    fn from(error: &ConnectError) -> Self {
        let (rejected, not_listening) = match config().persona {
            Persona::Roce => (CONSUMER_DEFINED, INVALID_SERVICE_ID),
            Persona::Iwarp => (-libc::ECONNREFUSED, -libc::ECONNREFUSED),
        };
        let (event, status) = match error {
            ConnectError::Rejected { .. } => (RDMA_CM_EVENT_REJECTED, rejected),
            ConnectError::Closed | ConnectError::Elsewhere => (RDMA_CM_EVENT_REJECTED, not_listening),
            ConnectError::TimedOut => (RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
            ConnectError::System(system) => match system.kind() {
                io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => {
                    (RDMA_CM_EVENT_REJECTED, not_listening)
                }
                _ => (RDMA_CM_EVENT_UNREACHABLE, -Errno::from(error).0),
            },
            _ => (RDMA_CM_EVENT_CONNECT_ERROR, -Errno::from(error).0),
        };
        Self { event, status }
    }
}

/// Reports the answer to a lookup: RDMA_CM_EVENT_ESTABLISHED with the number and Q_Key of a UD queue pair, or
/// RDMA_CM_EVENT_UNREACHABLE with the status of the peer.
fn on_lookup_answer(id: &Arc<Shared>, state: &mut State, header: CmHeader, private_data: &[u8]) {
    if header.status != 0 {
        state.phase = Phase::Failed;
        let status = i32::try_from(header.status).unwrap_or(i32::MAX);
        state
            .queue
            .push(Event { status, ..Event::new(id, RDMA_CM_EVENT_UNREACHABLE, Param::None, private_data) });
        return;
    }
    state.phase = Phase::Connected;
    state.peer = Some(header);
    let address = state.address_handle().unwrap_or_else(|_| ibv_ah_attr::zeroed());
    let param = Param::Datagram(Datagram { address, qpn: header.qpn, qkey: header.qkey });
    state.queue.push(Event::new(id, RDMA_CM_EVENT_ESTABLISHED, param, private_data));
}

/// Schedules a redial after a pause. The redial does nothing if the program has destroyed the id by then.
fn redial_after(id: &Arc<Shared>, pause: Duration) {
    let id = Arc::downgrade(id);
    let call = move || {
        if let Some(id) = id.upgrade() {
            redial(&id);
        }
    };
    let scheduled = CmDevice::first().and_then(|device| {
        device.context.engine().call_at(Instant::now() + pause, call)?;
        Ok(())
    });
    if let Err(errno) = scheduled {
        tracing::error!(errno = errno.0, "failed to schedule a redial");
    }
}

/// Dials the peer again, if the id is still connecting.
fn redial(id: &Arc<Shared>) {
    let attempt = {
        let state = id.lock();
        match (&state.attempt, state.phase) {
            (Some(attempt), Phase::Connecting) => attempt.clone(),
            _ => return,
        }
    };
    let Ok(device) = id.local_ip().and_then(CmDevice::at) else { return };
    if let Err(error) = device.context.engine().connect(&attempt.pair, attempt.to, &attempt.options) {
        on_failed(id, attempt.pair.id(), &error);
    }
}
