//! A queue of events with a descriptor that programs can wait on.

use crate::support::errno::Errno;
use crate::support::wake::ChannelWake;
use ironwarp_rnic::event::Wake;
use ironwarp_rnic::sync::lock;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard};

/// Events that the program has not taken yet.
#[derive(Debug)]
pub(super) struct EventQueue<E> {
    events: Mutex<VecDeque<E>>,
    /// Makes the descriptor readable. While `events` is not locked, its count equals the number of events.
    wake: ChannelWake,
}

impl<E> EventQueue<E> {
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Self { events: Mutex::default(), wake: ChannelWake::new()? })
    }

    /// The descriptor, which is readable while there are events.
    pub(super) fn fd(&self) -> RawFd {
        self.wake.fd()
    }

    /// Appends an event.
    pub(super) fn push(&self, event: E) {
        let mut events = self.events();
        events.push_back(event);
        self.wake.signal();
    }

    /// Takes the oldest event. `on_take` runs before the queue is unlocked, so that [`extract`](Self::extract)
    /// finds the event either in the queue or already counted.
    pub(super) fn next(&self, on_take: impl FnOnce(&E)) -> Option<E> {
        let mut events = self.events();
        let event = events.pop_front()?;
        self.wake.consume();
        on_take(&event);
        Some(event)
    }

    /// Removes the events that match, and returns them in order.
    pub(super) fn extract(&self, matches: impl Fn(&E) -> bool) -> Vec<E> {
        let mut events = self.events();
        let (extracted, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut *events).into_iter().partition(matches);
        *events = rest.into();
        extracted.iter().for_each(|_| self.wake.consume());
        extracted
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<E>> {
        lock(&self.events)
    }
}
