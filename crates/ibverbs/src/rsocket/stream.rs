//! A connection: its queue pair, its rings, what each end may send, and how it ends.

use super::adapter::engine;
use super::options::{Options, RESERVE};
use super::state::{Phase, State, place};
use super::waiters::{Waiters, WakeWaiters};
use super::wire::{Hello, MESSAGE, Message};
use crate::support::errno::Errno;
use ironwarp_engine::{
    CompletionQueue, ConnectionEvent, ConnectionEventKind, Established, EventSink, QueuePair,
    QueuePairAttributes, QueuePairOptions,
};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::event::CompletionHandler;
use ironwarp_rnic::memory::{Domain, Rights};
use ironwarp_rnic::qp::{Completes, Receives};
use ironwarp_rnic::queue::{Arm, Completion, Data, Opcode, Operation, Status, WorkRequest};
use ironwarp_rnic::sync::lock;
use std::collections::VecDeque;
use std::ffi::c_short;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Maximum number of completions to take at once.
const BATCH: usize = 64;

/// A connection, from the moment it is started.
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
    /// Incremented by every change from outside.
    version: AtomicU64,
}

/// Receives connection events, on the threads of lanes or on one that polls. It only records them.
#[derive(Debug)]
struct Events {
    pending: Mutex<VecDeque<ConnectionEventKind>>,
    waiters: Arc<Waiters>,
    /// The listening socket that accepted it.
    acceptor: Option<Weak<dyn Acceptor>>,
}

/// Accepts connections, and follows them until they are established.
pub(super) trait Acceptor: Send + Sync + std::fmt::Debug {
    /// Something happened to the connection of a queue pair.
    fn connection_changed(&self, qp: u32, what: &ConnectionEventKind);
}

impl EventSink<ConnectionEvent> for Events {
    fn send(&self, event: ConnectionEvent) {
        let what = event.kind.clone();
        lock(&self.pending).push_back(event.kind);
        if let Some(acceptor) = self.acceptor.as_ref().and_then(Weak::upgrade) {
            acceptor.connection_changed(event.qp, &what);
        }
        self.waiters.wake();
    }
}

