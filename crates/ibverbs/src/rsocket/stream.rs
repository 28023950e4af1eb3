//! A connection: its queue pair, its rings, what each end may send, and how it ends. Before this: `setup`, which dialled, or
//! `listen`; after: `transfer`, which moves bytes through the rings.

use super::buffer::Buffer;
use super::iomap::Mappings;
use super::listen::Desk;
use super::options::{Options, RESERVE};
use super::transfer::{Incoming, Outgoing};
use super::wait::{Bell, Waiters};
use super::wire::{Hello, MESSAGE, Message};
use super::{engine, lock};
use crate::errno::Errno;
use ironwarp_engine::{
    CompletionQueue, ConnectionEvent, Engine, Established, QueuePair, QueuePairAttributes, Watcher, What,
};
use ironwarp_rnic::error::Fault;
use ironwarp_rnic::event::CompletionHandler;
use ironwarp_rnic::memory::{Domain, Rights};
use ironwarp_rnic::qp::{Completes, Receives};
use ironwarp_rnic::queue::{
    Arm, Completion, Data, Opcode, Operation, ReceiveRequest, Sge, Sges, Status, WorkRequest,
};
use std::collections::VecDeque;
use std::ffi::c_short;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// So many completions are taken at once.
const BATCH: usize = 64;

/// A connection, from the moment when it is begun.
#[derive(Debug)]
pub(super) struct Stream {
    pair: Arc<QueuePair>,
    cq: Arc<CompletionQueue>,
    handler: Arc<CompletionHandler>,
    events: Arc<Events>,
    waiters: Arc<Waiters>,
    domain: Domain,
    hello: Hello,
    state: Mutex<State>,
    /// Counts what changed it from outside.
    version: AtomicU64,
}

/// What the lanes say of a connection. They say it on their threads, or on one that polls: nothing is done but to note it.
#[derive(Debug)]
struct Events {
    news: Mutex<VecDeque<What>>,
    waiters: Arc<Waiters>,
    /// Where it was accepted.
    desk: Option<Weak<Desk>>,
}

impl Watcher<ConnectionEvent> for Events {
    fn tell(&self, event: ConnectionEvent) {
        let what = event.what.clone();
        lock(&self.news).push_back(event.what);
        if let Some(desk) = self.desk.as_ref().and_then(Weak::upgrade) {
            desk.tell_of(event.qp, &what);
        }
        self.waiters.wake();
    }
}

/// How far it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Connecting,
    Connected,
    /// There was no connection, or there is none any more.
    Over,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) phase: Phase,
    /// It was never connected.
    pub(super) failed: bool,
    /// What a call has not told yet.
    pub(super) error: Option<Errno>,
    /// A `rconnect` was told that it is connected.
    pub(super) announced: bool,
    pub(super) established: Option<Arc<Established>>,
    pub(super) out: Outgoing,
    pub(super) incoming: Incoming,
    pub(super) mappings: Mappings,
    /// Where the peer's messages arrive.
    slots: Buffer,
}

impl Stream {
    /// A queue pair with all that it needs, not connected yet.
    pub(super) fn new(
        options: &Options,
        waiters: &Arc<Waiters>,
        desk: Option<Weak<Desk>>,
    ) -> Result<Arc<Self>, Errno> {
        let engine = engine()?;
        // A domain for each: no other peer reaches this one's memory.
        let domain = engine.device().allocate_domain();
        let depths = options.send_queue as usize + options.receive_queue as usize;
        let cq = engine.create_cq(depths)?;
        let handler = engine.device().create_private_handler(Box::new(Bell(Arc::clone(waiters))));
        cq.cq().set_handler(Some(Arc::clone(&handler)));
        let events = Arc::new(Events { news: Mutex::default(), waiters: Arc::clone(waiters), desk });
        let pair = engine.create_qp(QueuePairAttributes {
            send_depth: options.send_queue as usize,
            receives: Receives::Own(options.receive_queue as usize),
            max_sges: 1,
            // The peer has room for all that is sent, so there is nothing that it could say of it.
            completes: Completes::WhenSent,
            rights: Rights::REMOTE_WRITE,
            events: Some(Arc::<Events>::clone(&events)),
            ..QueuePairAttributes::new(domain, &cq)
        })?;
        let state = State::new(engine, domain, options)?;
        for slot in 0..options.receive_queue {
            pair.qp().post_receive(state.receive(slot.into()))?;
        }
        let hello = Hello {
            ring: state.incoming.tag(),
            len: options.receive_buffer,
            messages: options.receive_queue - RESERVE,
            mappings: options.mappings,
        };
        let (state, waiters) = (Mutex::new(state), Arc::clone(waiters));
        Ok(Arc::new(Self {
            pair,
            cq,
            handler,
            events,
            waiters,
            domain,
            hello,
            state,
            version: AtomicU64::new(0),
        }))
    }

