//! The sockets that one completion queue has on one lane: an epoll set, which is itself one entry of the lane's epoll (design:
//! "one polling structure").
//!
//! Either the lane serves the set, or the program does by polling the completion queue; the entry is armed or not, which
//! is one call however many sockets there are. A program that polls disarms it. Once it has not polled for a while, or
//! wants to sleep, it is armed again.
//!
//! ```text
//!            program polls                 entry fires              messages stream
//!   Polled <─────────────── Armed ───────────────────────> Serving ─────────────────> Paused
//!      │  ───────────────>    ▲                               │  <─────────────────────  │
//!      │    not for a while,  └───────────────────────────────┤ done     a moment later  │
//!      │    or wants to sleep                                 │                          │
//!      ▲──────────────────────────────────────────────────────┴──────────────────────────┘ program polls meanwhile
//! ```

use crate::connection::Connection;
use crate::datagram::Inbox;
use crate::lane::Lane;
use crate::sleep::Sleepers;
use crate::sys::poller::{Epoll, Event, Events, Interest};
use crate::sys::thread::Thread;
use ironwarp_rnic::error::Fault;
use ironwarp_rnic::qp::{Qp, Ready};
use ironwarp_rnic::queue::Cq;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// So many events are taken from the kernel at once.
const BATCH: usize = 64;

thread_local! {
    /// Room for events, for threads of the program that poll.
    static EVENTS: RefCell<Events> = RefCell::new(Events::new(BATCH));
}

/// So soon after it was armed, an entry that fires is one of a stream of messages, not the answer to one.
const QUICK: Duration = Duration::from_micros(10);
/// After so many of these in a row, the lane pauses before it looks again.
const STREAM: u32 = 3;

/// How the entry of a set fires.
#[derive(Debug, Default)]
struct Pace {
    armed: Option<Instant>,
    /// It was armed because the program had stopped to poll.
    taken_back: bool,
    /// How often it fired at once, one time after the other.
    quick: u32,
}

impl Pace {
    /// It fires. Returns whether more will come in a moment, as a rule.
    fn fires(&mut self, now: Instant) -> bool {
        let quick = self.is_quick(now);
        self.quick = if quick { self.quick.saturating_add(1) } else { 0 };
        self.quick >= STREAM
    }

    fn is_quick(&self, now: Instant) -> bool {
        self.armed.is_some_and(|armed| now.saturating_duration_since(armed) < QUICK)
    }

    /// Whether what is there had been waiting since the program stopped to poll.
    fn is_late(&mut self, now: Instant) -> bool {
        std::mem::take(&mut self.taken_back) && self.is_quick(now)
    }
}

/// Who serves a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Lane,
    Program,
}

/// What the sockets had.
#[derive(Clone, Copy, Debug, Default)]
struct Served {
    /// Something was received.
    came: bool,
    /// Large payload was among it.
    bulk: bool,
}

/// What the lane is to do for a set whose entry fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "nobody else serves the set, or acknowledges, if the lane does not"]
pub(crate) enum Fired {
    /// Nothing.
    Done,
    /// Look whether the program, which had polled so often, does so now: it was just woken, and its answer may take the
    /// acknowledgement along.
    Look(u64),
    /// Call [`Set::resume`] in a moment. Messages stream in, each with a call of its own at the other end: to wake for every one
    /// costs both ends more than to take several at once.
    Pause,
}

