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
//! Order: a half before `sq`, `rq`, `owed`; these never two at a time; a completion queue last.

use crate::connect::{Agreed, Setup};
use crate::device::Device;
use crate::error::{Fault, PostError};
use crate::fault::Asks;
use crate::half::{Half, Left};
use crate::link::Link;
use crate::memory::{Domain, Stream};
use crate::queue::{
    Completion, Cq, Opcode, Receive, ReceiveQueue, ReceiveRequest, SendQueue, Status, WorkRequest,
};
use crate::stream::{Owed, Rx, Tx};
use crate::sync::{Mutex, lock};
use ironwarp_wire::private::Capabilities;
use ironwarp_wire::{Terminate, ddp::DdpHeader};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

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
    /// How many work requests its receive queue holds.
    pub receive_depth: usize,
    /// How many scatter/gather elements a request has at most.
    pub max_sges: usize,
    /// When Sends and Writes complete.
    pub completes: Completes,
}

/// Whoever drives a connected queue pair: a lane, or the simulator.
pub trait Attendant: Send + Sync + fmt::Debug {
    /// A half has work that nobody took on: [`Qp::drive`] is to be called soon.
    fn call_again(&self);
    /// The peer's first message came.
    fn opened(&self);
    /// The stream is over: nothing more is delivered. The link goes on until [`closed`](Self::closed).
    fn ended(&self, fault: &Arc<Fault>);
    /// Both directions of the link are closed.
    fn closed(&self);
}

/// Where a queue pair is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not connected. Receives may be posted.
    Idle,
    /// Connected.
    Connected,
    /// Being disconnected by this end: what was posted is still sent.
    Closing,
    /// Over. Whatever is posted is flushed.
    Ended,
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    id: u32,
    device: Arc<Device>,
    attributes: Attributes,
    state: AtomicU8,
    /// Why the stream ended: the first reason counts.
    fault: OnceLock<Arc<Fault>>,
    attendant: OnceLock<Arc<dyn Attendant>>,
    /// Whether receives are withheld on purpose.
    asks: OnceLock<Asks>,
    /// Which directions of the link are closed.
    closed: AtomicU8,
    /// A completion queue had no room.
    overrun: AtomicBool,
    /// The link has changed, which is told once: whoever holds the rx half receives all there is.
    drain: AtomicBool,
    /// Messages wait for a receive.
    waiting: AtomicBool,
    /// Something was delivered since somebody last asked.
    debt: AtomicBool,
    /// The link did not take all there was to send.
    blocked: AtomicBool,
    pub(crate) sq: Mutex<SendQueue>,
    pub(crate) rq: Mutex<ReceiveQueue>,
    pub(crate) owed: Mutex<Owed>,
    tx: Half<Option<Tx>>,
    rx: Half<Option<Rx>>,
}

const IDLE: u8 = 0;
const CONNECTED: u8 = 1;
const CLOSING: u8 = 2;
const ENDED: u8 = 3;

/// Bits of `Qp::closed`.
const OUT: u8 = 1;
const IN: u8 = 2;
const BOTH: u8 = OUT | IN;

/// What the link has for a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// There may be something to receive.
    pub readable: bool,
    /// There may be room to send.
    pub writable: bool,
}

