//! Threads of the program that block until a completion event. Such a thread sleeps on the sockets of the armed
//! completion queues itself: a message wakes that thread, which receives it. No lane has to wake first in order to wake
//! the thread.

use crate::sys::thread::{Awaited, Thread};
use ironwarp_rnic::sync::lock;
use smallvec::SmallVec;
use std::fmt;
use std::sync::{Arc, Mutex};

/// Maximum number of completion queues of a handler whose sockets a thread sleeps on. If there are more, lanes serve them.
const MAX_QUEUES: usize = 4;

/// Descriptors that a thread waits for.
pub(crate) type Descriptors = SmallVec<[Awaited; 4]>;

/// The part of a completion queue that a thread needs in order to block until one of its events.
pub(crate) trait EventSource: Send + Sync + fmt::Debug {
    /// Registers the calling thread, which is about to sleep on the sockets, and adds their descriptors. Adds none if
    /// lanes serve them. Returns false if something has arrived: the thread must not sleep.
    fn begin_event_sleep(&self, fds: &mut Descriptors) -> bool;

    /// Unregisters the calling thread if it is registered, and serves the sockets.
    fn end_event_sleep(&self);
}

/// The completion queues of a handler.
pub(crate) type Sources = SmallVec<[Arc<dyn EventSource>; 1]>;

/// The threads that block until an event of one completion handler.
#[derive(Debug, Default)]
pub(crate) struct BlockedThreads {
    /// The threads, each with the completion queues that it sleeps on. They are here and not on the stacks of the threads,
    /// because a C program may cancel a thread that blocks: nothing with a destructor may be on its stack then.
    threads: Mutex<Vec<(Thread, Sources)>>,
}

impl BlockedThreads {
    /// Registers the calling thread, which is about to sleep until an event of these queues, and adds the descriptors of
    /// the sockets that it sleeps on. Returns false if something has arrived: the thread must not sleep, and is not
    /// registered.
    pub(crate) fn begin(&self, mut sources: Sources, fds: &mut Descriptors) -> bool {
        if sources.len() > MAX_QUEUES {
            sources.clear();
        }
        let mut may_sleep = true;
        for source in &sources {
            may_sleep &= source.begin_event_sleep(fds);
        }
        let me = Thread::current();
        let gone: SmallVec<[_; 1]> = {
            let mut threads = lock(&self.threads);
            let gone = threads.extract_if(.., |(thread, _)| *thread == me || !thread.exists()).collect();
            threads.push((me, sources));
            gone
        };
        drop(gone); // without the lock: these may be the last references to the queues
        if !may_sleep {
            self.end();
        }
        may_sleep
    }

    /// Unregisters the calling thread, and serves the sockets that it slept on.
    pub(crate) fn end(&self) {
        let me = Thread::current();
        let slept: SmallVec<[_; 1]> =
            lock(&self.threads).extract_if(.., |(thread, _)| *thread == me).collect();
        for (_, sources) in slept {
            sources.iter().for_each(|source| source.end_event_sleep());
        }
    }
}
