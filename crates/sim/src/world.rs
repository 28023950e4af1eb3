//! Queue pairs that are connected over simulated, faulty links and driven by events alone.
//!
//! This takes the place of the engine's lanes: it calls [`Qp::drive`] when a link becomes ready, when the queue pair requested it,
//! or when a timer expires, and never otherwise. If the device loses a wakeup, the simulation makes no progress.

use crate::arena::Arena;
use crate::clock::{Alarm, Clock, Timers};
use crate::link::{Path, SimLink};
use crate::lock;
use crate::trace::{Trace, TracedLink};
use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::connect::{Agreed, Incoming, Initiator, MpaMode, Reply, Terms};
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::fault::{FaultPlan, Faults, Rng};
use ironwarp_rnic::link::Link;
use ironwarp_rnic::qp::{Qp, Ready, StreamDriver};
use ironwarp_wire::Parse;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One in this many acknowledgements is sent before the driver becomes idle.
const EARLY_ACK: u64 = 4;

const BOTH: Ready = Ready { readable: true, writable: true, ended: false };

/// A simulation with its time. The seed determines the order of simultaneous events.
#[derive(Debug)]
pub struct World {
    clock: Clock,
    /// Timers of event moderation.
    timers: Arc<Timers>,
    rng: Rng,
    faults: Arc<Faults>,
    ends: Vec<End>,
    trace: Trace,
}

/// A connected queue pair and its links and timers.
#[derive(Debug)]
pub struct End {
    qp: Arc<Qp>,
    wire: Arc<SimLink>,
    /// The link with faults, as the queue pair uses it.
    link: Arc<dyn Link>,
    alarm: Arc<Alarm>,
    notes: Arc<Notes>,
    /// The negotiated parameters.
    agreed: Agreed,
}

/// Notifications of a queue pair to its driver.
#[derive(Debug)]
struct Notes {
    clock: Clock,
    heard: Mutex<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    schedule: bool,
    /// An acknowledgement is pending.
    owes: bool,
    opened: bool,
    /// When the stream ended.
    ended: Option<Duration>,
    closed: bool,
    /// The driver aborted the link because the peer did not close in time.
    aborted: bool,
    /// The queue pair was reset: its socket is closed, and it is no longer driven.
    released: bool,
}

impl World {
    /// Creates a world without queue pairs, in which these faults occur.
    pub fn new(plan: FaultPlan, seed: u64) -> Self {
        let clock = Clock::new();
        let (timers, trace) = (Timers::new(&clock), Trace::new(&clock, false));
        Self { clock, timers, rng: Rng::new(seed), faults: Faults::new(plan, seed), ends: Vec::new(), trace }
    }

    /// Creates a world that records a trace.
    pub fn traced(plan: FaultPlan, seed: u64) -> Self {
        let mut world = Self::new(plan, seed);
        world.trace = Trace::new(&world.clock, true);
        world
    }

    /// Returns the trace, which is empty unless recorded.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The timers of moderation.
    pub fn timers(&self) -> &Arc<Timers> {
        &self.timers
    }

    /// The injected faults.
    pub fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    /// All ends, in the order of connection.
    pub fn ends(&self) -> &[End] {
        &self.ends
    }

    /// Connects two queue pairs, each with the memory of its program and its terms. The first is the initiator. The startup takes no
    /// time and does not fail.
    pub fn connect(&mut self, path: Path, setup: MpaMode, pair: [(&Arc<Qp>, &Arc<Arena>, Terms); 2]) {
        let seed = self.rng.next();
        let wires = SimLink::pair(path, seed, &self.clock, pair.map(|(_, arena, _)| arena));
        let agreed = agree(setup, pair.map(|(_, _, terms)| terms));
        for ((wire, agreed), (qp, _, _)) in wires.into_iter().zip(agreed).zip(pair) {
            let alarm = Alarm::new(&self.clock);
            let (trace, end) = (self.trace.clone(), self.ends.len());
            let traced = Arc::new(TracedLink { inner: wire.clone(), trace, end });
            let link: Arc<dyn Link> = self.faults.wrap_link(end as u64, traced, alarm.clone());
            let notes = Arc::new(Notes { clock: self.clock.clone(), heard: Mutex::default() });
            qp.set_faults(self.faults.receive_faults(self.ends.len() as u64, alarm.clone()));
            let connected = qp.connect(&link, &agreed, Vec::new(), notes.clone());
            connected.expect("a queue pair that was never connected");
            let qp = Arc::clone(qp);
            self.ends.push(End { qp, wire, link, alarm, notes, agreed });
        }
    }

    /// Returns the end of a queue pair.
    pub fn end(&self, qp: &Arc<Qp>) -> Option<&End> {
        self.ends.iter().find(|end| Arc::ptr_eq(&end.qp, qp))
    }

    /// Performs one event that is due now. Returns false if there is none.
    pub fn react(&mut self) -> bool {
        let timers_first = self.rng.below(2) == 0;
        timers_first && self.ring() || self.drive() || self.ring()
    }

    /// Expires a timer that is due.
    fn ring(&self) -> bool {
        self.timers.next().is_some_and(|next| next <= self.clock.now())
            && (self.timers.ring().is_some() || self.ring())
    }

    /// Drives a queue pair that is ready.
    fn drive(&mut self) -> bool {
        let count = self.ends.len() as u64;
        let first = usize::try_from(self.rng.below(count)).unwrap_or(0);
        let (before, after) = self.ends.split_at(first);
        let drive = if self.rng.below(2) == 0 { Qp::drive } else { Qp::take_turn };
        if let Some(end) = after.iter().chain(before).find(|end| end.react(drive)) {
            if self.rng.below(EARLY_ACK) == 0 {
                end.pay();
            }
            return true;
        }
        // Before a driver becomes idle, it sends pending acknowledgements.
        self.ends.iter().any(End::pay)
    }

