//! Queue pairs in iSCSI mode (requirement M13): the initiator's end of an iSCSI connection, after the login.
//!
//! A program posts SCSI commands with the buffers that they transfer. The adapter registers the buffers under the command's
//! initiator task tag, sends the command, places Data-In in the buffers, answers R2Ts from them, and deregisters them when
//! the target completes the command. Then the program gets the target's response, with the number of the command.
//!
//! ```text
//!  post_commands ──▶ send queue ──▶ register ──▶ Command ─────────────────▶ target      send.rs, tx.rs
//!                                      │                      Data-In, R2T │            rx.rs
//!                    memory table ◀────┴── checks a to g ◀─────────────────┤
//!  receive completes ◀── headers and all other PDUs ◀──────────── Response ┘
//! ```
//!
//! Every PDU of the target uses a receive: the headers of Data-In and R2T, and other PDUs as a whole. A receive holds the
//! header of 48 bytes, and then the data. Data beyond the receive is discarded; the header tells how much there was. While
//! no receive is posted, the connection is not read. The completion's opcode tells what the adapter did with the PDU:
//!
//! | opcode | the PDU |
//! |---|---|
//! | [`Opcode::Response`] | has completed a command: the completion has its number, and its memory is deregistered. It has a cause if not all data was sent |
//! | [`Opcode::Pdu`] | was Data-In that was placed or an R2T that will be answered, with the number of the command; or any other PDU |
//! | [`Opcode::RefusedPdu`] | was Data-In, R2T or a response that failed a check. Nothing was placed or will be sent |
//!
//! Each command ends once: by [`Opcode::Response`], whose completion has an error if the receive could not hold it; by
//! [`IscsiQp::abort`]; or by a completion of the send queue with [`Opcode::Command`] and an error.
//!
//! Locks are used as in [`Qp`](crate::qp::Qp): a half first, then `sq` or `rq`, an entry of the memory table or a completion queue
//! last. A thread that drives the rx half may wait for the tx half, never the reverse.

mod attributes;
mod incoming;
mod outgoing;
mod rx;
mod send;
mod tx;

pub use attributes::{CommandRequest, IscsiAttributes, IscsiDriver, PduRequest, SessionParameters};
pub use send::{CommandEnded, CommandId};

use crate::bug;
use crate::context::RegistrationFailure;
use crate::device::Device;
use crate::error::{PostError, QpError};
use crate::event::AsyncEvent;
use crate::half::{Half, Left, ROUNDS};
use crate::link::{Link, Ready};
use crate::memory::{RegistrationWaiter, Stream};
use crate::queue::{Completion, Cq, Opcode, ReceiveQueue, ReceiveRequest, Status, flushed_completion};
use crate::recording::{Kind, record};
use crate::state::{IllegalTransition, State};
use crate::sync::{Mutex, lock};
use incoming::Rx;
use outgoing::Tx;
use send::{Posted, SendQueue};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// A queue pair in iSCSI mode.
#[derive(Debug)]
pub struct IscsiQp {
    id: u32,
    /// A reference to this object, which is listed as a waiter for registrations.
    me: Weak<Self>,
    device: Arc<Device>,
    attributes: IscsiAttributes,
    link: Arc<dyn Link>,
    driver: Arc<dyn IscsiDriver>,
    /// The state, readable without the lock. Changed only with `error` locked.
    state: AtomicU8,
    /// The cause of [`State::Error`].
    error: Mutex<Option<Arc<QpError>>>,
    sq: Mutex<SendQueue>,
    rq: Mutex<ReceiveQueue>,
    tx: Half<Tx>,
    rx: Half<Rx>,
    /// Number of the next status that is expected from the target.
    exp_stat_sn: AtomicU32,
    /// Whether sending waits until the link reports room.
    blocked: AtomicBool,
    /// Whether a PDU waits for a receive.
    starved: AtomicBool,
    /// Whether the link has reported bytes since the last call that received some. They may have come while no receive
    /// was posted.
    arrived: AtomicBool,
    /// Whether the link has reported the end of the connection.
    link_ended: AtomicBool,
    /// Whether a completion was lost because its completion queue was full. The end of the turn handles this.
    overrun: AtomicBool,
}

