//! A lane's backlog, divided among classes by stride scheduling.

use super::class::Class;
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZero;

/// Work that waits for its turn. The next turn goes to a class by its share, and within a class by order of arrival.
#[derive(Debug)]
pub(crate) struct Shares<T> {
    classes: BTreeMap<NonZero<u8>, Waiting<T>>,
    /// The pass of the class that had the last turn, before that turn.
    now: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    work: VecDeque<T>,
    /// Number of turns the class had, divided by its share. The smallest is next.
    pass: u64,
}

/// What a turn adds to the pass of a class with a share of one: large enough to be divided by every share without much error.
const TURN: u64 = 1 << 32;

impl<T> Shares<T> {
    pub(crate) fn new() -> Self {
        Self { classes: BTreeMap::new(), now: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.classes.values().all(|class| class.work.is_empty())
    }

    pub(crate) fn push(&mut self, class: Class, work: T) {
        let Class::Bulk(share) = class else { return self.push(Class::DEFAULT, work) };
        let now = self.now;
        let class = self.classes.entry(share).or_insert(Waiting { work: VecDeque::new(), pass: now });
        if class.work.is_empty() {
            // A class that was idle has not saved up turns.
            class.pass = class.pass.max(now);
        }
        class.work.push_back(work);
    }

    /// Takes the work whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let waiting = self.classes.iter_mut().filter(|(_, class)| !class.work.is_empty());
        let (share, class) = waiting.min_by_key(|(_, class)| class.pass)?;
        self.now = class.pass;
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

    /// How many of the next `turns` each class has, if all have more to do than that.
    fn turns(shares: &[u8], turns: usize) -> Vec<usize> {
        let mut waiting = Shares::new();
        let mut had = vec![0; shares.len()];
        for (index, share) in shares.iter().enumerate() {
            (0..turns).for_each(|_| waiting.push(bulk(*share), index));
        }
        (0..turns).for_each(|_| had[waiting.pop().unwrap()] += 1);
        had
    }

    #[test]
    fn turns_go_by_shares() {
        assert_eq!(turns(&[1, 3], 400), [100, 300]);
        assert_eq!(turns(&[16, 32, 64], 700), [100, 200, 400]);
        assert_eq!(turns(&[255], 10), [10]);
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
        let late = first.iter().filter(|who| **who == 'b').count();
        assert!((19..=21).contains(&late), "the one that comes later has its share and no more: {late}");
    }
}
