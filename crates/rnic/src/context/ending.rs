//! How a stream ends: with which status for which request, and what the peer is told.

use super::QpContext;
use super::connection::{Connection, Step};
use crate::bug::{self, Bug};
use crate::error::{ErrorOrigin, QpError};
use crate::event::AsyncEvent;
use crate::queue::{BlamedRequest, Completes, Receive, SendQueue, Status};
use crate::state::State;
use crate::sync::lock;
use ironwarp_wire::ddp::DdpHeader;
use ironwarp_wire::{Cause, Offender, Terminate};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl QpContext {
    /// Ends the stream. Only the first call has an effect. If the caller names no request to blame, the error decides.
    pub(crate) fn fail(&self, error: QpError, terminate: Option<Terminate>, blamed: Option<BlamedRequest>) {
        let error = Arc::new(error);
        if self.error.set(Arc::clone(&error)).is_err() {
            return;
        }
        self.state.store(State::Error as u8, Ordering::Release);
        tracing::debug!(qp = self.id(), %error, "stream ended");
        self.raise_failure(&error);
        {
            let mut obligations = lock(&self.obligations);
            // A queue pair that its program has destroyed sends no Terminate: its requests may name memory that
            // is gone, which is nobody's mistake, and requests of the peer must not fail because of it.
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
            drop(sq);
            if let Some(in_use) = due {
                self.flush_receives(in_use);
            }
        }
        if let Some(driver) = self.driver.get() {
            driver.on_stream_ended(&error);
            // The rx half has to flush the receives, and the tx half to send the Terminate.
            driver.schedule();
        }
    }

    /// Driving the tx half panicked, and its state was dropped: nothing more can be sent, perhaps in the middle
    /// of an FPDU.
    #[cold]
    pub(crate) fn fail_tx(&self, bug: Bug) {
        self.fail_by_bug(bug, None, None);
        // The call to the link did not return, or its result is lost.
        attempt_step(|| self.end_sending(|_| ()));
        attempt_step(|| self.close_both());
    }

    /// Driving the rx half panicked, and only this receive is left of its state. The peer is told.
    #[cold]
    pub(crate) fn fail_rx(&self, bug: Bug, in_use: Option<Receive>) {
        self.fail_by_bug(bug, Some(Terminate::LOCAL_CATASTROPHE), in_use);
        attempt_step(|| self.close_receive());
    }

    /// Ends the stream because of a bug in the adapter. Attempts all steps that others depend on: the requests
    /// complete, the program is told, and the lane lets go of the connection.
    fn fail_by_bug(&self, bug: Bug, terminate: Option<Terminate>, in_use: Option<Receive>) {
        tracing::error!(qp = self.id(), %bug, "queue pair failed");
        attempt_step(|| self.fail(QpError::Bug(bug), terminate, None));
        // The panic may have interrupted the end of the stream.
        attempt_step(|| {
            let Some(error) = self.error.get() else { return };
            lock(&self.sq).fail(self.id(), None, error, |completion| self.complete_send(completion));
        });
        attempt_step(|| self.flush_receives(in_use));
        if let Some(driver) = self.driver.get() {
            attempt_step(|| driver.schedule());
        }
    }

    /// Raises the asynchronous event of an error, if it has one.
    fn raise_failure(&self, error: &QpError) {
        let event = match (error, error.origin()) {
            (QpError::Remote(_), _) => AsyncEvent::QpAccessError(self.id()),
            (QpError::Terminated(_), _) => return, // the failure of the peer is not an invalid request here
            (_, ErrorOrigin::Peer) => AsyncEvent::QpRequestError(self.id()),
            (QpError::Overrun(_) | QpError::Bug(_), _) => AsyncEvent::QpFatal(self.id()),
            _ => return, // the completions report it
        };
        self.device.raise(event);
    }

    /// The peer closed in order. A manually connected queue pair does not end with it: its receives stay posted,
    /// as on networks where nothing reports that a peer has left.
    pub(crate) fn handle_peer_close(&self) {
        if self.attributes.manual && self.connection.step(Step::PeerClosed).is_some() {
            lock(&self.obligations).finish = true;
            return;
        }
        self.fail(if self.is_closing() { QpError::Disconnected } else { QpError::Closed }, None, None);
    }

    /// Completes empty Writes, if the peer has just closed in order and has acknowledged everything. Nothing more
    /// can be sent.
    ///
    /// Programs use an empty Write to ask whether everything before it has arrived (UCX does before it closes),
    /// and the remote program may close as soon as its own was answered. With hardware, the two cross within
    /// microseconds. Here, a busy machine may delay one end while the other closes, and its empty Write would
    /// wait until its retries are exceeded, for an answer that is known.
    #[cold]
    pub(crate) fn retire_empty_writes(&self) {
        if self.connection.is(Connection::JUST_CLOSED) && self.error.get().is_none() {
            lock(&self.sq).retire_empty_writes(self.id(), |completion| self.complete_send(completion));
        }
    }

    /// The peer closed some time ago: empty Writes now find out whether it exists.
    pub fn forget_peer(&self) {
        self.connection.step(Step::PeerForgotten);
    }

    /// Nothing more will be sent.
    pub(crate) fn close_send(&self) {
        self.close_direction(Step::CloseSend);
    }

    /// Nothing more will be received.
    pub(crate) fn close_receive(&self) {
        self.close_direction(Step::CloseReceive);
    }

    /// Nothing more will be sent or received.
    pub(crate) fn close_both(&self) {
        self.close_direction(Step::CloseBoth);
    }

    fn close_direction(&self, step: Step) {
        if self.connection.step_reaches(step, Connection::CLOSED)
            && let Some(driver) = self.driver.get()
        {
            driver.on_link_closed();
        }
    }
}

