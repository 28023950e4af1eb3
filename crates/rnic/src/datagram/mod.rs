//! Connectionless queue pairs (UD): each message is one datagram, and each request has its own destination
//! (requirement P2, "not connected").
//!
//! Requests are posted to the queue in `request.rs`; `tx.rs` turns them into datagrams; [`DatagramLink`] carries
//! the datagrams; `rx.rs` places them in memory, each after a [`Grh`]. Datagrams are not kept in order. A datagram that
//! cannot be delivered is dropped and counted. A request completes when the link has taken its datagram, and nothing is
//! acknowledged or sent again, unless the queue pair was created with [`Completes::WhenAcknowledged`]: see `acknowledged`.
//!
//! Locks are used as in [`Qp`](crate::qp::Qp):
//!
//! | lock | protects | held while |
//! |---|---|---|
//! | `tx`, `rx` | what only the holder uses; it may send or receive | a half is driven; never waited for on the data path |
//! | `errors` | the state, and the cause of an error state | either changes |
//! | `sq`, `rq` | posted requests | an entry is added or taken |
//! | `flows`, `senders` | sessions of acknowledged datagrams | a datagram is chosen, or has arrived |
//!
//! Lock order: a half first, then at most one of the others, a completion queue last.

mod acknowledged;
mod adversary;
mod grh;
mod link;
mod request;
mod rx;
mod sessions;
mod tx;

pub use adversary::lose_datagrams;
pub use grh::Grh;
pub use link::{Arrived, DatagramLink, SendTo, Sent};
pub use request::{AddressHandle, DatagramRequest, Destination};
pub use sessions::{DEFAULT_RETRIES, MAX_SENDERS};

use crate::bug;
use crate::device::Device;
use crate::error::{PostError, QpError};
use crate::event::AsyncEvent;
use crate::half::{Half, Left, ROUNDS};
use crate::link::Ready;
use crate::memory::{Domain, RegistrationWaiter};
use crate::queue::{Completes, Completion, Cq, ReceiveQueue, ReceiveRequest, SharedReceiveQueue};
use crate::recording::{Kind, record};
use crate::retry::Retries;
use crate::state::{IllegalTransition, State};
use crate::sync::{Mutex, lock};
use ironwarp_wire::private::Secret;
use request::SendQueue;
use sessions::Sessions;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Maximum message size in bytes. Verbs report this as the MTU of the port, so that programs that send messages of
/// MTU size work. On a path with a smaller MTU, IP fragments and reassembles the datagram.
pub const MAX_PAYLOAD: usize = 4096;

/// The low 8 bits of the number of every connectionless queue pair. The upper 16 bits are its UDP port.
const QPN_LOW_BITS: u32 = 255;

/// Returns the number of the connectionless queue pair with this UDP port. A peer needs only the number and the
/// address to send datagrams to the queue pair.
pub fn qpn_of_port(port: u16) -> u32 {
    u32::from(port) << 8 | QPN_LOW_BITS
}

