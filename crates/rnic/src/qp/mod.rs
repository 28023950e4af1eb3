//! A queue pair (requirement N10): its context, its queues, and the stream that connects it.
//!
//! Threads meet here. A program posts; the program or a lane drives the halves; either may find that the stream is over.
//!
//! | lock | holds | held while |
//! |---|---|---|
//! | `tx`, `rx` | a half of the stream | it is driven; never waited for on the data path |
//! | `sq`, `rq` | posted requests | an entry is added or taken; a completion is pushed |
//! | `owed` | what rx wants tx to send | a field is read or written |
//!
//! Order: a half before `sq`, `rq`, `owed`; these never two at a time; then a shared send queue; a completion queue last.
//!
//! | file | for |
//! |---|---|
//! | here | creating, moving through the states, connecting, posting, driving |
//! | `attributes` | what it is made of, and who attends to it |
//! | `halves` | what a half asks of it while it is driven |
//! | `end` | how requests complete, and how a stream ends |
//! | `stall` | requests and receives whose memory is being registered |
//! | `refusal` | what becomes of it if a registration by work request is refused |

mod attributes;
mod end;
mod halves;
mod refusal;
mod stall;

pub use crate::retry::Retries;
pub use crate::state::{IllegalTransition, State};
pub use attributes::{AlreadyConnected, Attendant, Attributes, Completes, Context, Ready, Receives};
pub use refusal::RegistrationFailure;

use crate::bug;
use crate::connect::{Agreed, Setup};
use crate::device::Device;
use crate::error::{Fault, PostError};
use crate::fault::Asks;
use crate::half::{Half, Left, ROUNDS, TURN};
use crate::link::Link;
use crate::memory::Rights;
use crate::queue::{ReceiveQueue, ReceiveRequest, SendQueue, SharedSendQueue, WorkRequest};
use crate::stream::{Owed, Rx, Tx};
use crate::sync::{Mutex, MutexGuard, lock};
use end::OUT;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// The peer closed.
const GONE: u8 = 1;
/// The same, a moment ago: see [`Qp::retire_empty_writes`].
const JUST_GONE: u8 = 2;

/// There is something to receive.
pub(crate) const CAME: u8 = 1;
/// And the end is there, or behind it.
pub(crate) const ENDED: u8 = 2;
use std::sync::{Arc, OnceLock, Weak};

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    id: u32,
    /// Itself, for those who have to find it again.
    me: Weak<Self>,
    device: Arc<Device>,
    attributes: Attributes,
    state: AtomicU8,
    /// What the peer may do, as bits of [`Rights`].
    rights: AtomicU8,
    /// Being disconnected by this end: what was posted is still sent, and no more can be.
    closing: AtomicBool,
    /// There is a connection.
    linked: AtomicBool,
    /// The peer closed, and the queue pair goes on without: nothing is sent any more. Zero: it did not; or [`GONE`], [`JUST_GONE`].
    gone: AtomicU8,
    /// It was reset: nothing completes any more.
    silent: AtomicBool,
    /// The consumer waits to hear that the send queue is drained.
    draining: AtomicBool,
    /// Why the stream ended: the first reason counts.
    fault: OnceLock<Arc<Fault>>,
    /// A request got a status of its own for it.
    blamed: AtomicBool,
    attendant: OnceLock<Arc<dyn Attendant>>,
    /// Whether receives are withheld on purpose.
    asks: OnceLock<Box<Asks>>,
    /// How long it tries.
    retries: Mutex<Retries>,
    /// Which directions of the link are closed.
    closed: AtomicU8,
    /// A completion queue had no room.
    overrun: AtomicBool,
    /// What the link has told since the rx half was last driven: [`CAME`], [`ENDED`].
    news: AtomicU8,
    /// Messages wait for a receive.
    waiting: AtomicBool,
    /// It was told that no receive of a shared queue is used any more.
    last_receive: AtomicBool,
    /// The shared receive queue that it is put down with, and which will call it: its number and one. Zero: none.
    listed: AtomicU64,
    /// Number of receives that its stream has taken from shared queues (RFC 5042 §6.4.3.1).
    shared_receives: AtomicU64,
    /// The count of the peer's last "not ready" and one. Zero: there was none.
    peer_waits: AtomicU64,
    /// Something was delivered since somebody last asked.
    debt: AtomicBool,
    /// So many messages of the request class were delivered, if their completions may have been seen. What the program posts
    /// after it saw one leaves behind the acknowledgement of that message, though the rx half has not told all yet.
    pub(crate) delivered: AtomicU64,
    /// The link did not take all there was to send.
    blocked: AtomicBool,
    /// Large payload was the last that came.
    pub(crate) bulk: AtomicBool,
    pub(crate) sq: Mutex<SendQueue>,
    pub(crate) rq: Mutex<ReceiveQueue>,
    pub(crate) owed: Mutex<Owed>,
    tx: Half<Option<Tx>>,
    rx: Half<Option<Rx>>,
}

