//! A world: queue pairs that are connected over simulated, faulty links, and driven only when an event occurs.
//!
//! A world takes the place of the engine's lanes. It calls [`Qp::drive`] when a link becomes ready, when the queue pair
//! requests it, or when a timer expires, and never otherwise. If the device loses a wakeup, the simulation makes no
//! progress.

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
use ironwarp_rnic::qp::{Halves, Qp, Ready, StreamDriver};
use ironwarp_wire::Parse;
use ironwarp_wire::private::OFFER_LEN;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One in this many acknowledgements is sent at once, and the others when the driver becomes idle.
const EARLY_ACK_ODDS: u64 = 4;

/// Difference between two bytes of a valid offer of shared memory, so that parts of different offers do not fit together.
pub(crate) const OFFER_STEP: u8 = 37;

/// Readiness in both directions.
const BOTH: Ready = Ready { readable: true, writable: true, ended: false };

/// A simulation with its time. The seed determines the order of simultaneous events.
#[derive(Debug)]
pub struct World {
    clock: Clock,
    /// Timers of event moderation.
    timers: Arc<Timers>,
    rng: Rng,
    faults: Arc<Faults>,
    /// The connected queue pairs, in the order of connection.
    ends: Vec<End>,
    trace: Trace,
}

/// A connected queue pair with its link and its timer.
#[derive(Debug)]
pub struct End {
    qp: Arc<Qp>,
    /// The link without faults.
    wire: Arc<SimLink>,
    /// The link with faults, which the queue pair uses.
    link: Arc<dyn Link>,
    /// The timer of injected faults.
    alarm: Arc<Alarm>,
    driver: Arc<Driver>,
    /// The negotiated parameters.
    agreed: Agreed,
}

/// Receives the notifications of a queue pair for its driver.
#[derive(Debug)]
struct Driver {
    clock: Clock,
    state: Mutex<DriverState>,
}

/// What the driver of a queue pair knows.
#[derive(Debug, Default)]
struct DriverState {
    /// Whether the queue pair requested to be driven.
    schedule: bool,
    /// Whether an acknowledgement is pending.
    ack_pending: bool,
    /// Whether the first message of the peer has arrived.
    opened: bool,
    /// When the stream ended; `None` if it has not.
    ended: Option<Duration>,
    /// Whether both directions of the link are closed.
    closed: bool,
    /// Number of offers of shared memory by the peer.
    offers: u64,
    /// Whether the driver aborted the link because the peer did not close in time.
    aborted: bool,
    /// Whether the queue pair was reset: its link is closed, and it is no longer driven.
    released: bool,
}

impl World {
    /// Creates a world without queue pairs. Faults occur in it according to `plan`.
    pub fn new(plan: FaultPlan, seed: u64) -> Self {
        let clock = Clock::new();
        let (timers, trace) = (Timers::new(&clock), Trace::new(&clock, false));
        Self { clock, timers, rng: Rng::new(seed), faults: Faults::new(plan, seed), ends: Vec::new(), trace }
    }

    /// Creates a world like [`new`](Self::new) that records a trace.
    pub fn traced(plan: FaultPlan, seed: u64) -> Self {
        let mut world = Self::new(plan, seed);
        world.trace = Trace::new(&world.clock, true);
        world
    }

    /// Returns the trace, which is empty unless the world records it.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Returns the clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the timers of event moderation.
    pub fn timers(&self) -> &Arc<Timers> {
        &self.timers
    }

    /// Returns the injected faults.
    pub fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    /// Returns all connected queue pairs, in the order of connection.
    pub fn ends(&self) -> &[End] {
        &self.ends
    }

    /// Connects two queue pairs, each given with the memory of its program and its terms. The first is the initiator.
    /// The startup takes no time and does not fail.
    pub fn connect(&mut self, path: Path, setup: MpaMode, pair: [(&Arc<Qp>, &Arc<Arena>, Terms); 2]) {
        let seed = self.rng.next();
        let wires = SimLink::pair(path, seed, &self.clock, pair.map(|(_, arena, _)| arena));
        let agreed = negotiate(setup, pair.map(|(_, _, terms)| terms));
        for ((wire, agreed), (qp, _, _)) in wires.into_iter().zip(agreed).zip(pair) {
            let alarm = Alarm::new(&self.clock);
            let (trace, end) = (self.trace.clone(), self.ends.len());
            let traced = Arc::new(TracedLink { inner: wire.clone(), trace, end });
            let link: Arc<dyn Link> = self.faults.wrap_link(end as u64, traced, alarm.clone());
            let driver = Arc::new(Driver { clock: self.clock.clone(), state: Mutex::default() });
            qp.set_faults(self.faults.receive_faults(self.ends.len() as u64, alarm.clone()));
            let connected = qp.connect(&link, &agreed, Vec::new(), driver.clone());
            connected.expect("a queue pair that was never connected");
            let qp = Arc::clone(qp);
            self.ends.push(End { qp, wire, link, alarm, driver, agreed });
        }
    }