    pub(super) fn pair(&self) -> &Arc<QueuePair> {
        &self.pair
    }

    pub(super) fn waiters(&self) -> &Arc<Waiters> {
        &self.waiters
    }

    pub(super) fn domain(&self) -> Domain {
        self.domain
    }

    /// What the peer is told with the connection.
    pub(super) fn hello(&self) -> Vec<u8> {
        self.hello.to_bytes()
    }

    /// As it is. Nothing that happened since is looked at.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// As it is after all completions that are there.
    pub(super) fn current(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        if state.phase == Phase::Connecting {
            self.refresh(&mut state);
        } else if !self.cq.cq().is_empty() {
            self.take_completions(&mut state, false);
        }
        state
    }

    /// As it is after all that its socket has.
    pub(super) fn latest(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        self.refresh(&mut state);
        state
    }

    /// Looks at all that its socket has.
    pub(super) fn refresh(&self, state: &mut State) {
        // What comes before the end is in the completion queue when the end is told.
        let news = std::mem::take(&mut *lock(&self.events.news));
        let any = !news.is_empty();
        let mut end = None;
        for what in news {
            match what {
                What::Connected(established) => self.connected(state, established),
                What::Failed(error) => {
                    (state.failed, state.error) = (true, Some(Errno::from(&*error)));
                    state.phase = Phase::Over;
                }
                What::Ended(fault) => end = Some(fault),
                _ => {}
            }
        }
        self.take_completions(state, true);
        if let Some(fault) = end {
            self.ended(state, &fault);
        }
        if any {
            self.changed();
        }
        if state.mappings.any() {
            // The program may watch its memory now, and call nothing: the lanes go on at once.
            let _ = self.cq.arm(Arm::Next);
        }
    }

