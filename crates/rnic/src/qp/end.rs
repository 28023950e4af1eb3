//! How requests complete, and how a stream ends: with which status for which request, and what the other end is told.

use super::{Attributes, Completes, GONE, JUST_GONE, Qp, Receives, State};
use crate::bug::{self, Bug};
use crate::error::{Culprit, Fault};
use crate::event::AsyncEvent;
use crate::queue::{Completion, Cq, Opcode, Overrun, Receive, SendQueue, Status, flushed};
use crate::sync::lock;
use ironwarp_wire::ddp::DdpHeader;
use ironwarp_wire::{Cause, Offender, Terminate};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bits of `Qp::closed`.
pub(super) const OUT: u8 = 1;
const IN: u8 = 2;
const BOTH: u8 = OUT | IN;

impl Qp {
    /// Completes what has its turn on the send queue.
    pub(crate) fn retire(&self) {
        self.retire_from(&mut lock(&self.sq));
    }

    pub(crate) fn retire_from(&self, sq: &mut SendQueue) {
        let mut several = self.attributes.send_cq.several();
        sq.retire(self.id, |completion| self.push(completion, |completion| several.push(completion)));
    }

    /// A call of the link returned, and what left is known: `note` writes it down, and a failure that waited for that takes its
    /// course.
    pub(crate) fn end_sending<R>(&self, note: impl FnOnce(&mut SendQueue) -> R) -> R {
        let mut sq = lock(&self.sq);
        let noted = note(&mut sq);
        sq.end_sending(self.id, |completion| self.complete_send(completion));
        let due = sq.due_flush();
        drop(sq);
        if let Some(in_use) = due {
            self.flush_receives(in_use);
        }
        noted
    }

    pub(super) fn complete_send(&self, completion: Completion) {
        self.complete(&self.attributes.send_cq, completion);
    }

    pub(crate) fn complete_receive(&self, receive: &Receive, completion: Completion) {
        self.complete(receive.cq.as_ref().unwrap_or(&self.attributes.receive_cq), completion);
    }

    fn complete(&self, cq: &Cq, completion: Completion) {
        self.push(completion, |completion| cq.push(completion));
    }

    /// Requirement I5: what does not fit is never lost silently; the stream ends for it, as soon as no lock is held.
    fn push(&self, completion: Completion, push: impl FnOnce(Completion) -> Result<(), Overrun>) {
        if !self.silent.load(Ordering::SeqCst) && push(completion).is_err() {
            self.overrun.store(true, Ordering::Relaxed);
        }
    }

    /// A completion of its did not fit when a shared send queue had its turn, whoever drives that: the same.
    pub(crate) fn overran(&self) {
        self.overrun.store(true, Ordering::Relaxed);
        if let Some(attendant) = self.attendant.get() {
            attendant.call_again();
        }
    }

    pub(super) fn fail_if_overrun(&self) {
        if self.overrun.swap(false, Ordering::Relaxed) {
            let Attributes { send_cq, receive_cq, .. } = &self.attributes;
            let cq = if send_cq.overrun() { send_cq } else { receive_cq };
            self.fail(Fault::Overrun(cq.id()), Some(Terminate::LOCAL_CATASTROPHE), None);
        }
    }

    pub(crate) fn complete_receive_failed(&self, receive: &Receive, status: Status, fault: &Fault) {
        self.blamed.store(true, Ordering::Release);
        let cause = Some(Arc::new(fault.clone()));
        let completion = Completion::failed(receive.request.id, Opcode::Receive, self.id, status, cause);
        self.complete_receive(receive, completion);
    }

