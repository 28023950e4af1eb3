//! Completion queues: how many completions they may still get.

use super::finding::{Finding, Kind};
use super::stack::Stack;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    handle: u32,
    capacity: AtomicUsize,
    /// Number of completions that the program has not polled, including those of requests that are under way.
    expected: AtomicUsize,
    reported: AtomicBool,
    created: Stack,
    /// Held while a thread polls, until the checker knows the completions: it matches them with requests by their order.
    pub(super) polling: Mutex<()>,
}

impl Cq {
    pub(super) fn new(handle: u32, capacity: usize) -> Self {
        Self {
            handle,
            capacity: AtomicUsize::new(capacity),
            expected: AtomicUsize::new(0),
            reported: AtomicBool::new(false),
            created: Stack::capture(),
            polling: Mutex::default(),
        }
    }

    /// Changes the number of completions that the queue holds.
    pub(super) fn resize(&self, capacity: usize) {
        self.capacity.store(capacity, Ordering::Relaxed);
    }

    /// Expects completions of requests that are about to be posted.
    pub(super) fn expect(&self, more: usize) {
        self.expected.fetch_add(more, Ordering::Relaxed);
    }

    /// Returns a finding if there may be more completions than the queue holds, once.
    pub(super) fn find_overrun(&self) -> Option<Finding> {
        let expected = self.expected.load(Ordering::Relaxed);
        let capacity = self.capacity.load(Ordering::Relaxed);
        if expected <= capacity || self.reported.swap(true, Ordering::Relaxed) {
            return None;
        }
        let text = format!(
            "completion queue {} holds {capacity} completions, but {expected} are possible: requests under way and completions not polled",
            self.handle
        );
        Some(Finding::now(Kind::CqMayOverrun, text).after("the completion queue was created", &self.created))
    }

    /// Counts completions that were polled, or will not come.
    pub(super) fn end(&self, fewer: usize) {
        let subtract = |expected: usize| Some(expected.saturating_sub(fewer));
        let _ = self.expected.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_completion_too_many_is_found_once() {
        let cq = Cq::new(1, 4);
        cq.expect(4);
        assert!(cq.find_overrun().is_none());
        cq.end(1);
        cq.expect(1);
        assert!(cq.find_overrun().is_none());
        cq.expect(1);
        assert_eq!(cq.find_overrun().unwrap().kind, Kind::CqMayOverrun);
        assert!(cq.find_overrun().is_none());
    }

    #[test]
    fn a_larger_queue_holds_more() {
        let cq = Cq::new(1, 1);
        cq.resize(2);
        cq.expect(2);
        cq.end(5);
        cq.expect(2);
        assert!(cq.find_overrun().is_none());
    }
}
