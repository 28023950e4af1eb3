//! Connectionless queue pairs (UD): each datagram is one message, and each request has its own address
//! (requirement P2, "not connected").
//!
//! Requests are posted to the queue in `request.rs`; `tx.rs` turns them into datagrams; [`DatagramLink`]
//! carries them; `rx.rs` places them in memory behind a [`Grh`]. Nothing is acknowledged, retransmitted or
//! kept in order, and a datagram that cannot be delivered is dropped and counted. A request completes when
//! the link has taken it.
//!
//! Locks are used as in [`Qp`](crate::qp::Qp):
//!
//! | lock | protects | held while |
//! |---|---|---|
//! | `tx`, `rx` | the right to send, and to receive | a half is driven; never waited for on the data path |
//! | `errors` | the state, and the cause of an error state | either changes |
//! | `sq`, `rq` | posted requests | an entry is added or taken |
//!
//! Lock order: a half, then one of the others, never two of those; a completion queue last.

mod grh;
mod link;
mod request;
mod rx;
mod tx;

pub use grh::Grh;
pub use link::{Arrived, DatagramLink, Sent};
pub use request::{AddressHandle, DatagramRequest, Destination};

use crate::bug;
use crate::device::Device;
use crate::error::{PostError, QpError};
use crate::event::AsyncEvent;
use crate::half::{Half, Left, ROUNDS};
use crate::link::Ready;
use crate::memory::{Domain, RegistrationWaiter};
use crate::queue::{Completion, Cq, ReceiveQueue, ReceiveRequest, SharedReceiveQueue};
use crate::state::{IllegalTransition, State};
use crate::sync::{Mutex, lock};
use request::SendQueue;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Maximum message size in bytes. Verbs report it as the maximum MTU of the port, so that programs that rely
/// on it work. On a path with a smaller MTU, IP fragments and reassembles the datagram.
pub const MAX_PAYLOAD: usize = 4096;

/// The low bits of the number of a connectionless queue pair; the others are its port.
const SLOT: u32 = 255;

/// The number of the connectionless queue pair with this UDP port. A peer that knows number and address needs
/// nothing else.
pub fn number_of(port: u16) -> u32 {
    u32::from(port) << 8 | SLOT
}

/// The UDP port of the queue pair with this number. If no connectionless queue pair can have the number,
/// nothing receives on the port.
fn port_of(number: u32) -> u16 {
    let [_, high, low, _] = number.to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// Number of datagrams that a thread moves before it checks whether other threads wait.
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
    /// Depth of its own receive queue.
    pub receive_depth: usize,
    /// The shared receive queue to use instead of its own, if any.
    pub shared: Option<Arc<SharedReceiveQueue>>,
    /// Maximum number of scatter/gather elements per request.
    pub max_sges: usize,
    /// The Q_Key: only datagrams that carry it are received.
    pub qkey: u32,
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
        }
    }

    /// Replaces the handles to completion queues by those of another layer.
    pub fn map_cqs<D>(self, mut handle: impl FnMut(C) -> D) -> DatagramAttributes<D> {
        DatagramAttributes {
            domain: self.domain,
            send_cq: handle(self.send_cq),
            receive_cq: handle(self.receive_cq),
            send_depth: self.send_depth,
            receive_depth: self.receive_depth,
            shared: self.shared,
            max_sges: self.max_sges,
            qkey: self.qkey,
        }
    }
}

/// Number of dropped datagrams by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropCounts {
    /// Received datagrams that are malformed, too long, or not from the port that their sender names.
    pub malformed: u64,
    /// Received datagrams from another release of Ironwarp that require a feature unknown to this one.
    pub other_release: u64,
    /// Received datagrams for another queue pair.
    pub other_number: u64,
    /// Received datagrams with another Q_Key.
    pub qkey: u64,
    /// Datagrams received while the queue pair was not ready to receive.
    pub not_ready: u64,
    /// Datagrams received while no receive was posted.
    pub no_receive: u64,
    /// Sent datagrams that the network stack of this host refused.
    pub lost: u64,
}

/// A connectionless queue pair.
#[derive(Debug)]
pub struct DatagramQp {
    id: u32,
    /// A reference to itself, to be notified when memory is registered.
    me: Weak<Self>,
    device: Arc<Device>,
    attributes: DatagramAttributes,
    link: Arc<dyn DatagramLink>,
    /// The state, readable without the lock. Changed only with `errors` locked.
    state: AtomicU8,
    errors: Mutex<Errors>,
    qkey: AtomicU32,
    sq: Mutex<SendQueue>,
    rq: Mutex<ReceiveQueue>,
    tx: Half<()>,
    rx: Half<()>,
    /// The link had no room, and has not been retried since it reported room.
    blocked: AtomicBool,
    /// A completion queue was full.
    overrun: AtomicBool,
    /// The event that no more receives of a shared queue are used was raised.
    last_receive: AtomicBool,
    drops: [AtomicU64; DropReason::COUNT],
}

