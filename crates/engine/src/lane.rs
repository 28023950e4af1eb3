//! A lane: a thread that waits for sockets and moves what they have, while the program does not.
//!
//! What only the thread touches is in [`Running`]; what others touch is in [`Lane`]: its epoll, its inbox, its sets.

use crate::admission::Admission;
use crate::byhand::Reminder;
use crate::class::Shares;
use crate::connection::{AwaitedReceive, Connection};
use crate::event::ConnectError;
use crate::set::{Fired, Look, Set, lock};
use crate::setup::{Accept, ListenerCore, Setup};
use crate::steering::{LaneLoad, Steering};
use crate::sys::hurry::hurry;
use crate::sys::poller::{Alarm, Epoll, EventFd, Events, Interest};
use crate::sys::thread::{Thread, spawn};
use crate::timers::Timers;
use ironwarp_rnic::bug;
use ironwarp_rnic::datagram::DatagramQp;
use ironwarp_rnic::event::{AsyncEvents, Moderated};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

mod accept;
mod failing;
#[cfg(test)]
mod tests;

/// So long a lane leaves a set alone to which messages stream.
const PAUSE: Duration = Duration::from_micros(50);
/// How often the lane looks whether programs still poll, while any does.
const TICK: Duration = Duration::from_millis(1);
/// How often it looks at most whether threads that sleep still exist.
const LONGEST_LOOK: Duration = Duration::from_secs(1);
/// Upper bound on one wait of a lane. Nothing wakes a thread that waits for an epoll which the program has closed meanwhile.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
const BATCH: usize = 256;
/// So long connections that were left with work have turns before sockets are looked at again.
const TURNS: Duration = Duration::from_millis(1);
/// After so many wakes, a lane looks whether another has less to do.
const REBALANCE: u64 = 256;
/// What the lane's epoll calls its wake.
const WAKE: u64 = 0;
/// And the alarm that ends a pause.
const ALARM: u64 = 1;
/// The bits from this one on tell of which lane a token is.
const LANE: u32 = 48;

/// The side of a lane that other threads see.
#[derive(Debug)]
pub(crate) struct Lane {
    number: usize,
    pub(crate) epoll: Epoll,
    wake: EventFd,
    inbox: Mutex<Vec<Job>>,
    sets: Mutex<HashMap<u64, Weak<Set>>>,
    tokens: AtomicU64,
    /// How often its thread woke.
    wakes: AtomicU64,
    /// Number of pending timers when its thread last went to sleep.
    timers: AtomicUsize,
    /// Number of connections in the making at that time.
    making: AtomicUsize,
    /// Number of such connections that were evicted.
    evicted: AtomicU64,
    /// Its thread, once that runs.
    thread: OnceLock<Thread>,
    /// The same, to wake it once it does not wait for descriptors any more.
    parked: OnceLock<std::thread::Thread>,
    /// It [winds down](Running::wind_down).
    failed: AtomicBool,
    /// Where it is reported that it cannot go on.
    reports: Arc<AsyncEvents>,
}

/// Something else that a lane waits for.
pub(crate) trait Attended: AsFd + Send + Sync + std::fmt::Debug {
    /// Its descriptor is readable. It must not wait. After an error it is not waited for any more.
    fn look(&self) -> io::Result<Again>;
}

/// When to look again at something whose descriptor is readable.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Again {
    AtOnce,
    After(Duration),
}

/// What a lane is asked to do.
#[derive(Debug)]
pub(crate) enum Job {
    /// A half of this one was left with work.
    Drive(Arc<Connection>),
    /// A half of this one was.
    DriveDatagrams(Arc<DatagramQp>),
    /// A program polls this set: see to it that it goes on doing so.
    Watch(u64),
    /// A connection in the making.
    Begin(Box<Setup>),
    Listen(Arc<ListenerCore>),
    Unlisten(Arc<ListenerCore>),
    /// The program decided on a connection that is waiting.
    Accept(u64, Box<Accept>),
    /// All jobs before this one are done.
    Fence(Sender<()>),
    /// Look after this one from now on.
    Attend(Arc<dyn Attended>),
    Remind(Instant, Due),
    /// Both directions of this one are closed.
    Release(Arc<Connection>),
    /// The adapter failed: all connections are cut.
    Cut,
    /// When all connections are closed, or so much time has passed.
    Stop(Duration),
}

