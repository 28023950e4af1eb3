//! [`FineTimers`], timers that are exact to some microseconds. Those of a lane are exact to a millisecond, because
//! epoll_wait counts in milliseconds.

use super::source::{Callback, EventSource, Rearm};
use crate::sys::poller::Alarm;
use crate::util::timers::Timers;
use ironwarp_rnic::bug;
use ironwarp_rnic::sync::lock;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Pending timers, which a lane serves.
#[derive(Debug)]
pub(crate) struct FineTimers {
    alarm: Alarm,
    pending: Mutex<Timers<Callback>>,
}

impl FineTimers {
    /// Creates timers that run once they are added to a lane.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { alarm: Alarm::new()?, pending: Mutex::new(Timers::new()) })
    }

    /// Has the lane's thread call a function at this time, or soon after.
    pub(crate) fn call_at(&self, at: Instant, call: impl FnOnce() + Send + 'static) {
        let now = Instant::now();
        let mut pending = lock(&self.pending);
        let before = pending.time_to_next(now);
        pending.add(at, Callback::new(call));
        if before.is_none_or(|before| at.saturating_duration_since(now) < before) {
            self.set_alarm(&pending, now);
        }
    }

    /// Sets the alarm for the first timer. Without one, clears an alarm that has expired.
    fn set_alarm(&self, pending: &Timers<Callback>, now: Instant) {
        // A time of zero would disarm the alarm.
        let time = pending.time_to_next(now).map(|time| time.max(Duration::from_nanos(1)));
        // Fails only if the program has closed the descriptor.
        let _ = self.alarm.set(time.unwrap_or_default());
    }

    fn take_expired(&self) -> Option<Callback> {
        let now = Instant::now();
        let mut pending = lock(&self.pending);
        let expired = pending.pop_expired(now);
        if expired.is_none() {
            self.set_alarm(&pending, now);
        }
        expired
    }
}

impl EventSource for FineTimers {
    fn on_readable(&self) -> io::Result<Rearm> {
        while let Some(call) = self.take_expired() {
            if let Err(bug) = bug::catch("running a timer", || call.call()) {
                tracing::error!(%bug, "panic on a lane");
            }
        }
        Ok(Rearm::Now)
    }
}

impl AsFd for FineTimers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }
}
