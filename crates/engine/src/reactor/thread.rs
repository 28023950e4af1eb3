//! The thread of a lane.

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

/// How long a lane waits before it polls a set again to which messages stream.
const PAUSE: Duration = Duration::from_micros(50);
/// How often the lane checks whether programs still poll, while any does.
const TICK: Duration = Duration::from_millis(1);
/// Upper bound on the interval between checks whether sleeping threads still exist.
const LONGEST_CHECK: Duration = Duration::from_secs(1);
/// Upper bound on one wait of a lane. Nothing wakes a thread that waits for an epoll which the program has closed meanwhile.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// Upper bound on one wait of a lane that cannot wait for descriptors any more.
const LONGEST_NAP: Duration = Duration::from_secs(1);
/// Number of events taken from the kernel at once.
const BATCH: usize = 256;
/// How long connections that were left with work have turns before the sockets are polled again.
const TURNS: Duration = Duration::from_millis(1);
/// Number of wakeups between rebalancing checks.
const REBALANCE: u64 = 256;

/// How a lane runs.
pub(crate) struct LaneConfig {
    pub(crate) number: usize,
    /// The thread is scheduled before others.
    pub(crate) low_latency: bool,
    /// Called after each [`REBALANCE`] wakeups, which only a busy lane reaches often.
    pub(crate) on_busy: Option<Box<dyn Fn() + Send>>,
}

/// Starts a lane.
pub(crate) fn start(
    config: LaneConfig,
    reports: &Arc<AsyncEvents>,
) -> io::Result<(Arc<Lane>, JoinHandle<()>)> {
    let LaneConfig { number, low_latency, on_busy } = config;
    let lane = Lane::new(number, reports)?;
    let name = if low_latency { "ironwarp-urgent".to_owned() } else { format!("ironwarp-{number}") };
    let its_own = Arc::clone(&lane);
    let run = move || {
        let _ = its_own.handle().thread.set(Thread::current());
        let _ = its_own.handle().parked.set(std::thread::current());
        set_low_latency(low_latency);
        LaneThread::new(its_own, on_busy).run();
    };
    Ok((lane, spawn(&name, run)?))
}

/// What is due on a lane.
#[derive(Debug)]
enum Timeout {
    Call(Callback),
    /// Wait again for the source with this token.
    Rearm(u64),
    /// Check again whether the threads still exist that sleep on the set with this token; the next check in twice the time.
    CheckSleepers(u64, Duration),
}

