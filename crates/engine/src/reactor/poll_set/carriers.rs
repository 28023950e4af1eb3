//! The carriers that a poll set serves: shared memory with other processes.

use crate::reactor::carrier::Carrier;
use crate::reactor::handle::LaneHandle;
use crate::sys::poller::{Epoll, Interest};
use ironwarp_rnic::sync::lock;
use smallvec::SmallVec;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of polls of the program from one poll of the sockets to the next, in a set with carriers. The sockets of
/// connections that use carriers report only their end.
const POLLS_PER_SOCKET_POLL: u32 = 32;

/// Result of [`Carriers::serve_bell`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServedBell {
    /// There is no such bell.
    Unknown,
    /// Its carrier was served.
    Open,
    /// Its carrier was served, and removed because it is closed.
    Removed,
}

/// A copy of the list. Most sets have one carrier.
pub(super) type List = SmallVec<[Arc<dyn Carrier>; 2]>;

/// The carriers of a poll set.
#[derive(Debug, Default)]
pub(super) struct Carriers {
    state: Mutex<State>,
    /// Number of carriers, to read without the lock.
    count: AtomicUsize,
    /// Number of polls since the sockets were last polled.
    polls: AtomicU32,
}

#[derive(Debug, Default)]
struct State {
    /// Each carrier with its token in the epoll set.
    list: Vec<(u64, Arc<dyn Carrier>)>,
    /// Whether a thread of the program polls the set, and does not sleep.
    polled: bool,
}

impl Carriers {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Adds a carrier, whose bell is added to the epoll set with this token. Does nothing if the set has the carrier.
    /// Returns false if something has arrived for which its bell does not ring.
    pub(super) fn add(&self, epoll: &Epoll, token: u64, carrier: &Arc<dyn Carrier>) -> io::Result<bool> {
        let mut state = lock(&self.state);
        if state.list.iter().any(|(_, known)| std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(carrier))) {
            return Ok(true);
        }
        epoll.add(&**carrier, token, Interest::ReadableEdges)?;
        state.list.push((token, Arc::clone(carrier)));
        self.count.store(state.list.len(), Ordering::Release);
        if state.polled {
            carrier.begin_polling();
            return Ok(true);
        }
        drop(state);
        Ok(carrier.sleep())
    }

    /// Returns a copy of the list. Carriers are served without the lock.
    pub(super) fn list(&self) -> List {
        lock(&self.state).list.iter().map(|(_, carrier)| Arc::clone(carrier)).collect()
    }

    /// Returns whether something has arrived in a carrier.
    pub(super) fn has_news(&self) -> bool {
        lock(&self.state).list.iter().any(|(_, carrier)| carrier.has_news())
    }

    /// Serves all carriers in which something has arrived. Returns whether large payload arrives.
    pub(super) fn serve(&self) -> bool {
        !self.is_empty() && serve_all(&self.list())
    }

    /// Takes the rings of all bells, for a thread that has slept on them. Returns false if a carrier is closed.
    pub(super) fn hear(&self) -> bool {
        self.is_empty()
            || self.list().iter().fold(true, |open, carrier| {
                carrier.hear(false);
                open && !carrier.is_closed()
            })
    }

    /// Takes the rings of the bell with this token, and serves its carrier. `ended` tells that no more rings follow.
    pub(super) fn serve_bell(&self, epoll: &Epoll, token: u64, ended: bool) -> ServedBell {
        let carrier =
            lock(&self.state).list.iter().find(|(known, _)| *known == token).map(|it| Arc::clone(&it.1));
        let Some(carrier) = carrier else { return ServedBell::Unknown };
        carrier.hear(ended);
        carrier.serve();
        if !carrier.is_closed() {
            return ServedBell::Open;
        }
        self.remove(epoll, token);
        ServedBell::Removed
    }

    /// Removes the carrier with this token.
    fn remove(&self, epoll: &Epoll, token: u64) {
        let mut state = lock(&self.state);
        let polled = state.polled;
        for (_, carrier) in state.list.extract_if(.., |(known, _)| *known == token) {
            let _ = epoll.delete(&*carrier);
            if polled {
                carrier.end_polling();
            }
        }
        self.count.store(state.list.len(), Ordering::Release);
    }

    /// Counts a poll of the program. Returns whether it has to poll the sockets as well.
    pub(super) fn count_poll(&self) -> bool {
        let polls = self.polls.load(Ordering::Relaxed) + 1;
        let is_due = polls >= POLLS_PER_SOCKET_POLL || self.is_empty();
        self.polls.store(if is_due { 0 } else { polls }, Ordering::Relaxed);
        is_due
    }

    /// Records that a thread of the program polls from now on.
    pub(super) fn begin_polling(&self) {
        let mut state = lock(&self.state);
        if !std::mem::replace(&mut state.polled, true) {
            state.list.iter().for_each(|(_, carrier)| carrier.begin_polling());
        }
    }

    /// Records that no thread of the program polls any more. Returns false if something has arrived for which no bell
    /// rings.
    pub(super) fn end_polling(&self) -> bool {
        let mut state = lock(&self.state);
        let was_polled = std::mem::replace(&mut state.polled, false);
        !was_polled
            || state.list.iter().map(|(_, carrier)| carrier.end_polling()).fold(true, |all, one| all & one)
    }

    /// Stops polling, because the set is dropped. The lane serves what has arrived and for which no bell rings: the
    /// connections may be in other sets.
    pub(super) fn leave(&mut self, lane: &Arc<LaneHandle>) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (_, carrier) in std::mem::take(&mut state.list) {
            if state.polled && !carrier.end_polling() {
                serve_on(lane, carrier);
            }
        }
    }

    /// Declares that the lane, which has served the carriers, goes back to sleep. Returns false if something has arrived
    /// for which no bell rings.
    pub(super) fn sleep(&self) -> bool {
        self.is_empty()
            || lock(&self.state).list.iter().map(|(_, it)| it.sleep()).fold(true, |all, one| all & one)
    }
}

/// Serves all carriers of a list in which something has arrived. Returns whether large payload arrives.
pub(super) fn serve_all(list: &List) -> bool {
    list.iter().filter(|carrier| carrier.has_news()).fold(false, |bulk, carrier| bulk | carrier.serve())
}

/// Has a lane serve a carrier, in turns, until nothing is left and its bell rings again.
fn serve_on(lane: &Arc<LaneHandle>, carrier: Arc<dyn Carrier>) {
    let next = Arc::clone(lane);
    lane.call(move || {
        carrier.serve();
        if !carrier.sleep() {
            serve_on(&next, carrier);
        }
    });
}