/// Returns the UDP port of the connectionless queue pair with this number. If the number cannot belong to a
/// connectionless queue pair, datagrams sent to the port are lost, as they should be.
fn port_of_qpn(number: u32) -> u16 {
    let [_, high, low, _] = number.to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// Maximum number of datagrams that a thread sends or receives in one turn.
const BATCH: usize = 32;

/// The attributes of a connectionless queue pair, in every layer. `C` is the layer's handle to a completion queue.
#[derive(Clone, Debug)]
pub struct DatagramAttributes<C = Arc<Cq>> {
    /// The protection domain.
    pub domain: Domain,
    /// The completion queue for sends.
    pub send_cq: C,
    /// The completion queue for receives.
    pub receive_cq: C,
    /// Depth of the send queue.
    pub send_depth: usize,
    /// Depth of the queue pair's own receive queue.
    pub receive_depth: usize,
    /// The shared receive queue to use instead of the queue pair's own. `None` to use its own.
    pub shared: Option<Arc<SharedReceiveQueue>>,
    /// Maximum number of scatter/gather elements per request.
    pub max_sges: usize,
    /// The Q_Key. Datagrams with another Q_Key are dropped.
    pub qkey: u32,
    /// When requests complete. With [`Completes::WhenAcknowledged`], the queue pair exchanges messages only with queue
    /// pairs that acknowledge datagrams as well.
    pub completes: Completes,
    /// How often, and after which time, a message is sent again that the receiver does not acknowledge.
    pub retries: Retries,
    /// Maximum number of senders whose acknowledged messages are told apart. Another one replaces the sender that was
    /// silent longest.
    pub max_senders: usize,
    /// The key of sessions and cookies. Must be random if messages are acknowledged.
    pub secret: Secret,
}

impl<C> DatagramAttributes<C> {
    /// Returns attributes of a queue pair with 16 requests in each queue, of up to four elements, and a Q_Key of zero.
    pub fn new(domain: Domain, cq: &C) -> Self
    where
        C: Clone,
    {
        Self {
            domain,
            send_cq: cq.clone(),
            receive_cq: cq.clone(),
            send_depth: 16,
            receive_depth: 16,
            shared: None,
            max_sges: 4,
            qkey: 0,
            completes: Completes::WhenSent,
            retries: DEFAULT_RETRIES,
            max_senders: MAX_SENDERS,
            secret: Secret([0; 16]),
        }
    }

    /// Replaces the two handles to completion queues by those of another layer, which `convert` returns.
    pub fn map_cqs<D>(self, mut convert: impl FnMut(C) -> D) -> DatagramAttributes<D> {
        DatagramAttributes {
            domain: self.domain,
            send_cq: convert(self.send_cq),
            receive_cq: convert(self.receive_cq),
            send_depth: self.send_depth,
            receive_depth: self.receive_depth,
            shared: self.shared,
            max_sges: self.max_sges,
            qkey: self.qkey,
            completes: self.completes,
            retries: self.retries,
            max_senders: self.max_senders,
            secret: self.secret,
        }
    }
}

/// The number of datagrams that a queue pair has dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DropCounts {
    /// Received datagrams that are malformed, too long, or not from the UDP port of the queue pair that they name as
    /// sender.
    pub malformed: u64,
    /// Received datagrams with another length or CRC than their sender has sent (requirement P3).
    pub damaged: u64,
    /// Received datagrams from another release of Ironwarp that require a feature unknown to this release, or have no
    /// CRC.
    pub other_release: u64,
    /// Received datagrams for another queue pair.
    pub other_number: u64,
    /// Received datagrams with another Q_Key.
    pub qkey: u64,
    /// Datagrams received while the queue pair was not ready to receive.
    pub not_ready: u64,
    /// Datagrams received while no receive was posted.
    pub no_receive: u64,
    /// Received messages that are acknowledged, by a queue pair that does not acknowledge messages, or the other way round.
    pub other_service: u64,
    /// Received messages that had arrived before, of acknowledged senders.
    pub duplicates: u64,
    /// Received messages of acknowledged senders that have no session: they have to open another one.
    pub no_session: u64,
    /// Sent datagrams that the network stack of this host refused.
    pub lost: u64,
}

/// A connectionless queue pair.
#[derive(Debug)]
pub struct DatagramQp {
    id: u32,
    /// A reference to this object, which is listed as a waiter for registrations.
    me: Weak<Self>,
    device: Arc<Device>,
    attributes: DatagramAttributes,
    link: Arc<dyn DatagramLink>,
    /// The state, readable without the lock. Changed only with `errors` locked.
    state: AtomicU8,
    errors: Mutex<Errors>,
    /// The current Q_Key.
    qkey: AtomicU32,
    sq: Mutex<SendQueue>,
    rq: Mutex<ReceiveQueue>,
    /// The state of acknowledged datagrams. `None` if requests complete when sent.
    sessions: Option<Box<Sessions>>,
    /// Holds the sequence number of the next datagram (requirement P3), unless there are sessions.
    tx: Half<u32>,
    rx: Half<()>,
    /// Whether sending waits until the link reports room.
    blocked: AtomicBool,
    /// Whether a completion was lost because its completion queue was full. The end of the turn handles this.
    overrun: AtomicBool,
    /// Whether [`AsyncEvent::LastWqeReached`] was raised since the last reset.
    last_receive: AtomicBool,
    /// Number of dropped datagrams, indexed by [`DropReason`].
    drops: [AtomicU64; DropReason::COUNT],
}