/// What was to happen by now.
#[derive(Debug)]
pub(crate) enum Due {
    /// The peer closes.
    Close(Weak<Connection>),
    /// The peer, on which this end has hung up, has posted receives for what it was sent.
    HangUp(Weak<Connection>),
    /// The peer has posted a receive for a message that waits; if not, it is looked at again or given up.
    Receive(Weak<Connection>, AwaitedReceive),
    /// A fault is over, and the stream goes on.
    Drive(Weak<Connection>),
    /// A listener that could not accept tries again.
    Accept(u64),
    /// Something else whose descriptor was left alone for a while is looked at again.
    Look(u64),
    /// The peer has sent something; if not, it is nudged, and has twice the time.
    Hear(Weak<Connection>, Duration),
    /// The initiator has spoken; if not, this end may.
    Speak(Weak<Connection>),
    /// The startup with this token is done.
    Startup(u64),
    /// Something of queue pairs that are brought up by hand.
    ByHand(Reminder),
    /// What was held back waits no longer.
    Expired(Weak<dyn Moderated>),
    /// Another look whether the threads still exist that sleep on this set; the next in twice the time.
    Sleepers(u64, Duration),
    /// Somebody outside of the adapter is called.
    Call(Call),
}

/// What is called at a time.
pub(crate) struct Call(pub(crate) Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").finish_non_exhaustive()
    }
}

impl Lane {
    /// Starts the thread.
    pub(crate) fn start(
        number: usize,
        steering: Weak<Steering>,
        reports: &Arc<AsyncEvents>,
    ) -> io::Result<(Arc<Self>, JoinHandle<()>)> {
        Self::run(number, format!("ironwarp-{number}"), steering, reports, false)
    }

    /// Starts the thread of a lane for what is urgent: it is in a hurry, and gives nothing to other lanes.
    pub(crate) fn start_urgent(
        number: usize,
        reports: &Arc<AsyncEvents>,
    ) -> io::Result<(Arc<Self>, JoinHandle<()>)> {
        Self::run(number, "ironwarp-urgent".to_owned(), Weak::new(), reports, true)
    }

    fn run(
        number: usize,
        name: String,
        steering: Weak<Steering>,
        reports: &Arc<AsyncEvents>,
        urgent: bool,
    ) -> io::Result<(Arc<Self>, JoinHandle<()>)> {
        let lane = Arc::new(Self {
            number,
            epoll: Epoll::new()?,
            wake: EventFd::counter()?,
            inbox: Mutex::default(),
            sets: Mutex::default(),
            tokens: AtomicU64::new((number as u64) << LANE | (ALARM + 1)),
            wakes: AtomicU64::new(0),
            timers: AtomicUsize::new(0),
            making: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            thread: OnceLock::new(),
            parked: OnceLock::new(),
            failed: AtomicBool::new(false),
            reports: Arc::clone(reports),
        });
        lane.epoll.add(&lane.wake, WAKE, Interest::Readable)?;
        let its_own = Arc::clone(&lane);
        let run = move || {
            let _ = its_own.thread.set(Thread::current());
            let _ = its_own.parked.set(std::thread::current());
            hurry(urgent);
            Running::new(&its_own, steering).run();
        };
        let thread = spawn(&name, run)?;
        Ok((lane, thread))
    }

