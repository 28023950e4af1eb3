//! Gives up an attempt when a work request has waited for the peer as long as the queue pair's retries last. Without a
//! work request an attempt never times out: the peer may come at any time.

use super::attempt::{ManualAttempt, Phase};
use crate::verbs::error::ConnectError;
use std::sync::Arc;
use std::time::Instant;

/// Number of checks within the response timeout of the queue pair.
const CHECKS: u32 = 4;

impl ManualAttempt {
    /// Starts to measure anew how long a work request waits. Called when the attempt begins, when the peer has closed,
    /// and when the program has changed the retries.
    pub(super) fn restart_request_timeout(self: &Arc<Self>) {
        let Some(pair) = self.pair.upgrade() else { return };
        let mut progress = self.progress();
        progress.waiting_since = None;
        progress.restarts += 1;
        progress.set_user_timeout(&pair);
        let restarts = progress.restarts;
        drop(progress);
        self.check_request_timeout(Instant::now(), restarts);
    }

    /// Gives the attempt up if a work request has waited for too long; otherwise schedules the next check. Does nothing
    /// if the timeout was restarted since: `restarts` is the number of restarts when this check was scheduled.
    fn check_request_timeout(self: &Arc<Self>, now: Instant, restarts: u64) {
        let (Some(pair), Some(ctx)) = (self.pair.upgrade(), self.ctx.upgrade()) else { return };
        let Some(timeout) = pair.qp().retries().response_timeout() else { return };
        let request_waits = pair.qp().has_work();
        let mut progress = self.progress();
        let has_no_peer = matches!(progress.phase, Phase::Connecting | Phase::Claimed | Phase::PeerClosed);
        if progress.restarts != restarts || !has_no_peer {
            return;
        }
        let since = request_waits.then(|| progress.waiting_since.unwrap_or(now));
        progress.waiting_since = since;
        drop(progress);
        if since.is_some_and(|since| now.saturating_duration_since(since) >= timeout) {
            let lasting = self.progress().lasting_error.take();
            self.give_up(lasting.unwrap_or(ConnectError::TimedOut));
        } else {
            let this = Arc::downgrade(self);
            ctx.call_at_or_log(now + timeout / CHECKS, move || {
                this.upgrade()
                    .iter()
                    .for_each(|attempt| attempt.check_request_timeout(Instant::now(), restarts));
            });
        }
    }
}
