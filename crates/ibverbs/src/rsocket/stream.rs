//! A connection between two sockets: its queue pair, its completion queue, and the progress that calls make on it.
//! How bytes are sent and received is in `transfer.rs`.

use super::adapter::engine;
use super::options::{Options, RESERVE};
use super::state::{Phase, State, slot_offset};
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

/// Maximum number of completions to poll at once.
const MAX_BATCH: usize = 64;

/// A connection, from the moment it is started.
#[derive(Debug)]
pub(super) struct Stream {
    pair: Arc<QueuePair>,
    /// Gets the completions of both directions.
    cq: Arc<CompletionQueue>,
    /// Wakes the waiters when the completion queue is armed and gets a completion.
    handler: Arc<CompletionHandler>,
    events: Arc<Events>,
    /// Threads that wait for this connection.
    waiters: Arc<Waiters>,
    /// Protection domain of the rings and mappings of this connection.
    domain: Domain,
    /// The hello that this end sends.
    hello: Hello,
    state: Mutex<State>,
    /// Number of changes by connection events and completions. Threads that spin compare it.
    version: AtomicU64,
}

/// Receives the connection events of a queue pair, on lanes or on a thread that polls. It only records them:
/// [`Stream::make_progress`] applies them to the state.
#[derive(Debug)]
struct Events {
    pending: Mutex<VecDeque<ConnectionEventKind>>,
    waiters: Arc<Waiters>,
    /// The listening socket that accepted the connection. `None` if this end dialled.
    acceptor: Option<Weak<dyn Acceptor>>,
}

/// A listening socket, which follows the connections that it accepts until they are established.
pub(super) trait Acceptor: Send + Sync + std::fmt::Debug {
    /// Handles an event of an accepted connection, which has this queue pair.
    fn on_connection_event(&self, qp: u32, event: &ConnectionEventKind);
}

impl EventSink<ConnectionEvent> for Events {
    fn send(&self, event: ConnectionEvent) {
        // Recorded first, so that the event is there when the acceptor wakes a thread for this connection.
        lock(&self.pending).push_back(event.kind.clone());
        if let Some(acceptor) = self.acceptor.as_ref().and_then(Weak::upgrade) {
            acceptor.on_connection_event(event.qp, &event.kind);
        }
        self.waiters.wake_all();
    }
}

impl Stream {
    /// Creates a queue pair with its rings and posts its receives. The connection is not started yet.
    pub(super) fn new(
        options: &Options,
        waiters: &Arc<Waiters>,
        acceptor: Option<Weak<dyn Acceptor>>,
    ) -> Result<Arc<Self>, Errno> {
        let engine = engine()?;
        // A domain for each connection, so that no other peer can access its memory.
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
            // Credit ensures that the peer has room for everything that is sent, so its acknowledgement adds
            // nothing.
            completes: Completes::WhenSent,
            rights: Rights::REMOTE_WRITE,
            ..QueuePairAttributes::new(domain, &cq)
        };
        let sink = Some(Arc::<Events>::clone(&events) as _);
        let with_events = QueuePairOptions { events: sink, ..QueuePairOptions::default() };
        let pair = engine.create_qp_with(attributes, with_events)?;
        let mut state = State::new(engine, domain, options)?;
        for slot in 0..options.receive_queue {
            pair.qp().post_receive(state.receive_request(slot.into()))?;
            state.posted_receives += 1;
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

    /// The private data that this end sends to establish the connection.
    pub(super) fn hello(&self) -> Vec<u8> {
        self.hello.to_bytes()
    }

    /// Locks the state, without making progress.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Locks the state, and applies completions that are in the queue already. Does not read the TCP socket, except
    /// while the connection is being established.
    pub(super) fn polled_state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        if state.phase == Phase::Connecting {
            self.make_progress(&mut state);
        } else if !self.cq.cq().is_empty() {
            self.apply_completions(&mut state, Poll::QueueOnly);
        }
        state
    }

