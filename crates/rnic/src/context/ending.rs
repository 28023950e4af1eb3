//! Ends a stream: records why, completes its requests, sends a Terminate to the peer, and closes the link.

use super::QpContext;
use super::connection::{Connection, Step};
use crate::bug::{self, Bug};
use crate::error::{ErrorOrigin, QpError};
use crate::event::AsyncEvent;
use crate::queue::{BlamedRequest, Completes, Receive, SendQueue, Status};
use crate::recording::{Kind, record};
use crate::state::State;
use crate::sync::lock;
use ironwarp_wire::ddp::DdpHeader;
use ironwarp_wire::{Cause, Offender, Terminate};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Broken pipe: the errno of sends after the peer has reset the connection.
const EPIPE: i32 = 32;
/// Connection reset by peer.
const ECONNRESET: i32 = 104;

impl QpContext {
    /// Ends the stream: moves the queue pair to the error state, completes all requests, has the Terminate sent, and
    /// informs the driver. Only the first call has an effect. The request `blamed` completes with its own status. If
    /// the caller blames none, the request that `error` refers to is looked up.
    pub(crate) fn fail(&self, error: QpError, terminate: Option<Terminate>, blamed: Option<BlamedRequest>) {
        let error = Arc::new(error);
        if self.error.set(Arc::clone(&error)).is_err() {
            return;
        }
        self.state.store(State::Error as u8, Ordering::Release);
        record(Kind::Ended, self.id(), error.vendor_err());
        record(Kind::State, self.id(), State::Error as u32);
        tracing::debug!(qp = self.id(), %error, "stream ended");
        self.raise_failure(&error);
        {
            let mut obligations = self.obligations.lock();
            // A queue pair that its program has destroyed sends no Terminate: its requests may name memory that was
            // deregistered since, which is no mistake, and requests of the peer must not fail because of that.
            obligations.terminate =
                terminate.filter(|_| !self.completions_suppressed.load(Ordering::SeqCst)).map(Box::new);
            obligations.finish = true;
        }
        {
            let mut sq = lock(&self.sq);
            let blamed = blamed.or_else(|| find_blamed(&mut sq, self.attributes.completes, &error));
            self.request_blamed.fetch_or(blamed.is_some(), Ordering::AcqRel);
            sq.fail(self.id(), blamed, &error, |completion| self.complete_send(completion));
            let due = sq.take_due_flush();
            if let Some(in_use) = due {
                // Before the send queue is unlocked: `Qp::shut_down` must not overtake this thread.
                let rq = lock(&self.rq);
                drop(sq);
                self.flush_locked_receives(rq, in_use, &error);
            }
        }
        if let Some(driver) = self.driver.get() {
            driver.on_stream_ended(&error);
            // The rx half has to flush the receives, and the tx half to send the Terminate.
            driver.schedule();
        }
    }

    /// Ends the stream after driving the tx half has panicked and its state was dropped. Nothing more can be sent,
    /// not even a Terminate, because an FPDU may be partly sent.
    #[cold]
    pub(crate) fn fail_tx(&self, bug: Bug) {
        self.fail_by_bug(bug, None, None);
        // Completes the requests even if the panic happened during a call to the link.
        attempt_step(|| self.end_sending(|_| ()));
        attempt_step(|| self.close_both());
    }

    /// Ends the stream after driving the rx half has panicked. `in_use` is the receive that was left of its state.
    /// The peer gets a Terminate.
    #[cold]
    pub(crate) fn fail_rx(&self, bug: Bug, in_use: Option<Receive>) {
        self.fail_by_bug(bug, Some(Terminate::LOCAL_CATASTROPHE), in_use);
        attempt_step(|| self.close_receive());
    }

    /// Ends the stream because of a bug in the adapter. Attempts every step even if an earlier one panics, so that the
    /// requests complete, the program learns of the failure, and the lane releases the connection. `in_use` is the
    /// receive of the message that was being received. It is flushed first.
    fn fail_by_bug(&self, bug: Bug, terminate: Option<Terminate>, in_use: Option<Receive>) {
        tracing::error!(qp = self.id(), %bug, "queue pair failed");
        attempt_step(|| self.fail(QpError::Bug(bug), terminate, None));
        // If the panic has interrupted an earlier `fail` before the requests were completed, the `fail` above has no
        // effect, and this completes them. Otherwise this has no effect.
        attempt_step(|| {
            let Some(error) = self.error.get() else { return };
            lock(&self.sq).fail(self.id(), None, error, |completion| self.complete_send(completion));
        });
        attempt_step(|| self.flush_receives(in_use));
        if let Some(driver) = self.driver.get() {
            attempt_step(|| driver.schedule());
        }
    }

    /// Raises the asynchronous event for an error, if there is one.
    fn raise_failure(&self, error: &QpError) {
        let event = match (error, error.origin()) {
            (QpError::Remote(_), _) => AsyncEvent::QpAccessError(self.id()),
            (QpError::Terminated(_), _) => return, // the peer has failed, but has sent no invalid request
            (_, ErrorOrigin::Peer) => AsyncEvent::QpRequestError(self.id()),
            (QpError::Overrun(_) | QpError::Bug(_), _) => AsyncEvent::QpFatal(self.id()),
            _ => return, // the completions report the error
        };
        self.raise(event);
    }