    fn changed(&self) {
        self.version.fetch_add(1, Ordering::SeqCst);
        self.waiters.wake_others();
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    /// Moves what the socket has. Whether there may be something new since that version.
    pub(super) fn glance(&self, version: u64) -> bool {
        self.cq.progress();
        self.version() != version || !self.cq.cq().is_empty() || !lock(&self.events.news).is_empty()
    }

    fn connected(&self, state: &mut State, established: Arc<Established>) {
        if let Some(hello) = Hello::from_bytes(&established.private_data) {
            state.out.connected(&hello);
            state.mappings.connected(&hello);
            (state.phase, state.established) = (Phase::Connected, Some(established));
        } else {
            // Whatever answered there, it is no socket over RDMA.
            tracing::warn!(peer = %established.peer, "the peer is no rsocket of Ironwarp's");
            (state.failed, state.error) = (true, Some(Errno(libc::ECONNREFUSED)));
            state.phase = Phase::Over;
            self.pair.disconnect();
        }
    }

    fn ended(&self, state: &mut State, fault: &Fault) {
        state.phase = Phase::Over;
        // A peer that said that no more comes has closed as it should.
        if state.incoming.ended() || matches!(fault, Fault::Disconnected) {
            return;
        }
        tracing::info!(qp = self.pair.id(), "an rsocket's connection ended: {fault}");
        state.error.get_or_insert(match fault {
            Fault::Lost(errno) => Errno(*errno),
            Fault::TimedOut(_) => Errno(libc::ETIMEDOUT),
            Fault::Closed | Fault::CutShort => Errno(libc::ECONNRESET),
            _ => Errno(libc::ECONNABORTED),
        });
    }

    /// The peer does not keep to what `wire` says.
    fn broken(&self, state: &mut State) {
        tracing::warn!(qp = self.pair.id(), "the peer of an rsocket broke the rules; the connection is cut");
        state.error.get_or_insert(Errno(libc::EPROTO));
        state.phase = Phase::Over;
        self.pair.disconnect();
    }

    /// Takes completions. `all`: those that the socket still has, too.
    fn take_completions(&self, state: &mut State, all: bool) {
        let mut any = false;
        loop {
            let mut batch = Vec::new();
            let polled = match all {
                true => self.cq.poll(BATCH, |completion| batch.push(completion)),
                false => self.cq.cq().poll(BATCH, |completion| batch.push(completion)),
            };
            if batch.is_empty() {
                if polled.is_err() {
                    self.broken(state);
                }
                break;
            }
            any = true;
            for completion in batch {
                self.completed(state, &completion);
            }
        }
        if any {
            self.give_credit(state);
            self.changed();
        }
    }

    fn completed(&self, state: &mut State, completion: &Completion) {
        let slot = completion.wr_id;
        match completion.opcode {
            Opcode::Receive | Opcode::ReceiveWrite if completion.status != Status::Success => {}
            Opcode::Receive => {
                let message = (completion.byte_len as usize == MESSAGE)
                    .then(|| state.slots.read::<MESSAGE>(place(slot)))
                    .and_then(Message::from_bytes);
                let counts = matches!(message, Some(Message::Mapped { .. } | Message::Unmapped { .. }));
                match message {
                    Some(message) if state.heard(message) => self.receive_again(state, slot, counts),
                    _ => self.broken(state),
                }
            }
            Opcode::ReceiveWrite => match completion.immediate {
                Some(len) if len == completion.byte_len && state.incoming.arrived(len) => {
                    self.receive_again(state, slot, true);
                }
                _ => self.broken(state),
            },
            // Its buffer is free again, even if it failed.
            _ => state.out.sent(completion.wr_id),
        }
    }

    fn receive_again(&self, state: &mut State, slot: u64, counts: bool) {
        if counts && !state.incoming.message_received() {
            return self.broken(state);
        }
        // Refused only when the connection is over.
        let _ = self.pair.qp().post_receive(state.receive(slot));
    }

    /// Tells the peer what was read, if it is worth it.
    pub(super) fn give_credit(&self, state: &mut State) {
        if state.phase == Phase::Connected
            && state.out.may_say_more()
            && let Some(credit) = state.incoming.credit_due()
        {
            let _ = self.say(state, credit);
        }
    }

    /// Sends a message that is no data. The caller has seen that there is room for it.
    pub(super) fn say(&self, state: &mut State, message: Message) -> Result<(), Errno> {
        let data = Data::Inline(message.to_bytes().as_slice().into());
        self.post(state, WorkRequest::new(0, Operation::Send { invalidate: None }, data))
    }

    /// Posts a request, whose number is how much of the send ring it uses.
    pub(super) fn post(&self, state: &mut State, request: WorkRequest) -> Result<(), Errno> {
        match self.pair.post_send(vec![request]) {
            Ok(()) => {
                state.out.posted();
                Ok(())
            }
            // The connection is over, and the next look will tell why.
            Err(_) => Err(Errno(libc::EPIPE)),
        }
    }

    /// Asks to be told when something changes. True: something may have.
    pub(super) fn arm(&self) -> bool {
        while self.handler.next().is_some() {}
        self.cq.arm(Arm::Next)
    }

    /// What poll has to say of it.
    pub(super) fn readiness(&self, wanted: c_short) -> c_short {
        let asked = wanted & (libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM);
        let ready = self.current().readiness();
        if asked & !ready == 0 && asked != 0 { ready } else { self.latest().readiness() }
    }
}

fn place(slot: u64) -> usize {
    usize::try_from(slot).unwrap_or(usize::MAX / MESSAGE).saturating_mul(MESSAGE)
}

impl State {
    pub(super) fn new(engine: &Arc<Engine>, domain: Domain, options: &Options) -> Result<Self, Errno> {
        let local = Rights::LOCAL_READ | Rights::LOCAL_WRITE;
        let slots = Buffer::new(engine, domain, options.receive_queue as usize * MESSAGE, local)?;
        Ok(Self {
            phase: Phase::default(),
            failed: false,
            error: None,
            announced: false,
            established: None,
            out: Outgoing::new(engine, domain, options)?,
            incoming: Incoming::new(engine, domain, options)?,
            mappings: Mappings::new(options.mappings),
            slots,
        })
    }

    /// Applies a message from the peer. False if it breaks the rules of `wire`.
    pub(super) fn heard(&mut self, message: Message) -> bool {
        match message {
            Message::Credit { bytes, messages } => self.out.credit(bytes, messages),
            Message::End => self.incoming.end(),
            Message::Mapped { offset, len, tag } => self.mappings.add(offset, len, tag),
            Message::Unmapped { tag } => self.mappings.remove(tag),
        }
    }

    fn receive(&self, slot: u64) -> ReceiveRequest {
        let len = u32::try_from(MESSAGE).unwrap_or_default();
        let sge = Sge { tag: self.slots.tag(), addr: place(slot) as u64, len };
        ReceiveRequest { id: slot, buffers: Sges::from(sge) }
    }

    fn readiness(&self) -> c_short {
        const IN: c_short = libc::POLLIN | libc::POLLRDNORM;
        const OUT: c_short = libc::POLLOUT | libc::POLLWRNORM;
        let over = self.phase == Phase::Over;
        if self.phase == Phase::Connecting {
            return 0;
        }
        let mut ready = 0;
        let mut add = |flags: c_short, holds: bool| ready |= if holds { flags } else { 0 };
        add(IN, over || self.incoming.is_readable());
        add(OUT, over || self.out.is_closed() || self.out.room(usize::MAX) > 0);
        add(libc::POLLRDHUP, over || self.incoming.ended());
        // As with TCP, a peer that closed as it should hangs up no more than one that ended its direction.
        let ended = self.incoming.ended();
        add(libc::POLLHUP, if ended { self.out.is_closed() } else { over });
        add(libc::POLLERR, self.error.is_some());
        ready
    }
}
