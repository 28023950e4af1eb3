//! The timeouts of a connection: how long closing, an awaited receive and the first message of the peer may take.

use super::{Connection, Owner};
use ironwarp_rnic::connect::{Agreed, MpaMode, Role};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::sync::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a sent message may wait for a receive of the peer once this end has hung up.
const HANG_UP: Duration = Duration::from_millis(100);
/// A peer that has sent nothing is nudged after this time, and then after twice the time each, in case it missed the first message.
const FIRST_NUDGE: Duration = Duration::from_millis(50);
/// Longest time before a nudge; there is none after it.
const LAST_NUDGE: Duration = Duration::from_secs(4);
/// Number of checks of a message that waits for a receive of the peer before it is given up.
const RECEIVE_CHECKS: u32 = 4;
/// Time after which an initiator that agreed to no RTR, and has sent nothing, is taken to be ready to receive.
const FIRST_WORD: Duration = Duration::from_millis(500);

/// A message that waits for a receive of the peer: the one after `number`, which is checked this many more times.
#[derive(Clone, Copy, Debug)]
struct AwaitedReceive {
    number: u64,
    checks: u32,
}

impl<P: Owner> Connection<P> {
    /// Calls a function on its lane after this time, unless the connection is gone by then.
    pub(super) fn after(self: &Arc<Self>, time: Duration, act: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let this = Arc::downgrade(self);
        self.lane().call_at(Instant::now() + time, move || {
            if let Some(connection) = this.upgrade() {
                connection.guard("serving a timer", || act(&connection));
            }
        });
    }

    // --- Closing ---

    /// The program closes; the peer has the time in the settings to do the same.
    pub(crate) fn disconnect(self: &Arc<Self>) {
        self.qp.disconnect();
        self.drain();
    }

    /// Disconnects, and gives up messages that wait for a receive of the peer: its program may post none before it learns that
    /// this end has closed.
    pub(crate) fn hang_up(self: &Arc<Self>) {
        self.disconnect();
        self.after(HANG_UP, Self::hang_up_is_due);
    }

    /// The peer had time to post receives for what it was sent before this end closed.
    fn hang_up_is_due(self: &Arc<Self>) {
        if self.qp.is_finished() || self.qp.error().is_some() {
            return;
        }
        if self.qp.message_awaiting_receive().is_some() {
            self.cut(QpError::Disconnected);
        } else {
            self.after(HANG_UP, Self::hang_up_is_due);
        }
    }

    /// From now on the peer has the time in the settings to close.
    pub(super) fn drain(self: &Arc<Self>) {
        let drains = lock(&self.place).life.drain();
        if drains {
            self.await_close();
        }
    }

    fn await_close(self: &Arc<Self>) {
        self.after(self.pair.config().close, Self::close_is_due);
    }

    /// The peer had time to close, and did not. It has more as long as it still takes what this end has to send; the kernel gives up a
    /// peer that takes nothing (TCP_USER_TIMEOUT).
    fn close_is_due(self: &Arc<Self>) {
        if self.qp.is_closing() && !self.qp.is_finished() {
            return self.await_close();
        }
        tracing::debug!(qp = self.qp.id(), "the peer did not close the connection in time");
        self.cut(QpError::TimedOut("closing the connection"));
    }

    // --- Awaited receives ---

    /// A message begins to wait for a receive of the peer. One timer serves all that do, because the peer decides how many do: it checks
    /// the one that waits several times, and gives it up if it is the same at all checks. So the peer has at least the
    /// patience of the queue pair, and at most a quarter more.
    pub(super) fn peer_not_ready(self: &Arc<Self>) {
        if let Some(number) = self.qp.message_awaiting_receive()
            && !self.receive_timer.swap(true, Ordering::SeqCst)
        {
            self.await_receive(AwaitedReceive { number, checks: RECEIVE_CHECKS });
        }
    }

    fn await_receive(self: &Arc<Self>, awaited: AwaitedReceive) {
        match self.qp.rnr_timeout() {
            Some(patience) => {
                self.after(patience / RECEIVE_CHECKS, move |connection| {
                    connection.receive_timed_out(awaited);
                });
            }
            None => self.receive_timer.store(false, Ordering::SeqCst),
        }
    }

    /// A quarter of the patience is over since the last check.
    fn receive_timed_out(self: &Arc<Self>, AwaitedReceive { number, checks }: AwaitedReceive) {
        match self.qp.message_awaiting_receive() {
            Some(same) if same == number && checks <= 1 => self.qp.on_rnr_timeout(number),
            Some(same) if same == number => {
                self.await_receive(AwaitedReceive { number, checks: checks - 1 });
            }
            Some(number) => self.await_receive(AwaitedReceive { number, checks: RECEIVE_CHECKS }),
            None => {
                self.receive_timer.store(false, Ordering::SeqCst);
                // A message that began to wait before this line found the timer pending.
                self.peer_not_ready();
            }
        }
    }

    // --- The first message ---

    /// Each end may wait for the other's first message.
    pub(super) fn await_first_word(self: &Arc<Self>, agreed: &Agreed) {
        match agreed.role {
            Role::Initiator { .. } => self.nudge_after(FIRST_NUDGE),
            // Without private extensions the responder waits forever, as RFC 5044 §7.1.2 requires.
            Role::Responder { .. } if agreed.mode != MpaMode::PeerToPeer && self.pair.config().private => {
                self.after(FIRST_WORD, |connection| connection.send_unprompted());
            }
            Role::Responder { .. } => {}
        }
    }

    fn nudge_after(self: &Arc<Self>, time: Duration) {
        if time <= LAST_NUDGE {
            self.after(time, move |connection| connection.nudge(time));
        }
    }

    /// The peer had this much time to send something.
    fn nudge(self: &Arc<Self>, time: Duration) {
        if self.qp.nudge() {
            tracing::debug!(qp = self.qp.id(), "no message from the peer yet: nudged it");
            self.nudge_after(2 * time);
        }
    }

    /// The peer had time to get ready, and its program waits for the first message.
    fn send_unprompted(&self) {
        if self.qp.send_unprompted() {
            tracing::debug!(qp = self.qp.id(), "no message from the peer yet: sending first");
        }
    }
}
