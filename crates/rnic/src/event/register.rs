//! The register of an event queue (requirement I3): one word with the armed flag, the number of the queue,
//! its validity and the read indicator. The reader writes it, writers read it; each write is a single atomic
//! step.
//!
//! The read indicator counts events since the queue was created, not positions in memory. It therefore keeps
//! its meaning across a switch to a larger ring, and the reader can advance it *by* a count while a writer
//! switches, without a lock.

/// The value of the register. Bits 0 to 47 are the read indicator, 48 to 59 the number of the queue, the rest
/// are flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Register(pub(super) u64);

const ARMED: u64 = 1 << 63;
/// The moderation timer is running: the reader is not woken even if the queue is armed (requirement I10).
const HELD: u64 = 1 << 62;
/// A wakeup starts the moderation timer.
const MODERATED: u64 = 1 << 61;
/// The queue is defined, and the read indicator is meaningful.
const VALID: u64 = 1 << 60;
const NUMBER: u32 = 48;
const COUNT: u64 = (1 << NUMBER) - 1;

/// The largest number that a queue can have.
pub(super) const LAST_NUMBER: u16 = 0xfff;

impl Register {
    /// Valid and unarmed; nothing was read.
    pub(super) fn new(number: u16) -> Self {
        assert!(number <= LAST_NUMBER, "queue numbers have twelve bits");
        Self(VALID | u64::from(number) << NUMBER)
    }

    pub(super) fn is_valid(self) -> bool {
        self.has(VALID)
    }

    pub(super) fn is_armed(self) -> bool {
        self.has(ARMED)
    }

    pub(super) fn is_held(self) -> bool {
        self.has(HELD)
    }

    pub(super) fn number(self) -> u32 {
        u32::try_from((self.0 & (VALID - 1)) >> NUMBER).expect("a queue number has twelve bits")
    }

    /// Number of events between the read indicator and `count`; negative if the read indicator is ahead.
    pub(super) fn unread(self, count: u64) -> i64 {
        // Shift to the top of the word, so that the difference of two counts has its sign there.
        let distance = count.wrapping_sub(self.0) << (64 - NUMBER);
        distance.cast_signed() >> (64 - NUMBER)
    }

    /// The value after the reader took `by` events.
    pub(super) fn advanced(self, by: u64) -> Self {
        Self(self.0 & !COUNT | self.0.wrapping_add(by) & COUNT)
    }

    /// The value after the reader armed the queue. An invalid queue cannot be armed.
    pub(super) fn armed(self) -> Self {
        if self.is_valid() { Self(self.0 | ARMED) } else { self }
    }

    /// If a wakeup is due (the queue is armed, not held back by the timer, and `written` is ahead), returns
    /// the value after it.
    pub(super) fn fired(self, written: u64) -> Option<Self> {
        let due = self.has(VALID | ARMED) && !self.is_held() && self.unread(written) > 0;
        due.then(|| if self.has(MODERATED) { Self((self.0 & !ARMED) | HELD) } else { Self(self.0 & !ARMED) })
    }

    pub(super) fn expired(self) -> Self {
        Self(self.0 & !HELD)
    }

    /// The value after moderation was enabled, changed or disabled. No timer runs: an earlier one no longer
    /// counts.
    pub(super) fn moderated(self, moderated: bool) -> Self {
        let idle = self.0 & !(MODERATED | HELD);
        Self(if moderated { idle | MODERATED } else { idle })
    }

    pub(super) fn undefined(self) -> Self {
        Self(self.0 & !(VALID | ARMED))
    }

    fn has(self, flags: u64) -> bool {
        self.0 & flags == flags
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch_each_other() {
        let register = Register::new(LAST_NUMBER);
        assert_eq!((register.number(), register.is_armed(), register.is_valid()), (0xfff, false, true));
        let last = register.advanced(COUNT).armed();
        assert_eq!((last.number(), last.unread(COUNT), last.unread(COUNT - 3)), (0xfff, 0, -3));
        let around = last.advanced(2);
        assert_eq!((around.number(), around.is_armed(), around.unread(3)), (0xfff, true, 2));
        assert!(!around.undefined().armed().is_armed(), "an undefined queue cannot be armed");
    }
}
