//! The event loop of a lane: the thread waits in the lane's epoll, serves poll sets and other descriptors, runs
//! commands of other threads, and fires timers.

use super::command::Command;
use super::handle::{ALARM, LaneHandle, WAKE};
use super::lane::Lane;
use super::poll_set::{FollowUp, PollCheck};
use super::shares::Shares;
use super::source::{Callback, Drive, EventSource, Rearm, Service};
use crate::sys::poller::{Alarm, Events, Interest};
use crate::sys::sched::set_low_latency;
use crate::sys::thread::{Thread, spawn};
use crate::util::timers::Timers;
use ironwarp_rnic::bug;
use ironwarp_rnic::event::AsyncEvents;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a lane waits before it polls a set again that receives a stream of messages.
const PAUSE: Duration = Duration::from_micros(50);
/// Interval between checks whether programs still poll their poll sets. There are no checks while no program polls.
const POLL_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// Upper bound on the interval between checks whether sleeping threads still exist.
const MAX_SLEEPER_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Upper bound on one wait in epoll. If the program closes the epoll descriptor during a wait, the kernel does not wake
/// the waiting thread.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Upper bound on one wait of a failed lane, which parks its thread instead of waiting in epoll.
const MAX_PARK: Duration = Duration::from_secs(1);
/// Maximum number of events taken from the kernel with one system call.
const MAX_EVENTS: usize = 256;
/// How long the lane drives connections of its backlog before it polls the sockets again.
const BACKLOG_TIME: Duration = Duration::from_millis(1);
/// Number of wakeups between rebalancing checks.
const REBALANCE_WAKES: u64 = 256;

/// Parameters of a lane.
pub(crate) struct LaneConfig {
    /// Index among the lanes of the adapter.
    pub(crate) number: usize,
    /// Whether the thread is scheduled before others (`sys/sched.rs`).
    pub(crate) low_latency: bool,
    /// Called on the lane's thread after every [`REBALANCE_WAKES`] wakeups, so mostly while the lane is busy. `None` if
    /// connections are never moved to balance the load.
    pub(crate) on_busy: Option<Box<dyn Fn() + Send>>,
}

/// Starts the thread of a new lane. Failures of the lane are reported to `reports`.
pub(crate) fn start(
    config: LaneConfig,
    reports: &Arc<AsyncEvents>,
) -> io::Result<(Arc<Lane>, JoinHandle<()>)> {
    let LaneConfig { number, low_latency, on_busy } = config;
    let lane = Lane::new(number, reports)?;
    let name = if low_latency { "ironwarp-urgent".to_owned() } else { format!("ironwarp-{number}") };
    let shared = Arc::clone(&lane);
    let run = move || {
        // Nothing else sets these cells, so setting them cannot fail.
        let _ = shared.handle().thread.set(Thread::current());
        let _ = shared.handle().parked.set(std::thread::current());
        set_low_latency(low_latency);
        LaneThread::new(shared, on_busy).run();
    };
    Ok((lane, spawn(&name, run)?))
}

/// The action of an expired timer.
#[derive(Debug)]
enum Timeout {
    /// Run a callback.
    Call(Callback),
    /// Wait again for the event source with this token.
    Rearm(u64),
    /// Check whether the threads that sleep on the poll set with this token still exist. The duration is the interval
    /// since the last check; it doubles with each check, up to [`MAX_SLEEPER_CHECK_INTERVAL`].
    CheckSleepers(u64, Duration),
}

/// State of a lane that only its thread uses.
struct LaneThread {
    lane: Arc<Lane>,
    /// [`LaneConfig::on_busy`].
    on_busy: Option<Box<dyn Fn() + Send>>,
    /// Services that other layers added. They are never removed.
    services: Vec<Arc<dyn Service>>,
    /// Event sources by their token in the lane's epoll.
    sources: HashMap<u64, Arc<dyn EventSource>>,
    timers: Timers<Timeout>,
    /// Connections with pending work, which wait for their turn.
    backlog: Shares<Arc<dyn Drive>>,
    /// Tokens of the poll sets that programs serve, each with the set's poll count at the last check. `None` before the
    /// first check.
    polled: HashMap<u64, Option<u64>>,
    /// Time of the next check of `polled`. Meaningless while `polled` is empty.
    next_check: Instant,
    /// Tokens of the poll sets to serve when the alarm fires.
    paused: Vec<u64>,
    /// The timer that ends a pause, created for the first one.
    alarm: Option<Alarm>,
    /// Buffer for events of the lane's epoll.
    events: Events,
    /// Buffer for events of a poll set.
    set_events: Events,
    /// Time by which the thread ends even if connections are left. `None` until the lane is told to stop.
    stop: Option<Instant>,
}

