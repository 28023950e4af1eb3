//! The list of queue pairs in a poll set that owe an acknowledgement, and whether replies of the program are likely to
//! carry the acknowledgements.

use ironwarp_rnic::qp::Qp;
use ironwarp_rnic::sync::lock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

/// Score from which a reply is expected to carry the acknowledgement.
const EXPECT_REPLY: i32 = 2;
/// The highest score: after this many more turns without a reply, no reply is expected any more.
const MAX_SCORE: i32 = EXPECT_REPLY + 2;
/// The score after a reply was expected and did not come.
const MISSED_REPLY: i32 = -16;
/// Number of checks after which an acknowledgement is late.
const LATE_CHECKS: u32 = 2;

/// Queue pairs that owe an acknowledgement. Each is listed once, see `Qp::take_owed_acknowledgement`.
#[derive(Debug, Default)]
pub(super) struct PendingAcks {
    owing: Mutex<Vec<Owing>>,
    /// Whether the list may have entries: `flush`, which finds none most of the time, does not take the lock then. Set
    /// after an entry was added, and cleared before the entries are taken, so that no entry is overlooked.
    any: AtomicBool,
    /// How often the program has answered the last messages: incremented by each turn with a reply, and decremented by
    /// each turn without one.
    score: AtomicI32,
}

/// A queue pair that owes an acknowledgement.
#[derive(Debug)]
struct Owing {
    qp: Arc<Qp>,
    /// The number of messages that were acknowledged at the last [check](PendingAcks::send_late). `None` before the
    /// first one.
    acknowledged: Option<u64>,
    /// Number of checks since that number last changed.
    checks: u32,
}

impl PendingAcks {
    /// Adds a queue pair that owes an acknowledgement.
    pub(super) fn push(&self, qp: &Arc<Qp>) {
        lock(&self.owing).push(Owing { qp: Arc::clone(qp), acknowledged: None, checks: 0 });
        self.any.store(true, Ordering::Release);
    }

    /// Sends the acknowledgements of all listed queue pairs, and clears the list.
    #[inline]
    pub(super) fn flush(&self) {
        if self.any.load(Ordering::Acquire) {
            self.flush_all();
        }
    }

    /// The part of [`flush`](Self::flush) that is not inlined, for a list that may have entries.
    fn flush_all(&self) {
        if !self.any.swap(false, Ordering::AcqRel) {
            return; // since `flush` loaded the flag, another thread has cleared it, and sends the acknowledgements
        }
        let owing = std::mem::take(&mut *lock(&self.owing));
        for Owing { qp, .. } in owing {
            qp.acknowledge();
        }
    }

    /// Records whether the program has posted a request since the last event of its completion queue.
    pub(super) fn record_turn(&self, replied: bool) {
        let score = self.score.load(Ordering::Relaxed);
        let score = if replied { (score + 1).min(MAX_SCORE) } else { (score - 1).max(score.min(0)) };
        self.score.store(score, Ordering::Relaxed);
    }

    /// Returns whether a reply of the program is likely to carry the acknowledgement.
    pub(super) fn expects_reply(&self) -> bool {
        self.score.load(Ordering::Relaxed) >= EXPECT_REPLY
    }

    /// Sends acknowledgements that have been owed for [`LATE_CHECKS`] calls: no reply has carried them. Removes queue
    /// pairs that owe nothing.
    pub(super) fn send_late(&self) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut settled = Vec::new();
        lock(&self.owing).retain_mut(|owing| {
            let now = owing.qp.acknowledged_so_far();
            owing.checks = if now == owing.acknowledged { owing.checks + 1 } else { 0 };
            owing.acknowledged = now;
            let is_late = now.is_some() && owing.checks >= LATE_CHECKS;
            if is_late {
                self.score.store(MISSED_REPLY, Ordering::Relaxed);
            }
            if is_late || now.is_none() {
                settled.push(Arc::clone(&owing.qp));
            }
            now.is_some() && !is_late
        });
        // Without the lock, because it may send. A queue pair that owes nothing is listed again by its next message.
        settled.iter().for_each(|qp| qp.acknowledge());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_expected_from_a_program_that_replies() {
        let acks = PendingAcks::default();
        let after = |replied| {
            acks.record_turn(replied);
            acks.expects_reply()
        };
        assert!(!acks.expects_reply() && !after(true) && after(true));
        assert!(!after(false) && after(true));
        // The score is bounded: a few turns without a reply are enough, however many had one.
        for _ in 0..100 {
            after(true);
        }
        assert!((0..=MAX_SCORE - EXPECT_REPLY).filter(|_| !after(false)).count() == 1);
        acks.score.store(MISSED_REPLY, Ordering::Relaxed);
        assert!(!after(false) && acks.score.load(Ordering::Relaxed) == MISSED_REPLY);
        assert!((MISSED_REPLY + 1..EXPECT_REPLY).all(|_| !after(true)) && after(true));
    }
}
