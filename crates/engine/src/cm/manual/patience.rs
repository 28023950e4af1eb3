//! When an attempt is given up: once a request has waited for a peer as long as the queue pair's retries last. Without a request nothing is
//! late: a queue pair may wait for a peer that comes next year.

use super::attempt::{ManualAttempt, Phase};
use crate::verbs::error::ConnectError;
use std::sync::Arc;
use std::time::Instant;

/// Number of checks whether a request waits, within the time that it may.
const CHECKS: u32 = 4;

impl ManualAttempt {
    /// The retries have changed, or a request may begin to wait.
    pub(super) fn change_patience(self: &Arc<Self>) {
        let Some(pair) = self.pair.upgrade() else { return };
        let mut progress = self.progress();
        progress.waiting = None;
        progress.changes += 1;
        progress.set_user_timeout(&pair);
        let changes = progress.changes;
        drop(progress);
        self.check_patience(Instant::now(), changes);
    }

    /// Fails the queue pair if a request has waited for too long. Does nothing if patience has changed since.
    fn check_patience(self: &Arc<Self>, now: Instant, changes: u64) {
        let (Some(pair), Some(ctx)) = (self.pair.upgrade(), self.ctx.upgrade()) else { return };
        let Some(patience) = pair.qp().retries().response_timeout() else { return };
        let waits = pair.qp().has_work();
        let mut progress = self.progress();
        let is_waiting = matches!(progress.phase, Phase::Wanted | Phase::Taken | Phase::Gone);
        if progress.changes != changes || !is_waiting {
            return;
        }
        let since = waits.then(|| progress.waiting.unwrap_or(now));
        progress.waiting = since;
        drop(progress);
        if since.is_some_and(|since| now.saturating_duration_since(since) >= patience) {
            let refused = self.progress().refused.take();
            self.give_up(refused.unwrap_or(ConnectError::TimedOut));
        } else {
            let this = Arc::downgrade(self);
            ctx.remind(now + patience / CHECKS, move || {
                this.upgrade().iter().for_each(|attempt| attempt.check_patience(Instant::now(), changes));
            });
        }
    }
}
