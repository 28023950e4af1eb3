//! Connections that ended.

use super::device::CmDevice;
use super::state::{Event, Param, Phase, Shared};
use crate::abi::*;
use crate::support::persona::is_iwarp;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the end of a connection is withheld from a program that has not polled all completions, and how
/// often that is checked.
const END_DELAY: Duration = Duration::from_millis(50);
const END_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// How long after the end the last packets could still arrive, on Ethernet.
const TIME_WAIT: Duration = Duration::from_secs(2);

/// A connection ended.
pub(super) fn ended(id: &Arc<Shared>, qp: u32) {
    report_end(id, qp, Instant::now() + END_DELAY);
}

/// Reports the end of a connection once the program has polled all successful completions, or at the
/// deadline.
///
/// Hardware delivers completions within microseconds, and the end within milliseconds. Programs rely on that:
/// libfabric closes its endpoint at the end, and then never polls the completions that were left.
fn report_end(id: &Arc<Shared>, qp: u32, deadline: Instant) {
    let mut state = id.lock();
    if !state.is_about(qp) {
        return;
    }
    match state.phase {
        Phase::Connected | Phase::Responded
            if Instant::now() < deadline
                && state.link.as_ref().is_some_and(|link| link.pair.qp().has_unpolled()) =>
        {
            drop(state);
            let about = Arc::downgrade(id);
            let call = move || {
                if let Some(id) = about.upgrade() {
                    report_end(&id, qp, deadline);
                }
            };
            if let Ok(device) = CmDevice::get() {
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

/// Reports that the queue pair may be reused, some time after the connection ended.
fn schedule_timewait_exit(id: &Arc<Shared>) {
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