impl LaneThread {
    fn new(lane: Arc<Lane>, on_busy: Option<Box<dyn Fn() + Send>>) -> Self {
        Self {
            lane,
            on_busy,
            services: Vec::new(),
            sources: HashMap::new(),
            timers: Timers::new(),
            backlog: Shares::new(),
            polled: HashMap::new(),
            next_check: Instant::now(),
            paused: Vec::new(),
            alarm: None,
            events: Events::new(MAX_EVENTS),
            set_events: Events::new(MAX_EVENTS),
            stop: None,
        }
    }

    fn handle(&self) -> &LaneHandle {
        self.lane.handle()
    }

    /// Runs the lane until it is told to stop, also after a failure.
    fn run(mut self) {
        match bug::catch("running a lane", || self.serve()) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.wind_down(&error),
            Err(bug) => self.wind_down(&bug),
        }
        self.handle().close();
        // Nothing serves them any more: members that have not closed in time, and those that another thread added to a set
        // just now. A thread that adds one later finds the lane closed, and aborts it itself.
        self.lane.sets().iter().for_each(|set| catch_panic("aborting what a lane served", || set.abort()));
        self.services.iter().for_each(|service| service.end());
    }

    /// Waits for events and serves them until the lane is told to stop. Returns an error if the program has closed the
    /// lane's epoll or its eventfd: the lane can then neither wait for its sockets nor be woken.
    fn serve(&mut self) -> io::Result<()> {
        while !self.is_done() {
            let timeout = Some(self.time_to_next_work().map_or(MAX_WAIT, |timeout| timeout.min(MAX_WAIT)));
            // Moved out of `self`, because `handle_event` borrows `self` mutably while the events are iterated.
            let mut events = std::mem::replace(&mut self.events, Events::new(0));
            self.handle().epoll().wait(&mut events, timeout)?;
            if self.handle().wake.is_lost() {
                return Err(io::Error::other("the program has closed its eventfd"));
            }
            let wakes = self.handle().counters.wakes.fetch_add(1, Ordering::Relaxed);
            for event in events.iter() {
                self.handle_event(event.data);
            }
            self.events = events;
            self.run_pending();
            let timers =
                self.timers.len() + self.services.iter().map(|service| service.timer_count()).sum::<usize>();
            self.handle().counters.timers.store(timers, Ordering::Relaxed);
            if wakes.is_multiple_of(REBALANCE_WAKES)
                && let Some(on_busy) = &self.on_busy
            {
                on_busy();
            }
        }
        Ok(())
    }

    /// Does the work that is not caused by epoll events: commands, the backlog and timers.
    fn run_pending(&mut self) {
        self.run_commands();
        self.drive_backlog();
        self.run_due();
    }

    /// Keeps a failed lane running without descriptors until it is told to stop. A lane fails if the program has closed
    /// its epoll, or if it panicked outside of any connection.
    ///
    /// Reports the failure, which stops the adapter and aborts all its connections. Then runs commands and timers as
    /// before, so that connections release their sockets, and no thread waits forever for the lane.
    fn wind_down(&mut self, why: &dyn fmt::Display) {
        self.handle().set_failed();
        self.handle().fail(why);
        self.sources.clear();
        for service in &self.services {
            catch_panic("failing the work of a lane", || service.fail());
        }
        while !self.is_done() {
            catch_panic("winding down a lane", || self.run_pending());
            // If a command was submitted since, the thread was unparked by that, and parking returns at once.
            let timeout = self.time_to_next_work().unwrap_or(MAX_PARK);
            std::thread::park_timeout(timeout.min(MAX_PARK));
        }
    }

    /// Returns whether the thread may end: it was told to stop, and its sockets are closed or its time is up.
    fn is_done(&self) -> bool {
        self.stop.is_some_and(|at| self.lane.is_idle() || Instant::now() >= at)
    }

    /// Returns the time until the next timer, check, deadline of a service or stop is due: zero if the backlog has
    /// work, `None` if nothing is due at all.
    fn time_to_next_work(&self) -> Option<Duration> {
        if !self.backlog.is_empty() {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        let check = (!self.polled.is_empty()).then(|| self.next_check.saturating_duration_since(now));
        let stop = self.stop.map(|at| at.saturating_duration_since(now));
        let services = self.services.iter().map(|service| service.time_to_deadline(now));
        [self.timers.time_to_next(now), check, stop].into_iter().chain(services).flatten().min()
    }

    /// Handles an event of the lane's epoll: the token tells which descriptor is ready.
    fn handle_event(&mut self, token: u64) {
        if token == WAKE {
            self.handle().wake.take();
        } else if token == ALARM {
            self.resume_paused_sets();
        } else if !self.serve_set(token) && !self.services.iter().any(|service| service.on_ready(token)) {
            self.serve_source(token);
        }
    }

    /// Serves the poll set with this token, unless the program does. Returns false if there is none.
    fn serve_set(&mut self, token: u64) -> bool {
        let Some(set) = self.lane.set(token) else { return false };
        let follow_up = set.serve_event(&mut self.set_events);
        self.follow_up(token, follow_up);
        true
    }

    /// Calls the event source with this token, and waits for it again as it asks. After an error or a panic, removes
    /// the source.
    fn serve_source(&mut self, token: u64) {
        let Some(source) = self.sources.get(&token) else { return }; // an event from before it was removed
        let read = bug::catch("serving a descriptor", || source.on_readable());
        match read.unwrap_or_else(|bug| Err(io::Error::other(bug.to_string()))) {
            Ok(Rearm::Now) => {}
            Ok(Rearm::After(pause)) => {
                let _ = self.handle().epoll().modify(&**source, token, Interest::Disarmed);
                self.timers.add(Instant::now() + pause, Timeout::Rearm(token));
            }
            Ok(Rearm::Never) => self.remove_source(token),
            Err(error) => {
                tracing::error!(%error, ?source, "failed to serve a descriptor: the lane stops watching it");
                self.remove_source(token);
            }
        }
    }

    /// Removes an event source.
    fn remove_source(&mut self, token: u64) {
        if let Some(source) = self.sources.remove(&token) {
            let _ = self.handle().epoll().delete(&*source);
        }
    }

    /// Does what a poll set, named by its token, requires after it was served.
    fn follow_up(&mut self, set: u64, follow_up: FollowUp) {
        match follow_up {
            FollowUp::Done => {}
            FollowUp::CheckPolling(polls) => self.schedule_poll_check(set, Some(polls)),
            FollowUp::Pause => self.pause_set(set),
        }
    }

    /// Serves a poll set again after [`PAUSE`]. Without an alarm, which may fail for lack of descriptors, serves it at
    /// once.
    fn pause_set(&mut self, set: u64) {
        let alarm = match &self.alarm {
            Some(alarm) => Ok(alarm),
            None => Alarm::new().and_then(|alarm| {
                self.lane.handle().epoll().add(&alarm, ALARM, Interest::Edges)?;
                Ok(&*self.alarm.insert(alarm))
            }),
        };
        // All sets share one alarm, which the first one sets: a set that paused later is resumed a little early.
        let started = alarm.and_then(|alarm| if self.paused.is_empty() { alarm.set(PAUSE) } else { Ok(()) });
        self.paused.push(set);
        if started.is_err() {
            self.resume_paused_sets();
        }
    }

    /// Serves all paused poll sets, at the end of the pause.
    fn resume_paused_sets(&mut self) {
        for token in std::mem::take(&mut self.paused) {
            if let Some(set) = self.lane.set(token) {
                let follow_up = set.resume(&mut self.set_events);
                self.follow_up(token, follow_up);
            }
        }
    }

    /// Takes the commands that other threads submitted, and carries them out.
    fn run_commands(&mut self) {
        for command in self.handle().take_commands() {
            match command {
                Command::Drive(connection) => {
                    connection.set_queued(true); // not set yet if it was submitted because it moved to this lane
                    self.backlog.push(connection.class(), connection);
                }
                Command::Watch(set) => self.schedule_poll_check(set, None),
                Command::Serve(set) => {
                    self.serve_set(set);
                }
                Command::Call(call) => catch_panic("running a callback", || call.call()),
                Command::CallAt(at, call) => self.timers.add(at, Timeout::Call(call)),
                Command::AddSource(source) => self.add_source(source),
                Command::AddService(service) => self.services.push(service),
                Command::Abort => self.lane.sets().iter().for_each(|set| set.abort()),
                Command::Stop(within) => {
                    self.stop = Some(Instant::now() + within);
                    self.lane.sets().iter().for_each(|set| set.disconnect());
                }
            }
        }
    }

    /// Drives connections of the backlog, in proportion to the shares of their classes (requirement N6), until the
    /// backlog is empty or [`BACKLOG_TIME`] is up. Then the sockets are polled again: connections with little to do
    /// should not wait for the whole backlog.
    fn drive_backlog(&mut self) {
        let mut began = None; // the clock is read only if there is a backlog, which is rare
        while let Some(connection) = self.backlog.pop() {
            let began = *began.get_or_insert_with(Instant::now);
            // Cleared before driving: from now on, events of its socket are served again, and `drive` may submit it
            // again.
            connection.set_queued(false);
            connection.drive();
            // A connection that still has work has submitted itself again. It enters the backlog before the next one is
            // chosen: otherwise each connection would have one turn, whatever its share.
            self.run_commands();
            if began.elapsed() >= BACKLOG_TIME {
                return;
            }
        }
    }

    /// Checks from now on, every [`POLL_CHECK_INTERVAL`], whether the program polls the set with this token. `polls` is
    /// the poll count to compare the first check with; with `None`, the first check only reads the count.
    fn schedule_poll_check(&mut self, set: u64, polls: Option<u64>) {
        if self.polled.is_empty() {
            self.next_check = Instant::now() + POLL_CHECK_INTERVAL;
        }
        self.polled.insert(set, polls);
    }

    /// Does everything that is due now: poll checks, deadlines of services, and timers.
    fn run_due(&mut self) {
        let now = Instant::now();
        if !self.polled.is_empty() && now >= self.next_check {
            self.check_polled_sets(now);
        }
        self.services.iter().for_each(|service| service.expire(now));
        while let Some(timeout) = self.timers.pop_expired(now) {
            self.on_timeout(timeout, now);
        }
    }

    /// Checks whether programs still poll their sets, and stops checking those that the lane serves again or a thread
    /// sleeps on.
    fn check_polled_sets(&mut self, now: Instant) {
        let (lane, timers) = (&self.lane, &mut self.timers);
        self.polled.retain(|token, polls| match lane.set(*token).map(|set| set.check_polling(*polls)) {
            Some(PollCheck::Polled(count)) => {
                *polls = Some(count);
                true
            }
            Some(PollCheck::Asleep) => {
                let interval = POLL_CHECK_INTERVAL;
                timers.add(now + interval, Timeout::CheckSleepers(*token, interval));
                false
            }
            Some(PollCheck::Over) | None => false,
        });
        self.next_check = now + POLL_CHECK_INTERVAL;
    }

    /// Carries out the action of an expired timer.
    fn on_timeout(&mut self, timeout: Timeout, now: Instant) {
        match timeout {
            Timeout::Call(call) => catch_panic("running a callback", || call.call()),
            Timeout::Rearm(token) => {
                if let Some(source) = self.sources.get(&token) {
                    let _ = self.handle().epoll().modify(&**source, token, Interest::Readable);
                }
            }
            Timeout::CheckSleepers(token, interval) => {
                if self.lane.set(token).is_some_and(|set| set.check_sleepers()) {
                    let interval = MAX_SLEEPER_CHECK_INTERVAL.min(2 * interval);
                    self.timers.add(now + interval, Timeout::CheckSleepers(token, interval));
                }
            }
        }
    }

    /// Adds an event source to the lane's epoll. A failure is only logged, because the thread that submitted the
    /// command does not wait for a result.
    fn add_source(&mut self, source: Arc<dyn EventSource>) {
        let token = self.handle().new_token();
        match self.handle().epoll().add(&*source, token, Interest::Readable) {
            Ok(()) => {
                self.sources.insert(token, source);
            }
            Err(error) => tracing::error!(%error, ?source, "failed to add a descriptor to epoll"),
        }
    }
}

/// Runs a function, and logs a panic instead of ending the lane's thread. `doing` completes "panic while …". For work
/// that belongs to no connection: a panic in the work of a connection ends that connection.
pub(crate) fn catch_panic(doing: &'static str, act: impl FnOnce()) {
    if let Err(bug) = bug::catch(doing, act) {
        tracing::error!(%bug, "panic on a lane");
    }
}
