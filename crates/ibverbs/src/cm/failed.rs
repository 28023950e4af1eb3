//! Connections that were not established.

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

/// Status of InfiniBand's connection manager if no program listens.
const INVALID_SERVICE_ID: i32 = 8;
/// Status of InfiniBand's connection manager if a program rejects.
const CONSUMER_DEFINED: i32 = 28;
/// Maximum pause before a redial.
const LAST_PAUSE: Duration = Duration::from_millis(64);

/// A connection was not established.
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
                report::log_connect_failure(attempt.to, error);
                return give_up(id, state, &attempt.pair, error.into(), &[]);
            };
            match (attempt.purpose, CmHeader::parse(private_data)) {
                (Purpose::Lookup, Ok((header, data))) if header.kind == CmKind::Found => {
                    return found(id, &mut state, header, data);
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

/// Flushes what was posted, then tells the program.
fn give_up(
    id: &Arc<Shared>,
    mut state: std::sync::MutexGuard<'_, State>,
    pair: &Arc<QueuePair>,
    reason: Reason,
    private_data: &[u8],
) {
    state.phase = Phase::Failed;
    drop(state);
    let _ = pair.modify(QpState::Error);
    id.push_event(Event { status: reason.status, ..Event::new(id, reason.event, Param::None, private_data) });
}

fn is_refused(error: &ConnectError) -> bool {
    matches!(error, ConnectError::System(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Why a connection was not established, as the program is told.
struct Reason {
    event: rdma_cm_event_type,
    status: i32,
}

impl From<&ConnectError> for Reason {
    fn from(error: &ConnectError) -> Self {
        let (by_program, by_nobody) = match config().persona {
            Persona::Roce => (CONSUMER_DEFINED, INVALID_SERVICE_ID),
            Persona::Iwarp => (-libc::ECONNREFUSED, -libc::ECONNREFUSED),
        };
        let (event, status) = match error {
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
        };
        Self { event, status }
    }
}

/// A lookup found the number and key of a UD queue pair.
fn found(id: &Arc<Shared>, state: &mut State, header: CmHeader, private_data: &[u8]) {
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

/// Redials after a pause, unless the program has given up.
fn redial_after(id: &Arc<Shared>, pause: Duration) {
    let again = Arc::downgrade(id);
    let call = move || {
        if let Some(id) = again.upgrade() {
            redial(&id);
        }
    };
    let later = CmDevice::get().and_then(|device| {
        device.context.engine().call_at(Instant::now() + pause, call)?;
        Ok(())
    });
    if let Err(errno) = later {
        tracing::error!(errno = errno.0, "failed to schedule a redial");
    }
}

fn redial(id: &Arc<Shared>) {
    let attempt = {
        let state = id.lock();
        match (&state.attempt, state.phase) {
            (Some(attempt), Phase::Connecting) => attempt.clone(),
            _ => return,
        }
    };
    let Ok(device) = CmDevice::get() else { return };
    if let Err(error) = device.context.engine().connect(&attempt.pair, attempt.to, &attempt.options) {
        failed(id, attempt.pair.id(), &error);
    }
}