impl IscsiQp {
    /// Creates a queue pair for a connection on which the login is complete.
    pub fn new(
        id: u32,
        device: &Arc<Device>,
        mut attributes: IscsiAttributes,
        link: Arc<dyn Link>,
        driver: Arc<dyn IscsiDriver>,
    ) -> Arc<Self> {
        // The length field of a PDU has 24 bits, and data could not be sent in PDUs without any.
        let max_send_data = &mut attributes.session.max_send_data;
        *max_send_data = (*max_send_data).clamp(1, 0xff_ffff);
        let IscsiAttributes { domain, send_depth, receive_depth, max_sges, .. } = attributes;
        Arc::new_cyclic(|me| Self {
            id,
            me: Weak::clone(me),
            device: Arc::clone(device),
            exp_stat_sn: AtomicU32::new(attributes.session.exp_stat_sn),
            attributes,
            link,
            driver,
            state: AtomicU8::new(State::ReadyToSend as u8),
            error: Mutex::default(),
            sq: Mutex::new(SendQueue::new(send_depth, max_sges)),
            rq: Mutex::new(ReceiveQueue::new(domain, receive_depth, max_sges)),
            tx: Half::new(Tx::default()),
            rx: Half::new(Rx::default()),
            blocked: AtomicBool::new(false),
            starved: AtomicBool::new(false),
            arrived: AtomicBool::new(false),
            link_ended: AtomicBool::new(false),
            overrun: AtomicBool::new(false),
        })
    }

    /// Returns the number of the queue pair.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the attributes that the queue pair was created with.
    pub fn attributes(&self) -> &IscsiAttributes {
        &self.attributes
    }

    /// Returns the state: [`State::ReadyToSend`]; [`State::Drained`] after the buffers of a command could not be registered
    /// (requirement M7); or [`State::Error`].
    pub fn state(&self) -> State {
        State::from_bits(self.state.load(Ordering::Acquire))
    }

    /// Returns the cause of the error state.
    pub fn error(&self) -> Option<Arc<QpError>> {
        lock(&self.error).clone()
    }

    /// The stream, for the checks of memory accesses.
    fn stream(&self) -> Stream {
        Stream { domain: self.attributes.domain, qp: self.id }
    }

    // --- States ---

    /// Moves the queue pair from [`State::Drained`] back to [`State::ReadyToSend`], or to [`State::Error`], which ends the
    /// connection.
    pub fn modify(&self, to: State) -> Result<(), IllegalTransition> {
        match to {
            State::Error => self.fail(QpError::Moved),
            // With the tx half held: requests that are flushed after a refusal are flushed before the state changes.
            State::ReadyToSend => self.tx.with(|_| self.leave_drained()).0?,
            _ => return Err(IllegalTransition { from: self.state(), to }),
        }
        self.resume();
        Ok(())
    }

    /// Moves the queue pair from [`State::Drained`] back to [`State::ReadyToSend`].
    fn leave_drained(&self) -> Result<(), IllegalTransition> {
        let _error = lock(&self.error);
        let (from, to) = (self.state(), State::ReadyToSend);
        if from == State::Error {
            return Err(IllegalTransition { from, to });
        }
        self.state.store(to as u8, Ordering::Release);
        record(Kind::State, self.id, to as u32);
        Ok(())
    }

    /// Ends the connection because the adapter is [shut down](Device::begin_shut_down), or because the queue pair is dropped.
    /// When this has returned, nothing completes any more, and no memory is accessed.
    pub fn shut_down(&self) {
        let _ = self.modify(State::Error); // always allowed
        // Waits for threads that hold a half, to which `modify` has left the work.
        let (left, _) = self.tx.with(|tx| self.survive("flushing commands", || self.transmit(tx)));
        self.finish_turn(left);
        let (left, _) = self.rx.with(|rx| self.survive("flushing receives", || self.receive(rx)));
        self.finish_turn(left);
    }

    /// Moves the queue pair to the error state, unless it is there already, and ends the connection.
    fn fail(&self, cause: QpError) {
        let mut error = lock(&self.error);
        if self.state() == State::Error {
            return;
        }
        tracing::debug!(qp = self.id, error = %cause, "iSCSI queue pair failed");
        record(Kind::Ended, self.id, cause.vendor_err());
        *error = Some(Arc::new(cause));
        self.state.store(State::Error as u8, Ordering::Release);
        record(Kind::State, self.id, State::Error as u32);
        drop(error);
        self.link.abort();
        self.driver.schedule(); // both halves flush
    }

    /// Refuses a command whose buffers cannot be registered (requirement M7): the send queue is drained, or the connection
    /// ends.
    fn refuse(&self, command: CommandId, cause: QpError) {
        if self.attributes.registration_failure == RegistrationFailure::Anticipatory {
            let status = status_of(&cause);
            self.fail(cause);
            self.end_failed(command, status);
            return;
        }
        {
            let _error = lock(&self.error);
            let (from, to) = (State::ReadyToSend as u8, State::Drained as u8);
            let _ = self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        }
        let status = status_of(&cause);
        lock(&self.sq).remove(command);
        self.complete_command(command, status, Some(Arc::new(cause)));
        self.flush_posted(None);
    }