    /// Its place among the lanes of the adapter.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// A number that nothing else on the lanes of the adapter has: what is moved takes it along.
    pub(crate) fn token(&self) -> u64 {
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn wakes(&self) -> u64 {
        self.wakes.load(Ordering::Relaxed)
    }

    /// The thread, once it runs.
    pub(crate) fn thread(&self) -> Option<Thread> {
        self.thread.get().copied()
    }

    /// The thread, as soon as it runs.
    pub(crate) fn await_thread(&self) -> Thread {
        *self.thread.wait()
    }

    pub(crate) fn load(&self) -> LaneLoad {
        let sockets = self.all_sets().iter().map(|set| set.len()).sum();
        let busy = self.thread.get().map_or(Duration::ZERO, |thread| thread.processor_time());
        LaneLoad {
            sockets,
            busy,
            wakes: self.wakes(),
            timers: self.timers.load(Ordering::Relaxed),
            making: self.making.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn submit(&self, job: Job) {
        let mut inbox = lock(&self.inbox);
        let first = inbox.is_empty();
        inbox.push(job);
        drop(inbox);
        if first {
            self.wake.signal();
            if self.failed.load(Ordering::SeqCst)
                && let Some(thread) = self.parked.get()
            {
                thread.unpark();
            }
        }
    }

    /// What its sockets have cannot be told any more: the adapter stops.
    #[cold]
    pub(crate) fn fail(&self, why: &dyn fmt::Display) {
        self.reports.fail(&format_args!("lane {} cannot go on: {why}", self.number));
    }

    /// Number of jobs that its thread has not taken yet.
    #[cfg(test)]
    pub(crate) fn waiting_jobs(&self) -> usize {
        lock(&self.inbox).len()
    }

    pub(crate) fn add_set(&self, token: u64, set: &Arc<Set>) {
        lock(&self.sets).insert(token, Arc::downgrade(set));
    }

    pub(crate) fn watch(&self, set: u64) {
        self.submit(Job::Watch(set));
    }

    pub(crate) fn all_sets(&self) -> Vec<Arc<Set>> {
        lock(&self.sets).values().filter_map(Weak::upgrade).collect()
    }

    fn is_idle(&self) -> bool {
        self.all_sets().iter().all(|set| set.len() == 0)
    }

    fn set(&self, token: u64) -> Option<Arc<Set>> {
        let mut sets = lock(&self.sets);
        let set = sets.get(&token)?.upgrade();
        if set.is_none() {
            sets.remove(&token);
        }
        set
    }
}

/// The side of a lane that its thread has for itself.
struct Running {
    lane: Arc<Lane>,
    /// Who moves connections to lanes with less to do; nobody, if that is not wanted.
    steering: Weak<Steering>,
    setups: HashMap<u64, Setup>,
    /// Those of them that peers began.
    admission: Admission,
    /// A descriptor that is kept to turn away a connection when there is no other.
    spare: Option<EventFd>,
    /// When evictions were last logged.
    last_log: Option<Instant>,
    listeners: HashMap<u64, Arc<ListenerCore>>,
    attended: HashMap<u64, Arc<dyn Attended>>,
    timers: Timers<Due>,
    /// Connections that were left with work.
    backlog: Shares<Arc<Connection>>,
    /// Sets that programs poll, and how often they had when last looked.
    polled: HashMap<u64, Option<u64>>,
    next_look: Instant,
    /// Sets that the lane serves next when the alarm rings.
    paused: Vec<u64>,
    alarm: Option<Alarm>,
    events: Events,
    inner: Events,
    /// When to stop at the latest.
    stop: Option<Instant>,
}

impl Running {
    fn new(lane: &Arc<Lane>, steering: Weak<Steering>) -> Self {
        Self {
            lane: Arc::clone(lane),
            steering,
            setups: HashMap::new(),
            admission: Admission::default(),
            spare: None,
            last_log: None,
            listeners: HashMap::new(),
            attended: HashMap::new(),
            timers: Timers::new(),
            backlog: Shares::new(),
            polled: HashMap::new(),
            next_look: Instant::now(),
            paused: Vec::new(),
            alarm: None,
            events: Events::new(BATCH),
            inner: Events::new(BATCH),
            stop: None,
        }
    }

    fn run(mut self) {
        match bug::catch("running a lane", || self.serve()) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.wind_down(&error),
            Err(bug) => self.wind_down(&bug),
        }
    }

    /// Serves until it is told to stop. An error: it cannot wait for its sockets, or be woken.
    fn serve(&mut self) -> io::Result<()> {
        while !self.is_done() {
            let timeout = Some(self.timeout().map_or(LONGEST_WAIT, |timeout| timeout.min(LONGEST_WAIT)));
            let mut events = std::mem::replace(&mut self.events, Events::new(0));
            self.lane.epoll.wait(&mut events, timeout)?;
            if self.lane.wake.is_lost() {
                return Err(io::Error::other("the program has closed its eventfd"));
            }
            let wakes = self.lane.wakes.fetch_add(1, Ordering::Relaxed);
            for event in events.iter() {
                self.event(event.data);
            }
            self.events = events;
            self.jobs();
            self.take_turns();
            self.expire();
            self.lane.timers.store(self.timers.len(), Ordering::Relaxed);
            self.lane.making.store(self.admission.len(), Ordering::Relaxed);
            // Only a lane that is busy gets here often.
            if wakes.is_multiple_of(REBALANCE)
                && let Some(steering) = self.steering.upgrade()
            {
                steering.rebalance();
            }
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.stop.is_some_and(|at| self.lane.is_idle() || Instant::now() >= at)
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.backlog.is_empty() {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        let look = (!self.polled.is_empty()).then(|| self.next_look.saturating_duration_since(now));
        let stop = self.stop.map(|at| at.saturating_duration_since(now));
        [self.timers.next(now), self.admission.next(now), look, stop].into_iter().flatten().min()
    }

    fn event(&mut self, token: u64) {
        if token == WAKE {
            self.lane.wake.take();
        } else if token == ALARM {
            self.resume();
        } else if let Some(set) = self.lane.set(token) {
            let fired = set.fired(&mut self.inner);
            self.fired(token, fired);
        } else if self.setups.contains_key(&token) {
            self.progress(token);
        } else if let Some(listener) = self.listeners.get(&token).cloned() {
            self.accept(token, &listener);
        } else if let Some(attended) = self.attended.get(&token) {
            let look = bug::catch("looking after a descriptor", || attended.look());
            match look.unwrap_or_else(|bug| Err(io::Error::other(bug.to_string()))) {
                Ok(Again::AtOnce) => {}
                Ok(Again::After(pause)) => {
                    let _ = self.lane.epoll.modify(&**attended, token, Interest::Disarmed);
                    self.timers.add(Instant::now() + pause, Due::Look(token));
                }
                Err(error) => {
                    tracing::error!(%error, ?attended, "a lane lets go of it");
                    let _ = self.lane.epoll.delete(&**attended);
                    self.attended.remove(&token);
                }
            }
        }
    }

    fn fired(&mut self, set: u64, fired: Fired) {
        match fired {
            Fired::Done => {}
            Fired::Look(polls) => self.look_soon(set, Some(polls)),
            Fired::Pause => self.pause(set),
        }
    }

    fn pause(&mut self, set: u64) {
        let alarm = match &self.alarm {
            Some(alarm) => Ok(alarm),
            None => Alarm::new().and_then(|alarm| {
                self.lane.epoll.add(&alarm, ALARM, Interest::Edges)?;
                Ok(&*self.alarm.insert(alarm))
            }),
        };
        // One alarm is for all: who paused meanwhile goes on a little earlier.
        let set_off = alarm.and_then(|alarm| if self.paused.is_empty() { alarm.set(PAUSE) } else { Ok(()) });
        self.paused.push(set);
        if set_off.is_err() {
            self.resume();
        }
    }

    /// The pause is over.
    fn resume(&mut self) {
        for token in std::mem::take(&mut self.paused) {
            if let Some(set) = self.lane.set(token) {
                let fired = set.resume(&mut self.inner);
                self.fired(token, fired);
            }
        }
    }

    fn jobs(&mut self) {
        let jobs = std::mem::take(&mut *lock(&self.lane.inbox));
        for job in jobs {
            match job {
                Job::Drive(connection) => {
                    connection.awaits_turn(true);
                    self.backlog.push(connection.pair().receive_cq().class(), connection);
                }
                Job::DriveDatagrams(qp) => qp.go_on(),
                Job::Watch(set) => self.look_soon(set, None),
                Job::Begin(setup) => self.begin(*setup),
                Job::Listen(listener) => self.listen(listener),
                Job::Unlisten(listener) => {
                    let _ = self.lane.epoll.delete(&*listener);
                    self.listeners.retain(|_, known| !Arc::ptr_eq(known, &listener));
                }
                Job::Accept(token, accept) => self.decide(token, *accept),
                Job::Fence(waiting) => {
                    let _ = waiting.send(()); // or nobody waits any more
                }
                Job::Attend(attended) => self.attend(attended),
                Job::Remind(at, due) => self.timers.add(at, due),
                Job::Release(connection) => connection.guard("closing a connection", || connection.release()),
                Job::Cut => self.lane.all_sets().iter().for_each(|set| set.cut()),
                Job::Stop(within) => {
                    self.stop = Some(Instant::now() + within);
                    self.lane.all_sets().iter().for_each(|set| set.disconnect());
                }
            }
        }
    }

    /// Connections that were left with work have turns, by the shares of their classes (requirement N6). Then the sockets are looked at
    /// again: others may have little to do, and should not wait for all of this.
    fn take_turns(&mut self) {
        let mut began = None; // most of the time nobody waits, and no clock is asked
        while let Some(connection) = self.backlog.pop() {
            let began = *began.get_or_insert_with(Instant::now);
            // Before it is driven: what comes from now on is told by its socket again.
            connection.awaits_turn(false);
            connection.guard("driving a connection", || connection.drive());
            // Who was left with work once more waits again before the next is chosen. Else each had one turn, whatever its share.
            self.jobs();
            if began.elapsed() >= TURNS {
                return;
            }
        }
    }

    /// Looks in a while whether the program has polled this set since it had so often.
    fn look_soon(&mut self, set: u64, polls: Option<u64>) {
        if self.polled.is_empty() {
            self.next_look = Instant::now() + TICK;
        }
        self.polled.insert(set, polls);
    }

    fn expire(&mut self) {
        let now = Instant::now();
        if !self.polled.is_empty() && now >= self.next_look {
            let (lane, timers) = (&self.lane, &mut self.timers);
            self.polled.retain(|token, polls| match lane.set(*token).map(|set| set.look(*polls)) {
                Some(Look::Polled(now)) => {
                    *polls = Some(now);
                    true
                }
                Some(Look::Asleep) => {
                    timers.add(now + TICK, Due::Sleepers(*token, TICK));
                    false
                }
                Some(Look::Over) | None => false,
            });
            self.next_look = now + TICK;
        }
        self.evict_overdue(now);
        while let Some(due) = self.timers.expired(now) {
            self.due(due, now);
        }
    }

    fn due(&mut self, due: Due, now: Instant) {
        match due {
            Due::Close(connection) => guarded(&connection, Connection::close_is_due),
            Due::HangUp(connection) => guarded(&connection, Connection::hang_up_is_due),
            Due::Drive(connection) => guarded(&connection, |connection| connection.drive()),
            Due::Receive(connection, awaited) => {
                guarded(&connection, |connection| connection.receive_is_due(awaited));
            }
            Due::Hear(connection, time) => guarded(&connection, |connection| connection.nudge(time)),
            Due::Speak(connection) => guarded(&connection, |connection| connection.speak_unasked()),
            Due::ByHand(reminder) => survive("connecting a queue pair", || reminder.come(now)),
            Due::Accept(token) => {
                if let Some(listener) = self.listeners.get(&token) {
                    let _ = self.lane.epoll.modify(&**listener, token, Interest::Readable);
                }
            }
            Due::Look(token) => {
                if let Some(attended) = self.attended.get(&token) {
                    let _ = self.lane.epoll.modify(&**attended, token, Interest::Readable);
                }
            }
            Due::Startup(token) => {
                if let Some(setup) = self.setups.get_mut(&token)
                    && setup.is_overdue(now)
                    && let Some(setup) = self.setups.remove(&token)
                {
                    setup.timed_out();
                }
            }
            Due::Expired(moderated) => {
                if let Some(moderated) = moderated.upgrade() {
                    survive("raising an event", || moderated.expired());
                }
            }
            Due::Call(Call(call)) => survive("calling the program back", call),
            Due::Sleepers(token, time) => {
                if self.lane.set(token).is_some_and(|set| set.guard()) {
                    let time = LONGEST_LOOK.min(2 * time);
                    self.timers.add(now + time, Due::Sleepers(token, time));
                }
            }
        }
    }

    // --- Connections in the making ---

    fn begin(&mut self, setup: Setup) {
        if self.lane.failed.load(Ordering::SeqCst) {
            return setup.failed(stopped().into());
        }
        let token = self.lane.token();
        let added = self.lane.epoll.add(&**setup.link(), token, Interest::Edges);
        if let Err(error) = added {
            setup.failed(error.into());
            return;
        }
        self.timers.add(setup.deadline(), Due::Startup(token));
        self.setups.insert(token, setup);
        self.progress(token);
    }

    fn progress(&mut self, token: u64) {
        let Some(setup) = self.setups.remove(&token) else { return };
        let link = Arc::clone(setup.link());
        let again = match survive_setup(setup, Setup::progress) {
            Some(Setup::Dial(dial)) if dial.is_new() => Some(Setup::Dial(dial)),
            Some(setup) => {
                self.setups.insert(token, setup);
                return self.progressed(token);
            }
            None => None,
        };
        self.admission.forget(token);
        // A stream is waited for in its completion queue's set, and nowhere else.
        let _ = self.lane.epoll.delete(&*link);
        if let Some(setup) = again {
            self.begin(setup); // on another socket
        }
    }

    fn attend(&mut self, attended: Arc<dyn Attended>) {
        let token = self.lane.token();
        match self.lane.epoll.add(&*attended, token, Interest::Readable) {
            Ok(()) => {
                self.attended.insert(token, attended);
            }
            Err(error) => tracing::error!(%error, ?attended, "it cannot be waited for"),
        }
    }

    fn decide(&mut self, token: u64, accept: Accept) {
        match self.setups.get_mut(&token) {
            Some(Setup::Answer(answer)) => {
                answer.decide(accept);
                self.progress(token);
            }
            _ => accept.gone(),
        }
    }
}

/// What is said to those who want a connection of a lane that winds down.
fn stopped() -> io::Error {
    io::Error::other("the adapter has stopped")
}

/// Does what is due for a connection, if it is still there.
fn guarded(connection: &Weak<Connection>, act: impl FnOnce(&Arc<Connection>)) {
    if let Some(connection) = connection.upgrade() {
        connection.guard("serving a timer", || act(&connection));
    }
}

/// Does what belongs to no connection, and to nobody who would wait for it.
fn survive(doing: &'static str, act: impl FnOnce()) {
    if let Err(bug) = bug::catch(doing, act) {
        tracing::error!(%bug, "a lane goes on");
    }
}

/// The next step of a connection in the making. After a panic there will be no connection, which its queue pair is told.
fn survive_setup(setup: Setup, step: impl FnOnce(Setup) -> Option<Setup>) -> Option<Setup> {
    let told = setup.told();
    bug::catch("setting up a connection", || step(setup)).unwrap_or_else(|bug| {
        tracing::error!(%bug, "a connection was not made");
        if let Some(told) = told {
            survive("telling that a connection was not made", || told.failed(ConnectError::Bug(bug)));
        }
        None
    })
}
