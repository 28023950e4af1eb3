//! Connections that were established.

use super::address::canonical;
use super::ended::ended;
use super::state::{Attempt, Connection, Depths, Event, Link, Param, Phase, Purpose, Shared, State};
use crate::abi::*;
use crate::support::persona::is_iwarp;
use crate::support::report;
use ironwarp_engine::{ConnectError, Established, QueuePair};
use ironwarp_wire::private::{CmHeader, Unreadable};
use std::sync::Arc;

/// A connection was established.
pub(super) fn connected(id: &Arc<Shared>, qp: u32, established: &Established) {
    let mut state = id.lock();
    if !state.is_about(qp) {
        return;
    }
    let mut unusable = None;
    match state.phase {
        Phase::Connecting => {
            let Some(attempt) = state.attempt.take() else { return };
            state.local = Some(canonical(established.local));
            if let Err(pair) = answered(id, &mut state, attempt, established) {
                unusable = Some(pair);
            }
        }
        Phase::Accepting => {
            state.phase = Phase::Connected;
            let param = Param::Connection(agreed(&state, established));
            state.queue.push(Event::new(id, RDMA_CM_EVENT_ESTABLISHED, param, &[]));
        }
        _ => return,
    }
    let over = std::mem::take(&mut state.ended_early) && unusable.is_none();
    drop(state);
    if let Some(pair) = unusable {
        pair.disconnect();
    }
    if over {
        ended(id, qp);
    }
}

/// The peer accepted. Fails with a connection that cannot be used.
fn answered(
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
            let param = Param::Connection(agreed(state, established));
            state.queue.push(Event::new(id, RDMA_CM_EVENT_ESTABLISHED, param, &established.private_data));
            Ok(())
        }
        (Purpose::SideChannel, Ok((header, data))) => {
            state.peer = Some(header);
            if header.keeps_secret {
                keep_secret(&options.private_data);
            }
            let mut of = agreed(state, established);
            of.qpn = header.qpn;
            of.rnr_retry_count = header.rnr_retry_count;
            of.flow_control = header.flow_control;
            of.srq = header.srq;
            // iWARP has no such event, so programs do not answer it.
            let waits = !is_iwarp();
            let (phase, kind) = match waits {
                true => (Phase::Responded, RDMA_CM_EVENT_CONNECT_RESPONSE),
                false => (Phase::Connected, RDMA_CM_EVENT_ESTABLISHED),
            };
            state.phase = phase;
            state.queue.push(Event::new(id, kind, Param::Connection(of), data));
            Ok(())
        }
        // The peer did not understand the request.
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

/// Keeps the secret that the Request offered, because the peer keeps it as well.
fn keep_secret(request: &[u8]) {
    if let Ok((CmHeader { qpn, secret: Some(secret), .. }, _)) = CmHeader::parse(request)
        && let Some(own) = report::find_pair(qpn)
    {
        own.keep_secret(secret);
    }
}

/// The parameters of the event. The kernel's iWARP swaps the two depths.
fn agreed(state: &State, established: &Established) -> Connection {
    let (ird, ord) = (Depths::number(established.agreed.ird), Depths::number(established.agreed.ord));
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