impl Qp {
    /// A queue pair with this number.
    pub fn new(id: u32, device: &Arc<Device>, attributes: Attributes) -> Arc<Self> {
        let Attributes { send_depth, receive_depth, max_sges, completes, .. } = attributes;
        Arc::new(Self {
            id,
            device: Arc::clone(device),
            state: AtomicU8::new(IDLE),
            fault: OnceLock::new(),
            attendant: OnceLock::new(),
            asks: OnceLock::new(),
            closed: AtomicU8::new(0),
            overrun: AtomicBool::new(false),
            drain: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            debt: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            sq: Mutex::new(SendQueue::new(send_depth, max_sges, completes)),
            rq: Mutex::new(ReceiveQueue::new(receive_depth, max_sges)),
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
        match self.state.load(Ordering::Acquire) {
            IDLE => State::Idle,
            CONNECTED => State::Connected,
            CLOSING => State::Closing,
            _ => State::Ended,
        }
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
        let _ = self.asks.set(asks);
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
        let rx = Rx::new(Arc::clone(link), agreed, config.park, early);
        let tx = Tx::new(Arc::clone(link), agreed.send, agreed.ord);
        // Nobody drives yet what is not there yet.
        let _ = self.rx.with(|half| *half = Some(rx));
        let _ = self.tx.with(|half| *half = Some(tx));
        self.state.store(CONNECTED, Ordering::Release);
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

    /// Sends what was posted, then closes. No more can be posted.
    pub fn disconnect(&self) {
        let closing = self.state.compare_exchange(CONNECTED, CLOSING, Ordering::AcqRel, Ordering::Acquire);
        if closing.is_ok() {
            lock(&self.owed).finish = true;
            self.drive_tx();
        }
    }

    /// Ends the stream at once, for a reason that lies outside it.
    pub fn abort(&self, fault: Fault) {
        self.fail(fault, None, None);
        self.drive_rx();
    }

    /// Lets go of the link, whose two directions are closed.
    pub fn release(&self) {
        let (_, left) = self.tx.with(|half| *half = None);
        self.pass_on(left);
        let (_, left) = self.rx.with(|half| *half = None);
        if left == Left::Work {
            self.drive_rx(); // a receive that was posted meanwhile is flushed
        }
    }

    // --- Posting ---

    /// Posts requests to the send queue, all or none, and sends what can be sent at once.
    pub fn post_send(&self, requests: Vec<WorkRequest>) -> Result<(), PostError> {
        match self.state() {
            State::Idle | State::Closing => return Err(PostError::NotConnected),
            State::Connected | State::Ended => {}
        }
        let mut sq = lock(&self.sq);
        sq.post(requests)?;
        if let Some(fault) = self.fault.get() {
            sq.fail(self.id, None, fault, |completion| self.complete_send(completion));
            return Ok(());
        }
        drop(sq);
        self.drive_tx();
        Ok(())
    }

    /// Posts a receive.
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        lock(&self.rq).post(request)?;
        // A message may be waiting for it; or the stream is over, and it is flushed. The rx half says that a message waits
        // before it looks for a receive for the last time: under the lock of the queue, one of the two comes first.
        if self.waiting.load(Ordering::Acquire) || self.fault.get().is_some() {
            self.drive_rx();
            // Nobody who drives is about to go idle for it.
            self.acknowledge();
        }
        Ok(())
    }

    // --- Driving ---

    /// Moves what can be moved. Called when the link has changed, by whoever found out: the change is told once, so all that
    /// is there is received.
    pub fn drive(&self, ready: Ready) {
        if ready.writable {
            self.drive_tx();
        }
        if ready.readable {
            self.drain.store(true, Ordering::Release);
            self.drive_rx();
        }
    }

    /// Receives what is there, for a caller who does not know whether the link has changed and will ask again soon.
    pub fn poll(&self) {
        self.drive_rx();
    }

    /// Whether the link did not take all there was to send. It tells when it takes more, and asking before is in vain.
    pub fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed)
    }

    /// Whether the peer waits to be told what was delivered.
    pub fn owes_acknowledgement(&self) -> bool {
        lock(&self.owed).owes_acknowledgement()
    }