impl Qp {
    /// A queue pair with this number.
    pub fn new(id: u32, device: &Arc<Device>, attributes: Attributes) -> Arc<Self> {
        let Attributes { domain, send_depth, max_sges, completes, rights, .. } = attributes;
        let receive_depth = if let Receives::Own(depth) = attributes.receives { depth } else { 0 };
        let state = if attributes.by_hand { State::Reset } else { State::Init };
        Arc::new_cyclic(|me| Self {
            id,
            me: Weak::clone(me),
            device: Arc::clone(device),
            state: AtomicU8::new(state as u8),
            rights: AtomicU8::new(rights.bits()),
            closing: AtomicBool::new(false),
            linked: AtomicBool::new(false),
            gone: AtomicU8::new(0),
            silent: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            fault: OnceLock::new(),
            blamed: AtomicBool::new(false),
            attendant: OnceLock::new(),
            asks: OnceLock::new(),
            retries: Mutex::new(Retries::default()),
            closed: AtomicU8::new(0),
            overrun: AtomicBool::new(false),
            news: AtomicU8::new(0),
            waiting: AtomicBool::new(false),
            last_receive: AtomicBool::new(false),
            listed: AtomicU64::new(0),
            shared_receives: AtomicU64::new(0),
            peer_waits: AtomicU64::new(0),
            debt: AtomicBool::new(false),
            delivered: AtomicU64::new(0),
            blocked: AtomicBool::new(false),
            bulk: AtomicBool::new(false),
            sq: Mutex::new(SendQueue::new(
                send_depth,
                max_sges,
                completes,
                attributes.shared_send.clone().map(|queue| (queue, Weak::clone(me))),
            )),
            rq: Mutex::new(ReceiveQueue::new(domain, receive_depth, max_sges)),
            owed: Mutex::default(),
            tx: Half::new(None),
            rx: Half::new(None),
            attributes,
        })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// What it was created with.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Where it is in its life.
    pub fn state(&self) -> State {
        State::from_bits(self.state.load(Ordering::Acquire))
    }

    /// Whether this end is closing its connection: what was posted is still sent.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Whether there is a connection.
    pub fn is_linked(&self) -> bool {
        self.linked.load(Ordering::Acquire)
    }

    /// Whether requests wait to be sent, acknowledged or answered.
    pub fn has_work(&self) -> bool {
        !lock(&self.sq).is_idle()
    }

    /// How many requests are not complete, and how many receives of its own wait for a message.
    pub fn queued(&self) -> (usize, usize) {
        (lock(&self.sq).len(), lock(&self.rq).len())
    }

    /// What is to be known of it (requirement N10).
    pub fn query(&self) -> Context {
        Context {
            id: self.id,
            state: self.state(),
            attributes: self.attributes.clone(),
            rights: self.rights(),
            linked: self.is_linked(),
            retries: self.retries(),
            fault: self.fault.get().cloned(),
        }
    }

    fn rights(&self) -> Rights {
        Rights::from_bits_truncate(self.rights.load(Ordering::Relaxed))
    }

    // --- States ---

    /// Moves it to another state. To start over after [`State::Reset`] takes a new queue pair, with the same number:
    /// [`reset`](Self::reset).
    pub fn modify(&self, to: State) -> Result<(), IllegalTransition> {
        let mut from = self.state();
        loop {
            if !from.may_become(to) {
                return Err(IllegalTransition { from, to });
            }
            if to == State::Error {
                let live = self.drain();
                self.abort(Fault::Moved);
                if live {
                    self.stop_placing();
                }
                return Ok(());
            }
            if to == State::Drained {
                self.draining.store(true, Ordering::Release);
            }
            let mut sq = lock(&self.sq);
            let moved =
                self.state.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire);
            match moved {
                Ok(_) if to == State::ReadyToSend => {
                    sq.restore();
                    // Nobody waits any more. A refusal may drain it another time, and nobody asked to hear of that.
                    self.draining.store(false, Ordering::Release);
                    break;
                }
                Ok(_) => break,
                Err(now) => from = State::from_bits(now), // the stream failed meanwhile
            }
        }
        self.drive_tx(); // what waited goes on, or is found to be drained
        if !self.is_linked() {
            self.drained_to(0); // nothing was begun
        }
        Ok(())
    }