/// The causes of the error states.
#[derive(Debug, Default)]
struct Errors {
    /// The cause of [`State::Error`]. `None` in other states.
    error: Option<Arc<QpError>>,
    /// The cause of [`State::SendError`]. `None` until the send queue fails.
    send_error: Option<Arc<QpError>>,
}

/// Why a datagram was dropped: the fields of [`DropCounts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DropReason {
    Malformed,
    Damaged,
    OtherRelease,
    OtherNumber,
    Qkey,
    NotReady,
    NoReceive,
    OtherService,
    Duplicate,
    NoSession,
    Lost,
}

impl DropReason {
    /// Number of reasons.
    const COUNT: usize = Self::Lost as usize + 1;
}

impl DatagramQp {
    /// Creates a queue pair with this number, in the state [`State::Reset`].
    pub fn new(
        id: u32,
        device: &Arc<Device>,
        attributes: DatagramAttributes,
        link: Arc<dyn DatagramLink>,
    ) -> Arc<Self> {
        let DatagramAttributes { domain, send_depth, receive_depth, max_sges, qkey, completes, .. } =
            attributes;
        let acknowledges = completes == Completes::WhenAcknowledged;
        let sessions = acknowledges
            .then(|| Box::new(Sessions::new(attributes.secret, attributes.retries, attributes.max_senders)));
        Arc::new_cyclic(|me| Self {
            id,
            me: Weak::clone(me),
            device: Arc::clone(device),
            attributes,
            link,
            state: AtomicU8::new(State::Reset as u8),
            errors: Mutex::default(),
            qkey: AtomicU32::new(qkey),
            sq: Mutex::new(SendQueue::new(send_depth, max_sges)),
            rq: Mutex::new(ReceiveQueue::new(domain, receive_depth, max_sges)),
            sessions,
            tx: Half::new(0),
            rx: Half::new(()),
            blocked: AtomicBool::new(false),
            overrun: AtomicBool::new(false),
            last_receive: AtomicBool::new(false),
            drops: Default::default(),
        })
    }

    /// Returns the number of the queue pair.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the attributes that the queue pair was created with.
    pub fn attributes(&self) -> &DatagramAttributes {
        &self.attributes
    }

    /// Returns the state of the queue pair.
    pub fn state(&self) -> State {
        State::from_bits(self.state.load(Ordering::Acquire))
    }

    /// Returns the cause of the error state of the queue pair, or else of its send queue. `None` if neither failed.
    pub fn error(&self) -> Option<Arc<QpError>> {
        let errors = lock(&self.errors);
        errors.error.clone().or_else(|| errors.send_error.clone())
    }

    /// Returns the Q_Key.
    pub fn qkey(&self) -> u32 {
        self.qkey.load(Ordering::Relaxed)
    }

    /// Sets the Q_Key. Datagrams with another Q_Key are dropped.
    pub fn set_qkey(&self, qkey: u32) {
        self.qkey.store(qkey, Ordering::Relaxed);
    }

    /// Returns the number of datagrams dropped since the queue pair was created, by reason.
    pub fn drops(&self) -> DropCounts {
        let count = |why: DropReason| self.drops[why as usize].load(Ordering::Relaxed);
        DropCounts {
            malformed: count(DropReason::Malformed),
            damaged: count(DropReason::Damaged),
            other_release: count(DropReason::OtherRelease),
            other_number: count(DropReason::OtherNumber),
            qkey: count(DropReason::Qkey),
            not_ready: count(DropReason::NotReady),
            no_receive: count(DropReason::NoReceive),
            other_service: count(DropReason::OtherService),
            duplicates: count(DropReason::Duplicate),
            no_session: count(DropReason::NoSession),
            lost: count(DropReason::Lost),
        }
    }

    // --- States ---

    /// Moves the queue pair to another state. [`State::Reset`] empties its queues and removes its completions from
    /// the completion queues.
    pub fn modify(&self, to: State) -> Result<(), IllegalTransition> {
        // With the tx half held, so that no datagram is being sent meanwhile.
        let (moved, _) = self.tx.with(|_| self.move_to(to));
        if let Err(error) = moved {
            self.drive_tx(); // for requests of threads that found the half held by this one
            return Err(error);
        }
        match to {
            State::Reset => self.clear_queues(),
            State::Drained => self.raise(AsyncEvent::SqDrained(self.id)),
            _ => {}
        }
        // Send or flush posted requests, including those of threads that found the half held by this one.
        self.drive_tx();
        self.drive_rx();
        Ok(())
    }

