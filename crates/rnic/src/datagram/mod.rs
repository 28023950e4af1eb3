//! Connectionless queue pairs (UD): one datagram, one message, the address in each request (requirement P2, "not connected").
//!
//! `request.rs` has what is posted, `tx.rs` makes datagrams of it, [`DatagramLink`] carries them, `rx.rs` places what comes
//! behind a [`Grh`]. Nothing is acknowledged, repeated or kept in order, and whatever cannot be delivered is dropped and
//! counted: a request completes when the link took it.
//!
//! Threads meet here as they do in [`Qp`](crate::qp::Qp).
//!
//! | lock | holds | held while |
//! |---|---|---|
//! | `tx`, `rx` | the right to send, and to receive | a half is driven; never waited for on the data path |
//! | `life` | the state, and why it is an error | either changes |
//! | `sq`, `rq` | posted requests | an entry is added or taken |
//!
//! Order: a half, then one of the others, never two of those; a completion queue last.

mod grh;
mod link;
mod request;
mod rx;
impl Stalled for DatagramQp {
    fn registered(&self) {
        self.link.call_again();
    }
}

impl Drop for DatagramQp {
    /// Events that nobody took are about nothing any more.
    fn drop(&mut self) {
        self.device.events().revoke(|event| event.queue_pair() == Some(self.id));
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
mod tx;

pub use grh::Grh;
pub use link::{Arrived, DatagramLink, Sent};
pub use request::{AddressHandle, DatagramRequest, Destination};

use crate::bug;
use crate::device::Device;
use crate::error::{Fault, PostError};
use crate::event::AsyncEvent;
use crate::half::{Half, Left, ROUNDS};
use crate::memory::{Domain, Stalled};
use crate::qp::Ready;
use crate::queue::{Completion, Cq, ReceiveQueue, ReceiveRequest, SharedReceiveQueue};
use crate::state::{IllegalTransition, State};
use crate::sync::{Mutex, lock};
use request::SendQueue;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// How many bytes a message has at most: what verbs report as the port's largest MTU, so that programs which rely on it
/// work. On a path with a smaller MTU, IP cuts the datagram into fragments and puts it together again.
pub const MAX_PAYLOAD: usize = 4096;

/// The slot of a connectionless queue pair among the numbers that a port gives.
const SLOT: u32 = 255;

/// The number of the connectionless queue pair with this UDP port: a peer that knows number and address needs nothing else.
pub fn number_of(port: u16) -> u32 {
    u32::from(port) << 8 | SLOT
}

/// The UDP port of the queue pair with this number. Where no connectionless one can be, nothing is received.
fn port_of(number: u32) -> u16 {
    let [_, high, low, _] = number.to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// How many datagrams one thread moves before it looks whether others wait.
const BATCH: usize = 32;

/// What a connectionless queue pair is created with.
#[derive(Clone, Debug)]
pub struct DatagramAttributes {
    /// Its protection domain.
    pub domain: Domain,
    /// Where its send queue's completions go.
    pub send_cq: Arc<Cq>,
    /// Where its receive queue's completions go.
    pub receive_cq: Arc<Cq>,
    /// How many work requests its send queue holds.
    pub send_depth: usize,
    /// How many receives its own queue holds.
    pub receive_depth: usize,
    /// The queue that its receives come from instead.
    pub shared: Option<Arc<SharedReceiveQueue>>,
    /// How many scatter/gather elements a request has at most.
    pub max_sges: usize,
    /// Its key: only datagrams that carry it are received.
    pub qkey: u32,
}

/// What was dropped, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Came in, and was no datagram of ours, or longer than one may be, or not from the port that its sender names.
    pub malformed: u64,
    /// Came from another release of Ironwarp, which requires something that this one does not know.
    pub other_release: u64,
    /// For another queue pair.
    pub other_number: u64,
    /// With another key.
    pub qkey: u64,
    /// While the queue pair was not ready to receive.
    pub not_ready: u64,
    /// While no receive was posted.
    pub no_receive: u64,
    /// Was sent, and the network of this host did not want it.
    pub lost: u64,
}

/// A connectionless queue pair.
#[derive(Debug)]
pub struct DatagramQp {
    id: u32,
    /// Itself, for who calls it when memory is registered.
    me: Weak<Self>,
    device: Arc<Device>,
    attributes: DatagramAttributes,
    link: Arc<dyn DatagramLink>,
    /// The state, for those who only look. Changes with `life` locked.
    state: AtomicU8,
    life: Mutex<Life>,
    qkey: AtomicU32,
    sq: Mutex<SendQueue>,
    rq: Mutex<ReceiveQueue>,
    tx: Half<()>,
    rx: Half<()>,
    /// The link had no room, and has not been tried since it said that it has.
    blocked: AtomicBool,
    /// A completion queue had no room.
    overrun: AtomicBool,
    /// It was told that no receive of a shared queue is used any more.
    last_receive: AtomicBool,
    drops: [AtomicU64; Dropped::COUNT],
}

/// Why a queue pair does not work.
#[derive(Debug, Default)]
struct Life {
    /// Why it is in the error state.
    fault: Option<Arc<Fault>>,
    /// Why its send queue is.
    send_fault: Option<Arc<Fault>>,
}

/// Why something was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dropped {
    Malformed,
    OtherRelease,
    OtherNumber,
    Qkey,
    NotReady,
    NoReceive,
    Lost,
}

impl Dropped {
    const COUNT: usize = Self::Lost as usize + 1;
}

impl DatagramQp {
    /// A queue pair with this number, in the state [`State::Reset`].
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
            life: Mutex::default(),
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

