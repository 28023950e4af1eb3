//! Waiting until the program has acknowledged events, as calls that destroy objects do.

use crate::check;
use ironwarp_rnic::sync;
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the program may take to acknowledge events before that is reported as a mistake. Another thread may be about
/// to.
const PATIENCE: Duration = Duration::from_secs(1);

/// Waits until no event is pending, of those that `pending` counts. The condition variable is notified of each
/// acknowledgement.
pub(crate) fn wait_until_acknowledged<'g, T>(
    acknowledged: &Condvar,
    mut guard: MutexGuard<'g, T>,
    object: &str,
    pending: impl Fn(&T) -> u64,
) -> MutexGuard<'g, T> {
    if let Some(checker) = check::active() {
        let is_pending = |state: &mut T| pending(state) > 0;
        let waited = acknowledged.wait_timeout_while(guard, PATIENCE, is_pending);
        guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        let events = pending(&guard);
        if events > 0 {
            checker.unacknowledged(object, events);
        }
    }
    while pending(&guard) > 0 {
        guard = sync::wait(acknowledged, guard);
    }
    guard
}