    /// How long it tries from now on. What it asks of its peer counts if it is set before the connection is there.
    pub fn set_retries(&self, retries: Retries) {
        *lock(&self.retries) = retries;
    }

    /// How long it tries.
    pub fn retries(&self) -> Retries {
        *lock(&self.retries)
    }

    /// What its peer may do from now on, with memory that allows it.
    pub fn set_rights(&self, rights: Rights) {
        self.rights.store(rights.bits(), Ordering::Relaxed);
    }

    /// Ends it without a trace: no request completes any more, and completions that were not polled are taken back. The
    /// connection is closed.
    pub fn reset(&self) {
        self.silent.store(true, Ordering::SeqCst);
        self.drain();
        self.abort(Fault::Moved);
        self.release();
        self.hush();
    }

    /// From now on no request completes any more, and completions that were not polled are taken back: the program destroys
    /// it. What it was asked to send is still sent.
    pub fn hush(&self) {
        self.silent.store(true, Ordering::SeqCst);
        lock(&self.sq).hush(self.id);
        let Attributes { send_cq, receive_cq, .. } = &self.attributes;
        send_cq.purge(self.id);
        receive_cq.purge(self.id);
    }

    /// Whether it has sent all that it will ever send.
    pub fn is_finished(&self) -> bool {
        self.closed.load(Ordering::Acquire) & OUT != 0
    }

    /// Why its stream ended.
    pub fn fault(&self) -> Option<&Arc<Fault>> {
        self.fault.get()
    }

    /// Whether the peer has shown that it is an Ironwarp, too. Its signal comes before its first message.
    pub fn recognised(&self) -> bool {
        lock(&self.owed).peer.is_some()
    }

    // --- Connecting ---

    /// Lets faults withhold receives. Before [`connect`](Self::connect).
    pub fn set_faults(&self, asks: Asks) {
        let _ = self.asks.set(Box::new(asks));
    }

