//! A queue of events with a descriptor that programs can wait on.

use super::device::CmDevice;
use crate::support::errno::Errno;
use crate::support::persona::config;
use crate::support::wake::ChannelWake;
use ironwarp_engine::Engine;
use ironwarp_rnic::adversary::{Adversary, Choice, Sequence};
use ironwarp_rnic::event::Wake;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::sync::lock;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Events that the program has not taken yet.
#[derive(Debug)]
pub(super) struct EventQueue<E> {
    events: Mutex<Events<E>>,
    /// Makes the descriptor readable. While `events` is not locked, its count equals the number of events that the program
    /// can take.
    wake: ChannelWake,
}

/// Events in order.
#[derive(Debug)]
struct Events<E> {
    /// The events that the program can take.
    ready: VecDeque<E>,
    /// The events after them that the adversary delays.
    late: VecDeque<E>,
    /// The number of the channel, in the order in which the program creates them.
    number: u64,
    /// The draws of the adversary. `None` before the first one.
    rng: Option<Rng>,
}

impl<E: Send + 'static> EventQueue<E> {
    pub(super) fn new() -> Result<Arc<Self>, Errno> {
        static CREATED: AtomicU64 = AtomicU64::new(0);
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let events = Events { ready: VecDeque::new(), late: VecDeque::new(), number, rng: None };
        Ok(Arc::new(Self { events: Mutex::new(events), wake: ChannelWake::new()? }))
    }

    /// The descriptor, which is readable while there are events.
    pub(super) fn fd(&self) -> RawFd {
        self.wake.fd()
    }

    /// Appends an event. The adversary may delay it, with all that follow it.
    pub(super) fn push(self: &Arc<Self>, event: E) {
        let engine = adverse_engine();
        let mut events = self.events();
        // Drawn in any case, so that the draws for later events do not depend on time.
        let delay = engine.and_then(|engine| {
            let adversary = engine.device().adversary()?;
            Some((engine, adversary, events.draw_delay(adversary)?))
        });
        if !events.late.is_empty() {
            events.late.push_back(event); // its order is kept
            return;
        }
        if let Some((engine, adversary, delay)) = delay {
            let this = Arc::clone(self);
            // Fails only if the lanes cannot be started.
            if engine.call_at(Instant::now() + delay, move || this.release()).is_ok() {
                adversary.record(Choice::LateConnectionEvent);
                events.late.push_back(event);
                return;
            }
        }
        events.ready.push_back(event);
        self.wake.signal();
    }

    /// Lets the program take the events that were delayed.
    fn release(&self) {
        let mut events = self.events();
        while let Some(event) = events.late.pop_front() {
            events.ready.push_back(event);
            self.wake.signal();
        }
    }

    /// Takes the oldest event. `on_take` runs before the queue is unlocked, so that [`extract`](Self::extract)
    /// finds the event either in the queue or already counted.
    pub(super) fn next(&self, on_take: impl FnOnce(&E)) -> Option<E> {
        let mut events = self.events();
        let event = events.ready.pop_front()?;
        self.wake.consume();
        on_take(&event);
        Some(event)
    }

    /// Removes the events that match, and returns them in order.
    pub(super) fn extract(&self, matches: impl Fn(&E) -> bool) -> Vec<E> {
        let mut events = self.events();
        let (mut extracted, ready): (Vec<_>, Vec<_>) =
            std::mem::take(&mut events.ready).into_iter().partition(&matches);
        extracted.iter().for_each(|_| self.wake.consume());
        let (late, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut events.late).into_iter().partition(&matches);
        (events.ready, events.late) = (ready.into(), rest.into());
        extracted.extend(late);
        extracted
    }

    fn events(&self) -> MutexGuard<'_, Events<E>> {
        lock(&self.events)
    }
}

impl<E> Events<E> {
    /// Draws whether to delay an event, and by how much.
    fn draw_delay(&mut self, adversary: &Adversary) -> Option<Duration> {
        let new = || adversary.sequence(Sequence::Events, self.number);
        adversary.draw_event_delay(self.rng.get_or_insert_with(new))
    }
}

/// Returns the adapter with the adversary, if there is one.
fn adverse_engine() -> Option<&'static Engine> {
    config().adversary.0?;
    Some(CmDevice::first().ok()?.context.engine())
}
