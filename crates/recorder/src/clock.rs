//! The time of an event: the processor's counter, which takes no system call and runs at a constant rate.
#![allow(unsafe_code, reason = "reads the processor's counter")]

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the processor's counter.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Returns the processor's counter.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    let ticks: u64;
    // SAFETY: Linux lets programs read this register. Reading it has no other effect.
    unsafe {
        core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags))
    };
    ticks
}

/// Returns the nanoseconds of the system's clock, on processors whose counter is not known.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn ticks() -> u64 {
    nanoseconds()
}

/// Returns the time in nanoseconds since 1970; zero before.
pub(crate) fn nanoseconds() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Two moments by both clocks, from which the rate of the counter follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calibration {
    pub(crate) ticks: [u64; 2],
    pub(crate) nanoseconds: [u64; 2],
}

impl Calibration {
    /// Returns the time of a number of ticks, in nanoseconds since 1970. `None` if the two moments cannot be of one machine
    /// that was not restarted in between: the counter would be slower than 1 MHz or faster than 100 GHz.
    pub(crate) fn time_of(&self, ticks: u64) -> Option<u64> {
        let elapsed = |[from, to]: [u64; 2]| to.checked_sub(from).filter(|elapsed| *elapsed > 0);
        let (counted, passed) = (elapsed(self.ticks)?, elapsed(self.nanoseconds)?);
        let is_plausible = counted / 100 <= passed && passed / 1000 <= counted;
        if !is_plausible {
            return None;
        }
        let since = i128::from(ticks) - i128::from(self.ticks[0]);
        let time = since * i128::from(passed) / i128::from(counted) + i128::from(self.nanoseconds[0]);
        u64::try_from(time).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_counter_tells_the_time() {
        let first = (ticks(), nanoseconds());
        std::thread::sleep(Duration::from_millis(20));
        let (middle, expected) = (ticks(), nanoseconds());
        std::thread::sleep(Duration::from_millis(20));
        let calibration = Calibration { ticks: [first.0, ticks()], nanoseconds: [first.1, nanoseconds()] };
        let found = calibration.time_of(middle).unwrap();
        assert!(found.abs_diff(expected) < 5_000_000, "{found} {expected}");
    }

    #[test]
    fn a_rate_that_no_counter_has_gives_no_time() {
        let time = |ticks, nanoseconds| Calibration { ticks, nanoseconds }.time_of(5);
        assert_eq!(time([0, 10], [100, 110]), Some(105));
        assert_eq!(time([10, 0], [100, 110]), None);
        assert_eq!(time([0, 1], [0, 1_000_000]), None);
        assert_eq!(time([0, u64::MAX], [0, 1]), None);
        assert_eq!(time([0, 0], [0, 0]), None);
        assert_eq!(time([u64::MAX - 1, u64::MAX], [0, 1]), None); // before 1970
    }
}