impl Stream {
    /// Creates a queue pair with its rings, not connected yet.
    pub(super) fn new(
        options: &Options,
        waiters: &Arc<Waiters>,
        acceptor: Option<Weak<dyn Acceptor>>,
    ) -> Result<Arc<Self>, Errno> {
        let engine = engine()?;
        // A domain for each connection, so that no other peer reaches its memory.
        let domain = engine.device().allocate_domain();
        let depths = options.send_queue as usize + options.receive_queue as usize;
        let cq = engine.create_cq(depths)?;
        let handler = engine.device().create_private_handler(Box::new(WakeWaiters(Arc::clone(waiters))));
        cq.cq().set_handler(Some(Arc::clone(&handler)));
        let events = Arc::new(Events { pending: Mutex::default(), waiters: Arc::clone(waiters), acceptor });
        let attributes = QueuePairAttributes {
            send_depth: options.send_queue as usize,
            receives: Receives::Own(options.receive_queue as usize),
            max_sges: 1,
            // The peer has room for everything that is sent, so its acknowledgement would add nothing.
            completes: Completes::WhenSent,
            rights: Rights::REMOTE_WRITE,
            ..QueuePairAttributes::new(domain, &cq)
        };
        let watcher = Some(Arc::<Events>::clone(&events) as _);
        let watched = QueuePairOptions { events: watcher, ..QueuePairOptions::default() };
        let pair = engine.create_qp_with(attributes, watched)?;
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

    /// The private data for the connection.
    pub(super) fn hello(&self) -> Vec<u8> {
        self.hello.to_bytes()
    }

    /// The state, without making progress.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The state, after taking completions that are already there.
    pub(super) fn current(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        if state.phase == Phase::Connecting {
            self.refresh(&mut state);
        } else if !self.cq.cq().is_empty() {
            self.take_completions(&mut state, false);
        }
        state
    }

    /// The state, after making progress.
    pub(super) fn latest(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        self.refresh(&mut state);
        state
    }

    /// Makes progress: takes everything that the TCP socket has.
    pub(super) fn refresh(&self, state: &mut State) {
        // Everything before the end is in the completion queue when the end is reported.
        let pending = std::mem::take(&mut *lock(&self.events.pending));
        let any = !pending.is_empty();
        let mut end = None;
        for what in pending {
            match what {
                ConnectionEventKind::Connected(established) => self.connected(state, established),
                ConnectionEventKind::Failed(error) => {
                    (state.failed, state.error) = (true, Some(Errno::from(&*error)));
                    state.phase = Phase::Over;
                }
                ConnectionEventKind::Ended(error) => end = Some(error),
                _ => {}
            }
        }
        self.take_completions(state, true);
        if let Some(error) = end {
            self.ended(state, &error);
        }
        if any {
            self.changed();
        }
        if state.mappings.any() {
            // The program may now watch its memory without making calls, so the lanes take over at once.
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

    /// Makes progress. Returns whether something may have changed since that version.
    pub(super) fn may_have_changed(&self, version: u64) -> bool {
        self.cq.progress();
        self.version() != version || !self.cq.cq().is_empty() || !lock(&self.events.pending).is_empty()
    }

    fn connected(&self, state: &mut State, established: Arc<Established>) {
        if let Some(hello) = Hello::from_bytes(&established.private_data) {
            state.out.connected(&hello);
            state.mappings.connected(&hello);
            (state.phase, state.established) = (Phase::Connected, Some(established));
        } else {
            // Whatever answered, it is not an rsocket.
            tracing::warn!(peer = %established.peer, "the peer is not an rsocket of Ironwarp");
            (state.failed, state.error) = (true, Some(Errno(libc::ECONNREFUSED)));
            state.phase = Phase::Over;
            self.pair.disconnect();
        }
    }

    fn ended(&self, state: &mut State, error: &QpError) {
        state.phase = Phase::Over;
        // After the end of its data, the peer has closed properly.
        if state.incoming.ended() || matches!(error, QpError::Disconnected) {
            return;
        }
        tracing::info!(qp = self.pair.id(), "the connection of an rsocket ended: {error}");
        state.error.get_or_insert(match error {
            QpError::Lost(errno) => Errno(*errno),
            QpError::TimedOut(_) => Errno(libc::ETIMEDOUT),
            QpError::Closed | QpError::CutShort => Errno(libc::ECONNRESET),
            _ => Errno(libc::ECONNABORTED),
        });
    }

    /// The peer violated the protocol of `wire`.
    fn violated(&self, state: &mut State) {
        tracing::warn!(qp = self.pair.id(), "closed an rsocket: the peer violated the protocol");
        state.error.get_or_insert(Errno(libc::EPROTO));
        state.phase = Phase::Over;
        self.pair.disconnect();
    }

    /// Takes completions. With `all`, makes progress first.
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
                    self.violated(state);
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
                    Some(message) if state.apply(message) => self.receive_again(state, slot, counts),
                    _ => self.violated(state),
                }
            }
            Opcode::ReceiveWrite => match completion.immediate {
                Some(len) if len == completion.byte_len && state.incoming.arrived(len) => {
                    self.receive_again(state, slot, true);
                }
                _ => self.violated(state),
            },
            // The buffer is free again, even if the request failed.
            _ => state.out.sent(completion.wr_id),
        }
    }

    fn receive_again(&self, state: &mut State, slot: u64, counts: bool) {
        if counts && !state.incoming.message_received() {
            return self.violated(state);
        }
        // Refused only after the connection has ended.
        let _ = self.pair.qp().post_receive(state.receive(slot));
    }

    /// Gives the peer credit, if it is due.
    pub(super) fn give_credit(&self, state: &mut State) {
        if state.phase == Phase::Connected
            && state.out.may_send_control()
            && let Some(credit) = state.incoming.credit_due()
        {
            let _ = self.send_control(state, credit);
        }
    }

    /// Sends a control message. The caller has checked that there is room for it.
    pub(super) fn send_control(&self, state: &mut State, message: Message) -> Result<(), Errno> {
        let data = Data::Inline(message.to_bytes().as_slice().into());
        self.post(state, WorkRequest::new(0, Operation::Send { invalidate: None }, data))
    }

    /// Posts a request, whose identifier is the number of bytes that it uses in the send ring.
    pub(super) fn post(&self, state: &mut State, request: WorkRequest) -> Result<(), Errno> {
        match self.pair.post_send(vec![request]) {
            Ok(()) => {
                state.out.posted();
                Ok(())
            }
            // The connection has ended, and the next call finds out why.
            Err(_) => Err(Errno(libc::EPIPE)),
        }
    }

    /// Has the next change wake the waiters. Returns true if it may have happened already.
    pub(super) fn arm(&self) -> bool {
        while self.handler.try_next().is_some() {}
        self.cq.arm(Arm::Next)
    }

    /// The events of poll that are ready.
    pub(super) fn readiness(&self, wanted: c_short) -> c_short {
        let asked = wanted & (libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM);
        let ready = self.current().readiness();
        if asked & !ready == 0 && asked != 0 { ready } else { self.latest().readiness() }
    }
}
