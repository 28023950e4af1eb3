//! The timers of a connection: for closing, for messages that wait for a receive of the peer, and for the first message
//! of the peer.

use super::{Connection, ConnectionOwner, RECEIVE_TIMER};
use ironwarp_rnic::connect::{Agreed, MpaMode, Role};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::sync::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// After a hang-up: interval between checks whether a sent message waits for a receive of the peer.
const HANG_UP_CHECK: Duration = Duration::from_millis(100);
/// Time after which a peer that has sent nothing is nudged. Each further nudge comes after twice the time of the one
/// before.
const FIRST_NUDGE: Duration = Duration::from_millis(50);
/// Upper bound on the time before a nudge: the last one.
const LAST_NUDGE: Duration = Duration::from_secs(4);
/// Number of checks within the RNR timeout of a message that waits for a receive of the peer.
const RECEIVE_CHECKS: u32 = 4;
/// Time after which a responder assumes that an initiator without RTR, which has sent nothing, is ready to receive.
const FIRST_MESSAGE_WAIT: Duration = Duration::from_millis(500);

/// A message that waits for a receive of the peer.
#[derive(Clone, Copy, Debug)]
struct AwaitedReceive {
    /// Number of messages that were sent before this one, which identifies it.
    number: u64,
    /// Number of checks left until the message times out.
    checks: u32,
}

impl<P: ConnectionOwner> Connection<P> {
    /// Calls a function on the connection's lane after this time, unless the connection has been dropped by then.
    pub(super) fn call_after(
        self: &Arc<Self>,
        time: Duration,
        act: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) {
        let this = Arc::downgrade(self);
        self.lane().call_at(Instant::now() + time, move || {
            if let Some(connection) = this.upgrade() {
                connection.catch_panic("serving a timer", || act(&connection));
            }
        });
    }

    // --- Closing ---

    /// Sends the posted requests, then closes. Aborts the connection if the peer does not close within the time of the
    /// settings (`close`).
    pub(crate) fn disconnect(self: &Arc<Self>) {
        self.qp.disconnect();
        self.begin_draining();
    }

    /// Disconnects, and aborts the connection if a sent message waits for a receive of the peer: the remote program may
    /// post none before it learns that this end has closed.
    pub(crate) fn hang_up(self: &Arc<Self>) {
        self.disconnect();
        self.call_after(HANG_UP_CHECK, Self::check_hang_up);
    }

    /// Aborts the connection if a message waits for a receive of the peer, which had time to post one. Otherwise checks
    /// again later, until everything is sent.
    fn check_hang_up(self: &Arc<Self>) {
        if self.qp.is_finished() || self.qp.error().is_some() {
            return;
        }
        if self.qp.message_awaiting_receive().is_some() {
            self.abort(QpError::Disconnected);
        } else {
            self.call_after(HANG_UP_CHECK, Self::check_hang_up);
        }
    }

    /// Starts the timer for the close of the peer, unless this was called before or the connection is closed.
    pub(super) fn begin_draining(self: &Arc<Self>) {
        let begins = lock(&self.state).lifecycle.begin_draining();
        if begins {
            self.start_close_timer();
        }
    }

    /// Starts the timer for the close of the peer.
    fn start_close_timer(self: &Arc<Self>) {
        self.call_after(self.pair.config().close, Self::on_close_timeout);
    }

    /// Aborts the connection, because the peer has not closed in time. While this end still has something to send,
    /// starts the timer again instead; the kernel gives up a peer that receives nothing (TCP_USER_TIMEOUT).
    fn on_close_timeout(self: &Arc<Self>) {
        if self.qp.is_closing() && !self.qp.is_finished() && !self.is_port_down() {
            return self.start_close_timer();
        }
        tracing::debug!(qp = self.qp.id(), "the peer did not close the connection in time");
        self.abort(QpError::TimedOut("closing the connection"));
    }

    // --- Awaited receives ---

