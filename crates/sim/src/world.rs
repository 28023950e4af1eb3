//! Queue pairs, connected over simulated links with faults on them, and driven by events alone.
//!
//! This stands where the engine's lanes stand: it calls [`Qp::drive`] when a link has news, when the queue pair asked to be
//! called again, or when an alarm rings, and never otherwise. A wake-up that the device loses is a world that stands still.

use crate::arena::Arena;
use crate::clock::{Alarm, Clock, Timers};
use crate::link::{Path, SimLink};
use crate::lock;
use crate::trace::{Trace, TracedLink};
use ironwarp_rnic::config::Config;
use ironwarp_rnic::connect::{Agreed, Answer, Incoming, Initiator, Setup, Terms};
use ironwarp_rnic::error::Fault;
use ironwarp_rnic::fault::{FaultPlan, Faults, Rng};
use ironwarp_rnic::link::Link;
use ironwarp_rnic::qp::{Attendant, Qp, Ready};
use ironwarp_wire::Parse;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Once in so many times an acknowledgement leaves before the driver has nothing else to do.
const HASTY: u64 = 4;

const BOTH: Ready = Ready { readable: true, writable: true, ended: false };

/// Everything that happens, and its time. The seed decides on the order of what happens at one time.
#[derive(Debug)]
pub struct World {
    clock: Clock,
    /// Of moderation.
    timers: Arc<Timers>,
    rng: Rng,
    faults: Arc<Faults>,
    ends: Vec<End>,
    trace: Trace,
}

/// A connected queue pair and what it is driven by.
#[derive(Debug)]
pub struct End {
    qp: Arc<Qp>,
    wire: Arc<SimLink>,
    /// The same with faults on it, as the queue pair has it.
    link: Arc<dyn Link>,
    alarm: Arc<Alarm>,
    notes: Arc<Notes>,
    /// What the ends agreed on.
    agreed: Agreed,
}

/// What a queue pair told its driver.
#[derive(Debug)]
struct Notes {
    clock: Clock,
    heard: Mutex<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    call_again: bool,
    /// An acknowledgement is owed, and the driver knows.
    owes: bool,
    opened: bool,
    /// When the stream was over.
    ended: Option<Duration>,
    closed: bool,
    /// The driver lost patience with the peer.
    aborted: bool,
    /// The queue pair was reset: its socket is closed, and nobody drives it any more.
    released: bool,
}

impl World {
    /// A world without queue pairs, where such faults happen.
    pub fn new(plan: FaultPlan, seed: u64) -> Self {
        let clock = Clock::new();
        let (timers, trace) = (Timers::new(&clock), Trace::new(&clock, false));
        Self { clock, timers, rng: Rng::new(seed), faults: Faults::new(plan, seed), ends: Vec::new(), trace }
    }

    /// The same, and what happens in it is written down.
    pub fn traced(plan: FaultPlan, seed: u64) -> Self {
        let mut world = Self::new(plan, seed);
        world.trace = Trace::new(&world.clock, true);
        world
    }

    /// What happened in it, if that is written down.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Its time.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The timers of moderation.
    pub fn timers(&self) -> &Arc<Timers> {
        &self.timers
    }

    /// What goes wrong in it.
    pub fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    /// All ends, in the order they were connected.
    pub fn ends(&self) -> &[End] {
        &self.ends
    }

    /// Connects two queue pairs, each with the memory of its program and its terms; the first is the initiator. The
    /// startup takes no time, and nothing goes wrong in it.
    pub fn connect(&mut self, path: Path, setup: Setup, pair: [(&Arc<Qp>, &Arc<Arena>, Terms); 2]) {
        let seed = self.rng.next();
        let wires = SimLink::pair(path, seed, &self.clock, pair.map(|(_, arena, _)| arena));
        let agreed = agree(setup, pair.map(|(_, _, terms)| terms));
        for ((wire, agreed), (qp, _, _)) in wires.into_iter().zip(agreed).zip(pair) {
            let alarm = Alarm::new(&self.clock);
            let (trace, end) = (self.trace.clone(), self.ends.len());
            let traced = Arc::new(TracedLink { inner: wire.clone(), trace, end });
            let link: Arc<dyn Link> = self.faults.link(end as u64, traced, alarm.clone());
            let notes = Arc::new(Notes { clock: self.clock.clone(), heard: Mutex::default() });
            qp.set_faults(self.faults.asks(self.ends.len() as u64, alarm.clone()));
            let connected = qp.connect(&link, &agreed, Vec::new(), notes.clone());
            connected.expect("the queue pair was not connected before");
            let qp = Arc::clone(qp);
            self.ends.push(End { qp, wire, link, alarm, notes, agreed });
        }
    }

    /// The end that a queue pair has, or had.
    pub fn end(&self, qp: &Arc<Qp>) -> Option<&End> {
        self.ends.iter().find(|end| Arc::ptr_eq(&end.qp, qp))
    }

    /// Does one thing that is due now. Returns false if nothing is.
    pub fn react(&mut self) -> bool {
        let timers_first = self.rng.below(2) == 0;
        timers_first && self.ring() || self.drive() || self.ring()
    }

    /// Lets a timer ring that is due.
    fn ring(&self) -> bool {
        self.timers.next().is_some_and(|next| next <= self.clock.now())
            && (self.timers.ring().is_some() || self.ring())
    }

