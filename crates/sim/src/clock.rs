//! Time that moves only when told, the timer of a stream, and those of moderation.

use crate::lock;
use ironwarp_rnic::event::{Moderated, Timer};
use ironwarp_rnic::fault::Pacer;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};
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

/// The timers of moderation (requirement I10), where the engine has those of a lane.
#[derive(Debug)]
pub struct Timers {
    clock: Clock,
    started: Mutex<Started>,
}

#[derive(Debug, Default)]
struct Started {
    /// By time and, at one time, in the order of their starts.
    timers: BTreeMap<(Duration, u64), Weak<Reminder>>,
    count: u64,
}

/// A timer of one queue or handler. Dropped, it does not ring.
#[derive(Debug)]
struct Reminder {
    this: Weak<Self>,
    timers: Arc<Timers>,
    of: Weak<dyn Moderated>,
    name: usize,
}

impl Timers {
    /// None runs.
    pub fn new(clock: &Clock) -> Arc<Self> {
        Arc::new(Self { clock: clock.clone(), started: Mutex::default() })
    }

    /// What they go by.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// A timer that reminds `of`, and is called `name` when it does.
    pub fn timer<M: Moderated + 'static>(self: &Arc<Self>, name: usize, of: &Arc<M>) -> Arc<dyn Timer> {
        let (timers, of) = (Arc::clone(self), Arc::downgrade(of));
        Arc::new_cyclic(|this| Reminder { this: Weak::clone(this), timers, of, name })
    }

    /// When the next rings.
    pub fn next(&self) -> Option<Duration> {
        lock(&self.started).timers.first_key_value().map(|((time, _), _)| *time)
    }

    /// Rings the next one whose time has come, and returns its name. `None`: there is none, or it was dropped.
    pub fn ring(&self) -> Option<usize> {
        let mut started = lock(&self.started);
        let entry = started.timers.first_entry().filter(|entry| entry.key().0 <= self.clock.now())?;
        let reminder = entry.remove();
        drop(started); // who is reminded may start another
        let reminder = reminder.upgrade()?;
        if let Some(moderated) = reminder.of.upgrade() {
            moderated.expired();
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

    #[derive(Debug, Default)]
    struct Count(Mutex<u32>);

    impl Moderated for Count {
        fn expired(&self) {
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
        assert_eq!([(); 2].map(|()| timers.ring()), [None, Some(2)], "dropped, and of what is gone by then");
    }
}
