//! Time that moves only when told, and the timer of a stream.

use crate::lock;
use ironwarp_rnic::fault::Pacer;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The time of a simulation, from 0 on. Clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct Clock(Arc<Mutex<Duration>>);

impl Clock {
    /// A clock that shows 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// The time.
    pub fn now(&self) -> Duration {
        *lock(&self.0)
    }

    /// Lets so much time pass.
    pub fn advance(&self, time: Duration) {
        *lock(&self.0) += time;
    }

    /// Lets time pass until then; that is now, if it has passed already.
    pub fn advance_to(&self, then: Duration) {
        let mut now = lock(&self.0);
        *now = then.max(*now);
    }
}

/// The timer of one stream: what its faults ask for. It drives nothing; a test does, when it rings.
#[derive(Debug)]
pub struct Alarm {
    clock: Clock,
    /// When it will ring. No longer than the faults that are under way.
    times: Mutex<BTreeSet<Duration>>,
}

impl Alarm {
    /// A timer that was asked for nothing.
    pub fn new(clock: &Clock) -> Arc<Self> {
        Arc::new(Self { clock: clock.clone(), times: Mutex::default() })
    }

    /// When it rings next.
    pub fn next(&self) -> Option<Duration> {
        lock(&self.times).first().copied()
    }

    /// Whether it rang since this was last asked: then both halves of the stream are to be driven.
    pub fn take_rung(&self) -> bool {
        let now = self.clock.now();
        let mut times = lock(&self.times);
        let before = times.len();
        times.retain(|time| *time > now);
        times.len() < before
    }
}

impl Pacer for Alarm {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn call_again(&self, after: Duration) {
        lock(&self.times).insert(self.clock.now() + after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn time_moves_when_told_and_never_back() {
        let clock = Clock::new();
        let same = clock.clone();
        assert_eq!(clock.now(), Duration::ZERO);
        clock.advance(SECOND);
        same.advance_to(3 * SECOND);
        same.advance_to(2 * SECOND);
        assert_eq!((clock.now(), same.now()), (3 * SECOND, 3 * SECOND));
    }

    #[test]
    fn an_alarm_rings_at_its_times_and_not_before() {
        let clock = Clock::new();
        let alarm = Alarm::new(&clock);
        assert_eq!((alarm.next(), alarm.take_rung()), (None, false));
        clock.advance(SECOND);
        alarm.call_again(2 * SECOND);
        alarm.call_again(SECOND);
        assert_eq!((alarm.now(), alarm.next(), alarm.take_rung()), (SECOND, Some(2 * SECOND), false));
        clock.advance(SECOND);
        assert_eq!((alarm.take_rung(), alarm.take_rung()), (true, false));
        assert_eq!(alarm.next(), Some(3 * SECOND));
        clock.advance(9 * SECOND);
        assert_eq!((alarm.take_rung(), alarm.next()), (true, None));
        alarm.call_again(Duration::ZERO);
        assert!(alarm.take_rung());
    }
}