/// Does one of several steps, all of which must be attempted.
fn attempt_step(step: impl FnOnce()) {
    if let Err(bug) = bug::catch("ending a queue pair", step) {
        tracing::error!(%bug, "failed to end a queue pair");
    }
}

/// The request that a Terminate of the peer is about: the Read that it returns, the request with the message
/// sequence number, the Write that covers the place, or else the oldest. A Read is found by what it requested,
/// because siw puts its size where the number belongs. If requests wait for acknowledgements, a missing one is
/// that of the oldest request.
fn find_blamed(sq: &mut SendQueue, completes: Completes, error: &QpError) -> Option<BlamedRequest> {
    let status = error.remote_status();
    let QpError::Terminated(terminate) = error else {
        let waits = completes == Completes::WhenAcknowledged && status != Status::Flushed;
        return sq.oldest().filter(|_| waits).map(|seq| BlamedRequest { seq, status });
    };
    let Offender { header, read, .. } = &terminate.offender;
    let seq = match (header, read) {
        (_, Some(read)) => sq.find_read(read),
        (Some(DdpHeader::Untagged(header)), _) => sq.find_msn(header.msn, header.queue == 1),
        (Some(DdpHeader::Tagged(header)), _) => sq.find_write(header.place),
        (None, _) => sq.oldest(),
    };
    match seq {
        Some(seq) => sq.acknowledge_before(seq),
        None => acknowledge_by_own_read(sq, terminate),
    }
    seq.map(|seq| BlamedRequest { seq, status })
}

/// A Read without data cannot violate any protection, but Linux siw may report one that it finds after an inline
/// message of its own (`siw_activate_tx`). It is a Read of the adapter itself, which asked whether the peer has
/// received what was sent before: it has.
fn acknowledge_by_own_read(sq: &mut SendQueue, terminate: &Terminate) {
    let of_read = matches!(terminate.offender.header, Some(DdpHeader::Untagged(header)) if header.queue == 1);
    if of_read
        && matches!(terminate.cause, Cause::Protection(_))
        && let Some(number) = sq.oldest_read().filter(|read| read.entry.is_none()).map(|read| read.number)
    {
        sq.acknowledge(number);
    }
}