    /// Drives a queue pair that has reason to be.
    fn drive(&mut self) -> bool {
        let count = self.ends.len() as u64;
        let first = usize::try_from(self.rng.below(count)).unwrap_or(0);
        let (before, after) = self.ends.split_at(first);
        let drive = if self.rng.below(2) == 0 { Qp::drive } else { Qp::take_turn };
        if let Some(end) = after.iter().chain(before).find(|end| end.react(drive)) {
            if self.rng.below(HASTY) == 0 {
                end.pay();
            }
            return true;
        }
        // Before a driver goes idle, it tells the peers what they wait for.
        self.ends.iter().any(End::pay)
    }

    /// How long nothing will be due, if nobody does anything until then. `None`: for ever.
    pub fn quiet_for(&self) -> Option<Duration> {
        let next = self.ends.iter().filter_map(End::next_event).chain(self.timers.next()).min();
        next.map(|time| time.saturating_sub(self.clock.now()))
    }

    /// Does one thing that is due, or lets time pass until something is. Returns false if nothing ever will be.
    pub fn step(&mut self) -> bool {
        if self.react() {
            return true;
        }
        let quiet = self.quiet_for();
        if let Some(time) = quiet {
            assert_ne!(time, Duration::ZERO, "what is due is done");
            self.clock.advance(time);
        }
        quiet.is_some()
    }

    /// Does all that is due, now and later.
    pub fn run(&mut self) {
        while self.step() {}
    }
}

impl End {
    /// The queue pair.
    pub fn qp(&self) -> &Arc<Qp> {
        &self.qp
    }

    /// What was agreed at startup.
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Whether the peer's first message came.
    pub fn is_opened(&self) -> bool {
        lock(&self.notes.heard).opened
    }

    /// Whether the stream is over.
    pub fn is_ended(&self) -> bool {
        lock(&self.notes.heard).ended.is_some()
    }

    /// Whether both directions of the link are closed.
    pub fn is_closed(&self) -> bool {
        lock(&self.notes.heard).closed
    }

    /// Whether the peer took too long to close, and the link was cut.
    pub fn is_aborted(&self) -> bool {
        lock(&self.notes.heard).aborted
    }

    /// The queue pair was reset: closes the socket, whatever is under way.
    pub fn release(&self) {
        lock(&self.notes.heard).released = true;
        self.link.abort();
    }

    fn is_released(&self) -> bool {
        lock(&self.notes.heard).released
    }

    /// The program polls: it drives the queue pair without knowing of a reason to.
    pub fn poll(&self) {
        self.qp.poll(1);
        self.take_note();
    }

    /// The peer may wait for an acknowledgement now.
    fn take_note(&self) {
        if self.qp.comes_to_owe() {
            lock(&self.notes.heard).owes = true;
        }
    }

    /// Sends the acknowledgement that is owed. Returns whether one was.
    fn pay(&self) -> bool {
        let owed = std::mem::take(&mut lock(&self.notes.heard).owes) && !self.is_released();
        if owed {
            self.qp.acknowledge();
        }
        owed
    }

    /// Drives the queue pair if there is reason to, as a program does or as a lane. Returns whether there was.
    fn react(&self, drive: fn(&Qp, Ready)) -> bool {
        if self.is_released() {
            return false;
        }
        let news = self.wire.take_ready();
        let called = std::mem::take(&mut lock(&self.notes.heard).call_again);
        let all = called | self.alarm.take_rung() | self.lose_patience();
        let ready =
            if all { BOTH } else { Ready { readable: news.readable, writable: news.writable, ended: false } };
        if ready != Ready::default() {
            drive(&self.qp, ready);
            self.take_note();
        }
        ready != Ready::default()
    }

    /// The peer had its time to close after this end did.
    fn lose_patience(&self) -> bool {
        let due = self.patience().is_some_and(|time| time <= self.notes.clock.now());
        if due {
            lock(&self.notes.heard).aborted = true;
            self.link.abort();
        }
        due
    }

    /// When the peer has had its time to close.
    fn patience(&self) -> Option<Duration> {
        let heard = lock(&self.notes.heard);
        let waiting = heard.ended.filter(|_| !heard.closed && !heard.aborted);
        waiting.map(|ended| ended + Config::default().close)
    }

    fn next_event(&self) -> Option<Duration> {
        if self.is_released() {
            return None;
        }
        [self.wire.next_ready(), self.alarm.next(), self.patience()].into_iter().flatten().min()
    }
}

impl Attendant for Notes {
    fn call_again(&self) {
        lock(&self.heard).call_again = true;
    }

    /// Programs here never give a peer up for a missing receive.
    fn peer_not_ready(&self) {}

    fn opened(&self) {
        lock(&self.heard).opened = true;
    }

    fn ended(&self, _: &Arc<Fault>) {
        let before = lock(&self.heard).ended.replace(self.clock.now());
        assert_eq!(before, None, "a stream ends once");
    }

    fn closed(&self) {
        let before = std::mem::replace(&mut lock(&self.heard).closed, true);
        assert!(!before, "a link closes once");
    }
}

/// The startup of a connection, without one.
fn agree(setup: Setup, [initiator, responder]: [Terms; 2]) -> [Agreed; 2] {
    let initiator = Initiator::new(setup, initiator, &[]).expect("the initiator's terms are possible");
    let Ok(Parse::Done(incoming)) = Incoming::parse(initiator.request()) else {
        unreachable!("what an initiator sends is a request");
    };
    let (reply, theirs) = incoming.accept(responder, &[]).expect("the responder's terms are possible");
    match initiator.reply(&reply) {
        Ok(Parse::Done(Answer::Accepted { agreed, .. })) => [agreed, theirs],
        other => panic!("the terms do not fit each other: {other:?}"),
    }
}
