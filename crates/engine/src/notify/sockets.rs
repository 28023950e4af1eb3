//! The descriptor of a completion channel that a C program waits on. The sockets of the channel's completion queues wake
//! the thread that waits, which then serves them: no lane has to wake first in order to wake that thread.
//!
//! The descriptor is an epoll set. Its first member is readable while the channel has events. If the program takes
//! events without blocking, usually from an event loop, the sockets of the completion queues that it arms are members as
//! well. A thread that blocks in a call waits for those sockets in the call itself (`blocking.rs`).

use super::blocking::{BlockedThreads, Descriptors, EventSource};
use crate::reactor::poll_set::PollSet;
use crate::sys::poller::{Events, Interest, ProgramEpoll};
use ironwarp_rnic::event::HandlerId;
use ironwarp_rnic::sync::lock;
use smallvec::SmallVec;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The value of the member that is readable while there are events. No poll set has this token.
const EVENTS: u64 = 0;
/// Maximum number of events of sockets that one call takes.
const MAX_EVENTS: usize = 32;

/// Values of [`ChannelSockets::mode`]: the program has not taken an event yet, or blocks in a call. The sockets are not in
/// the descriptor.
const LANES: u8 = 0;
/// The program takes events without blocking, and serves the sockets.
const PROGRAM: u8 = 1;
/// The same, from now on: the program has made the descriptor blocking again.
const LANES_FOREVER: u8 = 2;

/// The descriptor of a completion channel, and the sockets that make it readable.
#[derive(Debug)]
pub struct ChannelSockets {
    epoll: Arc<ProgramEpoll>,
    handler: HandlerId,
    /// The poll sets whose sockets are in the descriptor, each with its token.
    sets: Mutex<Sets>,
    /// One of the constants above. Becomes `LANES_FOREVER` with `sets` locked, so that no set joins afterwards.
    mode: AtomicU8,
    /// The completion queues of the channel.
    queues: Mutex<Vec<Weak<dyn EventSource>>>,
    /// Threads that block until an event.
    blocked: BlockedThreads,
}

#[derive(Debug, Default)]
struct Sets {
    list: Vec<(u64, Arc<PollSet>)>,
    /// The last token that was given to a set.
    last_token: u64,
}

impl ChannelSockets {
    /// Creates a descriptor without sockets, which is readable while `events` is. Its completion queues have this
    /// handler.
    pub fn new(events: impl AsFd, handler: HandlerId) -> io::Result<Arc<Self>> {
        let epoll = Arc::new(ProgramEpoll::new()?);
        epoll.add(events, EVENTS, Interest::Readable)?;
        let sets = Mutex::new(Sets { list: Vec::new(), last_token: EVENTS });
        let (mode, queues, blocked) = (AtomicU8::new(LANES), Mutex::default(), BlockedThreads::default());
        Ok(Arc::new(Self { epoll, handler, sets, mode, queues, blocked }))
    }

    /// Returns the descriptor.
    pub fn fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }

    /// Returns whether the program has made the descriptor non-blocking.
    pub fn is_nonblocking(&self) -> bool {
        self.epoll.is_nonblocking()
    }

    /// Returns whether the sockets of completion queues wake the program when it arms them.
    #[inline]
    pub fn wakes_program(&self) -> bool {
        self.mode.load(Ordering::Relaxed) == PROGRAM
    }

    /// Records that the program takes events without blocking. From now on the sockets of completion queues that it arms
    /// are in the descriptor.
    pub fn use_sockets(&self) {
        let _ = self.mode.compare_exchange(LANES, PROGRAM, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Records that a thread of the program is about to wait for an event in a call. From now on the sockets are not in the
    /// descriptor.
    pub fn leave_sockets_to_lanes(&self) {
        if self.wakes_program() {
            let list = {
                let mut sets = lock(&self.sets);
                self.mode.store(LANES_FOREVER, Ordering::Relaxed);
                std::mem::take(&mut sets.list)
            };
            list.iter().for_each(|(_, set)| set.give_to_lane());
        }
    }

    /// Serves the sockets that are ready, and calls `next` until it returns an event. Does not wait.
    ///
    /// If the sockets have made the descriptor readable, and nothing has completed, raises the events of completion queues
    /// that are armed: a program that finds the descriptor readable expects an event. Consumers must expect such events,
    /// since another thread may have polled the completion.
    pub fn serve<E>(&self, next: impl Fn() -> Option<E>) -> Option<E> {
        let sets: SmallVec<[(u64, Arc<PollSet>); 1]> = {
            let sets = lock(&self.sets);
            sets.list.iter().filter(|(_, set)| set.is_in_channel()).cloned().collect()
        };
        let mut received = SmallVec::<[&PollSet; 1]>::new();
        if let [(_, set)] = &sets[..] {
            if set.serve_for_channel() {
                received.push(set);
            }
            if let Some(event) = next() {
                return Some(event);
            }
        }
        // Takes the events of sockets that have nothing to read, or cannot be read now: they must not make the descriptor
        // readable again. Sockets are served after that, since they report each arrival only once.
        let mut events = Events::new(MAX_EVENTS);
        self.epoll.take_events(&mut events);
        for (token, set) in &sets {
            if events.iter().any(|event| event.data == *token) && set.serve_ready_for_channel() {
                received.push(set);
            }
        }
        next().or_else(|| {
            received.iter().for_each(|set| set.raise_early_events());
            next()
        })
    }

    /// Adds a completion queue.
    pub(crate) fn add_queue(&self, queue: Weak<dyn EventSource>) {
        lock(&self.queues).push(queue);
    }

    /// Removes a completion queue that is about to be destroyed.
    pub(crate) fn remove_queue(&self, queue: &dyn EventSource) {
        lock(&self.queues).retain(|known| !std::ptr::addr_eq(known.as_ptr(), &raw const *queue));
    }

    /// Registers the calling thread, which is about to block until an event, and calls `add` with the descriptors of the
    /// sockets that it has to wait for besides. Returns false if something has arrived: then the thread must not block, and
    /// is not registered.
    pub fn begin_block(&self, add: impl FnMut(RawFd)) -> bool {
        let mut fds = Descriptors::new();
        let queues = lock(&self.queues).iter().filter_map(Weak::upgrade).collect();
        let may_block = self.blocked.begin(queues, &mut fds);
        fds.iter().map(AsRawFd::as_raw_fd).for_each(add);
        may_block
    }

    /// Unregisters the calling thread, and serves the sockets.
    pub fn end_block(&self) {
        self.blocked.end();
    }

    /// Adds the sockets of a completion queue that is being armed. Returns false if lanes must serve them.
    pub(crate) fn join(&self, set: &Arc<PollSet>) -> bool {
        let mut sets = lock(&self.sets);
        if !self.wakes_program() || set.is_in_channel() {
            return self.wakes_program();
        }
        sets.last_token += 1;
        let token = sets.last_token;
        let joined = set.join_channel(&self.epoll, self.handler, token);
        sets.list.retain(|(_, known)| !Arc::ptr_eq(known, set));
        if joined {
            sets.list.push((token, Arc::clone(set)));
        }
        joined
    }

    /// Removes the sockets of a completion queue. If another queue of the channel uses them, it adds them again when it is
    /// armed.
    pub(crate) fn leave(&self, set: &Arc<PollSet>) {
        let mut sets = lock(&self.sets);
        let before = sets.list.len();
        sets.list.retain(|(_, known)| !Arc::ptr_eq(known, set));
        let was_joined = sets.list.len() < before;
        drop(sets);
        if was_joined {
            set.give_to_lane();
        }
    }
}

impl AsFd for ChannelSockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