    /// Begins a stream on a link whose startup is done. `early` came behind the startup frame. Drive it after this.
    pub fn connect(
        &self,
        link: &Arc<dyn Link>,
        agreed: &Agreed,
        early: Vec<u8>,
        attendant: Arc<dyn Attendant>,
    ) -> Result<(), AlreadyConnected> {
        self.attendant.set(attendant).map_err(|_| AlreadyConnected)?;
        let config = self.device.config();
        let signal = config.private.then(|| self.capabilities());
        *lock(&self.owed) = Owed::new(agreed, signal);
        if agreed.ord == 0 || agreed.setup == Setup::Unenhanced {
            // A stranger could not be asked what it has; if the peer is no stranger, its signal will say so.
            lock(&self.sq).set_completes(Completes::WhenSent);
        }
        let rx = Rx::new(Arc::clone(link), agreed, early);
        let tx = Tx::new(Arc::clone(link), agreed.send, agreed.ord);
        // Nobody drives yet what is not there yet.
        let _ = self.rx.with(|half| *half = Some(rx));
        let _ = self.tx.with(|half| *half = Some(tx));
        self.linked.store(true, Ordering::Release);
        if !self.attributes.by_hand {
            let (from, to) = (State::Init as u8, State::ReadyToSend as u8);
            let _ = self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        }
        Ok(())
    }

    /// If the peer has sent nothing yet, makes it look once more at what this end began with. Returns whether that was so.
    ///
    /// Linux siw may accept a connection and miss its first messages: those that arrive after its Reply is out, and before
    /// it has told its socket who reads from now on. It finds them when the next one comes. If none does, because this end
    /// waits for an answer, both wait forever.
    pub fn nudge(&self) -> bool {
        let mut owed = lock(&self.owed);
        if !owed.is_unheard() || self.is_ended() {
            return false;
        }
        owed.nudge = true;
        drop(owed);
        self.drive_tx();
        true
    }

    /// Lets a responder speak that has heard nothing: its peer had time to get ready. Returns whether that was so.
    ///
    /// RFC 5044 §7.1.2 has a responder wait for the first FPDU, so that the initiator is ready to receive. Linux siw without
    /// peer-to-peer setup connects for programs that wait for the responder's, all the same; siw as a responder does not wait.
    /// Both would wait for ever.
    pub fn speak_unasked(&self) -> bool {
        let mut owed = lock(&self.owed);
        if owed.open || owed.heard || self.is_ended() {
            return false;
        }
        owed.unasked = true;
        drop(owed);
        self.drive_tx();
        true
    }

    /// Sends what was posted, then closes. No more can be posted.
    pub fn disconnect(&self) {
        if self.is_linked() && !self.is_ended() && !self.closing.swap(true, Ordering::AcqRel) {
            self.drain();
            lock(&self.owed).finish = true;
            self.drive_tx();
            self.drive_rx(); // what waits for a receive is given up, if the peer has closed as well
        }
    }

    /// Receives and acknowledges what has arrived, before this end closes. To hardware, a message has arrived once it is on this host:
    /// its sender must not wait until its retries are exceeded because the link was not read yet. What the peer sends from now on is not
    /// drained, so it cannot delay this end. Returns false if there is no stream, or it has ended.
    fn drain(&self) -> bool {
        if !self.is_linked() || self.is_ended() {
            return false;
        }
        // Whoever receives meanwhile is waited for: its completions may have been seen before their messages were counted.
        let (owes, left) = self.rx.with(|half| {
            let Some(rx) = half else { return false };
            bug::catch("receiving", || rx.drain(self)).unwrap_or_else(|bug| {
                let in_use = half.take().and_then(Rx::abandon);
                self.receiver_failed(bug, in_use);
                true
            })
        });
        if owes {
            self.drive_tx();
        }
        self.acknowledge();
        self.pass_on(left);
        true
    }

    /// The stream is over. Whoever receives meanwhile is waited for: once this returns, nothing is placed in memory any more.
    fn stop_placing(&self) {
        let ((), left) = self.rx.with(|rx| rx.iter_mut().for_each(|rx| rx.give_up(self)));
        if left == Left::Work {
            self.drive_rx();
        }
    }

    /// Ends the stream at once, for a reason that lies outside it.
    pub fn abort(&self, fault: Fault) {
        self.fail(fault, None, None);
        self.drive_rx();
    }

    /// Whether the completion of a request tells why the stream ended. All others are flushed, which says nothing by itself.
    pub fn blames_a_request(&self) -> bool {
        self.blamed.load(Ordering::Acquire)
    }

