//! The register of an event queue (requirement I3): one word with the read indicator, the number of the queue and
//! flags, by which reader and writers synchronise. Each update is a single atomic step.
//!
//! The read indicator is the number of events read since the queue was created, not a position in memory. It
//! therefore keeps its meaning when a writer switches to a larger ring, and the reader can advance it meanwhile,
//! without a lock.

/// The value of the register. Bits 0 to 47 are the read indicator, 48 to 59 the number of the queue, the rest
/// are flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Register(pub(super) u64);

/// The reader is to be woken by the next event.
const ARMED: u64 = 1 << 63;
/// The moderation timer is running: the reader is not woken even if the queue is armed (requirement I10).
const HELD: u64 = 1 << 62;
/// A wakeup starts the moderation timer.
const MODERATED: u64 = 1 << 61;
/// The queue is defined, and the read indicator is meaningful.
const VALID: u64 = 1 << 60;
/// The lowest bit of the queue number.
const NUMBER_SHIFT: u32 = 48;
/// The bits of the read indicator.
const COUNT_MASK: u64 = (1 << NUMBER_SHIFT) - 1;

/// The largest number that a queue can have.
pub(super) const MAX_NUMBER: u16 = 0xfff;

impl Register {
    /// Creates the register of a new queue: valid, unarmed, nothing read.
    pub(super) fn new(number: u16) -> Self {
        assert!(number <= MAX_NUMBER, "queue numbers have twelve bits");
        Self(VALID | u64::from(number) << NUMBER_SHIFT)
    }

    /// Returns whether the queue is defined.
    pub(super) fn is_valid(self) -> bool {
        self.has(VALID)
    }

    pub(super) fn is_armed(self) -> bool {
        self.has(ARMED)
    }

    /// Returns whether the moderation timer is running.
    pub(super) fn is_held(self) -> bool {
        self.has(HELD)
    }

    /// Returns the number of the queue.
    pub(super) fn number(self) -> u32 {
        u32::try_from((self.0 & (VALID - 1)) >> NUMBER_SHIFT).expect("a queue number has twelve bits")
    }

    /// Returns the number of events between the read indicator and `count`: negative if the read indicator is ahead.
    pub(super) fn unread(self, count: u64) -> i64 {
        // Shift the 48-bit difference to the top of the word, so that shifting back extends its sign.
        let distance = count.wrapping_sub(self.0) << (64 - NUMBER_SHIFT);
        distance.cast_signed() >> (64 - NUMBER_SHIFT)
    }

    /// Advances the read indicator by the `by` events that the reader took. It wraps at 48 bits.
    pub(super) fn advance(self, by: u64) -> Self {
        Self(self.0 & !COUNT_MASK | self.0.wrapping_add(by) & COUNT_MASK)
    }

    /// Arms the queue. An invalid queue stays unarmed.
    pub(super) fn arm(self) -> Self {
        if self.is_valid() { Self(self.0 | ARMED) } else { self }
    }

    /// Unarms the queue if a wakeup is due: the queue is armed, the moderation timer is not running, and fewer than
    /// `written` events were read. With moderation, also marks the timer as running. `None` if no wakeup is due.
    pub(super) fn unarm_if_due(self, written: u64) -> Option<Self> {
        let due = self.has(VALID | ARMED) && !self.is_held() && self.unread(written) > 0;
        due.then(|| if self.has(MODERATED) { Self((self.0 & !ARMED) | HELD) } else { Self(self.0 & !ARMED) })
    }

    /// Marks the moderation timer as no longer running.
    pub(super) fn end_hold(self) -> Self {
        Self(self.0 & !HELD)
    }

    /// Enables or disables moderation. Marks the timer as not running, because a change of moderation drops it.
    pub(super) fn set_moderated(self, moderated: bool) -> Self {
        let idle = self.0 & !(MODERATED | HELD);
        Self(if moderated { idle | MODERATED } else { idle })
    }

    /// Makes the queue undefined and unarmed.
    pub(super) fn invalidate(self) -> Self {
        Self(self.0 & !(VALID | ARMED))
    }

    /// Returns whether all of these flags are set.
    fn has(self, flags: u64) -> bool {
        self.0 & flags == flags
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch_each_other() {
        let register = Register::new(MAX_NUMBER);
        assert_eq!((register.number(), register.is_armed(), register.is_valid()), (0xfff, false, true));
        let last = register.advance(COUNT_MASK).arm();
        assert_eq!((last.number(), last.unread(COUNT_MASK), last.unread(COUNT_MASK - 3)), (0xfff, 0, -3));
        let around = last.advance(2);
        assert_eq!((around.number(), around.is_armed(), around.unread(3)), (0xfff, true, 2));
        assert!(!around.invalidate().arm().is_armed(), "an undefined queue cannot be armed");
    }
}
