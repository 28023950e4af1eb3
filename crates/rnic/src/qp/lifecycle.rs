//! Changes the state of a queue pair, connects and disconnects it, and ends its stream.

use super::{AlreadyConnected, Qp, StreamDriver};
use crate::bug;
use crate::connect::{Agreed, MpaMode};
use crate::context::Step;
use crate::error::QpError;
use crate::half::Left;
use crate::link::Link;
use crate::outbound::TxObligations;
use crate::queue::Completes;
use crate::recording::{Kind, record};
use crate::state::{IllegalTransition, State};
use crate::stream::{Rx, Tx};
use crate::sync::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Qp {
    /// Moves the queue pair to the state `to`. A move to [`State::Reset`] does not end a stream: to start over, call
    /// [`reset`](Self::reset) instead, and create a new queue pair with the same number.
    pub fn modify(&self, to: State) -> Result<(), IllegalTransition> {
        let mut from = self.state();
        loop {
            if !from.may_become(to) {
                return Err(IllegalTransition { from, to });
            }
            if to == State::Error {
                let had_stream = self.drain_link();
                self.abort(QpError::Moved);
                if had_stream {
                    self.stop_placing();
                }
                return Ok(());
            }
            if to == State::Drained {
                // Before the state changes, so that the thread that finds the queue drained raises the event.
                self.drain_requested.store(true, Ordering::Release);
            }
            let mut sq = lock(&self.sq);
            let moved =
                self.state.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire);
            match moved {
                Ok(_) if to == State::ReadyToSend => {
                    record(Kind::State, self.id(), to as u32);
                    sq.stop_refusing();
                    // Cancel the event that the queue is drained, if it was not raised: a later refusal drains the
                    // queue as well, and must not raise it.
                    self.drain_requested.store(false, Ordering::Release);
                    break;
                }
                Ok(_) => {
                    record(Kind::State, self.id(), to as u32);
                    break;
                }
                Err(now) => from = State::from_bits(now), // the stream failed meanwhile
            }
        }
        self.drive_tx(); // starts requests that waited, or finds that the queue is drained
        if !self.is_linked() {
            self.report_drained(0); // without a stream, no request was started
        }
        Ok(())
    }

    /// Ends the queue pair without completions: no request completes any more, completions that were not polled are
    /// removed, and the connection is closed.
    pub fn reset(&self) {
        self.stop_completing();
        self.drain_link();
        self.abort(QpError::Moved);
        self.release();
        self.suppress_completions();
    }

    /// Suppresses all further completions, because the program destroys the queue pair, and removes those that were not
    /// polled. Posted requests are still sent. Waits for threads that are completing a request.
    pub fn retire(&self) {
        self.stop_completing();
        let ((), left) = self.tx.with(|_| ());
        if left == Left::Work {
            self.drive_tx();
        }
        let ((), left) = self.rx.with(|_| ());
        if left == Left::Work {
            self.drive_rx();
        }
        self.suppress_completions();
    }

    /// Starts a stream on a link over which the startup frames were exchanged. `early` holds the bytes that arrived
    /// after the startup frame. The caller has to drive the queue pair afterwards.
    pub fn connect(
        &self,
        link: &Arc<dyn Link>,
        agreed: &Agreed,
        early: Vec<u8>,
        driver: Arc<dyn StreamDriver>,
    ) -> Result<(), AlreadyConnected> {
        if !self.set_driver(driver) {
            return Err(AlreadyConnected);
        }
        let config = self.device().config();
        let signal = config.private.then(|| self.capabilities());
        *self.obligations.lock() = TxObligations::new(agreed, signal);
        if agreed.ord == 0 || agreed.mode == MpaMode::Unenhanced {
            // A standard peer cannot be probed for acknowledgements: it accepts no Reads, or has not negotiated their
            // number. If the peer is Ironwarp, its signal changes this.
            lock(&self.sq).set_completes(Completes::WhenSent);
        }
        let rx = Rx::new(Arc::clone(link), agreed, early);
        let tx = Tx::new(Arc::clone(link), agreed.send, agreed.ord);
        // Work that other threads left meanwhile is done when the caller drives the queue pair.
        let _ = self.rx.with(|half| *half = Some(rx));
        let _ = self.tx.with(|half| *half = Some(tx));
        self.connection.step(Step::Connect);
        if !self.attributes().manual {
            // Fails if the stream has ended meanwhile: the error state stays.
            let (from, to) = (State::Init as u8, State::ReadyToSend as u8);
            let _ = self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
            record(Kind::State, self.id(), self.state() as u32);
        }
        Ok(())
    }

    /// Sends the opening message again, if the peer has sent nothing yet. Returns whether it was sent.
    ///
    /// Linux siw may accept a connection and miss its first messages: those that arrive after siw has sent its Reply
    /// and before it has registered its socket callback. Siw finds them when the next message arrives. If none does,
    /// because this end waits for an answer, both ends wait forever.
    pub fn nudge(&self) -> bool {
        let mut obligations = self.obligations.lock();
        if !obligations.opening_may_be_lost() || self.is_ended() {
            return false;
        }
        obligations.nudge = true;
        drop(obligations);
        self.drive_tx();
        true
    }

    /// Lets a responder send although it has received nothing, after its peer had time to get ready. Returns false if
    /// the responder may send anyway, or if the stream has ended.
    ///
    /// RFC 5044 §7.1.2 makes a responder wait for the first FPDU, so that the initiator is ready to receive.
    /// Linux siw without peer-to-peer mode also connects for programs that wait for the responder's first
    /// message, and siw as a responder does not wait. Otherwise both ends would wait forever.
    pub fn send_unprompted(&self) -> bool {
        let mut obligations = self.obligations.lock();
        if obligations.open || obligations.received_any || self.is_ended() {
            return false;
        }
        obligations.open_anyway = true;
        drop(obligations);
        self.drive_tx();
        true
    }

    /// Sends all posted requests, then closes the connection. No more requests can be posted.
    pub fn disconnect(&self) {
        if !self.is_ended() && self.connection.step(Step::Disconnect).is_some() {
            self.drain_link();
            self.obligations.lock().finish = true;
            // Waits for a thread that is driving the half: it may not have sent the final acknowledgement yet, and the
            // program may end the process next, without exit handlers.
            self.drive_tx_and_wait();
            self.drive_rx(); // if the peer has closed as well: drops messages that wait for a receive
        }
    }

    /// Receives and acknowledges the messages that have arrived at this host, before this end closes. Hardware
    /// acknowledges them on arrival: their sender must not exceed its retries because this end has not read the link
    /// yet. Messages that arrive meanwhile do not count, so the peer cannot delay this end. Returns false if there is
    /// no stream, or if it has ended.
    fn drain_link(&self) -> bool {
        if !self.is_linked() || self.is_ended() {
            return false;
        }
        // Waits for a thread that is driving the half: the program may have polled a completion before that thread has
        // published the number of delivered messages.
        let (tx_has_work, left) = self.rx.with(|half| {
            let Some(rx) = half else { return false };
            bug::catch("receiving", || rx.drain_link(self)).unwrap_or_else(|bug| {
                let in_use = half.take().and_then(Rx::into_receive);
                self.fail_rx(bug, in_use);
                true
            })
        });
        if tx_has_work {
            self.drive_tx();
        }
        self.acknowledge();
        self.finish_turn(left);
        true
    }

    /// Stops the rx half after the stream has ended. Waits for a thread that is driving it: after this has returned,
    /// nothing is placed in memory any more.
    fn stop_placing(&self) {
        let ((), left) = self.rx.with(|rx| rx.iter_mut().for_each(|rx| rx.stop_delivery(self)));
        if left == Left::Work {
            self.drive_rx();
        }
    }

    /// Ends the stream at once, for a reason that lies outside of the stream.
    pub fn abort(&self, error: QpError) {
        self.fail(error, None, None);
        self.drive_rx();
    }

    /// Ends the queue pair because the adapter is [shut down](crate::device::Device::begin_shut_down) (requirement N11):
    /// flushes all requests and receives, unless they have completed. When this has returned, nothing completes any more,
    /// and nothing can be posted.
    pub fn shut_down(&self) {
        self.abort(QpError::Stopped);
        self.release(); // waits for threads that drive the halves: they complete what they have
        let Some(error) = self.error() else { return };
        // Another thread may have failed the stream and not have flushed the queues yet.
        let mut sq = lock(&self.sq);
        sq.fail(self.id(), None, error, |completion| self.complete_send(completion));
        let in_use = sq.take_due_flush().flatten();
        drop(sq);
        self.flush_receives(in_use);
    }

    /// Drops both halves of the stream, and with them the link. Called when both directions of the link are closed,
    /// after an abort, and at a reset. Waits for threads that are driving the halves.
    pub fn release(&self) {
        self.connection.step(Step::Release);
        // `drive_tx` below does the work that other threads have left for this half meanwhile.
        let ((), _) = self.tx.with(|half| *half = None);
        let ((), left) = self.rx.with(|half| *half = None);
        if left == Left::Work {
            self.drive_rx(); // a receive that was posted meanwhile is flushed
        }
        self.drive_tx(); // may complete empty Writes: see `retire_empty_writes`
    }
}
