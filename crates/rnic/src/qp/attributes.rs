//! What a queue pair is made of and asked for: attributes, context, and who attends to it.

use super::{RegistrationFailure, Retries, State};
use crate::error::Fault;
use crate::memory::{Domain, Rights};
use crate::queue::{Cq, SharedReceiveQueue, SharedSendQueue, XrcDomain};
use std::fmt;
use std::sync::Arc;

/// When a Send or a Write completes (requirement P2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completes {
    /// When the link took it: iWARP's own.
    #[default]
    WhenSent,
    /// When the peer has placed it, with the peer's error if it could not.
    WhenAcknowledged,
}

/// What a queue pair is created with.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// Its protection domain.
    pub domain: Domain,
    /// Where its send queue's completions go.
    pub send_cq: Arc<Cq>,
    /// Where its receive queue's completions go.
    pub receive_cq: Arc<Cq>,
    /// How many work requests its send queue holds.
    pub send_depth: usize,
    /// The send queue that feeds it instead of one of its own.
    pub shared_send: Option<Arc<SharedSendQueue>>,
    /// How many scatter/gather elements a request has at most.
    pub max_sges: usize,
    /// When Sends and Writes complete.
    pub completes: Completes,
    /// What becomes of it if a registration by work request is refused.
    pub registration_failure: RegistrationFailure,
    /// Where its receives come from.
    pub receives: Receives,
    /// What its peer may do with memory that allows it.
    pub rights: Rights,
    /// The consumer moves it through its states, from reset on, and it outlives its peer. Otherwise connecting does, and
    /// it ends with the connection.
    pub by_hand: bool,
}

/// Where the receives of a queue pair come from.
#[derive(Clone, Debug)]
pub enum Receives {
    /// Its own queue, which holds so many.
    Own(usize),
    /// A queue that it shares with others.
    Shared(Arc<SharedReceiveQueue>),
    /// The shared queue that each message names (XRC).
    Named(Arc<XrcDomain>),
}

/// What is to be known of a queue pair (requirement N10).
#[derive(Clone, Debug)]
pub struct Context {
    /// Its number.
    pub id: u32,
    /// Where it is in its life.
    pub state: State,
    /// What it was created with.
    pub attributes: Attributes,
    /// What its peer may do now.
    pub rights: Rights,
    /// Whether there is a connection.
    pub linked: bool,
    /// How long it tries.
    pub retries: Retries,
    /// Why its stream ended, if it did.
    pub fault: Option<Arc<Fault>>,
}

/// Whoever drives a connected queue pair: a lane, or the simulator.
pub trait Attendant: Send + Sync + fmt::Debug {
    /// A half has work that nobody took on: [`Qp::drive`](super::Qp::drive) is to be called soon.
    fn call_again(&self);
    /// The peer's first message came.
    fn opened(&self);
    /// A message begins to wait for a receive of the peer's: [`Qp::receive_is_due`](super::Qp::receive_is_due) is to be called
    /// for it after [`Qp::receive_patience`](super::Qp::receive_patience).
    fn peer_not_ready(&self);
    /// The stream is over: nothing more is delivered. The link goes on until [`closed`](Self::closed).
    fn ended(&self, fault: &Arc<Fault>);
    /// Both directions of the link are closed.
    fn closed(&self);
}

/// What the link has for a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// There may be something to receive.
    pub readable: bool,
    /// There may be room to send.
    pub writable: bool,
    /// The peer will send no more, or the connection is gone.
    pub ended: bool,
}

/// This queue pair is, or was, connected: a stream is for once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue pair is, or was, connected: create another one")]
pub struct AlreadyConnected;
