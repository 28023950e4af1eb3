//! The register of an event queue (requirement I3): one word that says whether the queue is armed, which queue it is,
//! whether it is valid, and how far it was read. Written by the reader, read by writers; each write is one atomic step.
//!
//! The read indicator counts events since the queue was made, not places in memory: so it means the same before and after a
//! switch to a larger ring, and the reader can advance it *by* a count while a writer switches, without a lock.

/// What the word says. Bits 0 to 47 are the read indicator, 48 to 59 the number of the queue, the rest are flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Register(pub(super) u64);

const ARMED: u64 = 1 << 63;
/// The moderation timer runs: armed or not, nobody is woken (requirement I10).
const HELD: u64 = 1 << 62;
/// A wake starts the moderation timer.
const MODERATED: u64 = 1 << 61;
/// The queue is defined, and the read indicator means something.
const VALID: u64 = 1 << 60;
const NUMBER: u32 = 48;
const COUNT: u64 = (1 << NUMBER) - 1;

/// The largest number that a queue can have.
pub(super) const LAST_NUMBER: u16 = 0xfff;

impl Register {
    /// Valid and unarmed; nothing was read.
    pub(super) fn new(number: u16) -> Self {
        assert!(number <= LAST_NUMBER, "the register has twelve bits for the number");
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
        u32::try_from((self.0 & (VALID - 1)) >> NUMBER).expect("it has twelve bits")
    }

    /// How many events there are between the read indicator and `count`; negative if it is ahead of it.
    pub(super) fn unread(self, count: u64) -> i64 {
        // To the top of the word, so that the difference of two counts has its sign there.
        let distance = count.wrapping_sub(self.0) << (64 - NUMBER);
        distance.cast_signed() >> (64 - NUMBER)
    }

    /// The reader took `by` events.
    pub(super) fn advanced(self, by: u64) -> Self {
        Self(self.0 & !COUNT | self.0.wrapping_add(by) & COUNT)
    }

    /// The reader wants to be woken. Nobody can be by a queue that is not valid.
    pub(super) fn armed(self) -> Self {
        if self.is_valid() { Self(self.0 | ARMED) } else { self }
    }

    /// A wake is due, if the queue is armed, the timer does not hold it back, and `written` is ahead: what follows then.
    pub(super) fn fired(self, written: u64) -> Option<Self> {
        let due = self.has(VALID | ARMED) && !self.is_held() && self.unread(written) > 0;
        due.then(|| if self.has(MODERATED) { Self((self.0 & !ARMED) | HELD) } else { Self(self.0 & !ARMED) })
    }

    pub(super) fn expired(self) -> Self {
        Self(self.0 & !HELD)
    }

    /// Moderation begins anew, or ends. No timer runs: what the one before was started for is over.
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