    /// Ends the queue pair because the adapter is [shut down](Device::begin_shut_down) (requirement N11): flushes what was
    /// posted. When this has returned, nothing completes any more, and nothing can be posted.
    pub fn shut_down(&self) {
        let _ = self.modify(State::Error); // refused after a reset, when there is nothing to flush
        // Waits for threads that hold a half, to which `modify` has left the work.
        let (left, _) = self.tx.with(|tx| self.survive("flushing requests", || self.transmit(tx)));
        self.finish_turn(left);
        let (left, _) = self.rx.with(|()| self.survive("flushing receives", || self.receive()));
        self.finish_turn(left);
    }

    /// Changes the state, and the causes of errors along with it. The tx half is held.
    fn move_to(&self, to: State) -> Result<(), IllegalTransition> {
        if self.state() == State::SendError && to == State::ReadyToSend {
            self.flush_sends(); // requests posted in the error state must not be sent afterwards
        }
        let mut errors = lock(&self.errors);
        let from = self.state();
        let is_final = self.device.is_shut_down() && !matches!(to, State::Error | State::Reset);
        if is_final || !from.may_become(to) {
            return Err(IllegalTransition { from, to });
        }
        match to {
            State::Error if errors.error.is_none() => errors.error = Some(Arc::new(QpError::Moved)),
            State::Reset => *errors = Errors::default(),
            State::ReadyToSend => errors.send_error = None,
            _ => {}
        }
        self.state.store(to as u8, Ordering::Release);
        record(Kind::State, self.id, to as u32);
        Ok(())
    }

    /// Discards all requests and completions from before the reset. The state is [`State::Reset`] already.
    fn clear_queues(&self) {
        // Wait for a thread that is receiving: it may have read the old state.
        let ((), _) = self.rx.with(|()| ());
        lock(&self.sq).take_all();
        lock(&self.rq).clear();
        if let Some(state) = &self.sessions {
            state.clear();
        }
        let DatagramAttributes { send_cq, receive_cq, .. } = &self.attributes;
        send_cq.purge(self.id);
        receive_cq.purge(self.id);
        self.overrun.store(false, Ordering::Relaxed);
        self.last_receive.store(false, Ordering::Relaxed);
    }

    /// Moves the queue pair to the error state, unless it is there already or was reset.
    fn fail(&self, error: QpError) {
        let mut errors = lock(&self.errors);
        if matches!(self.state(), State::Reset | State::Error) {
            return;
        }
        tracing::debug!(qp = self.id, %error, "connectionless queue pair failed");
        record(Kind::Ended, self.id, error.vendor_err());
        errors.error = Some(Arc::new(error));
        self.state.store(State::Error as u8, Ordering::Release);
        record(Kind::State, self.id, State::Error as u32);
    }

    /// Moves the send queue to its error state (SQE) because a request failed. The receive queue continues.
    fn fail_sends(&self, error: &Arc<QpError>) {
        let mut errors = lock(&self.errors);
        if matches!(self.state(), State::ReadyToSend | State::Drained) {
            errors.send_error = Some(Arc::clone(error));
            self.state.store(State::SendError as u8, Ordering::Release);
            record(Kind::State, self.id, State::SendError as u32);
        }
    }

    // --- Posting ---

    /// Posts requests to the send queue, all or none, and sends as many as the link takes at once.
    pub fn post_send(&self, requests: Vec<DatagramRequest>) -> Result<(), PostError> {
        let mut sq = lock(&self.sq);
        // Check with the queue locked: a concurrent reset either clears these requests, or is seen here.
        let state = self.state();
        if matches!(state, State::Reset | State::Init | State::ReadyToReceive) {
            return Err(PostError::State(state));
        }
        if state == State::Error && self.device.is_shut_down() {
            return Err(PostError::ShutDown);
        }
        sq.post(&*self.link, requests)?;
        drop(sq);
        self.drive_tx();
        Ok(())
    }

