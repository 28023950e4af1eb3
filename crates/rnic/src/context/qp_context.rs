//! The context of a queue pair: its fields, and the functions that query and set them.

use super::attributes::{Attributes, Owner, QpInfo, Receives, StreamDriver};
use super::connection::{Connection, SharedConnection};
use crate::device::Device;
use crate::error::{QpError, VendorError};
use crate::event::AsyncEvent;
use crate::fault::ReceiveFaults;
use crate::link::Route;
use crate::memory::{Rights, Stream};
use crate::outbound::SharedObligations;
use crate::parking::RoomWaiter;
use crate::queue::{Completes, QueueOwner, ReceiveQueue, SendQueue};
use crate::retry::Retries;
use crate::state::State;
use crate::sync::{Mutex, lock};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Flag in [`QpContext::link_events`]: the link has bytes to receive.
pub(crate) const READABLE: u8 = 1;
/// Flag in [`QpContext::link_events`]: the peer has sent its last byte, or the connection is lost.
pub(crate) const PEER_ENDED: u8 = 2;

/// The state of a queue pair that its threads share, except for the halves of its stream.
///
/// A queue pair has two state machines: [`State`], which the program sees and moves, and the connection
/// (`connection.rs`), which only connecting and closing move. The other atomics are independent of both and of each
/// other.
#[derive(Debug)]
pub struct QpContext {
    /// The number of the queue pair.
    id: u32,
    /// The queue pair of this context, for queues and registrations that call it back.
    pub(super) owner: Weak<dyn Owner>,
    pub(super) device: Arc<Device>,
    /// The attributes with which the queue pair was created.
    pub(super) attributes: Attributes,
    /// The driver of the stream. Empty before the queue pair is connected.
    pub(super) driver: OnceLock<Arc<dyn StreamDriver>>,
    /// Injected faults that withhold receives. Empty without faults.
    pub(super) receive_faults: OnceLock<Box<ReceiveFaults>>,
    /// Why the stream ended. Empty before that. Only the first reason is stored.
    pub(super) error: OnceLock<Arc<QpError>>,
    /// [`Retries`], packed.
    retries: AtomicU32,
    /// The number of the lane that the queue pair is steered to. Zero before it is connected.
    lane: AtomicU16,

    // State machines.
    /// A [`State`]. Changed with `sq` locked, except to [`State::Error`].
    pub(crate) state: AtomicU8,
    /// The state of the connection.
    pub(crate) connection: SharedConnection,

    // Facts that stay true once set.
    /// The queue pair was reset or destroyed: nothing completes any more.
    pub(super) completions_suppressed: AtomicBool,
    /// The completion of a request tells why the stream ended.
    pub(super) request_blamed: AtomicBool,
    /// The event that the queue pair uses no more receives of its shared queue has been raised.
    pub(super) last_wqe_raised: AtomicBool,

    // Flags that one thread sets and another one clears when it handles them.
    /// The consumer waits for the event that the send queue is drained. Cleared when the event is raised.
    pub(crate) drain_requested: AtomicBool,
    /// A completion did not fit into its completion queue. Cleared by the thread that ends the stream because of that.
    pub(super) cq_overrun: AtomicBool,
    /// Events that the link has reported since the rx half was last driven: [`READABLE`], [`PEER_ENDED`].
    pub(crate) link_events: AtomicU8,
    /// A message waits for a receive: a thread that posts one must drive the rx half.
    pub(crate) message_waiting: AtomicBool,
    /// The number of the shared receive queue that lists this queue pair as waiting, plus one. Zero if none does.
    pub(super) listed_at: AtomicU64,
    /// A message was delivered since [`take_owed_acknowledgement`](Self::take_owed_acknowledgement) was last called,
    /// so an acknowledgement may be due.
    ack_may_be_due: AtomicBool,

