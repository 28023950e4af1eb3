//! Classes of completion handlers (requirement N6), which decide which lane serves a queue pair, and how a lane divides
//! its time; and their processors (requirement N5), which limit the lanes.
//!
//! | class | served by | when |
//! |---|---|---|
//! | low latency | a lane of its own, scheduled before other threads (`sys/sched.rs`) | at once |
//! | bulk | the lanes that its queue pairs are steered to | in proportion to its share, if a lane has a backlog |

use ironwarp_rnic::sync::lock;
use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZero;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

/// How urgent the completions of a completion handler are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// Served before everything else, by a lane of its own.
    LowLatency,
    /// Served in proportion to its share: a class with twice the share of another has twice as many turns while both
    /// have work.
    Bulk(NonZero<u8>),
}

impl Class {
    /// The class of a handler until another one is set.
    pub const DEFAULT: Self = Self::Bulk(NonZero::new(16).expect("16 is not zero"));
}

impl Default for Class {
    fn default() -> Self {
        Self::DEFAULT
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

/// A set of processors (requirement N5), by number. The empty set stands for no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Processors(Arc<[usize]>);

impl Processors {
    /// Creates a set from numbers in any order.
    pub(crate) fn new(numbers: &[usize]) -> Self {
        Self(numbers.iter().copied().collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// Returns whether there is no limit.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a thread that may run on these processors never leaves the set.
    pub(crate) fn contain(&self, processors: &[usize]) -> bool {
        self.is_unlimited() || processors.iter().all(|processor| self.0.contains(processor))
    }

    /// Returns the numbers in ascending order; none if there is no limit.
    pub(crate) fn numbers(&self) -> &[usize] {
        &self.0
    }
}

/// How the queue pairs of a completion handler are served: its class and its processors. Both can change while other
/// threads read them. A completion handler shares this with its completion queues.
#[derive(Debug)]
pub(crate) struct ServicePolicy {
    /// The share of a bulk class, or zero for low latency.
    class: AtomicU8,
    processors: Mutex<Processors>,
}

impl ServicePolicy {
    /// Creates a service of this class, on any processor.
    pub(crate) fn new(class: Class) -> Self {
        Self { class: AtomicU8::new(Self::encode(class)), processors: Mutex::default() }
    }

    fn encode(class: Class) -> u8 {
        match class {
            Class::LowLatency => 0,
            Class::Bulk(share) => share.get(),
        }
    }

    fn decode(byte: u8) -> Class {
        NonZero::new(byte).map_or(Class::LowLatency, Class::Bulk)
    }

    /// Returns the current class.
    pub(crate) fn class(&self) -> Class {
        Self::decode(self.class.load(Ordering::SeqCst))
    }

    /// Sets the class, and returns the previous one.
    pub(crate) fn replace_class(&self, class: Class) -> Class {
        Self::decode(self.class.swap(Self::encode(class), Ordering::SeqCst))
    }

    /// Returns the current processors.
    pub(crate) fn processors(&self) -> Processors {
        lock(&self.processors).clone()
    }

    /// Sets the processors.
    pub(crate) fn set_processors(&self, processors: Processors) {
        *lock(&self.processors) = processors;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_survives_being_shared() {
        for class in [
            Class::LowLatency,
            Class::DEFAULT,
            Class::Bulk(NonZero::<u8>::MIN),
            Class::Bulk(NonZero::<u8>::MAX),
        ] {
            let shared = ServicePolicy::new(Class::DEFAULT);
            assert_eq!(shared.replace_class(class), Class::DEFAULT);
            assert_eq!(shared.class(), class);
        }
    }

    #[test]
    fn a_set_of_processors_contains_the_threads_that_never_leave_it() {
        let set = Processors::new(&[3, 1, 3]);
        assert_eq!(set.numbers(), [1, 3]);
        assert!(set.contain(&[3]) && set.contain(&[1, 3]) && !set.contain(&[0, 1]));
        assert!(Processors::new(&[]).is_unlimited() && Processors::default().contain(&[0, 1]));
    }
}
