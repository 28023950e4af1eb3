//! Driving the halves of a stream: when the link is ready, when something was posted, and when a program polls.

use super::Qp;
use crate::bug;
use crate::context::{PEER_ENDED, READABLE};
use crate::error::QpError;
use crate::half::{Left, ROUNDS, TURN};
use crate::link::Ready;
use crate::stream::Rx;
use crate::sync::lock;
use std::sync::atomic::Ordering;

impl Qp {
    /// Sends and receives what is possible. Called when the link has reported a change, which it does once, so
    /// everything that has arrived is received.
    pub fn drive(&self, ready: Ready) {
        self.drive_halves(ready, ROUNDS);
    }

    /// Sends and receives one turn's share. If work is left, the [`StreamDriver`](super::StreamDriver) is told.
    pub fn take_turn(&self, ready: Ready) {
        self.drive_halves(ready, TURN);
    }

    fn drive_halves(&self, ready: Ready, rounds: usize) {
        if ready.writable {
            self.transmit(rounds);
        }
        if ready.readable {
            let news = if ready.ended { READABLE | PEER_ENDED } else { READABLE };
            self.link_news.fetch_or(news, Ordering::Release);
            self.receive(1, rounds);
        }
    }

    /// Receives what has arrived, for a caller that does not know whether the link has changed and polls again
    /// soon. If nothing has arrived, asks the link this many times.
    pub fn poll(&self, polls: usize) {
        self.receive(polls, ROUNDS);
    }

    /// The time for the peer to post a receive for the message after `number` messages is over. If it has not,
    /// the stream ends.
    pub fn on_rnr_timeout(&self, number: u64) {
        if self.message_awaiting_receive() == Some(number) {
            self.abort(QpError::NotReady);
        }
    }

    /// Acknowledges what was delivered, even if nothing else is to be sent. Called before a driver goes idle.
    pub fn acknowledge(&self) {
        let mut obligations = lock(&self.obligations);
        obligations.ack_noticed = false;
        if obligations.owes_acknowledgement() {
            obligations.acknowledged = obligations.delivered;
            obligations.ack_now = true;
            drop(obligations);
            self.drive_tx();
        }
    }

    pub(super) fn drive_tx(&self) {
        self.transmit(ROUNDS);
    }

    fn transmit(&self, rounds: usize) {
        let left = self.tx.run(rounds, |half| {
            let Some(tx) = half else {
                self.retire_empty_writes();
                return Left::Nothing;
            };
            bug::catch("transmitting", || tx.drive(self)).unwrap_or_else(|bug| {
                *half = None;
                self.fail_tx(bug);
                Left::Nothing
            })
        });
        self.finish_turn(left);
    }

    pub(super) fn drive_rx(&self) {
        self.receive(1, ROUNDS);
    }

    fn receive(&self, polls: usize, rounds: usize) {
        let mut tx_has_work = false;
        let left = self.rx.run(rounds, |half| match half {
            Some(rx) => {
                // A load, because most polls find nothing: what it misses is seen by the next round.
                let news = match self.link_news.load(Ordering::Acquire) {
                    0 => 0,
                    _ => self.link_news.swap(0, Ordering::AcqRel),
                };
                bug::catch("receiving", || rx.drive(self, news, polls, &mut tx_has_work)).unwrap_or_else(
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

    pub(super) fn finish_turn(&self, left: Left) {
        self.fail_if_overrun();
        if left == Left::Work {
            self.schedule();
        }
    }
}