/// The sockets of a completion queue on a lane.
#[derive(Debug)]
pub(crate) struct Set {
    pub(crate) epoll: Epoll,
    /// The completion queues that look at it.
    cqs: Mutex<Vec<Weak<Cq>>>,
    lane: Arc<Lane>,
    /// What the lane's epoll calls it.
    token: u64,
    members: Mutex<HashMap<u64, Arc<Connection>>>,
    /// Sockets of connectionless queue pairs.
    inboxes: Mutex<HashMap<u64, Inbox>>,
    /// How many sockets there are, of both kinds.
    count: AtomicUsize,
    /// Who serves it; changes, and the kernel's entry with it, under this lock.
    state: Mutex<State>,
    /// The same as `state == Polled`, for the fast path.
    polled: AtomicBool,
    /// How often the program polled.
    polls: AtomicU64,
    /// The lane's.
    pace: Mutex<Pace>,
    /// Threads of the program that sleep on it, and on which completion queue: then nobody else serves it.
    sleepers: Mutex<Vec<(Thread, Weak<Sleepers>)>>,
    /// The lane looks from time to time whether the program still polls.
    watched: AtomicBool,
    /// The lane looks from time to time whether those who sleep still exist.
    guarded: AtomicBool,
    /// Queue pairs that may owe an acknowledgement, and whether there are any.
    owing: Mutex<Vec<Arc<Qp>>>,
    in_debt: AtomicBool,
}

/// What the lane found when it looked whether the program still polls a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It does, and did so often.
    Polled(u64),
    /// A thread sleeps on it, and will say so when it wakes. Look from time to time whether it still exists.
    Asleep,
    /// There is no need to look again: the lane has the set back, or somebody looks already.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Armed,
    /// The lane serves it. The entry is armed still: only the lane waits for it.
    Serving,
    /// The lane does so in a moment, and the entry is not armed.
    Paused,
    Polled,
}

impl Set {
    pub(crate) fn new(lane: &Arc<Lane>) -> io::Result<Arc<Self>> {
        let epoll = Epoll::new()?;
        let token = lane.token();
        let set = Arc::new(Self {
            epoll,
            cqs: Mutex::default(),
            lane: Arc::clone(lane),
            token,
            members: Mutex::default(),
            inboxes: Mutex::default(),
            count: AtomicUsize::new(0),
            state: Mutex::new(State::Armed),
            polled: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            pace: Mutex::default(),
            sleepers: Mutex::default(),
            watched: AtomicBool::new(false),
            guarded: AtomicBool::new(false),
            owing: Mutex::default(),
            in_debt: AtomicBool::new(false),
        });
        lane.add_set(token, &set);
        lane.epoll.add(&set.epoll, token, Interest::News)?;
        Ok(set)
    }

    /// A completion queue looks at it from now on.
    pub(crate) fn looked_at_by(&self, cq: &Arc<Cq>) {
        let mut cqs = lock(&self.cqs);
        cqs.retain(|known| known.strong_count() > 0);
        cqs.push(Arc::downgrade(cq));
    }

    /// The completion queues that look at it.
    pub(crate) fn completion_queues(&self) -> Vec<Arc<Cq>> {
        lock(&self.cqs).iter().filter_map(Weak::upgrade).collect()
    }