    // Counts and hints.
    /// The remote operations that the queue pair accepts, as bits of [`Rights`].
    rights: AtomicU8,
    /// The count of the peer's last "not ready" signal, plus one. Zero if there was none.
    pub(super) peer_not_ready: AtomicU64,
    /// Number of receives that the stream has taken from shared queues (RFC 5042 §6.4.3.1).
    pub(super) shared_receives: AtomicU64,
    /// Number of messages of the request class that were delivered. Stored before the completion of a message is
    /// visible, so that a request that the program posts after it has polled the completion is sent after the
    /// acknowledgement of that message; for messages without a completion at the end of the rx half's turn.
    delivered: AtomicU64,
    /// Number of messages of the request class that the peer may acknowledge: they were passed to the link, or are
    /// about to be. Written by the tx half.
    acknowledgeable: AtomicU64,
    /// The send queue may hold requests. Written with `sq` locked: set when one is added, and cleared when the queue is
    /// found empty.
    pub(crate) sq_used: AtomicBool,
    /// The link did not take all there was to send.
    send_blocked: AtomicBool,
    /// The last payload that arrived was large.
    bulk_receive: AtomicBool,
    /// This end sends by shared memory.
    sends_shared: AtomicBool,
    /// This end receives by shared memory.
    receives_shared: AtomicBool,

    /// The send queue.
    pub(crate) sq: Mutex<SendQueue>,
    /// The receive queue. Not used with a shared one.
    pub(crate) rq: Mutex<ReceiveQueue>,
    /// The messages that the tx half has to send apart from requests.
    pub(crate) obligations: SharedObligations,
}

