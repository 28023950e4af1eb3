//! The register of an event queue (requirement I3): one word with the read indicator, the number of the queue and
//! flags, by which reader and writers synchronise. Each update is a single atomic step.
//!
//! The driver writes a [`Command`] to the register, which arms or unarms the queue and, if its read indicator is
//! valid, advances that of the queue. Advancing *by* a count, not *to* a position in memory, keeps its meaning when
//! the queue is switched to another ring, so that the reader can advance while another thread switches, without a lock.

/// The value of the register. Bits 0 to 47 are the read indicator, which is the number of events read since the queue
/// was created, bits 48 to 59 the number of the queue. The rest are flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Register(pub(super) u64);

/// What the driver writes to the register, with the fields at the same bits: armed, queue number, valid, and the count
/// by which the read indicator advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Command(u64);

/// The reader is to be woken by the next event.
const ARMED: u64 = 1 << 63;
/// The moderation timer is running: the reader is not woken even if the queue is armed (requirement I10).
const HELD: u64 = 1 << 62;
/// A wakeup starts the moderation timer.
const MODERATED: u64 = 1 << 61;
/// Of the register: the queue has memory for events (requirement I2).
const DEFINED: u64 = 1 << 60;
/// Of a command: the read indicator is valid. Otherwise it is ignored.
const VALID: u64 = 1 << 60;
/// The lowest bit of the queue number.
const NUMBER_SHIFT: u32 = 48;
/// The bits of the queue number.
const NUMBER_MASK: u64 = (MAX_NUMBER as u64) << NUMBER_SHIFT;
/// The bits of the read indicator.
const COUNT_MASK: u64 = (1 << NUMBER_SHIFT) - 1;

/// The largest number that a queue can have.
pub(super) const MAX_NUMBER: u16 = 0xfff;

impl Command {
    /// Creates a command for a queue, which arms or unarms it. Its read indicator is not valid.
    pub(super) fn new(number: u32, armed: bool) -> Self {
        let word = u64::from(number) << NUMBER_SHIFT & NUMBER_MASK;
        Self(if armed { word | ARMED } else { word })
    }

    /// Adds a valid read indicator: the number of events taken since it was last reported.
    pub(super) fn advancing(self, by: u64) -> Self {
        Self(self.0 & !COUNT_MASK | by & COUNT_MASK | VALID)
    }

    /// Returns whether the command arms the queue.
    pub(super) fn arms(self) -> bool {
        self.0 & ARMED != 0
    }
}

impl Register {
    /// Creates the register of a new queue: undefined, nothing read.
    pub(super) fn new(number: u16) -> Self {
        assert!(number <= MAX_NUMBER, "queue numbers have twelve bits");
        Self(u64::from(number) << NUMBER_SHIFT)
    }

    /// Returns whether the queue has memory for events.
    pub(super) fn is_defined(self) -> bool {
        self.has(DEFINED)
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
        u32::try_from((self.0 & NUMBER_MASK) >> NUMBER_SHIFT).expect("a queue number has twelve bits")
    }

    /// Returns the number of events between the read indicator and `count`: negative if the read indicator is ahead.
    pub(super) fn unread(self, count: u64) -> i64 {
        // Shift the 48-bit difference to the top of the word, so that shifting back extends its sign.
        let distance = count.wrapping_sub(self.0) << (64 - NUMBER_SHIFT);
        distance.cast_signed() >> (64 - NUMBER_SHIFT)
    }

    /// Applies a command. An undefined queue stays unarmed.
    pub(super) fn write(self, command: Command) -> Self {
        debug_assert_eq!((self.0 ^ command.0) & NUMBER_MASK, 0, "a command for another queue");
        let valid = command.0 & VALID != 0;
        let Self(word) = if valid { self.advance(command.0 & COUNT_MASK) } else { self };
        let armed = command.arms() && self.is_defined();
        Self(if armed { word | ARMED } else { word & !ARMED })
    }

    /// Advances the read indicator by the `by` events that the reader took, and changes nothing else. It wraps at 48
    /// bits.
    pub(super) fn advance(self, by: u64) -> Self {
        Self(self.0 & !COUNT_MASK | self.0.wrapping_add(by) & COUNT_MASK)
    }

    /// Unarms the queue if a wakeup is due: the queue is armed, the moderation timer is not running, and at least
    /// `threshold` of `written` events are unread. With moderation, also marks the timer as running. `None` if no wakeup
    /// is due.
    pub(super) fn unarm_if_due(self, written: u64, threshold: i64) -> Option<Self> {
        let due = self.has(DEFINED | ARMED) && !self.is_held() && self.unread(written) >= threshold;
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

    /// Makes an undefined queue unarmed: it has memory now.
    pub(super) fn define(self) -> Self {
        Self(self.0 | DEFINED)
    }

    /// Makes the queue undefined and unarmed.
    pub(super) fn undefine(self) -> Self {
        Self(self.0 & !(DEFINED | ARMED))
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
        let new = Register::new(MAX_NUMBER);
        assert_eq!((new.number(), new.is_armed(), new.is_defined()), (0xfff, false, false));
        let arm = Command::new(0xfff, true);
        assert!(!new.write(arm).is_armed(), "an undefined queue cannot be armed");
        let last = new.define().write(arm.advancing(COUNT_MASK));
        assert_eq!((last.number(), last.unread(COUNT_MASK), last.unread(COUNT_MASK - 3)), (0xfff, 0, -3));
        let around = last.advance(2);
        assert_eq!((around.number(), around.is_armed(), around.unread(3)), (0xfff, true, 2));
        assert_eq!(around.undefine(), new.advance(1));
    }

    /// Requirement I3: the valid bit is about the read indicator, and about nothing else.
    #[test]
    fn a_read_indicator_that_is_not_valid_is_ignored() {
        let register = Register::new(5).define().advance(7);
        for armed in [true, false] {
            let with_garbage = Command(Command::new(5, armed).0 | 3);
            let written = register.write(with_garbage);
            assert_eq!((written.is_armed(), written.unread(7), written.number()), (armed, 0, 5));
            let written = written.write(Command::new(5, !armed).advancing(3));
            assert_eq!((written.is_armed(), written.unread(10), written.number()), (!armed, 0, 5));
        }
    }
}
