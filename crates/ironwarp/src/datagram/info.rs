//! The attributes and state of a datagram queue pair that a query returns.

use ironwarp_engine::DatagramQueuePair;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::event::HandlerId;
use ironwarp_rnic::qp::State;
use std::net::SocketAddr;
use std::sync::Arc;

/// Attributes and state of a datagram queue pair, returned by
/// [`DatagramQueuePair::query`](crate::datagram::DatagramQueuePair::query) (requirement N10). It has no remote address:
/// each request names its destination.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DatagramQueuePairInfo {
    /// Queue pair number.
    pub id: u32,
    /// Current state.
    pub state: State,
    /// Number of the protection domain.
    pub domain: u32,
    /// Number of the completion queue for sends.
    pub send_cq: u32,
    /// Number of the completion queue for receives.
    pub receive_cq: u32,
    /// Completion handlers of the send and of the receive completion queue; `None` for a completion queue without a
    /// handler.
    pub handlers: [Option<HandlerId>; 2],
    /// Depth of the send queue, in requests.
    pub send_depth: usize,
    /// Depth of the receive queue, in receives; `None` with a shared receive queue.
    pub receive_depth: Option<usize>,
    /// Maximum number of scatter/gather elements per request.
    pub max_sges: usize,
    /// The Q_Key that received datagrams must carry.
    pub qkey: u32,
    /// Addresses at which the queue pair receives, all with its UDP port.
    pub local: Vec<SocketAddr>,
    /// Why the queue pair failed; `None` if it has not.
    pub error: Option<Arc<QpError>>,
}

impl DatagramQueuePairInfo {
    /// Combines the information of the device with the addresses of the sockets.
    pub(super) fn new(pair: &DatagramQueuePair) -> Self {
        let qp = pair.qp();
        let attributes = qp.attributes();
        Self {
            id: pair.id(),
            state: qp.state(),
            domain: attributes.domain.0,
            send_cq: attributes.send_cq.id(),
            receive_cq: attributes.receive_cq.id(),
            handlers: [attributes.send_cq.handler(), attributes.receive_cq.handler()],
            send_depth: attributes.send_depth,
            receive_depth: attributes.shared.is_none().then_some(attributes.receive_depth),
            max_sges: attributes.max_sges,
            qkey: qp.qkey(),
            local: pair.local_addresses().collect(),
            error: qp.error(),
        }
    }
}