    /// Locks the state, and makes progress.
    pub(super) fn progressed_state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        self.make_progress(&mut state);
        state
    }

    /// Makes progress: reads the TCP socket, and applies all completions and connection events to the state.
    pub(super) fn make_progress(&self, state: &mut State) {
        let pending = std::mem::take(&mut *lock(&self.events.pending));
        let any = !pending.is_empty();
        for event in pending {
            match event {
                ConnectionEventKind::Connected(established) => self.on_connected(state, established),
                ConnectionEventKind::Failed(error) => {
                    (state.failed, state.error) = (true, Some(Errno::from(&error)));
                    state.phase = Phase::Over;
                }
                ConnectionEventKind::Ended(error) => state.end = Some(Box::new(error)),
                _ => {}
            }
        }
        self.apply_completions(state, Poll::SocketAndQueue);
        if any {
            self.notify_change();
        }
        if state.mappings.is_any_writable() {
            // The program may watch its memory without making calls, so a lane must serve the socket. Arming hands
            // it to the lane, unless a completion arrived meanwhile: then the lane takes it at its next check.
            let _ = self.cq.arm(Arm::Next);
        }
    }

    /// Increments the version, and wakes the other threads that wait for this connection.
    fn notify_change(&self) {
        self.version.fetch_add(1, Ordering::SeqCst);
        self.waiters.wake_others();
    }

    /// Number of changes so far, for [`may_have_changed`](Self::may_have_changed).
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    /// Reads the TCP socket. Returns whether the state may have changed since `version`, or would change if
    /// completions and events were applied.
    pub(super) fn may_have_changed(&self, version: u64) -> bool {
        self.cq.progress();
        self.version() != version || !self.cq.cq().is_empty() || !lock(&self.events.pending).is_empty()
    }

    /// Updates the state after the connection was established. Ends the connection if the peer is not an rsocket.
    fn on_connected(&self, state: &mut State, established: Established) {
        if let Some(hello) = Hello::from_bytes(&established.private_data) {
            state.out.set_peer(&hello);
            state.mappings.set_peer(&hello);
            (state.phase, state.established) = (Phase::Connected, Some(Box::new(established)));
        } else {
            tracing::warn!(peer = %established.peer, "the peer is not an rsocket of Ironwarp");
            (state.failed, state.error) = (true, Some(Errno(libc::ECONNREFUSED)));
            state.phase = Phase::Over;
            self.pair.disconnect();
        }
    }

    /// Updates the state after the connection has ended. The end is an error unless the peer had announced the end
    /// of its data, or this end has disconnected.
    fn on_ended(&self, state: &mut State, error: &QpError) {
        state.phase = Phase::Over;
        if state.incoming.has_ended() || matches!(error, QpError::Disconnected) {
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

    /// Ends the connection with EPROTO, because the peer violated the protocol of `wire`.
    fn abort_for_violation(&self, state: &mut State) {
        tracing::warn!(qp = self.pair.id(), "closed an rsocket: the peer violated the protocol");
        state.error.get_or_insert(Errno(libc::EPROTO));
        state.phase = Phase::Over;
        self.pair.disconnect();
    }

    /// Polls all completions and applies them to the state. Then gives the peer credit, if it is due.
    fn apply_completions(&self, state: &mut State, poll: Poll) {
        let mut any = false;
        loop {
            let mut batch = Vec::new();
            let polled = match poll {
                Poll::SocketAndQueue => self.cq.poll(MAX_BATCH, |completion| batch.push(completion)),
                Poll::QueueOnly => self.cq.cq().poll(MAX_BATCH, |completion| batch.push(completion)),
            };
            if batch.is_empty() {
                // An overrun. The queue has an entry for every request, so that a correct peer cannot cause one.
                if polled.is_err() {
                    self.abort_for_violation(state);
                }
                break;
            }
            any = true;
            for completion in batch {
                self.apply_completion(state, &completion);
            }
        }
        if any {
            self.give_credit(state);
            self.notify_change();
        }
        // The end of the connection may be reported before the last data completes. All receives complete in the end, in
        // order, because those that are left are flushed.
        if state.posted_receives == 0
            && let Some(error) = state.end.take()
        {
            self.on_ended(state, &error);
            self.notify_change();
        }
    }

    /// Applies a completion: a control message, data that arrived, or a request of this end that was sent.
    fn apply_completion(&self, state: &mut State, completion: &Completion) {
        let slot = completion.wr_id;
        if matches!(completion.opcode, Opcode::Receive | Opcode::ReceiveWrite) {
            state.posted_receives = state.posted_receives.saturating_sub(1);
        }
        match completion.opcode {
            Opcode::Receive | Opcode::ReceiveWrite if completion.status != Status::Success => {}
            Opcode::Receive => {
                let message = (completion.byte_len as usize == MESSAGE)
                    .then(|| state.slots.read::<MESSAGE>(slot_offset(slot)))
                    .and_then(Message::from_bytes);
                let is_counted = matches!(message, Some(Message::Mapped { .. } | Message::Unmapped { .. }));
                match message {
                    Some(message) if state.apply(message) => self.repost_receive(state, slot, is_counted),
                    _ => self.abort_for_violation(state),
                }
            }
            Opcode::ReceiveWrite => match completion.immediate {
                Some(len) if len == completion.byte_len && state.incoming.record_arrival(len) => {
                    self.repost_receive(state, slot, true);
                }
                _ => self.abort_for_violation(state),
            },
            // A request of this end, whose identifier is the number of bytes that it used in the send ring. They
            // are free again, even if the request failed.
            _ => state.out.record_completion(completion.wr_id),
        }
    }

    /// Posts the receive of a slot again, after a message has used it. Ends the connection if the message is
    /// counted and exceeds the credit of the peer.
    fn repost_receive(&self, state: &mut State, slot: u64, is_counted: bool) {
        if is_counted && !state.incoming.count_message() {
            return self.abort_for_violation(state);
        }
        // Fails only after the connection has ended.
        if self.pair.qp().post_receive(state.receive_request(slot)).is_ok() {
            state.posted_receives += 1;
        }
    }

    /// Sends the peer a credit, if one is due.
    pub(super) fn give_credit(&self, state: &mut State) {
        if state.phase == Phase::Connected
            && state.out.may_send_control()
            && let Some(credit) = state.incoming.take_due_credit()
        {
            let _ = self.send_control(state, credit);
        }
    }

    /// Sends a control message. The caller must have checked that the send queue has room for it.
    pub(super) fn send_control(&self, state: &mut State, message: Message) -> Result<(), Errno> {
        let data = Data::Inline(message.to_bytes().as_slice().into());
        self.post(state, WorkRequest::new(0, Operation::Send { invalidate: None }, data))
    }

    /// Posts a request, whose identifier must be the number of bytes that it uses in the send ring. Fails with EPIPE
    /// if the connection has ended.
    pub(super) fn post(&self, state: &mut State, request: WorkRequest) -> Result<(), Errno> {
        match self.pair.post_send(vec![request]) {
            Ok(()) => {
                state.out.record_post();
                Ok(())
            }
            // The next progress finds out why the connection has ended.
            Err(_) => Err(Errno(libc::EPIPE)),
        }
    }

    /// Arms the completion queue, so that the next completion wakes the waiters. Returns true if a completion may
    /// have arrived already: then the caller must check the state again.
    pub(super) fn arm(&self) -> bool {
        while self.handler.try_next().is_some() {} // events of earlier completions
        self.cq.arm(Arm::Next)
    }

    /// The events of poll(2) that hold for the connection. Makes progress only if not all of the requested events
    /// hold already.
    pub(super) fn readiness(&self, requested: c_short) -> c_short {
        let requested = requested & (libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM);
        let ready = self.polled_state().readiness();
        let all_hold = requested != 0 && requested & !ready == 0;
        if all_hold { ready } else { self.progressed_state().readiness() }
    }
}

/// Where [`Stream::apply_completions`] gets completions from.
#[derive(Clone, Copy, Debug)]
enum Poll {
    /// Read the TCP socket first, which may add completions to the queue.
    SocketAndQueue,
    QueueOnly,
}
