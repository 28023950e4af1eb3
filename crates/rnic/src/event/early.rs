//! Asynchronous events from before the program asks for them. Many programs never do, so equal events count as one, and
//! events of objects that are destroyed are removed: there is at most one for each code and existing object. Otherwise
//! peers could fill the queues of a program that never reads them, and so stop its adapter (requirement I5).

use super::code::Event;
use crate::broken;
use std::collections::HashMap;

/// The events, by their entries in an event queue. The value orders them.
#[derive(Debug, Default)]
pub(super) struct EarlyEvents {
    entries: HashMap<u64, u64>,
    /// Number of events so far.
    count: u64,
}

impl EarlyEvents {
    /// Adds an event, in place of an equal one. Returns false, and adds nothing, if there are `max` events.
    pub(super) fn insert(&mut self, event: Event, max: usize) -> bool {
        let word = event.to_word();
        if self.entries.len() >= max && !self.entries.contains_key(&word) {
            return false;
        }
        if broken::is("early") {
            return true;
        }
        self.entries.insert(word, self.count);
        self.count += 1;
        true
    }

    /// Removes an event. Returns whether it was there.
    pub(super) fn remove(&mut self, event: Event) -> bool {
        self.entries.remove(&event.to_word()).is_some()
    }

    /// Returns the events, the oldest first.
    pub(super) fn into_events(self) -> impl Iterator<Item = Event> {
        let mut entries: Vec<_> = self.entries.into_iter().collect();
        entries.sort_unstable_by_key(|(_, order)| *order);
        entries.into_iter().map(|(word, _)| Event::from_word(word))
    }
}