    /// Replaces a queue pair by one of another function, which continues the stream on the same link (requirement X2). Does
    /// nothing if it was never connected.
    pub fn replace(&mut self, before: &Arc<Qp>, now: &Arc<Qp>, halves: Option<Halves>) {
        let Some((number, end)) =
            self.ends.iter_mut().enumerate().find(|(_, end)| Arc::ptr_eq(&end.qp, before))
        else {
            return;
        };
        now.set_faults(self.faults.receive_faults(number as u64, end.alarm.clone()));
        end.qp = Arc::clone(now);
        if let Some(halves) = halves {
            now.resume(halves, &end.link, end.driver.clone());
            lock(&end.driver.state).schedule = true;
        }
    }

    /// Returns the end of a queue pair; `None` if it was never connected.
    pub fn end(&self, qp: &Arc<Qp>) -> Option<&End> {
        self.ends.iter().find(|end| Arc::ptr_eq(&end.qp, qp))
    }

    /// Performs one event that is due now: expires a timer or drives a queue pair. Returns false if no event is due.
    pub fn react(&mut self) -> bool {
        let timers_first = self.rng.below(2) == 0;
        timers_first && self.expire_timer() || self.drive_one() || self.expire_timer()
    }

    /// Expires a timer that is due. Returns false if none is due.
    fn expire_timer(&self) -> bool {
        self.timers.next().is_some_and(|next| next <= self.clock.now())
            && (self.timers.expire_next().is_some() || self.expire_timer())
    }

    /// Drives a queue pair that is ready, or sends a pending acknowledgement. Returns false if there is neither.
    fn drive_one(&mut self) -> bool {
        let count = self.ends.len() as u64;
        let first = usize::try_from(self.rng.below(count)).unwrap_or(0);
        let (before, after) = self.ends.split_at(first);
        let drive = if self.rng.below(2) == 0 { Qp::drive } else { Qp::take_turn };
        if let Some(end) = after.iter().chain(before).find(|end| end.drive_if_ready(drive)) {
            if self.rng.below(EARLY_ACK_ODDS) == 0 {
                end.send_pending_ack();
            }
            return true;
        }
        // Before a driver becomes idle, it sends pending acknowledgements.
        self.ends.iter().any(End::send_pending_ack)
    }

    /// Returns the time until the next event, or `None` if there will be no event.
    pub fn time_to_next_event(&self) -> Option<Duration> {
        let next = self.ends.iter().filter_map(End::next_event).chain(self.timers.next()).min();
        next.map(|time| time.saturating_sub(self.clock.now()))
    }

    /// Performs one event that is due, or advances the clock to the next event. Returns false if there will be no
    /// event.
    pub fn step(&mut self) -> bool {
        if self.react() {
            return true;
        }
        let quiet = self.time_to_next_event();
        if let Some(time) = quiet {
            assert_ne!(time, Duration::ZERO, "an event that is due was not performed");
            self.clock.advance(time);
        }
        quiet.is_some()
    }

    /// Performs all events until there will be no more.
    pub fn run(&mut self) {
        while self.step() {}
    }
}

impl End {
    /// Returns the queue pair.
    pub fn qp(&self) -> &Arc<Qp> {
        &self.qp
    }

    /// Returns the parameters negotiated at startup.
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Returns whether the first message of the peer has arrived.
    pub fn is_opened(&self) -> bool {
        lock(&self.driver.state).opened
    }

    /// Returns whether the stream has ended.
    pub fn is_ended(&self) -> bool {
        lock(&self.driver.state).ended.is_some()
    }

    /// Returns whether both directions of the link are closed.
    pub fn is_closed(&self) -> bool {
        lock(&self.driver.state).closed
    }