    /// The same, told once until [`acknowledge`](Self::acknowledge) is called, for whoever keeps a list.
    pub fn comes_to_owe(&self) -> bool {
        // Most polls find nothing new.
        if !self.debt.swap(false, Ordering::SeqCst) {
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
        let left = self.tx.run(|tx| tx.as_mut().map_or(Left::Nothing, |tx| tx.drive(self)));
        self.pass_on(left);
    }

    fn drive_rx(&self) {
        let mut owes = false;
        let left = self.rx.run(|rx| match rx {
            Some(rx) => rx.drive(self, self.drain.swap(false, Ordering::AcqRel), &mut owes),
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

    // --- For the halves ---

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn stream(&self) -> Stream {
        Stream { domain: self.attributes.domain, qp: self.id }
    }

    pub(crate) fn completes(&self) -> Completes {
        self.attributes.completes
    }

    /// What this end tells others of its kind.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::ACKNOWLEDGE | Capabilities::LARGE_FPDU;
        capabilities
            .set(Capabilities::WANTS_ACKNOWLEDGE, self.attributes.completes == Completes::WhenAcknowledged);
        capabilities
    }

    /// No receive is posted, or it is withheld.
    pub(crate) fn lacks_receive(&self) -> bool {
        lock(&self.rq).is_empty() || self.asks.get().is_some_and(Asks::withhold_receive)
    }

    pub(crate) fn set_waiting(&self, waiting: bool) {
        self.waiting.store(waiting, Ordering::Release);
    }

    pub(crate) fn set_debt(&self) {
        self.debt.store(true, Ordering::SeqCst);
    }

    pub(crate) fn set_blocked(&self, blocked: bool) {
        self.blocked.store(blocked, Ordering::Relaxed);
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.state.load(Ordering::Acquire) == ENDED
    }

    pub(crate) fn opened(&self) {
        if let Some(attendant) = self.attendant.get() {
            attendant.opened();
        }
    }

    /// Completes what has its turn on the send queue.
    pub(crate) fn retire(&self) {
        self.retire_from(&mut lock(&self.sq));
    }

    pub(crate) fn retire_from(&self, sq: &mut SendQueue) {
        sq.retire(self.id, |completion| self.complete_send(completion));
    }

    fn complete_send(&self, completion: Completion) {
        self.complete(&self.attributes.send_cq, completion);
    }

    pub(crate) fn complete_receive(&self, completion: Completion) {
        self.complete(&self.attributes.receive_cq, completion);
    }

    /// Requirement I5: what does not fit is never lost silently; the stream ends for it, as soon as no lock is held.
    fn complete(&self, cq: &Cq, completion: Completion) {
        if cq.push(completion).is_err() {
            self.overrun.store(true, Ordering::Relaxed);
        }
    }

    fn fail_if_overrun(&self) {
        if self.overrun.swap(false, Ordering::Relaxed) {
            let Attributes { send_cq, receive_cq, .. } = &self.attributes;
            let cq = if send_cq.overrun() { send_cq } else { receive_cq };
            self.fail(Fault::Overrun(cq.id()), Some(Terminate::LOCAL_CATASTROPHE), None);
        }
    }

    pub(crate) fn complete_receive_failed(&self, receive: &Receive, status: Status, fault: &Fault) {
        let cause = Some(Arc::new(fault.clone()));
        self.complete_receive(Completion::failed(
            receive.request.id,
            Opcode::Receive,
            self.id,
            status,
            cause,
        ));
    }

    /// The stream is over: gives all receives back, first the one in use.
    pub(crate) fn flush_receives(&self, in_use: Option<Receive>) {
        let Some(fault) = self.fault.get() else { return };
        if let Some(receive) = in_use {
            self.complete_receive(crate::queue::flushed(&receive.request, self.id, fault));
        }
        for completion in lock(&self.rq).flush(self.id, fault) {
            self.complete_receive(completion);
        }
    }

    /// The stream is over. The first reason counts.
    pub(crate) fn fail(&self, fault: Fault, terminate: Option<Terminate>, request: Option<(u64, Status)>) {
        let fault = Arc::new(fault);
        if self.fault.set(Arc::clone(&fault)).is_err() {
            return;
        }
        self.state.store(ENDED, Ordering::Release);
        tracing::debug!(qp = self.id, %fault, "stream ended");
        {
            let mut owed = lock(&self.owed);
            owed.terminate = terminate;
            owed.finish = true;
        }
        {
            let mut sq = lock(&self.sq);
            let request = request.or_else(|| blamed(&mut sq, &fault));
            sq.fail(self.id, request, &fault, |completion| self.complete_send(completion));
        }
        if let Some(attendant) = self.attendant.get() {
            attendant.ended(&fault);
            // The receives are the rx half's to give back, and the last word is the tx half's to say.
            attendant.call_again();
        }
    }

    /// The peer closed, as it may.
    pub(crate) fn peer_closed(&self) {
        let closing = self.state() == State::Closing;
        self.fail(if closing { Fault::Disconnected } else { Fault::Closed }, None, None);
    }

    /// Nothing more will be sent.
    pub(crate) fn link_finished(&self) {
        self.link_closed(OUT);
    }

    /// Nothing more will be received.
    pub(crate) fn link_ended(&self) {
        self.link_closed(IN);
    }

    /// Neither.
    pub(crate) fn link_lost(&self) {
        self.link_closed(BOTH);
    }

    fn link_closed(&self, direction: u8) {
        let before = self.closed.fetch_or(direction, Ordering::AcqRel);
        if before != BOTH
            && before | direction == BOTH
            && let Some(attendant) = self.attendant.get()
        {
            attendant.closed();
        }
    }
}

/// This queue pair is, or was, connected: a stream is for once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue pair is, or was, connected: create another one")]
pub struct AlreadyConnected;

/// The request that the peer complains of in its Terminate: the one with the message sequence number, the Write that
/// covers the place, or else the oldest.
fn blamed(sq: &mut SendQueue, fault: &Fault) -> Option<(u64, Status)> {
    let Fault::Terminated(terminate) = fault else { return None };
    let seq = match terminate.offender.header {
        Some(DdpHeader::Untagged(header)) => sq.find_msn(header.msn, header.queue == 1),
        Some(DdpHeader::Tagged(header)) => sq.find_write(header.place),
        None => sq.oldest(),
    };
    if let Some(seq) = seq {
        sq.delivered_before(seq);
    }
    seq.map(|seq| (seq, fault.remote_status()))
}
