//! What a thread does after polls that have found nothing.
//!
//! It polls on for a moment, then yields the processor at each poll: the thread that would produce the completion may
//! need it. A yield takes a fraction of a microsecond if no other thread is ready. If others compute all the time, it
//! takes milliseconds, and a message does not end it. A thread that sleeps is woken by a message, before the others have
//! used up their time. So while yields take long, the thread sleeps instead, at most as long as a yield would have taken.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Number of consecutive polls without a completion after which a thread yields or sleeps.
const POLLS_BEFORE_YIELD: u32 = 64;
/// Of this many yields, the duration of one is measured.
const YIELDS_PER_MEASUREMENT: u32 = 16;
/// A yield that takes longer shows that other threads use the processor.
const LONG_YIELD: Duration = Duration::from_micros(300);
/// How long threads sleep instead of yielding after a long yield. Then the next yield shows whether others still compute.
const BUSY_TIME: Duration = Duration::from_millis(200);
/// How long a thread polls before it sleeps: most answers arrive sooner than a sleeping thread would wake.
pub(super) const SPIN_TIME: Duration = Duration::from_micros(50);
/// Maximum duration of a sleep. The program may have other work than to wait for this queue.
const MAX_SLEEP: Duration = Duration::from_millis(1);

thread_local! {
    static IDLE: IdlePolls = const { IdlePolls::new() };
}

/// The polls of a thread that found nothing.
#[derive(Debug)]
struct IdlePolls {
    /// Number of consecutive polls without a completion, of all completion queues, up to [`POLLS_BEFORE_YIELD`].
    count: Cell<u32>,
    /// When a poll after that maximum found nothing, and yields took long. `None` if there was none.
    since: Cell<Option<Instant>>,
    /// The completion queue that was polled last, by its number.
    queue: Cell<u32>,
    /// Whether other queues were polled as well since the last completion.
    several: Cell<bool>,
    /// Number of yields since the duration of one was measured.
    yields: Cell<u32>,
    /// Until when threads sleep instead of yielding. `None` if the last yield that was measured was short.
    busy_until: Cell<Option<Instant>>,
}

/// What to do after a poll without a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Poll again.
    Poll,
    Yield,
    Sleep,
}

impl IdlePolls {
    const fn new() -> Self {
        Self {
            count: Cell::new(0),
            since: Cell::new(None),
            queue: Cell::new(0),
            several: Cell::new(false),
            yields: Cell::new(0),
            busy_until: Cell::new(None),
        }
    }

    /// Counts a poll that found nothing. Returns whether there were many.
    #[inline]
    fn record(&self) -> bool {
        let count = self.count.get();
        if count == POLLS_BEFORE_YIELD {
            return true;
        }
        self.count.set(count + 1);
        self.since.set(None);
        false
    }

    /// Counts a yield. Returns whether its duration has to be measured.
    fn must_measure(&self) -> bool {
        let yields = (self.yields.get() + 1) % YIELDS_PER_MEASUREMENT;
        self.yields.set(yields);
        yields == 0
    }

    /// Returns what to do after many polls without a completion, the last one of this queue.
    fn next(&self, queue: u32, now: Instant) -> Step {
        let since = match self.since.get() {
            Some(since) => since,
            None => {
                self.since.set(Some(now));
                self.several.set(false);
                self.queue.set(queue);
                now
            }
        };
        if self.queue.replace(queue) != queue {
            self.several.set(true);
        }
        if self.busy_until.get().is_none_or(|until| now >= until) {
            return Step::Yield;
        }
        // A thread that sleeps for one queue would not notice the others.
        match now.duration_since(since) < SPIN_TIME {
            true => Step::Poll,
            false if self.several.get() => Step::Yield,
            false => Step::Sleep,
        }
    }

    /// Records how long a yield has taken.
    fn record_yield(&self, start: Instant, end: Instant) {
        let took_long = end.duration_since(start) >= LONG_YIELD;
        self.busy_until.set(took_long.then(|| end + BUSY_TIME));
    }
}

