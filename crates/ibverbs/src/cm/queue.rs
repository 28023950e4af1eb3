//! A queue of events with a descriptor to wait on.

use crate::support::errno::Errno;
use crate::support::wake::ChannelWake;
use ironwarp_rnic::event::Wake;
use ironwarp_rnic::sync::lock;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard};

/// Events that the program has not taken yet. Whenever the lock is free, there are as many signals as events.
#[derive(Debug)]
pub(super) struct EventQueue<E> {
    events: Mutex<VecDeque<E>>,
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

    /// Takes the oldest event. `on_take` runs before the queue is unlocked.
    pub(super) fn next(&self, on_take: impl FnOnce(&E)) -> Option<E> {
        let mut events = self.events();
        let event = events.pop_front()?;
        self.wake.consume();
        on_take(&event);
        Some(event)
    }

    /// Removes the events that match.
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
