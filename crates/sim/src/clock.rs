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

    /// Returns the current time.
    pub fn now(&self) -> Duration {
        *lock(&self.0)
    }

    /// Advances the time by a duration.
    pub fn advance(&self, time: Duration) {
        *lock(&self.0) += time;
    }

    /// Advances the time to `time`, unless that has already passed.
    pub fn advance_to(&self, time: Duration) {
        let mut now = lock(&self.0);
        *now = time.max(*now);
    }
}

/// The timer of one stream, used by fault injection. The alarm calls nothing when it expires: the test asks with
/// [`take_expired`](Self::take_expired), and drives the stream.
#[derive(Debug)]
pub struct Alarm {
    clock: Clock,
    /// The times at which the alarm expires: at most one per active fault.
    times: Mutex<BTreeSet<Duration>>,
}

impl Alarm {
    /// Creates an alarm that is not running.
    pub fn new(clock: &Clock) -> Arc<Self> {
        Arc::new(Self { clock: clock.clone(), times: Mutex::default() })
    }

    /// Returns when the alarm expires next; `None` if it is not running.
    pub fn next(&self) -> Option<Duration> {
        lock(&self.times).first().copied()
    }

    /// Returns whether the alarm has expired since the last call. If so, both directions of the stream must be driven.
    pub fn take_expired(&self) -> bool {
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

/// The timers of event moderation (requirement I10), which the engine would run on a lane.
#[derive(Debug)]
pub struct Timers {
    clock: Clock,
    started: Mutex<Started>,
}

/// The running timers.
#[derive(Debug, Default)]
struct Started {
    /// The timers by the time of expiry, and then by the order in which they were started.
    timers: BTreeMap<(Duration, u64), Weak<ModerationTimer>>,
    /// Number of timers started so far.
    count: u64,
}

/// The timer of one completion queue or handler. A dropped timer does not expire.
#[derive(Debug)]
struct ModerationTimer {
    /// This timer, to be added to `timers`.
    this: Weak<Self>,
    timers: Arc<Timers>,
    /// The queue or handler, which is called on expiry.
    moderated: Weak<dyn Moderated>,
    /// Identifies the timer to the caller of [`Timers::expire_next`].
    name: usize,
}

impl Timers {
    /// Creates the timers, none of which is running.
    pub fn new(clock: &Clock) -> Arc<Self> {
        Arc::new(Self { clock: clock.clone(), started: Mutex::default() })
    }

    /// Returns the clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Creates a timer for a queue or handler. When the timer expires, [`expire_next`](Self::expire_next) returns
    /// `name`.
    pub fn timer<M: Moderated + 'static>(
        self: &Arc<Self>,
        name: usize,
        moderated: &Arc<M>,
    ) -> Arc<dyn Timer> {
        let (timers, moderated) = (Arc::clone(self), Arc::downgrade(moderated));
        Arc::new_cyclic(|this| ModerationTimer { this: Weak::clone(this), timers, moderated, name })
    }

    /// Returns when the next timer expires; `None` if no timer is running.
    pub fn next(&self) -> Option<Duration> {
        lock(&self.started).timers.first_key_value().map(|((time, _), _)| *time)
    }

    /// Removes the next timer that is due, calls its queue or handler, and returns its name. Returns `None` if no timer
    /// is due, or if the timer was dropped.
    pub fn expire_next(&self) -> Option<usize> {
        let mut started = lock(&self.started);
        let entry = started.timers.first_entry().filter(|entry| entry.key().0 <= self.clock.now())?;
        let timer = entry.remove();
        drop(started); // `on_timer` may start another timer
        let timer = timer.upgrade()?;
        if let Some(moderated) = timer.moderated.upgrade() {
            moderated.on_timer();
        }
        Some(timer.name)
    }
}

impl Timer for ModerationTimer {
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
        assert_eq!((alarm.next(), alarm.take_expired()), (None, false));
        clock.advance(SECOND);
        alarm.schedule(2 * SECOND);
        alarm.schedule(SECOND);
        assert_eq!((alarm.now(), alarm.next(), alarm.take_expired()), (SECOND, Some(2 * SECOND), false));
        clock.advance(SECOND);
        assert_eq!((alarm.take_expired(), alarm.take_expired()), (true, false));
        assert_eq!(alarm.next(), Some(3 * SECOND));
        clock.advance(9 * SECOND);
        assert_eq!((alarm.take_expired(), alarm.next()), (true, None));
        alarm.schedule(Duration::ZERO);
        assert!(alarm.take_expired());
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
        assert_eq!((timers.next(), timers.expire_next()), (Some(SECOND), None));
        clock.advance(2 * SECOND);
        assert_eq!([(); 4].map(|()| timers.expire_next()), [Some(1), Some(2), Some(1), None]);
        assert_eq!((*lock(&one.0), *lock(&other.0), timers.next()), (2, 1, None));
        first.start(SECOND);
        second.start(SECOND);
        drop((first, other));
        clock.advance(SECOND);
        assert_eq!([(); 2].map(|()| timers.expire_next()), [None, Some(2)], "the first one was dropped");
    }
}