    /// Lets go of the link, whose two directions are closed.
    pub fn release(&self) {
        self.linked.store(false, Ordering::Release);
        let (_, left) = self.tx.with(|half| *half = None);
        self.pass_on(left);
        let (_, left) = self.rx.with(|half| *half = None);
        if left == Left::Work {
            self.drive_rx(); // a receive that was posted meanwhile is flushed
        }
        self.drive_tx(); // an empty Write may wait
    }

    // --- Posting ---

    /// Posts requests to the send queue, all or none, and sends what can be sent at once.
    pub fn post_send(&self, requests: impl IntoIterator<Item = WorkRequest>) -> Result<(), PostError> {
        self.may_post()?;
        let mut sq = lock(&self.sq);
        sq.post(requests)?;
        self.start(sq);
        Ok(())
    }

    /// The same, from a shared send queue that feeds it (requirement X7).
    pub(crate) fn post_shared(
        &self,
        from: &SharedSendQueue,
        requests: impl IntoIterator<Item = WorkRequest>,
    ) -> Result<(), PostError> {
        self.may_post()?;
        let mut sq = lock(&self.sq);
        sq.post_shared(from, requests)?;
        self.start(sq);
        Ok(())
    }

    #[inline]
    fn may_post(&self) -> Result<(), PostError> {
        match self.state() {
            State::Init if !self.attributes.by_hand => return Err(PostError::NotConnected),
            state @ (State::Reset | State::Init | State::ReadyToReceive) => {
                return Err(PostError::State(state));
            }
            State::Error => {}
            _ if self.is_closing() => return Err(PostError::NotConnected),
            _ => {}
        }
        Ok(())
    }

    /// Requests are in the queue: what can be sent is sent, or all is flushed.
    #[inline]
    fn start(&self, mut sq: MutexGuard<'_, SendQueue>) {
        if let Some(fault) = self.fault.get() {
            sq.fail(self.id, None, fault, |completion| self.complete_send(completion));
            return;
        }
        if sq.is_refusing() {
            sq.flush_posted();
            self.retire_from(&mut sq);
        }
        drop(sq);
        self.drive_tx();
    }

