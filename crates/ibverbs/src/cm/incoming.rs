//! Queues the connection requests of peers as events of the listening id. Runs on lanes.

use super::device::CmDevice;
use super::state::{Connection, Datagram, Depths, Event, Param, Phase, Request, Shared};
use crate::abi::*;
use crate::support::persona::is_iwarp;
use crate::support::report;
use ironwarp_engine::Incoming;
use ironwarp_wire::private::{CmHeader, CmKind, Unreadable};
use std::sync::Arc;

/// Queues RDMA_CM_EVENT_CONNECT_REQUEST for the request of a peer. Drops the request, which rejects it, if its
/// header is invalid, it does not fit the port space of the listening id, or no device has the address that the peer
/// connected to.
pub(super) fn on_request(id: &Arc<Shared>, incoming: Incoming) {
    if CmDevice::at(incoming.local().ip()).is_err() {
        return tracing::debug!(local = %incoming.local(), "dropped a connection request: not a device's address");
    }
    let data = incoming.private_data();
    let (header, data) = match CmHeader::parse(data) {
        Ok((header, data)) => (Some(header), data),
        Err(Unreadable::Foreign) => (None, data), // a standard request: all of it is data of the program
        Err(why) => return report::log_rejected_peer(incoming.peer(), why),
    };
    let private_data: Box<[u8]> = data.into();
    let state = id.lock();
    let for_datagrams = matches!(state.port_space, RDMA_PS_UDP | RDMA_PS_IPOIB);
    let is_lookup = header.is_some_and(|header| header.kind == CmKind::Lookup);
    let is_request = header.is_none_or(|header| matches!(header.kind, CmKind::Pair | CmKind::Lookup));
    if state.phase != Phase::Listening || for_datagrams != is_lookup || !is_request {
        tracing::debug!(peer = %incoming.peer(), "dropped a connection request of the wrong kind");
        return;
    }
    let param = if is_lookup {
        Param::Datagram(Datagram { address: ibv_ah_attr::zeroed(), qpn: 0, qkey: 0 })
    } else {
        Param::Connection(request_param(&incoming, header))
    };
    state.queue.push(Event {
        about: Arc::clone(id),
        kind: RDMA_CM_EVENT_CONNECT_REQUEST,
        status: 0,
        param,
        private_data,
        request: Some(Request { incoming, header }),
    });
}

/// Returns the parameters of RDMA_CM_EVENT_CONNECT_REQUEST. `header` is `None` for a standard request: only the drop-in
/// sends a header, if its program connects the queue pair itself. The depths are those of this end: its initiator depth
/// is the IRD of the peer, and its responder depth the ORD of the peer.
fn request_param(incoming: &Incoming, header: Option<CmHeader>) -> Connection {
    let peer = incoming.depths();
    // If the peer did not state a depth, only the device limits it.
    let saturate = |depth: Option<u16>| depth.map_or(u8::MAX, Depths::saturate);
    let depths = Depths { initiator: saturate(peer.ird), responder: saturate(peer.ord) };
    // Does not fail, because `on_request` has found the device.
    let max = CmDevice::at(incoming.local().ip()).map_or(u8::MAX, CmDevice::max_depth);
    let mut param = Connection { depths: depths.at_most(max), ..Connection::default() };
    // As RoCE always reports retry counts, those of a new header are reported if there is no header, with queue pair
    // number 0. iWARP has no retry counts.
    let default_header = || (!is_iwarp()).then(|| CmHeader::new(CmKind::Pair, 0));
    if let Some(header) = header.or_else(default_header) {
        param.flow_control = header.flow_control;
        param.retry_count = header.retry_count;
        param.rnr_retry_count = header.rnr_retry_count;
        param.srq = header.srq;
        param.qpn = header.qpn;
    }
    param
}
