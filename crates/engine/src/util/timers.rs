//! Timers, ordered by deadline. They cannot be cancelled: the owner ignores a timer that it no longer needs when it
//! expires.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// Pending timers, each with a value of type `T` that says what is due.
#[derive(Debug)]
pub(crate) struct Timers<T> {
    /// The earliest timer is on top: `BinaryHeap` puts the greatest there, hence `Reverse`.
    heap: BinaryHeap<Reverse<Timer<T>>>,
    /// Number of timers ever added.
    added: u64,
}

#[derive(Debug)]
struct Timer<T> {
    deadline: Instant,
    /// Orders timers with the same deadline by when they were added.
    number: u64,
    value: T,
}

impl<T> Timers<T> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), added: 0 }
    }

    /// Adds a timer.
    pub(crate) fn add(&mut self, deadline: Instant, value: T) {
        self.added += 1;
        self.heap.push(Reverse(Timer { deadline, number: self.added, value }));
    }

    /// Returns the number of pending timers.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Returns the time until the next deadline, zero if it has passed; `None` if no timer is pending.
    pub(crate) fn time_to_next(&self, now: Instant) -> Option<Duration> {
        self.heap.peek().map(|Reverse(timer)| timer.deadline.saturating_duration_since(now))
    }

    /// Takes the earliest timer, if it has expired.
    pub(crate) fn pop_expired(&mut self, now: Instant) -> Option<T> {
        if self.heap.peek().is_some_and(|Reverse(timer)| timer.deadline <= now) {
            self.heap.pop().map(|Reverse(timer)| timer.value)
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
        (self.deadline, self.number).cmp(&(other.deadline, other.number))
    }
}