    /// Its number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// What it was created with.
    pub fn attributes(&self) -> &DatagramAttributes {
        &self.attributes
    }

    /// Where it is in its life.
    pub fn state(&self) -> State {
        State::from_bits(self.state.load(Ordering::Acquire))
    }

    /// Why it is in the error state, or its send queue is.
    pub fn fault(&self) -> Option<Arc<Fault>> {
        let life = lock(&self.life);
        life.fault.clone().or_else(|| life.send_fault.clone())
    }

    /// Its key.
    pub fn qkey(&self) -> u32 {
        self.qkey.load(Ordering::Relaxed)
    }

    /// From now on only datagrams that carry this key are received.
    pub fn set_qkey(&self, qkey: u32) {
        self.qkey.store(qkey, Ordering::Relaxed);
    }

    /// What was dropped so far.
    pub fn drops(&self) -> Drops {
        let count = |why: Dropped| self.drops[why as usize].load(Ordering::Relaxed);
        Drops {
            malformed: count(Dropped::Malformed),
            other_release: count(Dropped::OtherRelease),
            other_number: count(Dropped::OtherNumber),
            qkey: count(Dropped::Qkey),
            not_ready: count(Dropped::NotReady),
            no_receive: count(Dropped::NoReceive),
            lost: count(Dropped::Lost),
        }
    }

    // --- States ---

    /// Moves it to another state. After [`State::Reset`] its queues are empty, and completions that were not polled are
    /// taken back.
    pub fn modify(&self, to: State) -> Result<(), IllegalTransition> {
        // The half is held: nothing is in the middle of being sent.
        let (moved, _) = self.tx.with(|()| self.move_to(to));
        moved?;
        match to {
            State::Reset => self.clear(),
            State::Drained => self.device.raise(AsyncEvent::SqDrained(self.id)),
            _ => {}
        }
        // What waited goes on, or is flushed; also what others left to this thread.
        self.drive_tx();
        self.drive_rx();
        Ok(())
    }

    fn move_to(&self, to: State) -> Result<(), IllegalTransition> {
        if self.state() == State::SendError && to == State::ReadyToSend {
            self.flush_sends(); // what was posted before this is not sent after it
        }
        let mut life = lock(&self.life);
        let from = self.state();
        if !from.may_become(to) {
            return Err(IllegalTransition { from, to });
        }
        match to {
            State::Error if life.fault.is_none() => life.fault = Some(Arc::new(Fault::Moved)),
            State::Reset => *life = Life::default(),
            State::ReadyToSend => life.send_fault = None,
            _ => {}
        }
        self.state.store(to as u8, Ordering::Release);
        Ok(())
    }

    /// Nothing of what was before the reset is left.
    fn clear(&self) {
        // Whoever receives has seen the new state when this is over.
        let ((), _) = self.rx.with(|()| ());
        lock(&self.sq).take_all();
        lock(&self.rq).clear();
        let DatagramAttributes { send_cq, receive_cq, .. } = &self.attributes;
        send_cq.purge(self.id);
        receive_cq.purge(self.id);
        self.overrun.store(false, Ordering::Relaxed);
        self.last_receive.store(false, Ordering::Relaxed);
    }

