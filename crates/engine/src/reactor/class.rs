//! Classes of completion handlers (requirement N6). They decide which lane serves a queue pair, and how a lane divides
//! its time.
//!
//! | class | served by | when |
//! |---|---|---|
//! | low latency | a lane of its own, scheduled before other threads (`sys/sched.rs`) | at once |
//! | bulk | the lanes that its queue pairs are steered to | in proportion to its share, if a lane has a backlog |

use std::fmt;
use std::num::NonZero;
use std::sync::atomic::{AtomicU8, Ordering};

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

/// A class that can change while other threads read it. A completion handler shares it with its completion queues.
///
/// The byte is the share of a bulk class, or zero for low latency.
#[derive(Debug)]
pub(crate) struct SharedClass(AtomicU8);

impl SharedClass {
    pub(crate) fn new(class: Class) -> Self {
        Self(AtomicU8::new(Self::encode(class)))
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
    pub(crate) fn get(&self) -> Class {
        Self::decode(self.0.load(Ordering::SeqCst))
    }

    /// Sets the class, and returns the previous one.
    pub(crate) fn replace(&self, class: Class) -> Class {
        Self::decode(self.0.swap(Self::encode(class), Ordering::SeqCst))
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
            let shared = SharedClass::new(Class::DEFAULT);
            assert_eq!(shared.replace(class), Class::DEFAULT);
            assert_eq!(shared.get(), class);
        }
    }
}
