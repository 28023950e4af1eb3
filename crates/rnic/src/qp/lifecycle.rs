//! The life of a queue pair: changing its state, connecting, disconnecting and ending it.

use super::{AlreadyConnected, Qp, StreamDriver};
use crate::bug;
use crate::connect::{Agreed, MpaMode};
use crate::context::Step;
use crate::error::QpError;
use crate::half::Left;
use crate::link::Link;
use crate::outbound::TxObligations;
use crate::queue::Completes;
use crate::state::{IllegalTransition, State};
use crate::stream::{Rx, Tx};
use crate::sync::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Qp {
    /// Moves the queue pair to another state. To start over after [`State::Reset`], create a new queue pair with
    /// the same number: see [`reset`](Self::reset).
    pub fn modify(&self, to: State) -> Result<(), IllegalTransition> {
        let mut from = self.state();
        loop {
            if !from.may_become(to) {
                return Err(IllegalTransition { from, to });
            }
            if to == State::Error {
                let live = self.drain_link();
                self.abort(QpError::Moved);
                if live {
                    self.stop_placing();
                }
                return Ok(());
            }
            if to == State::Drained {
                self.drain_requested.store(true, Ordering::Release);
            }
            let mut sq = lock(&self.sq);
            let moved =
                self.state.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire);
            match moved {
                Ok(_) if to == State::ReadyToSend => {
                    sq.stop_refusing();
                    // The event is no longer wanted. A refusal may drain the queue again, for which no event was
                    // requested.
                    self.drain_requested.store(false, Ordering::Release);
                    break;
                }
                Ok(_) => break,
                Err(now) => from = State::from_bits(now), // the stream failed meanwhile
            }
        }
        self.drive_tx(); // starts requests that waited, or finds that the queue is drained
        if !self.is_linked() {
            self.report_drained(0); // nothing was started
        }
        Ok(())
    }

    /// Ends the queue pair silently: no request completes any more, completions that were not polled are removed,
    /// and the connection is closed.
    pub fn reset(&self) {
        self.stop_completing();
        self.drain_link();
        self.abort(QpError::Moved);
        self.release();
        self.suppress_completions();
    }

    /// Starts a stream on a link whose startup has ended. `early` holds the bytes that arrived after the startup
    /// frame. Drive the queue pair afterwards.
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
        *lock(&self.obligations) = TxObligations::new(agreed, signal);
        if agreed.ord == 0 || agreed.mode == MpaMode::Unenhanced {
            // A peer other than Ironwarp cannot be asked. If the peer is Ironwarp, its signal will say so.
            lock(&self.sq).set_completes(Completes::WhenSent);
        }
        let rx = Rx::new(Arc::clone(link), agreed, early);
        let tx = Tx::new(Arc::clone(link), agreed.send, agreed.ord);
        // No thread drives the halves before they are in place.
        let _ = self.rx.with(|half| *half = Some(rx));
        let _ = self.tx.with(|half| *half = Some(tx));
        self.connection.step(Step::Connect);
        if !self.attributes().manual {
            let (from, to) = (State::Init as u8, State::ReadyToSend as u8);
            let _ = self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        }
        Ok(())
    }

    /// If the peer has sent nothing yet, sends the first message again. Returns whether it did.
    ///
    /// Linux siw may accept a connection and miss its first messages: those that arrive after it has sent its
    /// Reply and before it has registered its socket callback. It finds them when the next message arrives. If
    /// none does, because this end waits for an answer, both ends wait forever.
    pub fn nudge(&self) -> bool {
        let mut obligations = lock(&self.obligations);
        if !obligations.opening_may_be_lost() || self.is_ended() {
            return false;
        }
        obligations.nudge = true;
        drop(obligations);
        self.drive_tx();
        true
    }

    /// Lets a responder that has received nothing send: its peer had time to get ready. Returns whether it does.
    ///
    /// RFC 5044 §7.1.2 makes a responder wait for the first FPDU, so that the initiator is ready to receive.
    /// Linux siw without peer-to-peer mode also connects for programs that wait for the responder's first
    /// message, and siw as a responder does not wait. Otherwise both ends would wait forever.
    pub fn send_unprompted(&self) -> bool {
        let mut obligations = lock(&self.obligations);
        if obligations.open || obligations.received_any || self.is_ended() {
            return false;
        }
        obligations.open_anyway = true;
        drop(obligations);
        self.drive_tx();
        true
    }

    /// Sends what was posted, then closes the connection. Nothing more can be posted.
    pub fn disconnect(&self) {
        if !self.is_ended() && self.connection.step(Step::Disconnect).is_some() {
            self.drain_link();
            lock(&self.obligations).finish = true;
            self.drive_tx();
            self.drive_rx(); // messages that wait for a receive are dropped if the peer has closed as well
        }
    }

    /// Receives and acknowledges what has arrived, before this end closes. With hardware, a message has arrived
    /// once it is on this host: its sender must not exceed its retries because the link was not read yet. What
    /// the peer sends from now on is not drained, so it cannot delay this end. Returns false if there is no
    /// stream, or it has ended.
    fn drain_link(&self) -> bool {
        if !self.is_linked() || self.is_ended() {
            return false;
        }
        // Waits for a thread that receives: its completions may have been seen before their messages were
        // counted.
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

    /// The stream has ended. Waits for a thread that receives: after this has returned, nothing is placed in
    /// memory any more.
    fn stop_placing(&self) {
        let ((), left) = self.rx.with(|rx| rx.iter_mut().for_each(|rx| rx.stop_delivery(self)));
        if left == Left::Work {
            self.drive_rx();
        }
    }

    /// Ends the stream at once, for a reason outside of it.
    pub fn abort(&self, error: QpError) {
        self.fail(error, None, None);
        self.drive_rx();
    }

    /// Drops the link, whose two directions are closed.
    pub fn release(&self) {
        self.connection.step(Step::Release);
        let (_, left) = self.tx.with(|half| *half = None);
        self.finish_turn(left);
        let (_, left) = self.rx.with(|half| *half = None);
        if left == Left::Work {
            self.drive_rx(); // a receive that was posted meanwhile is flushed
        }
        self.drive_tx(); // an empty Write may wait
    }
}
