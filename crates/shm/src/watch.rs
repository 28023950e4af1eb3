//! What any thread can ask about one end without holding its reader or writer.

use crate::progress::Progress;
use crate::ring::Ring;
use crate::sync::{Ordering, fence};
use std::sync::Arc;

/// Tells whether one end has something to do. Lock-free; clones watch the same end.
#[derive(Debug, Clone)]
pub struct Watch {
    /// The ring that this end reads.
    incoming: Ring,
    /// The ring that this end writes.
    outgoing: Ring,
    progress: Arc<Progress>,
}

/// Result of [`Watch::sleep`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the reader must not sleep if there is news"]
pub enum Sleep {
    /// There is something to read. The reader does not count as asleep.
    News,
    /// The ring is empty. The peer rings our bell when it publishes a record.
    Asleep {
        /// Whether the peer waits for room: then the caller must ring its bell.
        peer_wants_room: bool,
    },
}

impl Watch {
    pub(crate) fn new(incoming: Ring, outgoing: Ring, progress: Arc<Progress>) -> Self {
        Self { incoming, outgoing, progress }
    }

    /// Whether [`Reader::front`](crate::Reader::front) has something to return: a record, or an error. Costs two loads,
    /// so it can be asked before the reader is locked.
    ///
    /// After an answer `false`, a reader that polls must call [`peer_wants_room`](Self::peer_wants_room).
    #[inline]
    pub fn has_news(&self) -> bool {
        self.incoming.words().head().load(Ordering::Relaxed) != self.progress.consumed()
    }

    /// Whether the peer waits for room in the ring that we read: then the caller must ring its bell. Answers a request
    /// of the peer once. Costs one load if there is none.
    #[inline]
    #[must_use = "if this returns true, the peer waits for its bell"]
    pub fn peer_wants_room(&self) -> bool {
        let room_wanted = self.incoming.words().room_wanted();
        if room_wanted.load(Ordering::Relaxed) == 0 {
            return false;
        }
        // The writer must see what was released before it hears the bell.
        fence(Ordering::SeqCst);
        room_wanted.swap(0, Ordering::Relaxed) != 0
    }

    /// Whether the peer has released room since [`Writer::await_room`](crate::Writer::await_room) found none. Returns
    /// true once for a call of `await_room`: the caller then lets all senders that wait try again. For a thread that
    /// polls instead of waiting for the bell; costs one or two loads.
    #[inline]
    pub fn has_room_news(&self) -> bool {
        self.is_room_released() && self.progress.end_waiting()
    }

    /// Like [`has_room_news`](Self::has_room_news), but does not end the waiting: for a sender that has just called
    /// `await_room`, and has since recorded that it waits. A bell that rang before that told nobody.
    #[inline]
    pub fn is_room_released(&self) -> bool {
        let tail = || self.outgoing.words().tail().load(Ordering::Relaxed);
        self.progress.full_at().is_some_and(|full_at| full_at != tail())
    }

    /// Declares that no thread of this process polls the ring any more, unless there is something to read.
    ///
    /// What was read before must have been [released](crate::Reader::release), by this thread or by one that handed the
    /// reader on through a lock; no thread may read until [`wake`](Self::wake) is called.
    pub fn sleep(&self) -> Sleep {
        // Swapped, not stored, as all writes to this word: then loom knows their order. This is not the hot path.
        self.incoming.words().sleeping().swap(1, Ordering::Relaxed);
        // Either we see what the peer published, or it sees that we sleep (`Writer::publish`). And either we see that it
        // wants room, or it sees what we released (`Writer::await_room`).
        fence(Ordering::SeqCst);
        if self.has_news() {
            self.wake();
            return Sleep::News;
        }
        Sleep::Asleep { peer_wants_room: self.peer_wants_room() }
    }

    /// Declares that the ring is polled again. The peer may still ring once.
    #[inline]
    pub fn wake(&self) {
        let sleeping = self.incoming.words().sleeping();
        if sleeping.load(Ordering::Relaxed) != 0 {
            sleeping.swap(0, Ordering::Relaxed);
        }
    }
}
