//! Reports connections that the adapter has established to the program. Runs on lanes.

use super::address::to_canonical;
use super::ended::on_ended;
use super::state::{Attempt, Connection, Depths, Event, Link, Param, Phase, Purpose, Shared, State};
use crate::abi::*;
use crate::support::persona::is_iwarp;
use crate::support::report;
use ironwarp_engine::{ConnectError, Established, QueuePair};
use ironwarp_wire::private::{CmHeader, Unreadable};
use std::sync::Arc;

/// Updates the state of an id after the connection of the queue pair `qp` was established, and queues the event.
/// If the connection has ended meanwhile, or cannot be used, closes it.
pub(super) fn on_connected(id: &Arc<Shared>, qp: u32, established: &Established) {
    let mut state = id.lock();
    if !state.is_current(qp) {
        return;
    }
    let mut unusable = None;
    match state.phase {
        Phase::Connecting => {
            let Some(attempt) = state.attempt.take() else { return };
            state.local = Some(to_canonical(established.local));
            if let Err(pair) = on_accepted(id, &mut state, attempt, established) {
                unusable = Some(pair);
            }
        }
        Phase::Accepting => {
            state.phase = Phase::Connected;
            let param = Param::Connection(event_param(&state, established));
            state.queue.push(Event::new(id, RDMA_CM_EVENT_ESTABLISHED, param, &[]));
        }
        _ => return,
    }
    // The end of a connection that failed is not reported.
    let report_end = std::mem::take(&mut state.ended_early) && unusable.is_none();
    drop(state); // before the adapter is called, which may call back
    if let Some(pair) = unusable {
        pair.disconnect();
    }
    if report_end {
        on_ended(id, qp);
    }
}

/// Updates the state of an id after the peer has accepted its connection, and queues the event. Fails if the
/// reply of the peer cannot be read: the error is the queue pair to disconnect.
fn on_accepted(
    id: &Arc<Shared>,
    state: &mut State,
    attempt: Attempt,
    established: &Established,
) -> Result<(), Arc<QueuePair>> {
    let Attempt { pair, purpose, options, .. } = attempt;
    let reply = CmHeader::parse(&established.private_data);
    state.link = Some(Link { pair: Arc::clone(&pair), purpose });
    match (purpose, reply) {
        (Purpose::Managed, _) => {
            state.phase = Phase::Connected;
            let param = Param::Connection(event_param(state, established));
            state.queue.push(Event::new(id, RDMA_CM_EVENT_ESTABLISHED, param, &established.private_data));
            Ok(())
        }
        (Purpose::SideChannel, Ok((header, data))) => {
            state.peer = Some(header);
            if header.keeps_secret {
                keep_secret(&options.private_data);
            }
            let mut param = event_param(state, established);
            param.qpn = header.qpn;
            param.rnr_retry_count = header.rnr_retry_count;
            param.flow_control = header.flow_control;
            param.srq = header.srq;
            // On RoCE, the program connects its queue pair now and calls `rdma_establish`. On iWARP there is no
            // such step.
            let (phase, kind) = match is_iwarp() {
                true => (Phase::Connected, RDMA_CM_EVENT_ESTABLISHED),
                false => (Phase::Responded, RDMA_CM_EVENT_CONNECT_RESPONSE),
            };
            state.phase = phase;
            state.queue.push(Event::new(id, kind, Param::Connection(param), data));
            Ok(())
        }
        // A side channel whose reply has no valid header, or a lookup that was accepted instead of answered.
        (_, reply) => {
            let why = reply.err().unwrap_or(Unreadable::Foreign);
            report::log_connect_failure(established.peer, &ConnectError::OtherRelease(why));
            state.phase = Phase::Failed;
            state.queue.push(Event {
                status: -libc::EPROTO,
                ..Event::new(id, RDMA_CM_EVENT_CONNECT_ERROR, Param::None, &[])
            });
            Err(pair)
        }
    }
}

/// Stores the secret that the private data of this end's request offered in the queue pair that it names. The
/// peer has stored the same secret.
fn keep_secret(request: &[u8]) {
    if let Ok((CmHeader { qpn, secret: Some(secret), .. }, _)) = CmHeader::parse(request)
        && let Some(own) = report::find_pair(qpn)
    {
        own.keep_secret(secret);
    }
}

/// Returns the parameters of RDMA_CM_EVENT_ESTABLISHED, with the depths that both ends have agreed on.
fn event_param(state: &State, established: &Established) -> Connection {
    let (ird, ord) = (Depths::saturate(established.agreed.ird), Depths::saturate(established.agreed.ord));
    let iwarp = is_iwarp();
    // As in the kernel, whose connection manager for iWARP reports the two depths swapped.
    let (initiator, responder) = if iwarp { (ird, ord) } else { (ord, ird) };
    Connection {
        depths: Depths { initiator, responder },
        flow_control: !iwarp,
        retry_count: 0,
        rnr_retry_count: if iwarp { 0 } else { 7 }, // 7: forever
        srq: false,
        qpn: state.peer.map_or(0, |peer| peer.qpn),
    }
}