    /// Returns whether the link was aborted because the peer took too long to close.
    pub fn is_aborted(&self) -> bool {
        lock(&self.driver.state).aborted
    }

    /// Returns the number of offers of shared memory that have arrived.
    pub fn offers(&self) -> u64 {
        lock(&self.driver.state).offers
    }

    /// Returns the number of switches to each route that this end has followed.
    pub fn followed(&self) -> [u64; 2] {
        self.wire.followed()
    }

    /// Aborts the link after the queue pair was reset, even with work outstanding. The queue pair is no longer driven.
    pub fn release(&self) {
        lock(&self.driver.state).released = true;
        self.link.abort();
    }

    /// Returns whether the queue pair was reset and released.
    fn is_released(&self) -> bool {
        lock(&self.driver.state).released
    }

    /// Drives the queue pair without an event, as a polling program does.
    pub fn poll(&self) {
        self.qp.poll(1);
        self.record_pending_ack();
    }

    /// Records that an acknowledgement is pending, if the queue pair says so.
    fn record_pending_ack(&self) {
        if self.qp.take_owed_acknowledgement() {
            lock(&self.driver.state).ack_pending = true;
        }
    }

    /// Sends a pending acknowledgement. Returns whether there was one.
    fn send_pending_ack(&self) -> bool {
        let pending = std::mem::take(&mut lock(&self.driver.state).ack_pending) && !self.is_released();
        if pending {
            self.qp.acknowledge();
        }
        pending
    }

    /// Drives the queue pair with `drive` if it is ready. Returns whether it was ready.
    fn drive_if_ready(&self, drive: fn(&Qp, Ready)) -> bool {
        if self.is_released() {
            return false;
        }
        let socket = self.wire.take_ready();
        let scheduled = std::mem::take(&mut lock(&self.driver.state).schedule);
        // Only the link reports single directions; after any other event both are driven.
        let drive_both = scheduled | self.alarm.take_expired() | self.abort_if_late();
        let ready = if drive_both {
            BOTH
        } else {
            Ready { readable: socket.readable, writable: socket.writable, ended: false }
        };
        if ready != Ready::default() {
            drive(&self.qp, ready);
            self.record_pending_ack();
        }
        ready != Ready::default()
    }

    /// Aborts the link if the peer has not closed in time. Returns whether the link was aborted.
    fn abort_if_late(&self) -> bool {
        let due = self.close_deadline().is_some_and(|time| time <= self.driver.clock.now());
        if due {
            lock(&self.driver.state).aborted = true;
            self.link.abort();
        }
        due
    }

    /// Returns the time by which the peer must close the link; `None` if the stream has not ended, or the link is
    /// closed.
    fn close_deadline(&self) -> Option<Duration> {
        let state = lock(&self.driver.state);
        let waiting = state.ended.filter(|_| !state.closed && !state.aborted);
        waiting.map(|ended| ended + DeviceConfig::default().close)
    }

    /// Returns the time of the queue pair's next event; `None` if there will be no event.
    fn next_event(&self) -> Option<Duration> {
        if self.is_released() {
            return None;
        }
        [self.wire.next_ready(), self.alarm.next(), self.close_deadline()].into_iter().flatten().min()
    }
}

impl StreamDriver for Driver {
    fn schedule(&self) {
        lock(&self.state).schedule = true;
    }

    /// Does nothing: simulated programs wait forever for a receive of the peer.
    fn on_peer_not_ready(&self) {}

    fn on_first_message(&self) {
        lock(&self.state).opened = true;
    }

    fn on_offer(&self, offer: [u8; OFFER_LEN]) {
        let steps = offer.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
        assert!(steps.into_iter().all(|step| step == OFFER_STEP), "parts of different offers: {offer:x?}");
        lock(&self.state).offers += 1;
    }

    fn on_stream_ended(&self, _: &Arc<QpError>) {
        let before = lock(&self.state).ended.replace(self.clock.now());
        assert_eq!(before, None, "a stream ended twice");
    }

    fn on_link_closed(&self) {
        let before = std::mem::replace(&mut lock(&self.state).closed, true);
        assert!(!before, "a link closed twice");
    }
}

/// Negotiates the parameters of a connection, without a link.
fn negotiate(setup: MpaMode, [initiator, responder]: [Terms; 2]) -> [Agreed; 2] {
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
