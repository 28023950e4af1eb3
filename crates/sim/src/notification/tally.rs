//! What the runs reached: how much happened, and every kind of step at a moment when it can go wrong.

use std::fmt;
use std::ops::AddAssign;

/// What a run must have come across, be it once in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Met {
    ArmedNext,
    ArmedSolicited,
    /// Before the event of the last time had come.
    ArmedAgain,
    /// A completion was there already.
    ArmedTooLate,
    /// With completions in the queue.
    Grown,
    Shrunk,
    /// Too small for what waits.
    ResizeRefused,
    ResizedArmed,
    Overrun,
    /// With completions in the queue.
    Moved,
    MovedArmed,
    /// With an event at the old handler that nobody had taken.
    MovedUntaken,
    /// With an event that moderation held back.
    MovedHeld,
    /// Away, and back to where it still has an event.
    MovedBack,
    MovedToNone,
    /// An event came while there was no handler, and went to the next.
    Owed,
    /// Was taken where the queue is not any more.
    TakenAfterMove,
    /// One that nobody had taken did for this as well.
    Coalesced,
    RaisedByCount,
    RaisedByTimer,
    /// Before its time, by a timer that was started for another.
    RaisedEarly,
    /// An error does not wait.
    RaisedByError,
    /// Moderation was changed, or ended.
    RaisedByChange,
    /// A timer rang for nothing.
    RangInVain,
    /// A handler's wake was.
    WakeHeld,
    /// A handler's event queue was, with events in it.
    QueueSwitched,
}

impl Met {
    const ALL: [Self; 26] = [
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
    ];
}

/// How much happened, and how often each kind of step was met.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Completions that programs polled.
    pub completions: u64,
    /// Events that programs took.
    pub events: u64,
    /// How often a program was woken for them.
    pub wakes: u64,
    met: [u64; Met::ALL.len()],
}

impl Tally {
    pub(super) fn met(&mut self, what: Met) {
        self.met_if(what, true);
    }

    pub(super) fn met_if(&mut self, what: Met, is: bool) {
        self.met[what as usize] += u64::from(is);
    }

    /// All that should have been reached, and was not.
    pub fn missing(&self) -> Vec<String> {
        let missing = Met::ALL.into_iter().filter(|what| self.met[*what as usize] == 0);
        missing.map(|what| format!("{what:?}")).collect()
    }
}

impl AddAssign<&Self> for Tally {
    fn add_assign(&mut self, other: &Self) {
        self.completions += other.completions;
        self.events += other.events;
        self.wakes += other.wakes;
        for (count, more) in self.met.iter_mut().zip(other.met) {
            *count += more;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in Met::ALL.iter().zip(self.met) {
            write!(f, "{what:?} {count}, ")?;
        }
        let Self { completions, events, wakes, .. } = self;
        write!(f, "\n\n{completions} completions, {events} events, {wakes} wakes")
    }
}