/// Returns the number of consecutive polls of this thread without a completion, up to a maximum.
#[inline]
pub(super) fn empty_polls() -> u32 {
    IDLE.with(|idle| idle.count.get())
}

/// Counts a poll of this thread that found `found` completions. Returns whether the thread should [rest](rest), because
/// many polls have found none.
#[inline]
pub(super) fn record(found: usize) -> bool {
    IDLE.with(|idle| match found {
        0 => idle.record(),
        _ => {
            idle.count.set(0);
            false
        }
    })
}

/// Yields the processor, or calls `sleep`, which sleeps for at most the given time until something arrives for this queue.
/// It returns false if it cannot sleep.
#[cold]
pub(super) fn rest(queue: u32, sleep: impl FnOnce(Duration) -> bool) {
    IDLE.with(|idle| {
        if idle.busy_until.get().is_none() && !idle.must_measure() {
            return std::thread::yield_now();
        }
        let now = Instant::now();
        match idle.next(queue, now) {
            Step::Poll => {}
            Step::Sleep if sleep(MAX_SLEEP) => {}
            Step::Yield | Step::Sleep => {
                std::thread::yield_now();
                idle.record_yield(now, Instant::now());
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: u32 = 3;
    const MICROSECOND: Duration = Duration::from_micros(1);

    /// Returns the polls of a thread that has found nothing for a while.
    fn idle() -> IdlePolls {
        let idle = IdlePolls::new();
        assert!((0..POLLS_BEFORE_YIELD).all(|_| !idle.record()) && idle.record());
        idle
    }

    #[test]
    fn a_thread_yields_while_yields_are_short() {
        let (idle, start) = (idle(), Instant::now());
        for micros in 0..1000 {
            let now = start + micros * MICROSECOND;
            assert_eq!(idle.next(QUEUE, now), Step::Yield);
            idle.record_yield(now, now + MICROSECOND);
        }
    }

    #[test]
    fn after_a_long_yield_a_thread_sleeps_for_a_while() {
        let (idle, start) = (idle(), Instant::now());
        assert_eq!(idle.next(QUEUE, start), Step::Yield);
        let end = start + 3 * LONG_YIELD;
        idle.record_yield(start, end);
        assert_eq!(idle.next(QUEUE, end), Step::Sleep);
        // A completion comes; it polls before it sleeps again.
        idle.count.set(0);
        while !idle.record() {}
        assert_eq!(idle.next(QUEUE, end), Step::Poll);
        assert_eq!(idle.next(QUEUE, end + SPIN_TIME - MICROSECOND), Step::Poll);
        assert_eq!(idle.next(QUEUE, end + SPIN_TIME), Step::Sleep);
        assert_eq!(idle.next(QUEUE, end + BUSY_TIME - MICROSECOND), Step::Sleep);
        // The others may have stopped.
        let end = end + BUSY_TIME;
        assert_eq!(idle.next(QUEUE, end), Step::Yield);
        idle.record_yield(end, end + MICROSECOND);
        assert_eq!(idle.next(QUEUE, end + 2 * MICROSECOND), Step::Yield);
    }

    #[test]
    fn a_thread_that_polls_several_queues_does_not_sleep() {
        let (idle, start) = (idle(), Instant::now());
        assert_eq!(idle.next(QUEUE, start), Step::Yield);
        let end = start + LONG_YIELD;
        idle.record_yield(start, end);
        assert_eq!(idle.next(QUEUE + 1, end), Step::Yield);
        assert_eq!(idle.next(QUEUE + 1, end), Step::Yield);
        // It polls only one of them from now on.
        idle.count.set(0);
        while !idle.record() {}
        assert_eq!(idle.next(QUEUE, end), Step::Poll);
        assert_eq!(idle.next(QUEUE, end + SPIN_TIME), Step::Sleep);
    }
}
