//! The timers of a lane. A timer that is no longer needed is left to expire, and does nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// Timers by deadline.
#[derive(Debug)]
pub(crate) struct Timers<T> {
    heap: BinaryHeap<Reverse<Timer<T>>>,
    count: u64,
}

#[derive(Debug)]
struct Timer<T> {
    at: Instant,
    /// Keeps timers of the same instant in order.
    number: u64,
    what: T,
}

impl<T> Timers<T> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), count: 0 }
    }

    pub(crate) fn add(&mut self, at: Instant, what: T) {
        self.count += 1;
        self.heap.push(Reverse(Timer { at, number: self.count, what }));
    }

    /// Number of pending timers.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Time until the next deadline.
    pub(crate) fn time_to_next(&self, now: Instant) -> Option<Duration> {
        self.heap.peek().map(|Reverse(timer)| timer.at.saturating_duration_since(now))
    }

    /// Takes the next timer that has expired.
    pub(crate) fn pop_expired(&mut self, now: Instant) -> Option<T> {
        if self.heap.peek().is_some_and(|Reverse(timer)| timer.at <= now) {
            self.heap.pop().map(|Reverse(timer)| timer.what)
        } else {
            None
        }
    }
}

impl<T> PartialEq for Timer<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl<T> Eq for Timer<T> {}
impl<T> PartialOrd for Timer<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Timer<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