/// State of a lane that only its thread uses.
struct LaneThread {
    lane: Arc<Lane>,
    on_busy: Option<Box<dyn Fn() + Send>>,
    services: Vec<Arc<dyn Service>>,
    sources: HashMap<u64, Arc<dyn EventSource>>,
    timers: Timers<Timeout>,
    /// Connections that were left with work.
    backlog: Shares<Arc<dyn Drive>>,
    /// Sets that programs poll, and how often they had polled at the last check.
    polled: HashMap<u64, Option<u64>>,
    next_check: Instant,
    /// Sets to serve when the alarm rings.
    paused: Vec<u64>,
    alarm: Option<Alarm>,
    events: Events,
    set_events: Events,
    /// When to stop at the latest.
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
            events: Events::new(BATCH),
            set_events: Events::new(BATCH),
            stop: None,
        }
    }

    fn handle(&self) -> &LaneHandle {
        self.lane.handle()
    }

    fn run(mut self) {
        match bug::catch("running a lane", || self.serve()) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.wind_down(&error),
            Err(bug) => self.wind_down(&bug),
        }
        self.handle().close();
        self.services.iter().for_each(|service| service.end());
    }

    /// Serves until it is told to stop. An error: it cannot wait for its sockets, or be woken.
    fn serve(&mut self) -> io::Result<()> {
        while !self.is_done() {
            let timeout = Some(self.timeout().map_or(LONGEST_WAIT, |timeout| timeout.min(LONGEST_WAIT)));
            let mut events = std::mem::replace(&mut self.events, Events::new(0));
            self.handle().epoll().wait(&mut events, timeout)?;
            if self.handle().wake.is_lost() {
                return Err(io::Error::other("the program has closed its eventfd"));
            }
            let wakes = self.handle().counters.wakes.fetch_add(1, Ordering::Relaxed);
            for event in events.iter() {
                self.event(event.data);
            }
            self.events = events;
            self.round();
            let timers = self.timers.len() + self.services.iter().map(|it| it.timer_count()).sum::<usize>();
            self.handle().counters.timers.store(timers, Ordering::Relaxed);
            if wakes.is_multiple_of(REBALANCE)
                && let Some(on_busy) = &self.on_busy
            {
                on_busy();
            }
        }
        Ok(())
    }

    /// What a lane does besides waiting for events.
    fn round(&mut self) {
        self.commands();
        self.take_turns();
        self.expire();
    }

    /// Reports that the lane failed, which cuts all connections of the adapter: its epoll is gone because the program has closed it, or
    /// it panicked outside of any connection. Then obeys commands without any descriptor until it is told to stop, so that
    /// connections let go of their sockets and nobody waits for the lane in vain.
    fn wind_down(&mut self, why: &dyn fmt::Display) {
        self.handle().set_failed();
        self.handle().fail(why);
        self.sources.clear();
        for service in &self.services {
            catch_panic("failing what a lane was doing", || service.fail());
        }
        while !self.is_done() {
            catch_panic("winding down a lane", || self.round());
            // A command that came since has unparked this thread.
            let timeout = self.timeout().unwrap_or(LONGEST_NAP);
            std::thread::park_timeout(timeout.min(LONGEST_NAP));
        }
    }

    fn is_done(&self) -> bool {
        self.stop.is_some_and(|at| self.lane.is_idle() || Instant::now() >= at)
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.backlog.is_empty() {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        let check = (!self.polled.is_empty()).then(|| self.next_check.saturating_duration_since(now));
        let stop = self.stop.map(|at| at.saturating_duration_since(now));
        let services = self.services.iter().map(|service| service.time_to_deadline(now));
        [self.timers.time_to_next(now), check, stop].into_iter().chain(services).flatten().min()
    }

    fn event(&mut self, token: u64) {
        if token == WAKE {
            self.handle().wake.take();
        } else if token == ALARM {
            self.resume();
        } else if let Some(set) = self.lane.set(token) {
            let fired = set.serve_event(&mut self.set_events);
            self.fired(token, fired);
        } else if !self.services.iter().any(|service| service.on_ready(token)) {
            self.source_readable(token);
        }
    }

    fn source_readable(&mut self, token: u64) {
        let Some(source) = self.sources.get(&token) else { return };
        let read = bug::catch("serving a descriptor", || source.on_readable());
        match read.unwrap_or_else(|bug| Err(io::Error::other(bug.to_string()))) {
            Ok(Rearm::Now) => {}
            Ok(Rearm::After(pause)) => {
                let _ = self.handle().epoll().modify(&**source, token, Interest::Disarmed);
                self.timers.add(Instant::now() + pause, Timeout::Rearm(token));
            }
            Err(error) => {
                tracing::error!(%error, ?source, "failed to serve a descriptor: the lane stops watching it");
                let _ = self.handle().epoll().delete(&**source);
                self.sources.remove(&token);
            }
        }
    }

    fn fired(&mut self, set: u64, fired: FollowUp) {
        match fired {
            FollowUp::Done => {}
            FollowUp::CheckPolling(polls) => self.check_soon(set, Some(polls)),
            FollowUp::Pause => self.pause(set),
        }
    }

    fn pause(&mut self, set: u64) {
        let alarm = match &self.alarm {
            Some(alarm) => Ok(alarm),
            None => Alarm::new().and_then(|alarm| {
                self.lane.handle().epoll().add(&alarm, ALARM, Interest::Edges)?;
                Ok(&*self.alarm.insert(alarm))
            }),
        };
        // One alarm for all: a set that paused later is resumed a little early.
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
                let fired = set.resume(&mut self.set_events);
                self.fired(token, fired);
            }
        }
    }

    fn commands(&mut self) {
        for command in self.handle().take_commands() {
            match command {
                Command::Drive(connection) => {
                    connection.set_queued(true);
                    self.backlog.push(connection.class(), connection);
                }
                Command::Watch(set) => self.check_soon(set, None),
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

    /// Drives connections that were left with work, in proportion to the shares of their classes (requirement N6). Then the sockets are
    /// polled again: others may have little to do, and should not wait for all of this.
    fn take_turns(&mut self) {
        let mut began = None; // most of the time there is no backlog, and the clock is not read
        while let Some(connection) = self.backlog.pop() {
            let began = *began.get_or_insert_with(Instant::now);
            // Before it is driven: its socket reports again what comes from now on.
            connection.set_queued(false);
            connection.drive();
            // A connection that was left with work again is queued before the next one is chosen. Otherwise each would have one turn,
            // whatever its share.
            self.commands();
            if began.elapsed() >= TURNS {
                return;
            }
        }
    }

    /// Checks in a while whether the program has polled this set since it had polled this many times.
    fn check_soon(&mut self, set: u64, polls: Option<u64>) {
        if self.polled.is_empty() {
            self.next_check = Instant::now() + TICK;
        }
        self.polled.insert(set, polls);
    }

    fn expire(&mut self) {
        let now = Instant::now();
        if !self.polled.is_empty() && now >= self.next_check {
            let (lane, timers) = (&self.lane, &mut self.timers);
            self.polled.retain(|token, polls| match lane.set(*token).map(|set| set.check_polling(*polls)) {
                Some(PollCheck::Polled(now)) => {
                    *polls = Some(now);
                    true
                }
                Some(PollCheck::Asleep) => {
                    timers.add(now + TICK, Timeout::CheckSleepers(*token, TICK));
                    false
                }
                Some(PollCheck::Over) | None => false,
            });
            self.next_check = now + TICK;
        }
        self.services.iter().for_each(|service| service.expire(now));
        while let Some(timeout) = self.timers.pop_expired(now) {
            self.timed_out(timeout, now);
        }
    }

    fn timed_out(&mut self, timeout: Timeout, now: Instant) {
        match timeout {
            Timeout::Call(call) => catch_panic("running a callback", || call.call()),
            Timeout::Rearm(token) => {
                if let Some(source) = self.sources.get(&token) {
                    let _ = self.handle().epoll().modify(&**source, token, Interest::Readable);
                }
            }
            Timeout::CheckSleepers(token, interval) => {
                if self.lane.set(token).is_some_and(|set| set.check_sleepers()) {
                    let interval = LONGEST_CHECK.min(2 * interval);
                    self.timers.add(now + interval, Timeout::CheckSleepers(token, interval));
                }
            }
        }
    }

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

/// Does something that belongs to no connection. After a panic the lane goes on.
pub(crate) fn catch_panic(doing: &'static str, act: impl FnOnce()) {
    if let Err(bug) = bug::catch(doing, act) {
        tracing::error!(%bug, "panic on a lane");
    }
}