    // --- Posting ---

    /// Posts commands, all or none, and returns their numbers at once. Sends as many as the link takes.
    pub fn post_commands(&self, requests: Vec<CommandRequest>) -> Result<Vec<CommandId>, PostError> {
        let mut sq = lock(&self.sq);
        // With the queue locked: a flush either finds these commands, or its state is seen here.
        self.check_open()?;
        let ids = sq.post_commands(requests.into_iter())?;
        drop(sq);
        self.drive_tx();
        Ok(ids)
    }

    /// Posts a PDU that is not a SCSI command: a ping, a task management request, a logout.
    pub fn post_pdu(&self, request: PduRequest) -> Result<(), PostError> {
        let limit = self.attributes.session.max_send_data;
        if request.data.len() > limit as usize {
            return Err(PostError::MessageTooLong { len: request.data.len() as u64, limit });
        }
        let mut sq = lock(&self.sq);
        self.check_open()?;
        sq.post_pdu(request)?;
        drop(sq);
        self.drive_tx();
        Ok(())
    }

    /// Posts a receive, which needs room for a header of 48 bytes and the data of PDUs that are not Data-In.
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        let mut rq = lock(&self.rq);
        self.check_open()?;
        rq.post(request)?;
        drop(rq);
        if self.starved.swap(false, Ordering::AcqRel) || self.state() == State::Error {
            self.drive_rx();
        }
        Ok(())
    }

    /// Fails if the queue pair takes no more requests.
    fn check_open(&self) -> Result<(), PostError> {
        match self.state() {
            State::Error if self.device.is_shut_down() => Err(PostError::ShutDown),
            State::Error => Err(PostError::NotConnected),
            _ => Ok(()),
        }
    }

    /// Aborts a command: when this has returned, its memory is not accessed any more, whatever the target sends, and the
    /// command does not complete. Returns its task tag, or `None` if the target has not got the command. The target is not
    /// told: send it a task management request afterwards.
    ///
    /// Waits until threads that send or place data of this queue pair have returned from the system call.
    pub fn abort(&self, id: CommandId) -> Result<Option<u32>, CommandEnded> {
        self.abort_or_replace(id, None)
    }

    /// As [`abort`](Self::abort), but sends `instead` in the place of a command that the target has not got: the numbers of the
    /// commands behind it follow without a gap.
    pub fn abort_or_replace(
        &self,
        id: CommandId,
        instead: Option<PduRequest>,
    ) -> Result<Option<u32>, CommandEnded> {
        // With the tx half held: no command is started or sent meanwhile.
        let (aborted, left) = self.tx.with(|tx| {
            let task = lock(&self.sq).get(id).ok_or(CommandEnded(id))?.task;
            if let Some(task) = task {
                self.detach(tx, id);
                // Fails if the target's response is being received.
                self.device.table().abort_command(self.stream(), task).map_err(|_| CommandEnded(id))?;
            }
            let mut sq = lock(&self.sq);
            sq.unpost(id, instead);
            sq.remove(id);
            Ok(task.map(|task| task.0))
        });
        if left == Left::Work {
            self.drive_tx();
        }
        aborted
    }

    // --- Driving ---

    /// Sends and receives as far as the link is ready. Called by the thread that polls the link.
    pub fn drive(&self, ready: Ready) {
        if ready.ended {
            self.link_ended.store(true, Ordering::Release);
        }
        if ready.writable && self.blocked.swap(false, Ordering::SeqCst) {
            self.drive_tx();
        }
        if ready.readable || ready.ended {
            self.arrived.store(true, Ordering::Release);
            self.drive_rx();
        }
    }

    /// Continues sending and receiving after [`IscsiDriver::schedule`] was called.
    pub fn resume(&self) {
        self.drive_tx();
        self.drive_rx();
    }

    /// Sends, or leaves this to the thread that holds the tx half.
    fn drive_tx(&self) {
        let left = self.tx.run(ROUNDS, |tx| self.survive("sending PDUs", || self.transmit(tx)));
        self.finish_turn(left);
    }

    /// Receives, or leaves this to the thread that holds the rx half.
    fn drive_rx(&self) {
        let left = self.rx.run(ROUNDS, |rx| self.survive("receiving PDUs", || self.receive(rx)));
        self.finish_turn(left);
    }

    /// Runs `round` and catches a panic, which moves the queue pair to the error state. A panic in the error state schedules
    /// nothing, because the flush itself may have panicked.
    fn survive(&self, doing: &'static str, round: impl FnOnce() -> Left) -> Left {
        bug::catch(doing, round).unwrap_or_else(|bug| {
            tracing::error!(qp = self.id, %bug, "iSCSI queue pair failed");
            if self.state() != State::Error {
                self.fail(QpError::Bug(bug));
                self.raise(AsyncEvent::QpFatal(self.id));
            }
            Left::Nothing
        })
    }

    /// Ends a turn: fails the queue pair if a completion was lost (requirement I5), and schedules the work that is left.
    fn finish_turn(&self, left: Left) {
        if self.overrun.swap(false, Ordering::Relaxed) {
            let IscsiAttributes { send_cq, receive_cq, .. } = &self.attributes;
            let cq = if send_cq.has_overrun() { send_cq } else { receive_cq };
            self.fail(QpError::Overrun(cq.id()));
            self.raise(AsyncEvent::QpFatal(self.id));
        }
        if left == Left::Work {
            self.driver.schedule();
        }
    }

    // --- Completions ---

    /// Appends a completion to a completion queue, and records an overrun if the queue is full.
    fn complete(&self, cq: &Cq, completion: Completion) {
        if cq.push_from(|| self.driver.lane(), completion).is_err() && self.state() != State::Error {
            self.overrun.store(true, Ordering::Relaxed);
        }
    }

    /// Completes a command that has failed.
    fn complete_command(&self, id: CommandId, status: Status, cause: Option<Arc<QpError>>) {
        let completion = Completion {
            immediate: Some(id.0),
            ..Completion::failed(id.0.into(), Opcode::Command, self.id, status, cause)
        };
        self.complete(&self.attributes.send_cq, completion);
    }

    /// Removes a command, deregisters its memory, and completes it with an error, unless it has ended already.
    fn end_failed(&self, id: CommandId, status: Status) {
        let Some(task) = lock(&self.sq).get(id).map(|command| command.task) else { return };
        if let Some(task) = task
            && self.device.table().free_command(self.stream(), task).is_err()
        {
            return; // its response is being received
        }
        if lock(&self.sq).remove(id).is_some() {
            self.complete_command(id, status, self.error());
        }
    }

    /// Completes posted requests that were not started as flushed.
    fn flush_posted(&self, cause: Option<&Arc<QpError>>) {
        loop {
            let posted = lock(&self.sq).take();
            let (id, opcode) = match posted {
                Some(Posted::Command(id)) => {
                    lock(&self.sq).remove(id);
                    self.complete_command(id, Status::Flushed, cause.cloned());
                    continue;
                }
                Some(Posted::Pdu(request)) => (request.id, Opcode::Send),
                None => return,
            };
            let completion = Completion::failed(id, opcode, self.id, Status::Flushed, cause.cloned());
            self.complete(&self.attributes.send_cq, completion);
        }
    }

    /// Ends all commands and requests of a queue pair in the error state. The tx half is held.
    fn flush_sends(&self, tx: &mut Tx) {
        *tx = Tx::default();
        let (commands, tasks) = {
            let mut sq = lock(&self.sq);
            sq.bursts.clear();
            (sq.all_commands(), std::mem::take(&mut sq.tasks))
        };
        for task in tasks {
            let _ = self.device.table().free_command(self.stream(), task); // no other thread has the tag
        }
        self.flush_posted(self.error().as_ref());
        for id in commands {
            self.end_failed(id, Status::Flushed);
        }
    }

    /// Completes all receives of a queue pair in the error state as flushed, first that of an unfinished PDU.
    fn flush_receives(&self, unfinished: Option<ReceiveRequest>) {
        let Some(error) = self.error() else { return };
        let first = unfinished.map(|request| flushed_completion(&request, self.id, &error));
        let others = lock(&self.rq).flush(self.id, &error);
        for completion in first.into_iter().chain(others) {
            self.complete(&self.attributes.receive_cq, completion);
        }
    }

    /// Raises an asynchronous event about the queue pair.
    fn raise(&self, event: AsyncEvent) {
        self.device.events().raise_from(self.driver.lane(), event);
    }
}

/// Returns the status of a command whose buffers cannot be registered.
fn status_of(cause: &QpError) -> Status {
    if matches!(cause, QpError::Local(_)) { Status::LocalProtection } else { Status::WindowBind }
}

impl RegistrationWaiter for IscsiQp {
    fn on_registration_end(&self) {
        self.driver.schedule();
    }
}

impl Drop for IscsiQp {
    /// Removes events of this queue pair that were not taken, because its number may be reused.
    fn drop(&mut self) {
        self.device.events().revoke(&AsyncEvent::of_queue_pair(self.id));
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