    /// The stream is over: gives all receives back, first the one in use.
    pub(crate) fn flush_receives(&self, mut in_use: Option<Receive>) {
        let Some(fault) = self.fault.get() else { return };
        if !lock(&self.sq).may_flush(&mut in_use) {
            return;
        }
        if let Some(receive) = in_use {
            self.complete_receive(&receive, flushed(&receive.request, self.id, fault));
        }
        for completion in lock(&self.rq).flush(self.id, fault) {
            self.complete(&self.attributes.receive_cq, completion);
        }
        let shares = !matches!(self.attributes.receives, Receives::Own(_));
        let heard = !self.silent.load(Ordering::SeqCst);
        if shares && heard && !self.last_receive.swap(true, Ordering::AcqRel) {
            self.device.raise(AsyncEvent::LastWqeReached(self.id));
        }
    }

    /// The stream is over. The first reason counts.
    pub(crate) fn fail(&self, fault: Fault, terminate: Option<Terminate>, request: Option<(u64, Status)>) {
        let fault = Arc::new(fault);
        if self.fault.set(Arc::clone(&fault)).is_err() {
            return;
        }
        self.state.store(State::Error as u8, Ordering::Release);
        tracing::debug!(qp = self.id, %fault, "stream ended");
        self.raise_failure(&fault);
        {
            let mut owed = lock(&self.owed);
            // One that its program has destroyed says no more than goodbye: its requests may name memory that is gone, which is
            // nobody's mistake, and the peer's requests shall not fail for it.
            owed.terminate = terminate.filter(|_| !self.silent.load(Ordering::SeqCst)).map(Box::new);
            owed.finish = true;
        }
        {
            let mut sq = lock(&self.sq);
            let request = request.or_else(|| blamed(&mut sq, self.attributes.completes, &fault));
            self.blamed.fetch_or(request.is_some(), Ordering::AcqRel);
            sq.fail(self.id, request, &fault, |completion| self.complete_send(completion));
            let due = sq.due_flush();
            drop(sq);
            if let Some(in_use) = due {
                self.flush_receives(in_use);
            }
        }
        if let Some(attendant) = self.attendant.get() {
            attendant.ended(&fault);
            // The receives are the rx half's to give back, and the last word is the tx half's to say.
            attendant.call_again();
        }
    }

    /// A panic while the tx half was driven, of which nothing is left: nothing more can be sent, in the middle of an FPDU perhaps.
    #[cold]
    pub(super) fn transmitter_failed(&self, bug: Bug) {
        self.fail_by_bug(bug, None, None);
        // The call of the link did not return, or what it returned is lost.
        attempt(|| self.end_sending(|_| ()));
        attempt(|| self.link_lost());
    }

    /// A panic while the rx half was driven, of which nothing is left but this receive. The peer is told.
    #[cold]
    pub(super) fn receiver_failed(&self, bug: Bug, in_use: Option<Receive>) {
        self.fail_by_bug(bug, Some(Terminate::LOCAL_CATASTROPHE), in_use);
        attempt(|| self.link_ended());
    }

    /// The stream is over, by a mistake of this adapter. Whatever it has left, all steps are tried that others depend on: the requests
    /// complete, the program hears of it, the lane lets go of it.
    fn fail_by_bug(&self, bug: Bug, terminate: Option<Terminate>, in_use: Option<Receive>) {
        tracing::error!(qp = self.id, %bug, "queue pair failed");
        attempt(|| self.fail(Fault::Bug(bug), terminate, None));
        // The panic may have come in the middle of another end, which was cut short by it.
        attempt(|| {
            let Some(fault) = self.fault.get() else { return };
            lock(&self.sq).fail(self.id, None, fault, |completion| self.complete_send(completion));
        });
        attempt(|| self.flush_receives(in_use));
        if let Some(attendant) = self.attendant.get() {
            attempt(|| attendant.call_again());
        }
    }

    /// The asynchronous event of a failure that is somebody's fault.
    fn raise_failure(&self, fault: &Fault) {
        let event = match (fault, fault.culprit()) {
            (Fault::Remote(_), _) => AsyncEvent::QpAccessError(self.id),
            (Fault::Terminated(_), _) => return, // its own failure is no invalid request to this end
            (_, Culprit::Peer) => AsyncEvent::QpRequestError(self.id),
            (Fault::Overrun(_) | Fault::Bug(_), _) => AsyncEvent::QpFatal(self.id),
            _ => return, // the completions tell
        };
        self.device.raise(event);
    }