/// The causes of error states.
#[derive(Debug, Default)]
struct Errors {
    /// The cause of the error state.
    error: Option<Arc<QpError>>,
    /// The cause of the send queue's error state.
    send_error: Option<Arc<QpError>>,
}

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DropReason {
    Malformed,
    OtherRelease,
    OtherNumber,
    Qkey,
    NotReady,
    NoReceive,
    Lost,
}

impl DropReason {
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
        let DatagramAttributes { domain, send_depth, receive_depth, max_sges, qkey, .. } = attributes;
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
            tx: Half::new(()),
            rx: Half::new(()),
            blocked: AtomicBool::new(false),
            overrun: AtomicBool::new(false),
            last_receive: AtomicBool::new(false),
            drops: Default::default(),
        })
    }

    /// The number of the queue pair.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The attributes that it was created with.
    pub fn attributes(&self) -> &DatagramAttributes {
        &self.attributes
    }

    /// The state of the queue pair.
    pub fn state(&self) -> State {
        State::from_bits(self.state.load(Ordering::Acquire))
    }

    /// The cause of the error state, or of that of the send queue.
    pub fn error(&self) -> Option<Arc<QpError>> {
        let errors = lock(&self.errors);
        errors.error.clone().or_else(|| errors.send_error.clone())
    }

    /// The Q_Key.
    pub fn qkey(&self) -> u32 {
        self.qkey.load(Ordering::Relaxed)
    }

    /// Sets the Q_Key: only datagrams that carry it are received.
    pub fn set_qkey(&self, qkey: u32) {
        self.qkey.store(qkey, Ordering::Relaxed);
    }

    /// The number of datagrams dropped so far.
    pub fn drops(&self) -> DropCounts {
        let count = |why: DropReason| self.drops[why as usize].load(Ordering::Relaxed);
        DropCounts {
            malformed: count(DropReason::Malformed),
            other_release: count(DropReason::OtherRelease),
            other_number: count(DropReason::OtherNumber),
            qkey: count(DropReason::Qkey),
            not_ready: count(DropReason::NotReady),
            no_receive: count(DropReason::NoReceive),
            lost: count(DropReason::Lost),
        }
    }

    // --- States ---

    /// Moves the queue pair to another state. [`State::Reset`] empties its queues and removes completions
    /// that were not polled.
    pub fn modify(&self, to: State) -> Result<(), IllegalTransition> {
        // The half is held, so no datagram is being sent meanwhile.
        let (moved, _) = self.tx.with(|()| self.move_to(to));
        moved?;
        match to {
            State::Reset => self.clear(),
            State::Drained => self.device.raise(AsyncEvent::SqDrained(self.id)),
            _ => {}
        }
        // Continue or flush what waited, including work that other threads left to this one.
        self.drive_tx();
        self.drive_rx();
        Ok(())
    }

    fn move_to(&self, to: State) -> Result<(), IllegalTransition> {
        if self.state() == State::SendError && to == State::ReadyToSend {
            self.flush_sends(); // requests posted before are not sent afterwards
        }
        let mut errors = lock(&self.errors);
        let from = self.state();
        if !from.may_become(to) {
            return Err(IllegalTransition { from, to });
        }
        match to {
            State::Error if errors.error.is_none() => errors.error = Some(Arc::new(QpError::Moved)),
            State::Reset => *errors = Errors::default(),
            State::ReadyToSend => errors.send_error = None,
            _ => {}
        }
        self.state.store(to as u8, Ordering::Release);
        Ok(())
    }

    /// Discards everything from before the reset.
    fn clear(&self) {
        // Once this returns, a thread that receives has seen the new state.
        let ((), _) = self.rx.with(|()| ());
        lock(&self.sq).take_all();
        lock(&self.rq).clear();
        let DatagramAttributes { send_cq, receive_cq, .. } = &self.attributes;
        send_cq.purge(self.id);
        receive_cq.purge(self.id);
        self.overrun.store(false, Ordering::Relaxed);
        self.last_receive.store(false, Ordering::Relaxed);
    }

    /// Moves the queue pair to the error state. The first cause counts.
    fn fail(&self, error: QpError) {
        let mut errors = lock(&self.errors);
        if matches!(self.state(), State::Reset | State::Error) {
            return;
        }
        tracing::debug!(qp = self.id, %error, "connectionless queue pair failed");
        errors.error = Some(Arc::new(error));
        self.state.store(State::Error as u8, Ordering::Release);
    }

    /// Stops the send queue because a request failed; the receive queue continues (SQE).
    fn fail_sends(&self, error: &Arc<QpError>) {
        let mut errors = lock(&self.errors);
        if matches!(self.state(), State::ReadyToSend | State::Drained) {
            errors.send_error = Some(Arc::clone(error));
            self.state.store(State::SendError as u8, Ordering::Release);
        }
    }

    // --- Posting ---

    /// Posts requests to the send queue, all or none, and sends what can be sent at once.
    pub fn post_send(&self, requests: Vec<DatagramRequest>) -> Result<(), PostError> {
        let mut sq = lock(&self.sq);
        // Check under the lock: a concurrent reset either finds these requests, or is seen here.
        let state = self.state();
        if matches!(state, State::Reset | State::Init | State::ReadyToReceive) {
            return Err(PostError::State(state));
        }
        sq.post(&*self.link, requests)?;
        drop(sq);
        self.drive_tx();
        Ok(())
    }

    /// Posts a receive. It needs room for a GRH of 40 bytes, followed by the message.
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        if self.attributes.shared.is_some() {
            return Err(PostError::NoReceiveQueue);
        }
        let mut rq = lock(&self.rq);
        let state = self.state();
        if state == State::Reset {
            return Err(PostError::State(state));
        }
        rq.post(request)?;
        drop(rq);
        // No datagram waits for the receive. Check the state again, because the receive may have missed the
        // flush.
        if self.state() == State::Error {
            self.drive_rx();
        }
        Ok(())
    }

    // --- Driving ---

    /// Sends and receives what is possible. Called by the thread that noticed a change of the link.
    ///
    /// A datagram socket reports room after every datagram that was sent. That is ignored unless the queue
    /// pair waits for room: otherwise this thread could take a request over from the thread that posts it,
    /// and the request would not be done when the post returns.
    pub fn drive(&self, ready: Ready) {
        if ready.writable && self.blocked.swap(false, Ordering::SeqCst) {
            self.drive_tx();
        }
        if ready.readable {
            self.drive_rx();
        }
    }

    /// Continues work that an earlier turn left over.
    pub fn resume(&self) {
        self.drive_tx();
        self.drive_rx();
    }

    fn drive_tx(&self) {
        let left = self.tx.run(ROUNDS, |()| self.survive("sending datagrams", || self.transmit()));
        self.finish_turn(left);
    }

    fn drive_rx(&self) {
        let left = self.rx.run(ROUNDS, |()| self.survive("receiving datagrams", || self.receive()));
        if self.state() == State::Error {
            self.drive_tx(); // flush the requests that wait for room
        }
        self.finish_turn(left);
    }

    /// Runs `round`. A panic moves the queue pair to the error state; a second panic, while its requests are
    /// flushed, is not retried.
    fn survive(&self, doing: &'static str, round: impl FnOnce() -> Left) -> Left {
        bug::catch(doing, round).unwrap_or_else(|bug| {
            tracing::error!(qp = self.id, %bug, "connectionless queue pair failed");
            if self.state() != State::Error {
                self.fail(QpError::Bug(bug));
                self.device.raise(AsyncEvent::QpFatal(self.id));
                self.link.schedule();
            }
            Left::Nothing
        })
    }

    fn finish_turn(&self, left: Left) {
        // Requirement I5: completions are never lost silently; the queue pair fails instead.
        if self.overrun.swap(false, Ordering::Relaxed) {
            let DatagramAttributes { send_cq, receive_cq, .. } = &self.attributes;
            let cq = if send_cq.has_overrun() { send_cq } else { receive_cq };
            self.fail(QpError::Overrun(cq.id()));
            self.device.raise(AsyncEvent::QpFatal(self.id));
            self.link.schedule();
        }
        if left == Left::Work {
            self.link.schedule();
        }
    }

    fn complete(&self, cq: &Cq, completion: Completion) {
        if cq.push(completion).is_err() && self.state() != State::Error {
            self.overrun.store(true, Ordering::Relaxed);
        }
    }

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
    /// Removes events of this queue pair that were not taken, because they refer to nothing any more.
    fn drop(&mut self) {
        self.device.events().revoke(|event| event.queue_pair() == Some(self.id));
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
