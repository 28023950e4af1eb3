//! The attributes and state of a queue pair that a query returns.

use ironwarp_engine::QueuePair;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::event::HandlerId;
use ironwarp_rnic::memory::Rights;
use ironwarp_rnic::qp::{Completes, QpInfo as Inner, Receives, RegistrationFailure, Retries, State};
use std::net::SocketAddr;
use std::sync::Arc;

/// Attributes and state of a queue pair, returned by [`QueuePair::query`](crate::queue::QueuePair::query) (requirement
/// N10).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueuePairInfo {
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
    /// Depth of the send queue, in requests; zero with a shared send queue.
    pub send_depth: usize,
    /// Depth of the receive queue, in receives; `None` with a shared receive queue or an XRC domain.
    pub receive_depth: Option<usize>,
    /// Maximum number of scatter/gather elements per request.
    pub max_sges: usize,
    /// When Sends and Writes complete.
    pub completes: Completes,
    /// Whether work requests may register memory.
    pub registration_by_request: bool,
    /// What happens if a registration by work request fails.
    pub registration_failure: RegistrationFailure,
    /// Remote operations that the queue pair accepts now.
    pub rights: Rights,
    /// Whether the queue pair has a connection.
    pub linked: bool,
    /// Local address and port of the connection, also after it has ended, until the queue pair is reset. `None` if there
    /// was no connection yet.
    pub local: Option<SocketAddr>,
    /// Remote address and port of the connection, for the same time.
    pub remote: Option<SocketAddr>,
    /// Timeouts and retry counts.
    pub retries: Retries,
    /// Why the connection ended; `None` if it has not.
    pub error: Option<Arc<QpError>>,
}

impl QueuePairInfo {
    /// Combines the information of the device with the addresses of the connection.
    pub(crate) fn new(pair: &QueuePair) -> Self {
        let Inner { id, state, attributes, rights, linked, retries, error } = pair.qp().query();
        let (local, remote) = pair.addresses().unzip();
        let receive_depth = match attributes.receives {
            Receives::Own(depth) => Some(depth),
            Receives::Shared(_) | Receives::Named(_) => None,
        };
        Self {
            id,
            state,
            domain: attributes.domain.0,
            send_cq: attributes.send_cq.id(),
            receive_cq: attributes.receive_cq.id(),
            handlers: [attributes.send_cq.handler(), attributes.receive_cq.handler()],
            send_depth: attributes.send_depth,
            receive_depth,
            max_sges: attributes.max_sges,
            completes: attributes.completes,
            registration_by_request: attributes.registration_by_request,
            registration_failure: attributes.registration_failure,
            rights,
            linked,
            local,
            remote,
            retries,
            error,
        }
    }
}
