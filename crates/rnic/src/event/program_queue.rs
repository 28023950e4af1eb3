//! Event queues that a program opens by number (requirement I6): the queue of channel events, and queues that the program
//! creates to separate the events of some codes, or of some lanes, from others. The event map sends events there.

use super::consumer::Consumer;
use super::map::{CHANNEL_QUEUE, PROGRAM_QUEUES};
use super::queue::{EventQueueStats, Sizes};
use super::routing::Routing;
use super::wake::Wake;
use crate::sync::{Mutex, lock};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// The maximum number of event queues is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many event queues, the maximum is {}", PROGRAM_QUEUES.len())]
pub struct TooManyQueues;

/// An event queue that the program has opened. While it exists, the events that the map sends there are written to it.
#[derive(Debug)]
pub struct ProgramQueue {
    number: u16,
    pub(super) consumer: Consumer,
}

impl ProgramQueue {
    /// Returns the number of the queue.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Returns state and statistics.
    pub fn stats(&self) -> EventQueueStats {
        self.consumer.queue().stats()
    }
}

/// The queues that the program has opened, by number. Some may have been dropped.
#[derive(Debug)]
pub(super) struct ProgramQueues {
    sizes: Sizes,
    queues: Mutex<BTreeMap<u16, Weak<ProgramQueue>>>,
}

impl ProgramQueues {
    /// Creates an empty list. Its queues will have these sizes.
    pub(super) fn new(sizes: Sizes) -> Self {
        Self { sizes, queues: Mutex::default() }
    }

    /// Opens the queue of channel events, or returns it if it is open. `wake` wakes the program for its events.
    pub(super) fn open_channel(&self, routing: &Routing, wake: Arc<dyn Wake>) -> Arc<ProgramQueue> {
        let mut queues = lock(&self.queues);
        let open = queues.get(&CHANNEL_QUEUE).and_then(Weak::upgrade);
        open.unwrap_or_else(|| self.open(&mut queues, CHANNEL_QUEUE, routing, wake))
    }

    /// Opens a queue with the lowest free number. The number becomes free when the queue is dropped.
    pub(super) fn create(
        &self,
        routing: &Routing,
        wake: Arc<dyn Wake>,
    ) -> Result<Arc<ProgramQueue>, TooManyQueues> {
        let mut queues = lock(&self.queues);
        queues.retain(|_, queue| queue.strong_count() > 0);
        let number = PROGRAM_QUEUES.into_iter().find(|number| !queues.contains_key(number));
        Ok(self.open(&mut queues, number.ok_or(TooManyQueues)?, routing, wake))
    }

    /// Opens the queue with this number.
    fn open(
        &self,
        queues: &mut BTreeMap<u16, Weak<ProgramQueue>>,
        number: u16,
        routing: &Routing,
        wake: Arc<dyn Wake>,
    ) -> Arc<ProgramQueue> {
        let interrupt = routing.create_interrupt(number, wake);
        let consumer = Consumer::new(number, self.sizes, Box::new(interrupt));
        consumer.open();
        let queue = Arc::new(ProgramQueue { number, consumer });
        queues.insert(number, Arc::downgrade(&queue));
        queue
    }

    /// Returns the queue with this number, if it is open.
    pub(super) fn get(&self, number: u16) -> Option<Arc<ProgramQueue>> {
        lock(&self.queues).get(&number)?.upgrade()
    }

    /// Returns all queues that are open.
    pub(super) fn all(&self) -> Vec<Arc<ProgramQueue>> {
        lock(&self.queues).values().filter_map(Weak::upgrade).collect()
    }
}