    /// Handles the orderly close of the connection by the peer: ends the stream, unless the queue pair is manually
    /// connected. Such a queue pair keeps its receives, as on networks that do not report that a peer has left.
    pub(crate) fn handle_peer_close(&self) {
        if self.attributes.manual && self.connection.step(Step::PeerClosed).is_some() {
            self.obligations.lock().finish = true;
            return;
        }
        self.fail(if self.is_closing() { QpError::Disconnected } else { QpError::Closed }, None, None);
    }

    /// Returns whether the queue pair stays connected although its link failed with this errno. A peer that exits resets
    /// the connection instead of closing it, if it has not read everything. For a manually connected queue pair, both
    /// are the same: see [`handle_peer_close`](Self::handle_peer_close).
    pub(crate) fn outlives_peer(&self, errno: i32) -> bool {
        self.attributes.manual && matches!(errno, ECONNRESET | EPIPE)
    }

    /// Completes empty Writes at the front of the send queue with success, if the peer closed its connection a moment
    /// ago. All requests before them are complete.
    ///
    /// Programs use an empty Write to learn whether all messages before it have arrived (UCX does so before it
    /// closes). The remote program may do the same, and close as soon as its own empty Write was acknowledged. With
    /// hardware, both are acknowledged within microseconds. Here, a busy machine may delay one end while the other
    /// closes. Without this function, the empty Write of the delayed end would fail when its retries are exceeded.
    #[cold]
    pub(crate) fn retire_empty_writes(&self) {
        if self.connection.is(Connection::JUST_CLOSED) && self.error.get().is_none() {
            lock(&self.sq).retire_empty_writes(self.id(), |completion| self.complete_send(completion));
        }
    }

    /// Ends the time after the peer's close in which empty Writes succeed: from now on they wait, like all other
    /// requests, and fail when the retries are exceeded.
    pub fn forget_peer(&self) {
        self.connection.step(Step::PeerForgotten);
    }

    /// Records that nothing more will be sent.
    pub(crate) fn close_send(&self) {
        self.close_direction(Step::CloseSend);
    }

    /// Records that nothing more will be received.
    pub(crate) fn close_receive(&self) {
        self.close_direction(Step::CloseReceive);
    }

    /// Records that nothing more will be sent or received.
    pub(crate) fn close_both(&self) {
        self.close_direction(Step::CloseBoth);
    }

    /// Takes a step that closes a direction, or both. Informs the driver when both directions are closed.
    fn close_direction(&self, step: Step) {
        if self.connection.step_reaches(step, Connection::CLOSED)
            && let Some(driver) = self.driver.get()
        {
            driver.on_link_closed();
        }
    }
}

/// Does one of several steps, all of which must be attempted. Logs a panic instead of passing it on.
fn attempt_step(step: impl FnOnce()) {
    if let Err(bug) = bug::catch("ending a queue pair", step) {
        tracing::error!(%bug, "failed to end a queue pair");
    }
}

/// Finds the request to blame for the end of a stream, and its status.
///
/// For a Terminate of the peer, this is the request that it refers to: the Read whose request it contains, the request
/// with its message sequence number, the Write that covers its address, or the oldest request if it contains no header. A
/// Read is found by its source and not by its number, because siw puts the size of the Read there. The requests before
/// the blamed one are acknowledged.
///
/// For any other error that fails requests, this is the oldest request, if requests complete when they are
/// acknowledged.
fn find_blamed(sq: &mut SendQueue, completes: Completes, error: &QpError) -> Option<BlamedRequest> {
    let status = error.remote_status();
    let QpError::Terminated(terminate) = error else {
        let blames_oldest = completes == Completes::WhenAcknowledged && status != Status::Flushed;
        return sq.oldest().filter(|_| blames_oldest).map(|seq| BlamedRequest { seq, status });
    };
    let Offender { header, read, .. } = &terminate.offender;
    let seq = match (header, read) {
        (_, Some(read)) => sq.find_read(read),
        (Some(DdpHeader::Untagged(header)), _) => sq.find_msn(header.msn, header.queue == 1),
        (Some(DdpHeader::Tagged(header)), _) => sq.find_write(header.addr),
        (None, _) => sq.oldest(),
    };
    match seq {
        Some(seq) => sq.acknowledge_before(seq),
        None => acknowledge_by_own_read(sq, terminate),
    }
    seq.map(|seq| BlamedRequest { seq, status })
}

/// Acknowledges all messages before the oldest outstanding probe, if the Terminate reports a protection error of that
/// probe. A probe is an empty Read and cannot violate any protection, but Linux siw may report one that it finds
/// after an inline message of its own (`siw_activate_tx`). It has then received all messages before the probe.
fn acknowledge_by_own_read(sq: &mut SendQueue, terminate: &Terminate) {
    let of_read = matches!(terminate.offender.header, Some(DdpHeader::Untagged(header)) if header.queue == 1);
    if of_read
        && matches!(terminate.cause, Cause::Protection(_))
        && let Some(number) = sq.oldest_read().filter(|read| read.entry.is_none()).map(|read| read.number)
    {
        sq.acknowledge(number);
    }
}