    /// The peer closed, as it may. A queue pair that was brought up by hand does not end with it: its receives stay posted,
    /// as they do where nobody tells that a peer has gone.
    pub(crate) fn peer_closed(&self) {
        if self.attributes.by_hand && !self.is_closing() {
            self.gone.store(JUST_GONE, Ordering::Release);
            lock(&self.owed).finish = true;
            return;
        }
        self.fail(if self.is_closing() { Fault::Disconnected } else { Fault::Closed }, None, None);
    }

    /// Nothing can be sent. If the peer has just closed, in order, and has acknowledged all that it was sent, an empty Write succeeds.
    ///
    /// Programs ask by one whether all before it has arrived (UCX, before it closes), and the peer's may close as soon as its own was
    /// answered. Between adapters of silicon the two cross within microseconds. Here a busy machine may keep one end waiting for its
    /// turn while the other closes, and its empty Write would wait until its retries are exceeded, for an answer that is known.
    #[cold]
    pub(super) fn retire_empty_writes(&self) {
        if self.gone.load(Ordering::Acquire) == JUST_GONE && self.fault.get().is_none() {
            lock(&self.sq).retire_empty_writes(self.id, |completion| self.complete_send(completion));
        }
    }

    /// The peer closed a while ago: whoever asks now wants to know whether it is there.
    pub fn forget_peer(&self) {
        let _ = self.gone.compare_exchange(JUST_GONE, GONE, Ordering::AcqRel, Ordering::Relaxed);
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

    /// Whether both directions of the link are closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) == BOTH
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

/// Does one of several steps that must all be tried.
fn attempt(step: impl FnOnce()) {
    if let Err(bug) = bug::catch("ending a queue pair", step) {
        tracing::error!(%bug, "a queue pair did not end as it should");
    }
}

/// The request that the peer complains of in its Terminate: the Read that it returns, the request with the message sequence
/// number, the Write that covers the place, or else the oldest. A Read is found by what it asked for, because siw has its
/// size where the number belongs. Where requests wait for an acknowledgement, one that does not come is the oldest's.
fn blamed(sq: &mut SendQueue, completes: Completes, fault: &Fault) -> Option<(u64, Status)> {
    let status = fault.remote_status();
    let Fault::Terminated(terminate) = fault else {
        let waits = completes == Completes::WhenAcknowledged && status != Status::Flushed;
        return sq.oldest().filter(|_| waits).map(|seq| (seq, status));
    };
    let Offender { header, read, .. } = &terminate.offender;
    let seq = match (header, read) {
        (_, Some(read)) => sq.find_read(read),
        (Some(DdpHeader::Untagged(header)), _) => sq.find_msn(header.msn, header.queue == 1),
        (Some(DdpHeader::Tagged(header)), _) => sq.find_write(header.place),
        (None, _) => sq.oldest(),
    };
    match seq {
        Some(seq) => sq.delivered_before(seq),
        None => complains_of_own_read(sq, terminate),
    }
    seq.map(|seq| (seq, status))
}

/// A Read of nothing cannot break any protection, but Linux siw may say so of one that it finds behind an inline message of its
/// own (`siw_activate_tx`). It is one of the adapter's own, and asked whether the peer has what went before: it does.
fn complains_of_own_read(sq: &mut SendQueue, terminate: &Terminate) {
    let of_read = matches!(terminate.offender.header, Some(DdpHeader::Untagged(header)) if header.queue == 1);
    if of_read
        && matches!(terminate.cause, Cause::Protection(_))
        && let Some(number) = sq.read().filter(|read| read.entry.is_none()).map(|read| read.number)
    {
        sq.acknowledge(number);
    }
}
