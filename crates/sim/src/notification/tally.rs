//! Coverage of the runs: the number of events, and the situations that must occur.

use std::fmt;
use std::ops::AddAssign;

/// Situations that all runs together must cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Situation {
    ArmedNext,
    ArmedSolicited,
    /// Armed again before the event was raised.
    ArmedAgain,
    /// Armed when a completion was already present.
    ArmedTooLate,
    /// Resized with completions in the queue.
    Grown,
    Shrunk,
    /// The new size is too small for the completions.
    ResizeRefused,
    ResizedArmed,
    Overrun,
    /// Moved with completions in the queue.
    Moved,
    MovedArmed,
    /// Moved with an event at the old handler that was not taken.
    MovedUntaken,
    /// Moved with an event that moderation held back.
    MovedHeld,
    /// Moved away and back to a handler that still has its event.
    MovedBack,
    MovedToNone,
    /// An event was raised without a handler, and went to the next one.
    Owed,
    /// An event was taken after the queue had moved.
    TakenAfterMove,
    /// An event that was not taken covered this completion as well.
    Coalesced,
    RaisedByCount,
    RaisedByTimer,
    /// Raised early by a timer of an earlier event.
    RaisedEarly,
    /// Raised immediately because of an error.
    RaisedByError,
    /// Raised because moderation was changed or ended.
    RaisedByChange,
    /// A timer expired without an event to raise.
    RangInVain,
    /// The wakeup of a handler was held back.
    WakeHeld,
    /// The event queue of a handler was full, and switched to a larger ring.
    QueueSwitched,
    /// The program resized the event queue of a handler, with events in it that were not taken.
    QueueEnlarged,
    /// Resized to less than the number of events in it.
    QueueShrunk,
    /// Resized before it got memory.
    QueueSizedEarly,
    /// An event was polled from a handler.
    Polled,
    /// The event queue of a handler was armed after polling, with events in it.
    ArmedLate,
    /// A completion queue overran before the program opened the queues of asynchronous events.
    OverrunUnopened,
}

impl Situation {
    const ALL: [Self; 32] = [
        Self::ArmedNext,
        Self::ArmedSolicited,
        Self::ArmedAgain,
        Self::ArmedTooLate,
        Self::Grown,
        Self::Shrunk,
        Self::ResizeRefused,
        Self::ResizedArmed,
        Self::Overrun,
        Self::Moved,
        Self::MovedArmed,
        Self::MovedUntaken,
        Self::MovedHeld,
        Self::MovedBack,
        Self::MovedToNone,
        Self::Owed,
        Self::TakenAfterMove,
        Self::Coalesced,
        Self::RaisedByCount,
        Self::RaisedByTimer,
        Self::RaisedEarly,
        Self::RaisedByError,
        Self::RaisedByChange,
        Self::RangInVain,
        Self::WakeHeld,
        Self::QueueSwitched,
        Self::QueueEnlarged,
        Self::QueueShrunk,
        Self::QueueSizedEarly,
        Self::Polled,
        Self::ArmedLate,
        Self::OverrunUnopened,
    ];
}

/// Number of events, and how often each situation occurred.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Polled completions.
    pub completions: u64,
    /// Taken events.
    pub events: u64,
    /// Wakeups of programs.
    pub wakes: u64,
    situations: [u64; Situation::ALL.len()],
}

impl Tally {
    /// Counts a situation.
    pub(super) fn record(&mut self, what: Situation) {
        self.record_if(what, true);
    }

    /// Counts a situation if the condition `is` holds.
    pub(super) fn record_if(&mut self, what: Situation, is: bool) {
        self.situations[what as usize] += u64::from(is);
    }

    /// Returns the situations that did not occur.
    pub fn missing(&self) -> Vec<String> {
        let missing = Situation::ALL.into_iter().filter(|what| self.situations[*what as usize] == 0);
        missing.map(|what| format!("{what:?}")).collect()
    }
}

impl AddAssign<&Self> for Tally {
    fn add_assign(&mut self, other: &Self) {
        self.completions += other.completions;
        self.events += other.events;
        self.wakes += other.wakes;
        for (count, more) in self.situations.iter_mut().zip(other.situations) {
            *count += more;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in Situation::ALL.iter().zip(self.situations) {
            write!(f, "{what:?} {count}, ")?;
        }
        let Self { completions, events, wakes, .. } = self;
        write!(f, "\n\n{completions} completions, {events} events, {wakes} wakes")
    }
}
