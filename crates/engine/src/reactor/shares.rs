//! The backlog of a lane (requirement N6): low-latency work first, the rest divided among bulk classes by stride
//! scheduling.
//!
//! Each bulk class has a pass: the number of turns it had, divided by its share. The class with the smallest pass has the
//! next turn. So a class with twice the share of another has twice as many turns while both have work.

use super::class::Class;
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZero;

/// Work that waits for its turn. The next turn goes to low-latency work, else to a bulk class by its share, and within a
/// class to the work that came first.
#[derive(Debug)]
pub(crate) struct Shares<T> {
    /// Low-latency work. Other lanes than the low-latency lane have such work only until its connection has moved.
    low_latency: VecDeque<T>,
    /// The bulk classes by their share.
    classes: BTreeMap<NonZero<u8>, ClassQueue<T>>,
    /// The pass that the class of the last turn had before that turn.
    current_pass: u64,
}

/// The waiting work of one class.
#[derive(Debug)]
struct ClassQueue<T> {
    work: VecDeque<T>,
    /// In units of 1/[`TURN`] turns.
    pass: u64,
}

/// What a turn adds to the pass of a class with a share of one. Large, because it is divided by the share, and the
/// remainder is lost.
const TURN: u64 = 1 << 32;

impl<T> Shares<T> {
    pub(crate) fn new() -> Self {
        Self { low_latency: VecDeque::new(), classes: BTreeMap::new(), current_pass: 0 }
    }

    /// Returns whether no work waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.low_latency.is_empty() && self.classes.values().all(|class| class.work.is_empty())
    }

    /// Adds work of a class.
    pub(crate) fn push(&mut self, class: Class, work: T) {
        let Class::Bulk(share) = class else { return self.low_latency.push_back(work) };
        let current = self.current_pass;
        let class = self.classes.entry(share).or_insert(ClassQueue { work: VecDeque::new(), pass: current });
        if class.work.is_empty() {
            // A class that was idle gets no extra turns for that time.
            class.pass = class.pass.max(current);
        }
        class.work.push_back(work);
    }

    /// Takes the work that has the next turn.
    pub(crate) fn pop(&mut self) -> Option<T> {
        if let Some(work) = self.low_latency.pop_front() {
            return Some(work);
        }
        let waiting = self.classes.iter_mut().filter(|(_, class)| !class.work.is_empty());
        let (share, class) = waiting.min_by_key(|(_, class)| class.pass)?;
        self.current_pass = class.pass;
        class.pass += TURN / u64::from(share.get());
        class.work.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(share: u8) -> Class {
        Class::Bulk(NonZero::new(share).unwrap())
    }

    /// Counts how many of the next `turns` go to each class, if all classes have enough work.
    fn count_turns(shares: &[u8], turns: usize) -> Vec<usize> {
        let mut waiting = Shares::new();
        let mut counts = vec![0; shares.len()];
        for (index, share) in shares.iter().enumerate() {
            (0..turns).for_each(|_| waiting.push(bulk(*share), index));
        }
        (0..turns).for_each(|_| counts[waiting.pop().unwrap()] += 1);
        counts
    }

    #[test]
    fn turns_go_by_shares() {
        assert_eq!(count_turns(&[1, 3], 400), [100, 300]);
        assert_eq!(count_turns(&[16, 32, 64], 700), [100, 200, 400]);
        assert_eq!(count_turns(&[255], 10), [10]);
    }

    #[test]
    fn low_latency_comes_first() {
        let mut waiting = Shares::new();
        (0..3).for_each(|_| waiting.push(bulk(255), "bulk"));
        (0..2).for_each(|_| waiting.push(Class::LowLatency, "low latency"));
        assert_eq!([(); 3].map(|()| waiting.pop().unwrap()), ["low latency", "low latency", "bulk"]);
        waiting.push(Class::LowLatency, "low latency");
        assert!(waiting.pop() == Some("low latency") && !waiting.is_empty());
    }

    #[test]
    fn within_a_class_the_order_is_that_of_arrival() {
        let mut waiting = Shares::new();
        (0..9).for_each(|number| waiting.push(Class::DEFAULT, number));
        assert_eq!((0..9).map(|_| waiting.pop().unwrap()).collect::<Vec<_>>(), (0..9).collect::<Vec<_>>());
        assert!(waiting.is_empty() && waiting.pop().is_none());
    }

    #[test]
    fn nobody_saves_turns_up() {
        let mut waiting = Shares::new();
        for _ in 0..100 {
            waiting.push(bulk(1), 'a');
            waiting.pop().unwrap();
        }
        (0..40).for_each(|_| waiting.push(bulk(1), 'a'));
        (0..40).for_each(|_| waiting.push(bulk(2), 'b'));
        let first: Vec<_> = (0..30).map(|_| waiting.pop().unwrap()).collect();
        let later = first.iter().filter(|class| **class == 'b').count();
        assert!((19..=21).contains(&later), "the class that came later has its share and no more: {later}");
    }
}
