//! The context itself: its fields, and what can be asked about a queue pair.

use super::attributes::{Attributes, Owner, QpInfo, Receives, StreamDriver};
use super::connection::{Connection, SharedConnection};
use crate::device::Device;
use crate::error::QpError;
use crate::fault::ReceiveFaults;
use crate::memory::{Rights, Stream};
use crate::outbound::TxObligations;
use crate::queue::{Completes, QueueOwner, ReceiveQueue, SendQueue};
use crate::retry::Retries;
use crate::state::State;
use crate::sync::{Mutex, lock};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// The link has bytes to receive.
pub(crate) const READABLE: u8 = 1;
/// The peer has sent its last byte, or the connection is lost.
pub(crate) const PEER_ENDED: u8 = 2;

/// What the threads that use a queue pair share, except for the halves of its stream.
///
/// Its life has two state machines: [`State`], which the program sees and moves, and the
/// connection (`connection.rs`), which only connecting and closing move. The other atomics belong to neither: each is
/// set and read by itself, as the comments say, and none decides what another may be.
#[derive(Debug)]
pub struct QpContext {
    id: u32,
    /// The queue pair, for queues and registrations that call it back.
    pub(super) owner: Weak<dyn Owner>,
    pub(super) device: Arc<Device>,
    pub(super) attributes: Attributes,
    pub(super) driver: OnceLock<Arc<dyn StreamDriver>>,
    /// Injected faults that withhold receives.
    pub(super) receive_faults: OnceLock<Box<ReceiveFaults>>,
    /// Why the stream ended. Only the first reason is stored.
    pub(super) error: OnceLock<Arc<QpError>>,
    /// [`Retries`], packed.
    retries: AtomicU32,

    // State machines.
    /// A [`State`]. Changed with `sq` locked, except to [`State::Error`].
    pub(crate) state: AtomicU8,
    pub(crate) connection: SharedConnection,

    // Facts that stay true once set.
    /// The queue pair was reset or destroyed: nothing completes any more.
    pub(super) completions_suppressed: AtomicBool,
    /// The completion of a request tells why the stream ended.
    pub(super) request_blamed: AtomicBool,
    /// The event that the last receive of a shared queue was used has been raised.
    pub(super) last_wqe_raised: AtomicBool,

    // Signals, set by one thread and taken by another.
    /// The consumer waits for the event that the send queue is drained. Taken when the event is raised.
    pub(crate) drain_requested: AtomicBool,
    /// A completion queue overflowed. Taken by the thread that ends the stream for it, once it holds no lock.
    pub(super) cq_overrun: AtomicBool,
    /// What the link has reported since the rx half was last driven: [`READABLE`], [`PEER_ENDED`].
    pub(crate) link_news: AtomicU8,
    /// A message waits for a receive: a thread that posts one must drive the rx half.
    pub(crate) message_waiting: AtomicBool,
    /// The number of the shared receive queue that lists this queue pair as waiting, plus one. Zero if none does.
    pub(super) listed_at: AtomicU64,
    /// A message was delivered: an acknowledgement may be due. Taken by the thread that lists it.
    ack_may_be_due: AtomicBool,

    // Counts and hints.
    /// What the peer may do, as bits of [`Rights`].
    rights: AtomicU8,
    /// The count of the peer's last "not ready" signal, plus one. Zero if there was none.
    pub(super) peer_not_ready: AtomicU64,
    /// Number of receives that the stream has taken from shared queues (RFC 5042 §6.4.3.1).
    pub(super) shared_receives: AtomicU64,
    /// Number of messages of the request class whose completions the program may have seen. What it posts after it saw
    /// one is sent behind the acknowledgement of that message, even if the rx half has not published the count yet.
    pub(crate) delivered: AtomicU64,
    /// The link did not take all there was to send.
    send_blocked: AtomicBool,
    /// The last payload that arrived was large.
    bulk_receive: AtomicBool,

