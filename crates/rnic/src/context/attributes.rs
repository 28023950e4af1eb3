//! The attributes with which a queue pair is created, the result of a query, and the traits that a queue pair calls.

use crate::error::QpError;
use crate::memory::{Domain, RegistrationWaiter, Rights};
use crate::parking::RoomWaiter;
use crate::queue::{Completes, Cq, QueueOwner, SharedReceiveQueue, SharedSendQueue, XrcDomain};
use crate::retry::Retries;
use crate::state::State;
use ironwarp_wire::private::{Capabilities, OFFER_LEN};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The attributes of a queue pair, in every layer. `C` is the layer's handle to a completion queue.
#[derive(Clone, Debug)]
pub struct Attributes<C = Arc<Cq>> {
    /// Protection domain.
    pub domain: Domain,
    /// Completion queue of the send queue.
    pub send_cq: C,
    /// Completion queue of the receive queue.
    pub receive_cq: C,
    /// Depth of the send queue.
    pub send_depth: usize,
    /// The shared send queue that feeds the queue pair. `None` if it has its own send queue.
    pub shared_send: Option<Arc<SharedSendQueue>>,
    /// Maximum number of scatter/gather elements per request.
    pub max_sges: usize,
    /// When Sends and Writes complete.
    pub completes: Completes,
    /// Whether work requests may register memory (requirement M17). Binding and invalidation are always allowed.
    pub registration_by_request: bool,
    /// What happens if a registration by work request is refused.
    pub registration_failure: RegistrationFailure,
    /// The source of receives.
    pub receives: Receives,
    /// Remote operations that the queue pair accepts.
    pub rights: Rights,
    /// Whether the program itself moves the queue pair through its states, starting with reset. Such a queue pair
    /// outlives its connection. Any other queue pair is moved by connecting, and ends with its connection.
    pub manual: bool,
}

impl<C> Attributes<C> {
    /// Returns default attributes: 16 requests in each queue, of up to four elements each, that complete on `cq`. All
    /// remote operations are accepted, and requests may register memory.
    pub fn new(domain: Domain, cq: &C) -> Self
    where
        C: Clone,
    {
        Self {
            domain,
            send_cq: cq.clone(),
            receive_cq: cq.clone(),
            send_depth: 16,
            shared_send: None,
            max_sges: 4,
            completes: Completes::default(),
            registration_by_request: true,
            registration_failure: RegistrationFailure::default(),
            receives: Receives::Own(16),
            rights: Rights::REMOTE,
            manual: false,
        }
    }

    /// Replaces the handles to completion queues by those of another layer, which `handle` returns.
    pub fn map_cqs<D>(self, mut handle: impl FnMut(C) -> D) -> Attributes<D> {
        Attributes {
            domain: self.domain,
            send_cq: handle(self.send_cq),
            receive_cq: handle(self.receive_cq),
            send_depth: self.send_depth,
            shared_send: self.shared_send,
            max_sges: self.max_sges,
            completes: self.completes,
            registration_by_request: self.registration_by_request,
            registration_failure: self.registration_failure,
            receives: self.receives,
            rights: self.rights,
            manual: self.manual,
        }
    }
}

/// What happens if a registration by work request is refused (requirement M7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RegistrationFailure {
    /// The stream ends: the peer gets a Terminate, and all requests are flushed. For consumers that check beforehand
    /// whether memory can be registered, so that a refusal is a bug.
    #[default]
    Anticipatory,
    /// The send queue is drained: the requests after the registration are flushed, and so are those posted until
    /// the consumer moves the queue pair back to [`State::ReadyToSend`]. The connection stays: receives,
    /// responses to the peer, and requests before the registration go on.
    Reactive,
}

/// The source of the receives of a queue pair.
#[derive(Clone, Debug)]
pub enum Receives {
    /// Its own queue, of this depth.
    Own(usize),
    /// A queue shared with other queue pairs.
    Shared(Arc<SharedReceiveQueue>),
    /// The shared queue that each message names (XRC).
    Named(Arc<XrcDomain>),
}

/// The result of querying a queue pair (requirement N10).
#[derive(Clone, Debug)]
pub struct QpInfo {
    /// The number of the queue pair.
    pub id: u32,
    /// Its state.
    pub state: State,
    /// The attributes it was created with.
    pub attributes: Attributes,
    /// Remote operations that the queue pair accepts now.
    pub rights: Rights,
    /// Whether there is a connection.
    pub linked: bool,
    /// Retries and timeouts.
    pub retries: Retries,
    /// Why the stream ended, if it did.
    pub error: Option<Arc<QpError>>,
}

/// The driver of a connected queue pair: a lane, or the simulator.
pub trait StreamDriver: Send + Sync + fmt::Debug {
    /// Schedules a call of [`Qp::drive`](crate::qp::Qp::drive) or [`Qp::take_turn`](crate::qp::Qp::take_turn) soon,
    /// but not inside this call. Called when work is left that the calling thread must not do: its turn is over, it may
    /// hold locks, it has other queue pairs to resume, or the stream has failed (a Terminate to send, receives to
    /// flush).
    fn schedule(&self);
    /// Called when the first message of the peer has arrived.
    fn on_first_message(&self);
    /// Called when a message has begun to wait for the peer to post a receive. The driver has to call
    /// [`Qp::on_rnr_timeout`](crate::qp::Qp::on_rnr_timeout) after
    /// [`QpContext::rnr_timeout`](crate::qp::QpContext::rnr_timeout).
    fn on_peer_not_ready(&self);
    /// Called when a message of the peer has begun to wait until the program posts a receive.
    fn on_receive_missing(&self) {}
    /// Called once, when the capabilities of the peer have arrived. `peer` lacks optional features that this end does not
    /// use on the stream.
    fn on_peer_capabilities(&self, peer: Capabilities) {
        let _ = peer;
    }
    /// Called at the first request that was sent, and at the first that was delivered.
    fn on_traffic(&self) {}
    /// Called when the peer has offered to carry the stream in shared memory. Only after both ends have announced
    /// [`Capabilities::SHARED_MEMORY`], and at most 16 times.
    fn on_offer(&self, offer: [u8; OFFER_LEN]) {
        let _ = offer;
    }
    /// Called when the peer has asked to leave shared memory or has answered such a request, at most twice. After the last
    /// call, `has_left` is true: the shared memory is not used any more.
    fn on_leaving(&self, has_left: bool) {
        let _ = has_left;
    }
    /// Called when the stream has ended: nothing more is delivered. The link stays until
    /// [`on_link_closed`](Self::on_link_closed).
    fn on_stream_ended(&self, error: &Arc<QpError>);
    /// Called when both directions of the link are closed.
    fn on_link_closed(&self);
}

/// The queue pair that a context belongs to, as queues, the memory table and the count of parked messages call it.
pub(crate) trait Owner: QueueOwner + RegistrationWaiter + RoomWaiter {}

/// The queue pair is or was connected: it cannot be connected again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue pair is or was connected: create another one")]
pub struct AlreadyConnected;
