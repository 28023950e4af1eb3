//! Reports the end of connections to the program: RDMA_CM_EVENT_DISCONNECTED, and on RoCE later
//! RDMA_CM_EVENT_TIMEWAIT_EXIT. Runs on lanes.

use super::device::CmDevice;
use super::state::{Event, Param, Phase, Shared};
use crate::abi::*;
use crate::support::persona::is_iwarp;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time for which the end of a connection is withheld from a program that has not polled all
/// completions.
const MAX_END_DELAY: Duration = Duration::from_millis(50);
/// Interval between the checks whether the program has polled all completions.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// Time between RDMA_CM_EVENT_DISCONNECTED and RDMA_CM_EVENT_TIMEWAIT_EXIT. On RoCE, late packets of the
/// connection could arrive meanwhile.
const TIME_WAIT: Duration = Duration::from_secs(2);

/// Reports the end of the connection of the queue pair `qp`, as soon as the program has polled its completions.
pub(super) fn on_ended(id: &Arc<Shared>, qp: u32) {
    report_end(id, qp, Instant::now() + MAX_END_DELAY);
}

/// Reports the end of a connection once the program has polled all successful completions, or at the
/// deadline. Until then it calls itself again from a timer. A connection that ends before it was reported as
/// established is only marked: `on_connected` reports both.
///
/// Hardware delivers completions within microseconds, and the end of a connection within milliseconds. Programs
/// rely on that order: libfabric closes its endpoint when the connection ends, and does not poll the completions
/// that are left.
fn report_end(id: &Arc<Shared>, qp: u32, deadline: Instant) {
    let mut state = id.lock();
    if !state.is_current(qp) {
        return;
    }
    match state.phase {
        Phase::Connected | Phase::Responded
            if Instant::now() < deadline
                && state.link.as_ref().is_some_and(|link| link.pair.qp().has_unpolled()) =>
        {
            drop(state);
            let id = Arc::downgrade(id);
            let call = move || {
                if let Some(id) = id.upgrade() {
                    report_end(&id, qp, deadline);
                }
            };
            if let Ok(device) = CmDevice::first() {
                // Fails only if the lanes cannot be started. They run already, as a rule: there was a connection.
                let _ = device.context.engine().call_at(Instant::now() + END_CHECK_INTERVAL, call);
            }
            return;
        }
        Phase::Connected | Phase::Responded => {
            state.phase = Phase::Disconnected;
            state.queue.push(Event::new(id, RDMA_CM_EVENT_DISCONNECTED, Param::None, &[]));
        }
        Phase::Connecting | Phase::Accepting => {
            state.ended_early = true;
            return;
        }
        _ => return,
    }
    drop(state);
    if !is_iwarp() {
        schedule_timewait_exit(id);
    }
}

/// Schedules RDMA_CM_EVENT_TIMEWAIT_EXIT for an id that was disconnected. The event tells the program that the queue
/// pair may be reused.
fn schedule_timewait_exit(id: &Arc<Shared>) {
    let id = Arc::downgrade(id);
    let call = move || {
        let Some(id) = id.upgrade() else { return };
        let still_disconnected = id.lock().phase == Phase::Disconnected; // not destroyed meanwhile
        if still_disconnected {
            id.push(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
        }
    };
    if let Ok(device) = CmDevice::first() {
        // Fails only if the lanes cannot be started. They run already, as a rule: there was a connection.
        let _ = device.context.engine().call_at(Instant::now() + TIME_WAIT, call);
    }
}