    pub(crate) sq: Mutex<SendQueue>,
    pub(crate) rq: Mutex<ReceiveQueue>,
    pub(crate) obligations: Mutex<TxObligations>,
}

impl QpContext {
    pub(crate) fn new(id: u32, device: &Arc<Device>, attributes: Attributes, owner: Weak<dyn Owner>) -> Self {
        let Attributes { domain, send_depth, max_sges, completes, rights, .. } = attributes;
        let receive_depth = if let Receives::Own(depth) = attributes.receives { depth } else { 0 };
        let state = if attributes.manual { State::Reset } else { State::Init };
        let shared = attributes.shared_send.clone().map(|queue| {
            let owner: Weak<dyn QueueOwner> = Weak::<dyn Owner>::clone(&owner);
            (queue, owner)
        });
        Self {
            id,
            owner,
            device: Arc::clone(device),
            driver: OnceLock::new(),
            receive_faults: OnceLock::new(),
            error: OnceLock::new(),
            retries: AtomicU32::new(Retries::default().to_bits()),
            state: AtomicU8::new(state as u8),
            connection: SharedConnection::default(),
            completions_suppressed: AtomicBool::new(false),
            request_blamed: AtomicBool::new(false),
            last_wqe_raised: AtomicBool::new(false),
            drain_requested: AtomicBool::new(false),
            cq_overrun: AtomicBool::new(false),
            link_news: AtomicU8::new(0),
            message_waiting: AtomicBool::new(false),
            listed_at: AtomicU64::new(0),
            ack_may_be_due: AtomicBool::new(false),
            rights: AtomicU8::new(rights.bits()),
            peer_not_ready: AtomicU64::new(0),
            shared_receives: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            send_blocked: AtomicBool::new(false),
            bulk_receive: AtomicBool::new(false),
            sq: Mutex::new(SendQueue::new(send_depth, max_sges, completes, shared)),
            rq: Mutex::new(ReceiveQueue::new(domain, receive_depth, max_sges)),
            obligations: Mutex::default(),
            attributes,
        }
    }

    /// The number of the queue pair.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The attributes it was created with.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// The state of the queue pair.
    pub fn state(&self) -> State {
        State::from_bits(self.state.load(Ordering::Acquire))
    }

    /// Whether this end is closing its connection. What was posted is still sent.
    pub fn is_closing(&self) -> bool {
        self.connection.is(Connection::CLOSING)
    }

    /// Whether there is a connection.
    pub fn is_linked(&self) -> bool {
        self.connection.is(Connection::LINKED)
    }

    /// Whether the peer closed and the queue pair goes on without it, sending nothing more.
    pub fn peer_has_closed(&self) -> bool {
        self.connection.is(Connection::PEER_CLOSED)
    }

    /// Whether it has sent all that it will ever send.
    pub fn is_finished(&self) -> bool {
        self.connection.is(Connection::SEND_CLOSED)
    }

    /// Whether both directions of the link are closed.
    pub fn is_closed(&self) -> bool {
        self.connection.is(Connection::CLOSED)
    }

    /// Whether the stream has ended.
    pub(crate) fn is_ended(&self) -> bool {
        self.state() == State::Error
    }

    /// Why the stream ended, if it did.
    pub fn error(&self) -> Option<&Arc<QpError>> {
        self.error.get()
    }

    /// Whether the completion of a request tells why the stream ended. If not, all of them were flushed, and none does.
    pub fn blames_a_request(&self) -> bool {
        self.request_blamed.load(Ordering::Acquire)
    }

    /// Whether requests wait to be sent, acknowledged or answered.
    pub fn has_work(&self) -> bool {
        !lock(&self.sq).is_idle()
    }

    /// Number of requests that are not complete, and number of posted receives of its own.
    pub fn queued(&self) -> (usize, usize) {
        (lock(&self.sq).len(), lock(&self.rq).len())
    }