    /// Returns the time until the next event, or `None` if there will never be one.
    pub fn quiet_for(&self) -> Option<Duration> {
        let next = self.ends.iter().filter_map(End::next_event).chain(self.timers.next()).min();
        next.map(|time| time.saturating_sub(self.clock.now()))
    }

    /// Performs one event, or advances the clock to the next one. Returns false if there will never be one.
    pub fn step(&mut self) -> bool {
        if self.react() {
            return true;
        }
        let quiet = self.quiet_for();
        if let Some(time) = quiet {
            assert_ne!(time, Duration::ZERO, "an event that is due was not performed");
            self.clock.advance(time);
        }
        quiet.is_some()
    }

    /// Performs all events, now and later.
    pub fn run(&mut self) {
        while self.step() {}
    }
}

impl End {
    /// The queue pair.
    pub fn qp(&self) -> &Arc<Qp> {
        &self.qp
    }

    /// The parameters negotiated at startup.
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Whether the first message of the peer has arrived.
    pub fn is_opened(&self) -> bool {
        lock(&self.notes.heard).opened
    }

    /// Whether the stream has ended.
    pub fn is_ended(&self) -> bool {
        lock(&self.notes.heard).ended.is_some()
    }

    /// Whether both directions of the link are closed.
    pub fn is_closed(&self) -> bool {
        lock(&self.notes.heard).closed
    }

    /// Whether the link was aborted because the peer took too long to close.
    pub fn is_aborted(&self) -> bool {
        lock(&self.notes.heard).aborted
    }

    /// Closes the socket after the queue pair was reset, even with work outstanding.
    pub fn release(&self) {
        lock(&self.notes.heard).released = true;
        self.link.abort();
    }

    fn is_released(&self) -> bool {
        lock(&self.notes.heard).released
    }

    /// Drives the queue pair without a reason, like a program that polls.
    pub fn poll(&self) {
        self.qp.poll(1);
        self.take_note();
    }

    /// Notes that the peer may be waiting for an acknowledgement.
    fn take_note(&self) {
        if self.qp.take_owed_acknowledgement() {
            lock(&self.notes.heard).owes = true;
        }
    }

    /// Sends a pending acknowledgement. Returns whether there was one.
    fn pay(&self) -> bool {
        let owed = std::mem::take(&mut lock(&self.notes.heard).owes) && !self.is_released();
        if owed {
            self.qp.acknowledge();
        }
        owed
    }

    /// Drives the queue pair if it is ready, like a program or like a lane. Returns whether it was.
    fn react(&self, drive: fn(&Qp, Ready)) -> bool {
        if self.is_released() {
            return false;
        }
        let news = self.wire.take_ready();
        let called = std::mem::take(&mut lock(&self.notes.heard).schedule);
        let all = called | self.alarm.take_rung() | self.abort_if_late();
        let ready =
            if all { BOTH } else { Ready { readable: news.readable, writable: news.writable, ended: false } };
        if ready != Ready::default() {
            drive(&self.qp, ready);
            self.take_note();
        }
        ready != Ready::default()
    }

    /// Aborts the link if the peer has not closed in time.
    fn abort_if_late(&self) -> bool {
        let due = self.close_deadline().is_some_and(|time| time <= self.notes.clock.now());
        if due {
            lock(&self.notes.heard).aborted = true;
            self.link.abort();
        }
        due
    }

    /// Returns the time by which the peer must close.
    fn close_deadline(&self) -> Option<Duration> {
        let heard = lock(&self.notes.heard);
        let waiting = heard.ended.filter(|_| !heard.closed && !heard.aborted);
        waiting.map(|ended| ended + DeviceConfig::default().close)
    }

    fn next_event(&self) -> Option<Duration> {
        if self.is_released() {
            return None;
        }
        [self.wire.next_ready(), self.alarm.next(), self.close_deadline()].into_iter().flatten().min()
    }
}

impl StreamDriver for Notes {
    fn schedule(&self) {
        lock(&self.heard).schedule = true;
    }

    /// Programs here wait for a receive of the peer forever.
    fn on_peer_not_ready(&self) {}

    fn on_first_message(&self) {
        lock(&self.heard).opened = true;
    }

    fn on_stream_ended(&self, _: &Arc<QpError>) {
        let before = lock(&self.heard).ended.replace(self.clock.now());
        assert_eq!(before, None, "a stream ended twice");
    }

    fn on_link_closed(&self) {
        let before = std::mem::replace(&mut lock(&self.heard).closed, true);
        assert!(!before, "a link closed twice");
    }
}

/// Negotiates a connection without a link.
fn agree(setup: MpaMode, [initiator, responder]: [Terms; 2]) -> [Agreed; 2] {
    let initiator = Initiator::new(setup, initiator, &[]).expect("valid terms of the initiator");
    let Ok(Parse::Done(incoming)) = Incoming::parse(initiator.request()) else {
        unreachable!("an initiator sends a request");
    };
    let (reply, theirs) = incoming.accept(responder, &[]).expect("valid terms of the responder");
    match initiator.parse_reply(&reply) {
        Ok(Parse::Done(Reply::Accepted { agreed, .. })) => [agreed, theirs],
        other => panic!("incompatible terms: {other:?}"),
    }
}
