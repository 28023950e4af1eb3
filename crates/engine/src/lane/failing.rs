//! The end of a lane that cannot go on: its epoll is gone, because the program has closed it, or it panicked outside of any connection.
//! The adapter stops, and nobody waits for the lane in vain.

use super::{Running, stopped, survive};
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Upper bound on one sleep of a lane that winds down.
const LONGEST_NAP: Duration = Duration::from_secs(1);

impl Running {
    /// Reports that the lane cannot go on, which cuts all connections of the adapter; then does its jobs without any
    /// descriptor until it is told to stop: connections let go of their sockets, whoever wants something is refused.
    pub(super) fn wind_down(mut self, why: &dyn fmt::Display) {
        self.lane.failed.store(true, Ordering::SeqCst);
        self.lane.fail(why);
        survive("refusing connections", || self.refuse_setups());
        while !self.is_done() {
            survive("winding down a lane", || {
                self.jobs();
                self.take_turns();
                self.expire();
            });
            // A job that came since has unparked this thread.
            let timeout = self.timeout().unwrap_or(LONGEST_NAP);
            std::thread::park_timeout(timeout.min(LONGEST_NAP));
        }
    }

    /// There will be no more connections.
    fn refuse_setups(&mut self) {
        self.listeners.clear();
        self.attended.clear();
        for (_, setup) in std::mem::take(&mut self.setups) {
            survive("refusing a connection", || setup.failed(stopped().into()));
        }
    }
}