    /// Its connections.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        lock(&self.members).values().cloned().collect()
    }

    /// Whether the program serves it, and not the lane.
    pub(crate) fn is_polled(&self) -> bool {
        self.polled.load(Ordering::SeqCst)
    }

    /// At how many of them the program waits for an event.
    fn armed(&self) -> usize {
        lock(&self.cqs).iter().filter_map(Weak::upgrade).filter(|cq| cq.is_armed()).count()
    }

    pub(crate) fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    /// What its lane's epoll, and every connection in it, call it.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// Adds a connection. Nothing is driven, because locks may be held; who was the only member before this [has
    /// company](Self::has_company) now.
    pub(crate) fn insert(&self, connection: &Arc<Connection>) -> io::Result<()> {
        lock(&self.members).insert(connection.token(), Arc::clone(connection));
        self.count.fetch_add(1, Ordering::SeqCst);
        self.epoll.add(connection.link(), connection.token(), Interest::Edges)
    }

    /// The only member was not on the list of those that owe: with another, it has to be. Who polled it meanwhile sees the other, or
    /// what came of the poll is seen here.
    pub(crate) fn has_company(&self, only: Option<&Connection>) {
        if let Some(only) = only {
            self.owes(only.qp());
        }
    }

    /// Returns whether it was there.
    pub(crate) fn remove(&self, connection: &Connection) -> bool {
        let there = lock(&self.members).remove(&connection.token()).is_some();
        if there {
            self.count.fetch_sub(1, Ordering::SeqCst);
            // Gone already, if the socket was closed.
            let _ = self.epoll.delete(connection.link());
        }
        there
    }

    pub(crate) fn add_inbox(&self, token: u64, inbox: Inbox) -> io::Result<()> {
        let only = self.only();
        self.epoll.add(inbox.socket(), token, Interest::Edges)?;
        lock(&self.inboxes).insert(token, inbox.clone());
        self.count.fetch_add(1, Ordering::SeqCst);
        self.has_company(only.as_deref());
        // Its first event may have come before it was here.
        inbox.drive(Ready { readable: true, writable: true, ended: false });
        Ok(())
    }

    pub(crate) fn remove_inbox(&self, token: u64) {
        if let Some(inbox) = lock(&self.inboxes).remove(&token) {
            self.count.fetch_sub(1, Ordering::SeqCst);
            let _ = self.epoll.delete(inbox.socket());
        }
    }

    /// Nobody will use these connections any more.
    pub(crate) fn disconnect(&self) {
        let inboxes: Vec<_> = lock(&self.inboxes).keys().copied().collect();
        for token in inboxes {
            self.remove_inbox(token);
        }
        for connection in self.connections() {
            connection.disconnect();
        }
    }

    /// The adapter has stopped: cuts all connections.
    pub(crate) fn cut(&self) {
        let inboxes: Vec<_> = lock(&self.inboxes).values().cloned().collect();
        for inbox in inboxes {
            inbox.stop();
        }
        self.connections().iter().for_each(|connection| connection.cut(Fault::Stopped));
    }

    /// The connections in it that only the lane moves: none, while the program polls.
    pub(crate) fn served_by_lane(&self) -> Vec<Arc<Connection>> {
        match self.polled.load(Ordering::SeqCst) {
            true => Vec::new(),
            false => lock(&self.members).values().cloned().collect(),
        }
    }

    /// How many sockets are in it.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// The only member, if there is one and no other.
    pub(crate) fn only(&self) -> Option<Arc<Connection>> {
        let members = lock(&self.members);
        let mut all = members.values();
        all.next().filter(|_| members.len() == 1).cloned()
    }

    // --- The program's side ---

    /// The program polls: from now on it serves the set.
    #[inline]
    pub(crate) fn polled(&self) {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if !self.polled.load(Ordering::Relaxed) {
            self.take_over();
        }
    }

    #[cold]
    fn take_over(&self) {
        let mut state = lock(&self.state);
        if matches!(*state, State::Armed | State::Serving) {
            self.disarm();
        }
        *state = State::Polled;
        self.polled.store(true, Ordering::Relaxed);
        drop(state);
        self.watch();
    }

    /// A failure leaves it armed, which costs wakes and nothing else.
    fn disarm(&self) {
        let _ = self.lane.epoll.modify(&self.epoll, self.token, Interest::Disarmed);
    }

    fn watch(&self) {
        if !self.watched.swap(true, Ordering::AcqRel) {
            self.lane.watch(self.token);
        }
    }

    /// Serves what has happened, without waiting.
    pub(crate) fn poll(&self) {
        // A thread that is ending has no room of its own any more, and may still poll: in what a program asked to be called
        // when it exits, for example.
        let served = EVENTS.try_with(|events| self.serve(&mut events.borrow_mut(), By::Program));
        if served.is_err() {
            let _ = self.serve(&mut Events::new(BATCH), By::Program);
        }
    }

    /// The program wants to sleep until an event is raised: the lane serves the set.
    pub(crate) fn hand_over(&self) {
        if !self.polled.load(Ordering::Relaxed) {
            return;
        }
        let mut state = lock(&self.state);
        if *state == State::Polled {
            self.arm(&mut state);
        }
    }

    /// A thread of the program is about to sleep on the set itself.
    pub(crate) fn sleep(&self, thread: Thread, on: &Arc<Sleepers>) {
        lock(&self.sleepers).push((thread, Arc::downgrade(on)));
        self.polled();
    }

    /// It woke, and may poll again or not.
    pub(crate) fn wake(&self, thread: Thread) {
        self.watch();
        lock(&self.sleepers).retain(|(sleeper, _)| *sleeper != thread);
    }

    /// Whether a thread sleeps on it, and the lane does not serve it.
    #[cfg(test)]
    pub(crate) fn is_slept_on(&self) -> bool {
        self.is_polled() && !lock(&self.sleepers).is_empty()
    }

    // --- The lane's side ---

    /// The lane's entry fired.
    pub(crate) fn fired(&self, events: &mut Events) -> Fired {
        {
            let mut state = lock(&self.state);
            if *state != State::Armed {
                return Fired::Done; // the program was faster, or it is told later
            }
            *state = State::Serving;
        }
        let now = Instant::now();
        let mut pace = lock(&self.pace);
        let (late, streaming) = (pace.is_late(now), pace.fires(now));
        drop(pace);
        self.serve_for_lane(events, late, streaming)
    }

    /// The pause is over.
    pub(crate) fn resume(&self, events: &mut Events) -> Fired {
        {
            let mut state = lock(&self.state);
            if *state != State::Paused {
                return Fired::Done; // the program polls
            }
            self.arm(&mut state);
            *state = State::Serving;
        }
        self.serve_for_lane(events, false, false)
    }

    fn serve_for_lane(&self, events: &mut Events, late: bool, pause: bool) -> Fired {
        let (armed, polls) = (self.armed(), self.polls.load(Ordering::Relaxed));
        let Served { came, bulk } = self.serve(events, By::Lane);
        // A program that polls until its own request is done, and then watches memory for what the peer writes, goes on now as if
        // it had been woken. Its answer should take the acknowledgement along: alone, it would have the peer stop polling before
        // the answer comes, and nobody be there for that.
        let woken = (late && came) || self.armed() < armed;
        if pause && !woken && !bulk {
            let mut state = lock(&self.state);
            if *state == State::Serving {
                self.disarm();
                *state = State::Paused;
                return Fired::Pause;
            }
        }
        if !woken {
            self.acknowledge();
        }
        let mut state = lock(&self.state);
        if *state == State::Serving {
            if events.is_full() {
                self.arm(&mut state); // which tells of those that did not fit
            } else {
                *state = State::Armed;
            }
            lock(&self.pace).armed = Some(Instant::now());
        }
        drop(state);
        if woken {
            return match self.watched.swap(true, Ordering::AcqRel) {
                true => Fired::Done,
                false => Fired::Look(polls),
            };
        }
        // What a thread of the program found meanwhile, and left to the lane.
        self.acknowledge();
        Fired::Done
    }

    /// Looks whether the program still polls, given how often it had when last looked.
    pub(crate) fn look(&self, before: Option<u64>) -> Look {
        let polls = self.polls.load(Ordering::Relaxed);
        if before != Some(polls) {
            return Look::Polled(polls);
        }
        self.watched.store(false, Ordering::Release);
        let mut state = lock(&self.state);
        let asleep = !lock(&self.sleepers).is_empty();
        if *state == State::Polled && !asleep {
            let mut pace = lock(&self.pace);
            (pace.armed, pace.taken_back) = (Some(Instant::now()), true);
            drop(pace);
            self.arm(&mut state);
        }
        drop(state);
        // The program took its completion and went on to other things: no poll that finds nothing will follow.
        self.acknowledge();
        match asleep && !self.guarded.swap(true, Ordering::AcqRel) {
            true => Look::Asleep,
            false => Look::Over,
        }
    }

    /// Whether the threads that sleep on it still exist. If not, the lane looks as if they had woken.
    pub(crate) fn guard(&self) -> bool {
        let vanished: Vec<_> = {
            let mut sleepers = lock(&self.sleepers);
            let gone =
                sleepers.extract_if(.., |(thread, _)| !thread.exists()).filter_map(|(_, on)| on.upgrade());
            gone.collect()
        };
        // They have no set any more; nor do they wait for an alarm.
        vanished.iter().for_each(|sleepers| sleepers.forget_vanished());
        if !lock(&self.sleepers).is_empty() {
            return true;
        }
        self.guarded.store(false, Ordering::Release);
        self.watch();
        false
    }

    fn arm(&self, state: &mut MutexGuard<'_, State>) {
        **state = State::Armed;
        self.polled.store(false, Ordering::SeqCst);
        if let Err(error) = self.lane.epoll.modify(&self.epoll, self.token, Interest::News) {
            self.lane.fail(&format_args!("a set of sockets cannot be armed: {error}"));
        }
    }

    // --- Both ---

    /// Takes the sockets' events, and moves what they have.
    fn serve(&self, events: &mut Events, by: By) -> Served {
        let mut served = Served::default();
        if let Err(error) = self.epoll.wait(events, Some(Duration::ZERO)) {
            self.lane.fail(&format_args!("a set of sockets cannot be read: {error}"));
            return served;
        }
        for event in events.iter() {
            let Some(connection) = lock(&self.members).get(&event.data).cloned() else {
                self.serve_inbox(event);
                continue;
            };
            if by == By::Lane && connection.waits() {
                continue; // it is driven when its turn comes, and then for all that its socket has
            }
            let Event { readable, writable, ended, .. } = event;
            connection.count();
            let qp = connection.qp();
            let ready = Ready { readable, writable, ended };
            match by {
                By::Lane => qp.take_turn(ready),
                By::Program => qp.drive(ready),
            }
            if readable {
                self.owes(qp);
            }
            served.came |= readable;
            served.bulk |= qp.receives_bulk();
        }
        served
    }

    fn serve_inbox(&self, event: Event) {
        let inbox = lock(&self.inboxes).get(&event.data).cloned();
        if let Some(inbox) = inbox {
            let Event { readable, writable, ended, .. } = event;
            inbox.drive(Ready { readable, writable, ended });
        }
    }

    /// A queue pair received something, and may owe an acknowledgement.
    pub(crate) fn owes(&self, qp: &Arc<Qp>) {
        if !qp.comes_to_owe() {
            return;
        }
        lock(&self.owing).push(Arc::clone(qp));
        self.in_debt.store(true, Ordering::Release);
        // The lane may have taken the set back since the caller polled. It acknowledged then, and will not again.
        if *lock(&self.state) == State::Armed {
            self.acknowledge();
        }
    }

    /// The lane took the set back while the program polled its only socket. It has acknowledged what it saw then, and what
    /// was delivered since it may not see: the delivery comes before this look, its taking back before its own look.
    #[inline]
    pub(crate) fn acknowledge_if_left(&self) {
        if !self.polled.load(Ordering::SeqCst) {
            self.acknowledge();
        }
    }

    /// Whoever serves the set is about to go idle: acknowledgements wait for company no longer.
    pub(crate) fn acknowledge(&self) {
        let only = if self.len() == 1 { self.only() } else { None };
        self.acknowledge_with(only.as_deref());
    }

    /// The same, for one who has the only member at hand, if there is one.
    pub(crate) fn acknowledge_with(&self, only: Option<&Connection>) {
        if let Some(only) = only
            && only.qp().comes_to_owe()
        {
            only.qp().acknowledge();
        }
        if !self.in_debt.load(Ordering::Acquire) || !self.in_debt.swap(false, Ordering::AcqRel) {
            return;
        }
        let owing = std::mem::take(&mut *lock(&self.owing));
        for qp in owing {
            qp.acknowledge();
        }
    }
}

/// A holder that panicked is a bug that has been reported; the data here stay consistent at every step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_that_fires_at_once_again_and_again_is_streamed_to() {
        let mut pace = Pace::default();
        let start = Instant::now();
        let after = |pace: &mut Pace, time: Duration| {
            pace.armed = Some(start);
            pace.fires(start + time)
        };
        assert!(!pace.fires(start), "it was never armed");
        for _ in 1..STREAM {
            assert!(!after(&mut pace, QUICK / 2));
        }
        assert!(after(&mut pace, QUICK / 2) && after(&mut pace, QUICK / 2));
        assert!(!after(&mut pace, QUICK), "an answer takes longer");
        assert!(!after(&mut pace, QUICK / 2), "and all begins anew");
    }
}