    /// Posts a receive. Its buffers need room for a GRH of 40 bytes, followed by the message.
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        if self.attributes.shared.is_some() {
            return Err(PostError::NoReceiveQueue);
        }
        let mut rq = lock(&self.rq);
        let state = self.state();
        if state == State::Reset {
            return Err(PostError::State(state));
        }
        if state == State::Error && self.device.is_shut_down() {
            return Err(PostError::ShutDown);
        }
        rq.post(request)?;
        drop(rq);
        // Datagrams do not wait for receives, so there is nothing to deliver. Check the state again: if it became
        // `Error` before the receive was queued, the flush has missed the receive.
        if self.state() == State::Error {
            self.drive_rx();
        }
        Ok(())
    }

    // --- Driving ---

    /// Sends and receives as many datagrams as possible. Called by the thread that polls the link.
    ///
    /// A datagram socket becomes writable again after every datagram. This is ignored unless sending waits for room:
    /// otherwise this thread could take a request over from the thread that posts it, and the request would not be
    /// complete when the post returns.
    pub fn drive(&self, ready: Ready) {
        if ready.writable && self.blocked.swap(false, Ordering::SeqCst) {
            self.drive_tx();
        }
        if ready.readable {
            self.drive_rx();
        }
    }

    /// Continues sending and receiving after [`DatagramLink::schedule`] was called.
    pub fn resume(&self) {
        self.drive_tx();
        self.drive_rx();
    }

    /// Sends datagrams, or leaves this to the thread that holds the tx half.
    fn drive_tx(&self) {
        let left = self.tx.run(ROUNDS, |tx| self.survive("sending datagrams", || self.transmit(tx)));
        self.finish_turn(left);
    }

    /// Receives datagrams, or leaves this to the thread that holds the rx half.
    fn drive_rx(&self) {
        let left = self.rx.run(ROUNDS, |()| self.survive("receiving datagrams", || self.receive()));
        if self.state() == State::Error {
            self.drive_tx(); // flush requests that were waiting for room
        } else if self.sessions.as_ref().is_some_and(|state| state.has_work()) {
            self.drive_tx(); // an answer has arrived that lets more messages go
        }
        self.finish_turn(left);
    }

    /// Runs `round` and catches a panic, which moves the queue pair to the error state and schedules the flush of its
    /// requests. A panic in the error state schedules nothing, because the flush itself may have panicked.
    fn survive(&self, doing: &'static str, round: impl FnOnce() -> Left) -> Left {
        bug::catch(doing, round).unwrap_or_else(|bug| {
            tracing::error!(qp = self.id, %bug, "connectionless queue pair failed");
            if self.state() != State::Error {
                self.fail(QpError::Bug(bug));
                self.raise(AsyncEvent::QpFatal(self.id));
                self.link.schedule();
            }
            Left::Nothing
        })
    }

    /// Ends a turn: fails the queue pair if a completion was lost, and schedules the work that is left.
    fn finish_turn(&self, left: Left) {
        // Requirement I5: if a completion is lost, the queue pair fails.
        if self.overrun.swap(false, Ordering::Relaxed) {
            let DatagramAttributes { send_cq, receive_cq, .. } = &self.attributes;
            let cq = if send_cq.has_overrun() { send_cq } else { receive_cq };
            self.fail(QpError::Overrun(cq.id()));
            self.raise(AsyncEvent::QpFatal(self.id));
            self.link.schedule();
        }
        if left == Left::Work {
            self.link.schedule();
        }
    }

    /// Appends a completion to a completion queue, and records an overrun if the queue is full. `arrived` is the datagram
    /// that caused it, if one did.
    fn complete(&self, cq: &Cq, completion: Completion, arrived: Option<&Arrived>) {
        if cq.push_from(|| self.link.lane(arrived), completion).is_err() && self.state() != State::Error {
            self.overrun.store(true, Ordering::Relaxed);
        }
    }

    /// Raises an asynchronous event about the queue pair.
    fn raise(&self, event: AsyncEvent) {
        self.device.events().raise_from(self.link.lane(None), event);
    }

    /// Counts a dropped datagram.
    fn count_drop(&self, why: DropReason) {
        self.drops[why as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl RegistrationWaiter for DatagramQp {
    fn on_registration_end(&self) {
        self.link.schedule();
    }
}

impl Drop for DatagramQp {
    /// Removes events of this queue pair that were not taken, because its number may be reused.
    fn drop(&mut self) {
        self.device.events().revoke(&AsyncEvent::of_queue_pair(self.id));
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