impl QpContext {
    /// Creates the context of the queue pair `owner`, not connected.
    pub(crate) fn new(id: u32, device: &Arc<Device>, attributes: Attributes, owner: Weak<dyn Owner>) -> Self {
        let Attributes { domain, send_depth, max_sges, completes, registration_by_request, rights, .. } =
            attributes;
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
            lane: AtomicU16::new(0),
            state: AtomicU8::new(state as u8),
            connection: SharedConnection::default(),
            completions_suppressed: AtomicBool::new(false),
            request_blamed: AtomicBool::new(false),
            last_wqe_raised: AtomicBool::new(false),
            drain_requested: AtomicBool::new(false),
            cq_overrun: AtomicBool::new(false),
            link_events: AtomicU8::new(0),
            message_waiting: AtomicBool::new(false),
            listed_at: AtomicU64::new(0),
            ack_may_be_due: AtomicBool::new(false),
            rights: AtomicU8::new(rights.bits()),
            peer_not_ready: AtomicU64::new(0),
            shared_receives: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            acknowledgeable: AtomicU64::new(0),
            sq_used: AtomicBool::new(false),
            send_blocked: AtomicBool::new(false),
            bulk_receive: AtomicBool::new(false),
            sends_shared: AtomicBool::new(false),
            receives_shared: AtomicBool::new(false),
            sq: Mutex::new(SendQueue::new(send_depth, max_sges, registration_by_request, completes, shared)),
            rq: Mutex::new(ReceiveQueue::new(domain, receive_depth, max_sges)),
            obligations: SharedObligations::default(),
            attributes,
        }
    }

    /// The number of the queue pair.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The number of the lane that the queue pair is steered to, which its events belong to (requirement I8). Zero before
    /// it is connected.
    pub fn lane(&self) -> u16 {
        self.lane.load(Ordering::Relaxed)
    }

    /// Sets the number of the lane that the queue pair is steered to.
    pub fn set_lane(&self, lane: u16) {
        self.lane.store(lane, Ordering::Relaxed);
    }

    /// Raises an asynchronous event about the queue pair.
    pub(crate) fn raise(&self, event: AsyncEvent) {
        self.device.events().raise_from(self.lane(), event);
    }

    /// The attributes with which the queue pair was created.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// The state of the queue pair.
    pub fn state(&self) -> State {
        State::from_bits(self.state.load(Ordering::Acquire))
    }

    /// Whether this end is closing its connection. Posted requests are still sent.
    pub fn is_closing(&self) -> bool {
        self.connection.is(Connection::CLOSING)
    }

    /// Whether there is a connection.
    pub fn is_linked(&self) -> bool {
        self.connection.is(Connection::LINKED)
    }

    /// Whether the peer closed the connection of a manually connected queue pair, which sends nothing more.
    pub fn peer_has_closed(&self) -> bool {
        self.connection.is(Connection::PEER_CLOSED)
    }

    /// Whether the sending direction of the link is closed: nothing more will be sent.
    pub fn is_finished(&self) -> bool {
        self.connection.is(Connection::SEND_CLOSED)
    }

    /// Whether both directions of the link are closed.
    pub fn is_closed(&self) -> bool {
        self.connection.is(Connection::CLOSED)
    }

    /// Whether the stream has ended: the queue pair is in the error state.
    pub(crate) fn is_ended(&self) -> bool {
        self.state() == State::Error
    }

    /// Why the stream ended, if it did.
    pub fn error(&self) -> Option<&Arc<QpError>> {
        self.error.get()
    }

    /// Whether the peer ended the stream with a Terminate.
    #[cold]
    pub(crate) fn is_terminated(&self) -> bool {
        self.error().is_some_and(|error| matches!(VendorError::of(error), VendorError::Terminated(_)))
    }

    /// Whether the completion of some request or receive tells why the stream ended. If not, all of them were flushed.
    pub fn blames_a_request(&self) -> bool {
        self.request_blamed.load(Ordering::Acquire)
    }

    /// Whether requests wait to be sent, acknowledged or answered.
    pub fn has_work(&self) -> bool {
        !lock(&self.sq).is_idle()
    }

    /// Number of requests that are not complete.
    pub fn queued_sends(&self) -> usize {
        lock(&self.sq).len()
    }

    /// Number of receives posted to the queue pair's own receive queue.
    pub fn queued_receives(&self) -> usize {
        lock(&self.rq).len()
    }

    /// Whether a completion queue holds the completion of a request of this queue pair that succeeded.
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

    /// Sets retries and timeouts. The RNR timer, which is announced to the peer, must be set before connecting.
    pub fn set_retries(&self, retries: Retries) {
        self.retries.store(retries.to_bits(), Ordering::Relaxed);
    }

    /// The retries and timeouts.
    pub fn retries(&self) -> Retries {
        Retries::from_bits(self.retries.load(Ordering::Relaxed))
    }

    /// Sets the remote operations that the queue pair accepts.
    pub fn set_rights(&self, rights: Rights) {
        self.rights.store(rights.bits(), Ordering::Relaxed);
    }

    /// The remote operations that the queue pair accepts.
    pub(super) fn rights(&self) -> Rights {
        Rights::from_bits_truncate(self.rights.load(Ordering::Relaxed))
    }

    /// Injects faults that withhold receives. Call this before the queue pair is connected.
    pub fn set_faults(&self, faults: ReceiveFaults) {
        let _ = self.receive_faults.set(Box::new(faults));
    }

    /// The device of the queue pair.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The device, for what outlives a call.
    pub(crate) fn shared_device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Drives the queue pair when its function has room for parked messages.
    pub(crate) fn room_waiter(&self) -> Weak<dyn RoomWaiter> {
        Weak::<dyn Owner>::clone(&self.owner)
    }

    /// Identifies the stream to the memory table: by its protection domain and its queue pair.
    pub(crate) fn stream(&self) -> Stream {
        Stream { domain: self.attributes.domain, qp: self.id }
    }

    /// When Sends and Writes should complete. The peer may not support it.
    pub(crate) fn completes(&self) -> Completes {
        self.attributes.completes
    }

    /// Sets the driver. Returns false, and changes nothing, if there is one already.
    pub(crate) fn set_driver(&self, driver: Arc<dyn StreamDriver>) -> bool {
        self.driver.set(driver).is_ok()
    }

    /// Has the driver drive both halves soon, if the queue pair is connected.
    pub(crate) fn schedule(&self) {
        if let Some(driver) = self.driver.get() {
            driver.schedule();
        }
    }

    /// Whether the link did not take everything that was to be sent. The link reports when it takes more; driving the
    /// tx half earlier is useless.
    pub fn is_blocked(&self) -> bool {
        self.send_blocked.load(Ordering::Relaxed)
    }

    /// Sets whether the link did not take everything that was to be sent.
    pub(crate) fn set_blocked(&self, blocked: bool) {
        self.send_blocked.store(blocked, Ordering::Relaxed);
    }

    /// Whether the last payload that arrived was large, so that more of it is likely to follow.
    pub fn receives_bulk(&self) -> bool {
        self.bulk_receive.load(Ordering::Relaxed)
    }

    /// Sets whether the last payload that arrived was large.
    pub(crate) fn set_receives_bulk(&self, bulk: bool) {
        self.bulk_receive.store(bulk, Ordering::Relaxed);
    }

    /// The route by which this end sends now.
    pub fn send_route(&self) -> Route {
        route(&self.sends_shared)
    }

    /// The route by which this end receives now.
    pub fn recv_route(&self) -> Route {
        route(&self.receives_shared)
    }

    /// Sets the route by which this end sends.
    pub(crate) fn set_send_route(&self, route: Route) {
        self.sends_shared.store(route == Route::SharedMemory, Ordering::Relaxed);
    }

    /// Sets the route by which this end receives.
    pub(crate) fn set_recv_route(&self, route: Route) {
        self.receives_shared.store(route == Route::SharedMemory, Ordering::Relaxed);
    }

    /// Whether the peer waits for an acknowledgement.
    pub fn owes_acknowledgement(&self) -> bool {
        self.obligations.lock().owes_acknowledgement(self.delivered())
    }

    /// Returns the number of messages that were acknowledged, if the peer waits for the next acknowledgement.
    pub fn acknowledged_so_far(&self) -> Option<u64> {
        let obligations = self.obligations.lock();
        obligations.owes_acknowledgement(self.delivered()).then_some(obligations.acknowledged)
    }

    /// Returns whether the peer waits for an acknowledgement. Returns true only once until
    /// [`Qp::acknowledge`](crate::qp::Qp::acknowledge) is called, for callers that keep a list of queue pairs that owe
    /// an acknowledgement.
    pub fn take_owed_acknowledgement(&self) -> bool {
        // Most polls find nothing new, so a load comes before the more expensive swap.
        if !self.ack_may_be_due.load(Ordering::SeqCst) || !self.ack_may_be_due.swap(false, Ordering::SeqCst) {
            return false;
        }
        let mut obligations = self.obligations.lock();
        obligations.owes_acknowledgement(self.delivered())
            && !std::mem::replace(&mut obligations.ack_noticed, true)
    }

    /// Number of messages of the request class that were delivered.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Acquire)
    }

    /// Sets the number of messages of the request class that were delivered. Called by the rx half.
    pub(crate) fn set_delivered(&self, delivered: u64) {
        self.delivered.store(delivered, Ordering::Release);
    }

    /// Number of messages of the request class that the peer may acknowledge.
    pub(crate) fn acknowledgeable(&self) -> u64 {
        self.acknowledgeable.load(Ordering::Acquire)
    }

    /// Sets the number of messages of the request class that the peer may acknowledge. Called by the tx half before it
    /// passes them to the link, because the acknowledgement may arrive before the call returns.
    pub(crate) fn set_acknowledgeable(&self, number: u64) {
        self.acknowledgeable.store(number, Ordering::Release);
    }

    /// Marks that a message was delivered, so that an acknowledgement may be due.
    pub(crate) fn set_ack_may_be_due(&self) {
        self.ack_may_be_due.store(true, Ordering::SeqCst);
    }

    /// Whether the peer has shown that it is Ironwarp as well, by the signal that precedes its first message.
    pub fn is_peer_ironwarp(&self) -> bool {
        self.obligations.lock().peer.is_some()
    }
}

/// Returns the route that a flag stands for.
fn route(shared: &AtomicBool) -> Route {
    if shared.load(Ordering::Relaxed) { Route::SharedMemory } else { Route::Tcp }
}
