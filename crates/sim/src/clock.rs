//! Simulated time, the timer of a stream, and the timers of event moderation.

use crate::lock;
use ironwarp_rnic::event::{Moderated, Timer};
use ironwarp_rnic::fault::Pacer;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The time of a simulation, which starts at 0 and advances only on request. Clones share the time.
#[derive(Clone, Debug, Default)]
pub struct Clock(Arc<Mutex<Duration>>);

impl Clock {
    /// Creates a clock at 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the time.
    pub fn now(&self) -> Duration {
        *lock(&self.0)
    }

    /// Advances by a duration.
    pub fn advance(&self, time: Duration) {
        *lock(&self.0) += time;
    }

    /// Advances to a time, unless it has already passed.
    pub fn advance_to(&self, then: Duration) {
        let mut now = lock(&self.0);
        *now = then.max(*now);
    }
}

/// The timer of one stream, used by fault injection. It drives nothing by itself; the test does when it expires.
#[derive(Debug)]
pub struct Alarm {
    clock: Clock,
    /// When it will expire; one entry per active fault at most.
    times: Mutex<BTreeSet<Duration>>,
}

impl Alarm {
    /// Creates a timer that is not running.
    pub fn new(clock: &Clock) -> Arc<Self> {
        Arc::new(Self { clock: clock.clone(), times: Mutex::default() })
    }

    /// Returns when it expires next.
    pub fn next(&self) -> Option<Duration> {
        lock(&self.times).first().copied()
    }

    /// Whether it has expired since the last call, in which case both directions of the stream must be driven.
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

    fn schedule(&self, after: Duration) {
        lock(&self.times).insert(self.clock.now() + after);
    }
}

/// The timers of event moderation (requirement I10), in place of the timers of a lane.
#[derive(Debug)]
pub struct Timers {
    clock: Clock,
    started: Mutex<Started>,
}

#[derive(Debug, Default)]
struct Started {
    /// By time, then in the order in which they were started.
    timers: BTreeMap<(Duration, u64), Weak<Reminder>>,
    count: u64,
}

/// The timer of one queue or handler. It does not expire after it was dropped.
#[derive(Debug)]
struct Reminder {
    this: Weak<Self>,
    timers: Arc<Timers>,
    of: Weak<dyn Moderated>,
    name: usize,
}

impl Timers {
    /// Creates the timers, none of which is running.
    pub fn new(clock: &Clock) -> Arc<Self> {
        Arc::new(Self { clock: clock.clone(), started: Mutex::default() })
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Creates a timer for `of`, which `ring` identifies by `name`.
    pub fn timer<M: Moderated + 'static>(self: &Arc<Self>, name: usize, of: &Arc<M>) -> Arc<dyn Timer> {
        let (timers, of) = (Arc::clone(self), Arc::downgrade(of));
        Arc::new_cyclic(|this| Reminder { this: Weak::clone(this), timers, of, name })
    }

    /// Returns when the next one expires.
    pub fn next(&self) -> Option<Duration> {
        lock(&self.started).timers.first_key_value().map(|((time, _), _)| *time)
    }

    /// Expires the next timer that is due and returns its name. Returns `None` if there is none, or if it was dropped.
    pub fn ring(&self) -> Option<usize> {
        let mut started = lock(&self.started);
        let entry = started.timers.first_entry().filter(|entry| entry.key().0 <= self.clock.now())?;
        let reminder = entry.remove();
        drop(started); // the callback may start another one
        let reminder = reminder.upgrade()?;
        if let Some(moderated) = reminder.of.upgrade() {
            moderated.on_timer();
        }
        Some(reminder.name)
    }
}

impl Timer for Reminder {
    fn start(&self, after: Duration) {
        let mut started = lock(&self.timers.started);
        started.count += 1;
        let key = (self.timers.clock.now() + after, started.count);
        started.timers.insert(key, Weak::clone(&self.this));
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
    fn an_alarm_expires_at_its_times_and_not_before() {
        let clock = Clock::new();
        let alarm = Alarm::new(&clock);
        assert_eq!((alarm.next(), alarm.take_rung()), (None, false));
        clock.advance(SECOND);
        alarm.schedule(2 * SECOND);
        alarm.schedule(SECOND);
        assert_eq!((alarm.now(), alarm.next(), alarm.take_rung()), (SECOND, Some(2 * SECOND), false));
        clock.advance(SECOND);
        assert_eq!((alarm.take_rung(), alarm.take_rung()), (true, false));
        assert_eq!(alarm.next(), Some(3 * SECOND));
        clock.advance(9 * SECOND);
        assert_eq!((alarm.take_rung(), alarm.next()), (true, None));
        alarm.schedule(Duration::ZERO);
        assert!(alarm.take_rung());
    }

    #[derive(Debug, Default)]
    struct Count(Mutex<u32>);

    impl Moderated for Count {
        fn on_timer(&self) {
            *lock(&self.0) += 1;
        }
    }

    #[test]
    fn timers_ring_in_order_and_once_for_each_start() {
        let clock = Clock::new();
        let (timers, [one, other]) = (Timers::new(&clock), [(); 2].map(|()| Arc::<Count>::default()));
        let [first, second] = [timers.timer(1, &one), timers.timer(2, &other)];
        second.start(2 * SECOND);
        first.start(SECOND);
        first.start(2 * SECOND);
        assert_eq!((timers.next(), timers.ring()), (Some(SECOND), None));
        clock.advance(2 * SECOND);
        assert_eq!([(); 4].map(|()| timers.ring()), [Some(1), Some(2), Some(1), None]);
        assert_eq!((*lock(&one.0), *lock(&other.0), timers.next()), (2, 1, None));
        first.start(SECOND);
        second.start(SECOND);
        drop((first, other));
        clock.advance(SECOND);
        assert_eq!([(); 2].map(|()| timers.ring()), [None, Some(2)], "the first one was dropped");
    }
}
