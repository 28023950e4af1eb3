//! Requests of peers that want to connect to an id.

use super::device::CmDevice;
use super::state::{Connection, Datagram, Depths, Event, Param, Phase, Request, Shared};
use crate::abi::*;
use crate::support::persona::is_iwarp;
use crate::support::report;
use ironwarp_engine::Incoming;
use ironwarp_wire::private::{CmHeader, CmKind, Unreadable};
use std::sync::Arc;

/// Queues the request of a peer, or drops it, which rejects it.
pub(super) fn requested(id: &Arc<Shared>, incoming: Incoming) {
    let data = incoming.private_data();
    let (header, data) = match CmHeader::parse(data) {
        Ok((header, data)) => (Some(header), data),
        Err(Unreadable::Foreign) => (None, data),
        Err(why) => return report::log_rejected_peer(incoming.peer(), why),
    };
    let private_data: Box<[u8]> = data.into();
    let state = id.lock();
    let datagrams = matches!(state.port_space, RDMA_PS_UDP | RDMA_PS_IPOIB);
    let lookup = header.is_some_and(|header| header.kind == CmKind::Lookup);
    let known = header.is_none_or(|header| matches!(header.kind, CmKind::Pair | CmKind::Lookup));
    if state.phase != Phase::Listening || datagrams != lookup || !known {
        tracing::debug!(peer = %incoming.peer(), "dropped a connection request of the wrong kind");
        return;
    }
    let param = if lookup {
        Param::Datagram(Datagram { address: ibv_ah_attr::zeroed(), qpn: 0, qkey: 0 })
    } else {
        let depths = incoming.depths();
        // A depth that the peer did not state has no limit.
        let depth = |depth: Option<u16>| depth.map_or(u8::MAX, Depths::number);
        let mut of = Connection {
            depths: Depths { initiator: depth(depths.ird), responder: depth(depths.ord) },
            ..Connection::default()
        };
        of.depths = of.depths.at_most(CmDevice::get().map_or(u8::MAX, CmDevice::depth));
        if let Some(header) = header.or_else(|| defaults().map(|kind| CmHeader::new(kind, 0))) {
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

/// RoCE reports retry counts, while iWARP has none.
fn defaults() -> Option<CmKind> {
    (!is_iwarp()).then_some(CmKind::Pair)
}
