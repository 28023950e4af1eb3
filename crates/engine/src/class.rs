//! Classes of completion handlers (requirement N6): whose queues are served first, and how lanes divide their time among the others.
//!
//! | class | who serves its queue pairs | when |
//! |---|---|---|
//! | low latency | a lane of its own, in a hurry (`sys/hurry.rs`) | at once: the kernel lets it run before others, or they give way |
//! | bulk | the lanes that they are steered to | by its share, where there is more to do than can be done at a time |
//!
//! Before this: `cq.rs` tells which class its handler has. After it: `steering` and `lane.rs`, which go by it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::num::NonZero;
use std::sync::atomic::{AtomicU8, Ordering};

/// How urgent it is what a completion handler tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Served before everything else, by a lane of its own.
    LowLatency,
    /// Served by shares: one with twice the share of another has twice as many turns, while both have more to do.
    Bulk(NonZero<u8>),
}

impl Class {
    /// What handlers have that nobody gave another.
    pub const USUAL: Self = Self::Bulk(NonZero::new(16).expect("it is not zero"));
}

impl Default for Class {
    fn default() -> Self {
        Self::USUAL
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LowLatency => f.write_str("low latency"),
            Self::Bulk(share) => write!(f, "bulk, share {share}"),
        }
    }
}

/// A class that can be changed while others look.
#[derive(Debug)]
pub(crate) struct SharedClass(AtomicU8);

impl SharedClass {
    pub(crate) fn new(class: Class) -> Self {
        Self(AtomicU8::new(Self::byte(class)))
    }

    fn byte(class: Class) -> u8 {
        match class {
            Class::LowLatency => 0,
            Class::Bulk(share) => share.get(),
        }
    }

    pub(crate) fn get(&self) -> Class {
        NonZero::new(self.0.load(Ordering::Acquire)).map_or(Class::LowLatency, Class::Bulk)
    }

    pub(crate) fn set(&self, class: Class) {
        self.0.store(Self::byte(class), Ordering::Release);
    }
}

/// Work that waits for a turn: who is next goes by shares, and within a class by order of arrival.
#[derive(Debug)]
pub(crate) struct Shares<T> {
    classes: BTreeMap<NonZero<u8>, Waiting<T>>,
    /// Where the last that had a turn stood before it.
    now: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    work: VecDeque<T>,
    /// How many turns the class had, divided by its share. The smallest is next.
    pass: u64,
}

/// What a turn costs a class with a share of one: a number that all shares divide well enough.
const TURN: u64 = 1 << 32;

impl<T> Shares<T> {
    pub(crate) fn new() -> Self {
        Self { classes: BTreeMap::new(), now: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.classes.values().all(|class| class.work.is_empty())
    }

    pub(crate) fn push(&mut self, class: Class, work: T) {
        let Class::Bulk(share) = class else { return self.push(Class::USUAL, work) };
        let now = self.now;
        let class = self.classes.entry(share).or_insert(Waiting { work: VecDeque::new(), pass: now });
        if class.work.is_empty() {
            // Who had nothing to do has saved nothing up.
            class.pass = class.pass.max(now);
        }
        class.work.push_back(work);
    }

    /// Whose turn it is.
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
        (0..9).for_each(|number| waiting.push(Class::USUAL, number));
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

    #[test]
    fn a_class_survives_being_shared() {
        for class in [Class::LowLatency, Class::USUAL, bulk(1), bulk(255)] {
            let shared = SharedClass::new(Class::USUAL);
            shared.set(class);
            assert_eq!(shared.get(), class);
        }
    }
}
