//! Drives the halves of a stream: when the link is ready, when a request or receive was posted, and when a program
//! polls.

use super::Qp;
use crate::bug;
use crate::context::{PEER_ENDED, READABLE};
use crate::error::QpError;
use crate::half::{Left, ROUNDS, TURN};
use crate::link::Ready;
use crate::queue::SendQueue;
use crate::stream::{Rx, Tx};
use crate::sync::MutexGuard;
use std::sync::atomic::Ordering;

impl Qp {
    /// Drives the halves for which the link has reported `ready`, for several turns. If work is left, calls
    /// [`StreamDriver::schedule`](super::StreamDriver::schedule), because the link reports a change only once.
    pub fn drive(&self, ready: Ready) {
        self.drive_halves(ready, ROUNDS);
    }

    /// Drives the halves for which the link has reported `ready`, for one turn. If work is left, calls
    /// [`StreamDriver::schedule`](super::StreamDriver::schedule).
    pub fn take_turn(&self, ready: Ready) {
        self.drive_halves(ready, TURN);
    }

    /// Drives the halves for which the link has reported `ready`, for at most this many rounds.
    fn drive_halves(&self, ready: Ready, rounds: usize) {
        if ready.writable {
            self.transmit(rounds);
        }
        if ready.readable {
            let events = if ready.ended { READABLE | PEER_ENDED } else { READABLE };
            self.link_events.fetch_or(events, Ordering::Release);
            self.receive(1, rounds);
        }
    }

    /// Receives messages that have arrived. For a caller that does not know whether the link is readable, and calls
    /// again soon. If nothing has arrived, calls the link up to `polls` times.
    pub fn poll(&self, polls: usize) {
        self.receive(polls, ROUNDS);
    }

    /// Ends the stream if the message after the first `number` messages still waits for the peer to post a receive.
    /// Called when the time for that is over.
    pub fn on_rnr_timeout(&self, number: u64) {
        if self.message_awaiting_receive() == Some(number) {
            self.abort(QpError::NotReady);
        }
    }

    /// Acknowledges the messages that were delivered, even if nothing else is to be sent. Called before a driver goes
    /// idle.
    pub fn acknowledge(&self) {
        let mut obligations = self.obligations.lock();
        obligations.ack_noticed = false;
        if obligations.request_acknowledgement(self.delivered()) {
            drop(obligations);
            self.drive_tx();
        }
    }

    /// Sends as far as possible.
    pub(super) fn drive_tx(&self) {
        self.transmit(ROUNDS);
    }

    /// Drives the tx half for at most this many rounds, unless another thread holds it.
    fn transmit(&self, rounds: usize) {
        let left = self.tx.run(rounds, |half| self.run_tx_round(half, |tx| tx.drive(self)));
        self.finish_turn(left);
    }

    /// Sends the requests that were just posted to the send queue, which is still locked, and everything else that is to
    /// be sent. The lock order allows this, because the half is never waited for.
    pub(super) fn transmit_posted(&self, posted: MutexGuard<'_, SendQueue>) {
        let mut posted = Some(posted);
        let left = self.tx.run(ROUNDS, |half| {
            let posted = posted.take();
            self.run_tx_round(half, move |tx| match posted {
                Some(sq) => tx.drive_posted(self, sq),
                None => tx.drive(self),
            })
        });
        drop(posted); // if another thread holds the half
        self.finish_turn(left);
    }

    /// Sends as far as possible, like [`drive_tx`](Self::drive_tx), but waits for a thread that is driving the half. For
    /// the control path only.
    pub(super) fn drive_tx_and_wait(&self) {
        let (left, added) = self.tx.with(|half| self.run_tx_round(half, |tx| tx.drive(self)));
        self.finish_turn(if added == Left::Work { added } else { left });
    }

    /// Drives the tx half, which the caller has locked, for one round by calling `drive`. Drops its state if that panics.
    #[inline]
    pub(super) fn run_tx_round(&self, half: &mut Option<Tx>, drive: impl FnOnce(&mut Tx) -> Left) -> Left {
        let Some(tx) = half else {
            drop(drive); // it may have locked the send queue
            self.retire_empty_writes();
            return Left::Nothing;
        };
        bug::catch("transmitting", || drive(tx)).unwrap_or_else(|bug| {
            *half = None;
            self.fail_tx(bug);
            Left::Nothing
        })
    }

    /// Receives as far as possible, and handles posted receives and the end of the stream.
    pub(super) fn drive_rx(&self) {
        self.receive(1, ROUNDS);
    }

    /// Drives the rx half for at most this many rounds, unless another thread holds it. In each round, calls the link
    /// until it was found empty `polls` times. Drives the tx half if the rx half has given it something to send.
    fn receive(&self, polls: usize, rounds: usize) {
        let mut tx_has_work = false;
        let left = self.rx.run(rounds, |half| match half {
            Some(rx) => {
                // Most polls find nothing, so a load comes before the more expensive swap. The thread that sets a flag
                // runs this half afterwards, so a flag that the load misses is seen in the next round.
                let events = match self.link_events.load(Ordering::Acquire) {
                    0 => 0,
                    _ => self.link_events.swap(0, Ordering::AcqRel),
                };
                bug::catch("receiving", || rx.drive(self, events, polls, &mut tx_has_work)).unwrap_or_else(
                    |bug| {
                        let in_use = half.take().and_then(Rx::into_receive);
                        self.fail_rx(bug, in_use);
                        tx_has_work = true;
                        Left::Nothing
                    },
                )
            }
            None => {
                self.flush_receives(None);
                Left::Nothing
            }
        });
        if tx_has_work {
            self.drive_tx();
        }
        self.finish_turn(left);
    }

    /// Ends the stream if a completion queue has overflowed, and has the driver drive the halves again if work is
    /// `left`. Called after a half was released.
    pub(super) fn finish_turn(&self, left: Left) {
        self.fail_if_overrun();
        if left == Left::Work {
            self.schedule();
        }
    }
}