    /// Whether requests have succeeded whose completions were not polled yet.
    pub fn has_unpolled(&self) -> bool {
        let Attributes { send_cq, receive_cq, .. } = &self.attributes;
        send_cq.has_success_of(self.id) || receive_cq.has_success_of(self.id)
    }

    /// Queries the queue pair (requirement N10).
    pub fn query(&self) -> QpInfo {
        QpInfo {
            id: self.id,
            state: self.state(),
            attributes: self.attributes.clone(),
            rights: self.rights(),
            linked: self.is_linked(),
            retries: self.retries(),
            error: self.error.get().cloned(),
        }
    }

    /// Sets retries and timeouts. What is asked of the peer must be set before the connection is made.
    pub fn set_retries(&self, retries: Retries) {
        self.retries.store(retries.to_bits(), Ordering::Relaxed);
    }

    /// The retries and timeouts.
    pub fn retries(&self) -> Retries {
        Retries::from_bits(self.retries.load(Ordering::Relaxed))
    }

    /// Sets what the peer may do with memory that allows it.
    pub fn set_rights(&self, rights: Rights) {
        self.rights.store(rights.bits(), Ordering::Relaxed);
    }

    pub(super) fn rights(&self) -> Rights {
        Rights::from_bits_truncate(self.rights.load(Ordering::Relaxed))
    }

    /// Injects faults that withhold receives. Call this before the queue pair is connected.
    pub fn set_faults(&self, faults: ReceiveFaults) {
        let _ = self.receive_faults.set(Box::new(faults));
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn stream(&self) -> Stream {
        Stream { domain: self.attributes.domain, qp: self.id }
    }

    pub(crate) fn completes(&self) -> Completes {
        self.attributes.completes
    }

    /// Sets the driver. Returns whether there was none.
    pub(crate) fn set_driver(&self, driver: Arc<dyn StreamDriver>) -> bool {
        self.driver.set(driver).is_ok()
    }

    /// Has the driver drive both halves soon, if the queue pair is connected.
    pub(crate) fn schedule(&self) {
        if let Some(driver) = self.driver.get() {
            driver.schedule();
        }
    }

    /// Whether the link did not take all there was to send. It reports when it takes more; asking earlier is useless.
    pub fn is_blocked(&self) -> bool {
        self.send_blocked.load(Ordering::Relaxed)
    }

    pub(crate) fn set_blocked(&self, blocked: bool) {
        self.send_blocked.store(blocked, Ordering::Relaxed);
    }

    /// Whether the last payload that arrived was large, so that more of it is likely to follow.
    pub fn receives_bulk(&self) -> bool {
        self.bulk_receive.load(Ordering::Relaxed)
    }

    pub(crate) fn set_receives_bulk(&self, bulk: bool) {
        self.bulk_receive.store(bulk, Ordering::Relaxed);
    }

    /// Whether the peer waits for an acknowledgement.
    pub fn owes_acknowledgement(&self) -> bool {
        lock(&self.obligations).owes_acknowledgement()
    }

    /// Whether the peer waits for an acknowledgement that was not reported yet. Reports it once until
    /// [`Qp::acknowledge`](crate::qp::Qp::acknowledge) is called, for callers that keep a list.
    pub fn take_owed_acknowledgement(&self) -> bool {
        // Most polls find nothing new.
        if !self.ack_may_be_due.load(Ordering::SeqCst) || !self.ack_may_be_due.swap(false, Ordering::SeqCst) {
            return false;
        }
        let mut obligations = lock(&self.obligations);
        obligations.owes_acknowledgement() && !std::mem::replace(&mut obligations.ack_noticed, true)
    }

    pub(crate) fn set_ack_may_be_due(&self) {
        self.ack_may_be_due.store(true, Ordering::SeqCst);
    }

    /// Whether the peer has shown that it is Ironwarp as well, by the signal that precedes its first message.
    pub fn is_peer_ironwarp(&self) -> bool {
        lock(&self.obligations).peer.is_some()
    }
}