    /// Posts a receive.
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        if !matches!(self.attributes.receives, Receives::Own(_)) {
            return Err(PostError::NoReceiveQueue);
        }
        if self.state() == State::Reset {
            return Err(PostError::State(State::Reset));
        }
        lock(&self.rq).post(request)?;
        // A message may be waiting for it; or the stream is over, and it is flushed. The rx half says that a message waits
        // before it looks for a receive for the last time: under the lock of the queue, one of the two comes first.
        if self.waiting.load(Ordering::Acquire) || self.fault.get().is_some() {
            self.receive_posted();
        }
        Ok(())
    }

    /// A receive was posted that a message may have waited for.
    pub(crate) fn receive_posted(&self) {
        self.drive_rx();
        // Nobody who drives is about to go idle for it.
        self.acknowledge();
    }

    // --- Driving ---

    /// Moves what can be moved. Called when the link has changed, by whoever found out: the change is told once, so all that
    /// is there is received.
    pub fn drive(&self, ready: Ready) {
        self.run(ready, ROUNDS);
    }

    /// The same, but no more than others may wait for. If something is left, its [`Attendant`] hears of it.
    pub fn take_turn(&self, ready: Ready) {
        self.run(ready, TURN);
    }

    fn run(&self, ready: Ready, rounds: usize) {
        if ready.writable {
            self.transmit(rounds);
        }
        if ready.readable {
            let news = if ready.ended { CAME | ENDED } else { CAME };
            self.news.fetch_or(news, Ordering::Release);
            self.look(1, rounds);
        }
    }

    /// Receives what is there, for a caller who does not know whether the link has changed and will ask again soon. Where
    /// nothing is there, looks so many times before it says so.
    pub fn poll(&self, looks: usize) {
        self.look(looks, ROUNDS);
    }

    /// The peer had time to post a receive for the message behind this many: if it has not, the stream ends.
    pub fn receive_is_due(&self, number: u64) {
        if self.awaits_receive() == Some(number) {
            self.abort(Fault::NotReady);
        }
    }

    /// Whether requests of it have succeeded, and the consumer has not polled that yet.
    pub fn has_unseen(&self) -> bool {
        let Attributes { send_cq, receive_cq, .. } = &self.attributes;
        send_cq.has_success_of(self.id) || receive_cq.has_success_of(self.id)
    }

    /// Whether the link did not take all there was to send. It tells when it takes more, and asking before is in vain.
    pub fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed)
    }

    /// Whether large payload was the last that came, and more of it comes as a rule.
    pub fn receives_bulk(&self) -> bool {
        self.bulk.load(Ordering::Relaxed)
    }

    /// Whether the peer waits to be told what was delivered.
    pub fn owes_acknowledgement(&self) -> bool {
        lock(&self.owed).owes_acknowledgement()
    }

    /// The same, told once until [`acknowledge`](Self::acknowledge) is called, for whoever keeps a list.
    pub fn comes_to_owe(&self) -> bool {
        // Most polls find nothing new.
        if !self.debt.load(Ordering::SeqCst) || !self.debt.swap(false, Ordering::SeqCst) {
            return false;
        }
        let mut owed = lock(&self.owed);
        owed.owes_acknowledgement() && !std::mem::replace(&mut owed.noted, true)
    }

    /// The peer shall know what was delivered, though nothing else is to be sent: called before a driver goes idle.
    pub fn acknowledge(&self) {
        let mut owed = lock(&self.owed);
        owed.noted = false;
        if owed.owes_acknowledgement() {
            owed.told = owed.delivered;
            owed.flush = true;
            drop(owed);
            self.drive_tx();
        }
    }

    fn drive_tx(&self) {
        self.transmit(ROUNDS);
    }

    fn transmit(&self, rounds: usize) {
        let left = self.tx.run(rounds, |half| {
            let Some(tx) = half else {
                self.retire_empty_writes();
                return Left::Nothing;
            };
            bug::catch("transmitting", || tx.drive(self)).unwrap_or_else(|bug| {
                *half = None;
                self.transmitter_failed(bug);
                Left::Nothing
            })
        });
        self.pass_on(left);
    }

    fn drive_rx(&self) {
        self.look(1, ROUNDS);
    }

    fn look(&self, looks: usize, rounds: usize) {
        let mut owes = false;
        let left = self.rx.run(rounds, |half| match half {
            Some(rx) => {
                // A mere look, as most polls are: what is missed here is told to a round that follows.
                let news = match self.news.load(Ordering::Acquire) {
                    0 => 0,
                    _ => self.news.swap(0, Ordering::AcqRel),
                };
                bug::catch("receiving", || rx.drive(self, news, looks, &mut owes)).unwrap_or_else(|bug| {
                    let in_use = half.take().and_then(Rx::abandon);
                    self.receiver_failed(bug, in_use);
                    owes = true;
                    Left::Nothing
                })
            }
            None => {
                self.flush_receives(None);
                Left::Nothing
            }
        });
        if owes {
            self.drive_tx();
        }
        self.pass_on(left);
    }

    fn pass_on(&self, left: Left) {
        self.fail_if_overrun();
        if left == Left::Work
            && let Some(attendant) = self.attendant.get()
        {
            attendant.call_again();
        }
    }
}

/// What an idle queue pair takes, besides a few pointers of the engine's: there may be 100,000 of them, and what few of them ever
/// need is not in all of them.
#[cfg(all(test, not(loom), target_pointer_width = "64"))]
#[test]
fn a_queue_pair_stays_small() {
    assert!(size_of::<Qp>() <= 1024, "{}", size_of::<Qp>());
}