    /// It is over. The first reason counts.
    fn fail(&self, fault: Fault) {
        let mut life = lock(&self.life);
        if matches!(self.state(), State::Reset | State::Error) {
            return;
        }
        tracing::debug!(qp = self.id, %fault, "connectionless queue pair failed");
        life.fault = Some(Arc::new(fault));
        self.state.store(State::Error as u8, Ordering::Release);
    }

    /// A request failed: the send queue stops, and the receive queue goes on (SQE).
    fn fail_sends(&self, fault: &Arc<Fault>) {
        let mut life = lock(&self.life);
        if matches!(self.state(), State::ReadyToSend | State::Drained) {
            life.send_fault = Some(Arc::clone(fault));
            self.state.store(State::SendError as u8, Ordering::Release);
        }
    }

    // --- Posting ---

    /// Posts requests to the send queue, all or none, and sends what can be sent at once.
    pub fn post_send(&self, requests: Vec<DatagramRequest>) -> Result<(), PostError> {
        let mut sq = lock(&self.sq);
        // Under the lock: a reset that comes now finds them, or this finds the reset.
        let state = self.state();
        if matches!(state, State::Reset | State::Init | State::ReadyToReceive) {
            return Err(PostError::State(state));
        }
        sq.post(&*self.link, requests)?;
        drop(sq);
        self.drive_tx();
        Ok(())
    }

    /// Posts a receive: room for 40 bytes of GRH, and for the message behind them.
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
        // No datagram waits for it. But looked at again, or it could miss the flush.
        if self.state() == State::Error {
            self.drive_rx();
        }
        Ok(())
    }

    // --- Driving ---

    /// Moves what can be moved. Called when the link has changed, by whoever found out.
    ///
    /// A socket for datagrams tells of room for every one that has left. Unless that was waited for, it is nobody's business: a
    /// request would be left to whoever looks, and not be done when the call that posts it returns.
    pub fn drive(&self, ready: Ready) {
        if ready.writable && self.blocked.swap(false, Ordering::SeqCst) {
            self.drive_tx();
        }
        if ready.readable {
            self.drive_rx();
        }
    }

    /// Goes on where it was left with work.
    pub fn go_on(&self) {
        self.drive_tx();
        self.drive_rx();
    }

    fn drive_tx(&self) {
        let left = self.tx.run(ROUNDS, |()| self.survive("sending datagrams", || self.transmit()));
        self.pass_on(left);
    }

    fn drive_rx(&self) {
        let left = self.rx.run(ROUNDS, |()| self.survive("receiving datagrams", || self.receive()));
        if self.state() == State::Error {
            self.drive_tx(); // requests that wait for room are flushed
        }
        self.pass_on(left);
    }

    /// Does `round`. After a panic the queue pair is over; a second one, while its requests are flushed, is not followed by a third.
    fn survive(&self, doing: &'static str, round: impl FnOnce() -> Left) -> Left {
        bug::catch(doing, round).unwrap_or_else(|bug| {
            tracing::error!(qp = self.id, %bug, "connectionless queue pair failed");
            if self.state() != State::Error {
                self.fail(Fault::Bug(bug));
                self.device.raise(AsyncEvent::QpFatal(self.id));
                self.link.call_again();
            }
            Left::Nothing
        })
    }

    fn pass_on(&self, left: Left) {
        // Requirement I5: what does not fit is never lost silently; the queue pair ends for it.
        if self.overrun.swap(false, Ordering::Relaxed) {
            let DatagramAttributes { send_cq, receive_cq, .. } = &self.attributes;
            let cq = if send_cq.overrun() { send_cq } else { receive_cq };
            self.fail(Fault::Overrun(cq.id()));
            self.device.raise(AsyncEvent::QpFatal(self.id));
            self.link.call_again();
        }
        if left == Left::Work {
            self.link.call_again();
        }
    }

    fn complete(&self, cq: &Cq, completion: Completion) {
        if cq.push(completion).is_err() && self.state() != State::Error {
            self.overrun.store(true, Ordering::Relaxed);
        }
    }

    fn dropped(&self, why: Dropped) {
        self.drops[why as usize].fetch_add(1, Ordering::Relaxed);
    }
}
