//! What is to be known of a queue pair, as a value. Before this: `queue_pair.rs`, which asks the device.

use ironwarp_rnic::error::Fault;
use ironwarp_rnic::event::HandlerId;
use ironwarp_rnic::memory::Rights;
use ironwarp_rnic::qp::{Completes, Context as Inner, Receives, RegistrationFailure, Retries, State};
use std::sync::Arc;

/// What is to be known of a queue pair at one moment (requirement N10).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Context {
    /// Its number.
    pub id: u32,
    /// Where it is in its life.
    pub state: State,
    /// The number of its protection domain.
    pub domain: u32,
    /// The number of the completion queue for its send queue.
    pub send_cq: u32,
    /// The number of the completion queue for its receives.
    pub receive_cq: u32,
    /// The completion handlers of the two.
    pub handlers: [Option<HandlerId>; 2],
    /// How many requests its own send queue holds; none if it is fed by a shared one.
    pub send_depth: usize,
    /// How many receives its own queue holds; `None` if they come from a shared one.
    pub receive_depth: Option<usize>,
    /// How many elements the list of a request may have.
    pub max_sges: usize,
    /// When Sends and Writes complete.
    pub completes: Completes,
    /// What becomes of it if a registration by work request is refused.
    pub registration_failure: RegistrationFailure,
    /// What its peer may do now, with memory that allows it.
    pub rights: Rights,
    /// Whether there is a connection.
    pub linked: bool,
    /// How long it tries.
    pub retries: Retries,
    /// Why its stream ended, if it did.
    pub fault: Option<Arc<Fault>>,
}

impl Context {
    pub(crate) fn of(inner: Inner) -> Self {
        let Inner { id, state, attributes, rights, linked, retries, fault } = inner;
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
            registration_failure: attributes.registration_failure,
            rights,
            linked,
            retries,
            fault,
        }
    }
}
