//! A lane (a thread of the adapter) and its poll sets, as seen from other threads.

use super::handle::LaneHandle;
use super::poll_set::PollSet;
use crate::sys::thread::Thread;
use ironwarp_rnic::event::AsyncEvents;
use ironwarp_rnic::sync::lock;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The load of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneLoad {
    /// Number of sockets of queue pairs that the lane serves while the program does not poll.
    pub sockets: usize,
    /// Processor time that its thread has used.
    pub busy: Duration,
    /// Number of times its thread woke.
    pub wakes: u64,
    /// Number of pending timers.
    pub timers: usize,
    /// Number of connections that peers have begun and that are not established yet.
    pub handshakes: usize,
    /// Number of handshakes begun by peers that the adapter ended, because there were too many of them, or too few
    /// descriptors.
    pub evicted: u64,
}

/// A lane: a thread that serves sockets while the program does not poll them.
#[derive(Debug)]
pub(crate) struct Lane {
    handle: Arc<LaneHandle>,
    /// Its poll sets by token. Completion queues own them; dead entries are removed when they are looked up.
    sets: Mutex<HashMap<u64, Weak<PollSet>>>,
}

impl Lane {
    /// Creates a lane without a thread: `thread::start` starts it.
    pub(super) fn new(number: usize, reports: &Arc<AsyncEvents>) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { handle: LaneHandle::new(number, reports)?, sets: Mutex::default() }))
    }

    pub(crate) fn handle(&self) -> &Arc<LaneHandle> {
        &self.handle
    }

    /// Returns the current load.
    pub(crate) fn load(&self) -> LaneLoad {
        let counters = self.handle.counters();
        LaneLoad {
            sockets: self.sets().iter().map(|set| set.len()).sum(),
            busy: self.handle.thread().map_or(Duration::ZERO, Thread::processor_time),
            wakes: self.handle.wakes(),
            timers: counters.timers.load(Ordering::Relaxed),
            handshakes: counters.handshakes.load(Ordering::Relaxed),
            evicted: counters.evicted.load(Ordering::Relaxed),
        }
    }

    /// Creates an empty poll set that this lane serves.
    pub(crate) fn new_set(&self) -> io::Result<Arc<PollSet>> {
        PollSet::new(&self.handle, |set| {
            lock(&self.sets).insert(set.token(), Arc::downgrade(set));
        })
    }

    /// Returns its poll sets.
    pub(crate) fn sets(&self) -> Vec<Arc<PollSet>> {
        lock(&self.sets).values().filter_map(Weak::upgrade).collect()
    }

    /// Returns the poll set with this token; `None` if there is none, or it was dropped.
    pub(super) fn set(&self, token: u64) -> Option<Arc<PollSet>> {
        let mut sets = lock(&self.sets);
        let set = sets.get(&token)?.upgrade();
        if set.is_none() {
            sets.remove(&token);
        }
        set
    }

    /// Returns whether its poll sets contain no sockets.
    pub(super) fn is_idle(&self) -> bool {
        self.sets().iter().all(|set| set.len() == 0)
    }
}