    /// Starts the timer for messages that wait for a receive of the peer, if it does not run. Called when a message
    /// begins to wait.
    ///
    /// There is one timer for all messages, because the peer decides how many wait. It checks [`RECEIVE_CHECKS`] times
    /// within the RNR timeout which message waits. A message that waits at all checks times out. So a message may wait
    /// for at least the RNR timeout, and for at most a quarter longer.
    pub(super) fn on_peer_not_ready(self: &Arc<Self>) {
        if let Some(number) = self.qp.message_awaiting_receive()
            && self.timers.fetch_or(RECEIVE_TIMER, Ordering::SeqCst) & RECEIVE_TIMER == 0
        {
            self.schedule_receive_check(AwaitedReceive { number, checks: RECEIVE_CHECKS });
        }
    }

    /// Schedules the next check, or stops the timer if the queue pair has no RNR timeout.
    fn schedule_receive_check(self: &Arc<Self>, awaited: AwaitedReceive) {
        match self.qp.rnr_timeout() {
            Some(timeout) => {
                self.call_after(timeout / RECEIVE_CHECKS, move |connection| {
                    connection.check_awaited_receive(awaited);
                });
            }
            None => {
                self.timers.fetch_and(!RECEIVE_TIMER, Ordering::SeqCst);
            }
        }
    }

    /// Times a message out if it has waited for a receive of the peer at all checks, which ends the stream. Otherwise
    /// schedules the next check, or stops the timer if no message waits. `number` is that of the message that waited at
    /// the last check, and `checks` includes this check.
    fn check_awaited_receive(self: &Arc<Self>, AwaitedReceive { number, checks }: AwaitedReceive) {
        match self.qp.message_awaiting_receive() {
            Some(waiting) if waiting == number && checks <= 1 => {
                self.qp.on_rnr_timeout(number);
                // The peer may have posted the receive just now: then the stream goes on, and another message may wait.
                self.stop_receive_timer();
            }
            Some(waiting) if waiting == number => {
                self.schedule_receive_check(AwaitedReceive { number, checks: checks - 1 });
            }
            Some(other) => {
                self.schedule_receive_check(AwaitedReceive { number: other, checks: RECEIVE_CHECKS });
            }
            None => self.stop_receive_timer(),
        }
    }

    /// Stops the timer, and starts it again if a message waits now: it may have begun to wait while the timer still
    /// counted as running.
    fn stop_receive_timer(self: &Arc<Self>) {
        self.timers.fetch_and(!RECEIVE_TIMER, Ordering::SeqCst);
        self.on_peer_not_ready();
    }

    // --- The first message ---

    /// Starts a timer in case both ends wait for the first message of the other: an initiator
    /// [nudges](Self::nudge_if_silent) the peer, a responder [sends first](Self::send_unprompted).
    pub(super) fn start_first_message_timer(self: &Arc<Self>, agreed: &Agreed) {
        match agreed.role {
            Role::Initiator { .. } => self.schedule_nudge(FIRST_NUDGE),
            // Without private extensions the responder waits forever, as RFC 5044 §7.1.2 requires.
            Role::Responder { .. } if agreed.mode != MpaMode::PeerToPeer && self.pair.config().private => {
                self.call_after(FIRST_MESSAGE_WAIT, |connection| connection.send_unprompted());
            }
            Role::Responder { .. } => {}
        }
    }

    /// Schedules a nudge after this time, unless the time exceeds [`LAST_NUDGE`].
    fn schedule_nudge(self: &Arc<Self>, time: Duration) {
        if time <= LAST_NUDGE {
            self.call_after(time, move |connection| connection.nudge_if_silent(time));
        }
    }

    /// Sends the first message again if the peer has sent nothing within `time`, because the peer may have missed that
    /// message. Then schedules the next nudge.
    fn nudge_if_silent(self: &Arc<Self>, time: Duration) {
        if self.qp.nudge() {
            tracing::debug!(qp = self.qp.id(), "no message from the peer yet: nudged it");
            self.schedule_nudge(2 * time);
        }
    }

    /// Lets a responder send although the peer has sent nothing: the peer had time to get ready, and its program may
    /// wait for the first message.
    fn send_unprompted(&self) {
        if self.qp.send_unprompted() {
            tracing::debug!(qp = self.qp.id(), "no message from the peer yet: sending first");
        }
    }
}
