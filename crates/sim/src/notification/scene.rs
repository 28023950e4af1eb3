//! A run, step by step.

use super::handler::Handler;
use super::queue::Queue;
use super::tally::{Met, Tally};
use crate::arena::Arena;
use crate::clock::{Clock, Timers};
use crate::tags::tag_cipher;
use crate::trace::Trace;
use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::event::{AsyncEvent, Wake};
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::queue::Arm;
use std::sync::Arc;
use std::time::Duration;

const STEPS: u64 = 20_000;
/// Maximum capacity of completion queues.
const MAX_CAPACITY: usize = 64;
const PERIODS: [Duration; 4] =
    [Duration::ZERO, Duration::from_micros(1), Duration::from_micros(10), Duration::from_micros(100)];
/// One in this many completions is added to a full queue; the others wait for room.
const OVERRUN: u64 = 2000;

pub(super) struct Scene {
    rng: Rng,
    clock: Clock,
    timers: Arc<Timers>,
    device: Arc<Device>,
    handlers: Vec<Handler>,
    queues: Vec<Queue>,
    tally: Tally,
    trace: Trace,
}

/// A program that does not sleep.
#[derive(Debug)]
struct Awake;

impl Wake for Awake {
    fn signal(&self) {}
    fn consume(&self) {}
}

impl Scene {
    pub(super) fn new(seed: u64, traced: bool) -> Self {
        let mut rng = Rng::stream(seed, 3);
        let clock = Clock::new();
        let device = Device::new(DeviceConfig::default(), Arena::new(0), tag_cipher(0));
        device.events().open(Box::new(Awake));
        let handlers = (0..=rng.below(4)).map(|_| Handler::new(&device, &clock)).collect();
        let many = [1, 2, 4, 8, 100][index(&mut rng, 5)];
        let queue = |id| {
            let queue = Queue::new(id, 1 + index(&mut rng, MAX_CAPACITY));
            queue.cq.set_reports(device.events());
            queue
        };
        let queues = (0..many).map(queue).collect();
        let (timers, trace) = (Timers::new(&clock), Trace::new(&clock, traced));
        Self { rng, clock, timers, device, handlers, queues, tally: Tally::default(), trace }
    }

    pub(super) fn trace(&self) -> Trace {
        self.trace.clone()
    }

    pub(super) fn run(mut self) -> Tally {
        for number in 0..self.queues.len() {
            self.move_to(number, Some(0));
            self.serve(number);
        }
        for _ in 0..STEPS {
            self.step();
            self.check();
        }
        self.rest();
        self.tally.wakes = self.handlers.iter().map(Handler::wakes).sum();
        let overrun = self.queues.iter().filter(|queue| queue.overrun).count();
        let events = std::iter::from_fn(|| self.device.events().try_next());
        assert_eq!(events.filter(|event| matches!(event, AsyncEvent::CqError(_))).count(), overrun);
        self.tally
    }

    fn step(&mut self) {
        let number = index(&mut self.rng, self.queues.len());
        let handler = index(&mut self.rng, self.handlers.len());
        match self.rng.below(64) {
            0..=23 => self.complete(number),
            24..=51 if self.is_available(handler) => drop(self.attend(handler)),
            24..=51 => {}
            52..=53 => {
                let most = 1 + index(&mut self.rng, 8);
                self.queues[number].poll(most, &mut self.tally);
            }
            54..=55 => self.arm(number),
            56 => {
                let capacity = index(&mut self.rng, MAX_CAPACITY);
                self.note(number, format_args!("is resized to {capacity}"));
                self.queues[number].resize(capacity, &mut self.tally);
            }
            57..=58 => {
                let to = Some(handler).filter(|_| self.rng.below(4) > 0);
                self.move_to(number, to);
            }
            59 => self.moderate(number),
            60 => self.moderate_handler(handler),
            _ => {
                let until = self.clock.now() + Duration::from_nanos(self.rng.below(50_000));
                self.pass(until);
            }
        }
    }

    /// Completes some requests on a queue.
    fn complete(&mut self, number: usize) {
        for _ in 0..=self.rng.below(4) {
            let queue = &mut self.queues[number];
            if queue.overrun || queue.is_full() && self.rng.below(OVERRUN) > 0 {
                return;
            }
            let (solicited, failed) = (self.rng.below(3) == 0, self.rng.below(64) == 0);
            let raised = queue.push(solicited, failed, self.clock.now(), &mut self.tally);
            self.note(number, format_args!("gets a completion: solicited {solicited}, failed {failed}"));
            if raised {
                self.raise(number);
            }
        }
    }

    /// Whether the program of a handler is able to react to a wakeup now. Sometimes it is busy for long.
    fn is_available(&mut self, handler: usize) -> bool {
        let handler = &mut self.handlers[handler];
        handler.away = match handler.away {
            0 if self.rng.below(4000) == 0 => self.rng.below(2000),
            away => away.saturating_sub(1),
        };
        handler.away == 0
    }

    /// Takes an event of a handler if its program is woken, and serves the queue. Returns whether it was woken.
    fn attend(&mut self, number: usize) -> bool {
        let Some(cq) = self.handlers[number].take(&mut self.tally) else { return false };
        self.note(cq as usize, format_args!("has an event at handler {number}"));
        self.tally.met_if(Met::TakenAfterMove, self.queues[cq as usize].handler != Some(number));
        self.serve(cq as usize);
        true
    }

    /// Polls, arms, and polls again if completions arrived in between.
    fn serve(&mut self, number: usize) {
        let most = 1 + index(&mut self.rng, 8);
        self.queues[number].poll(most, &mut self.tally);
        self.arm(number);
    }

    fn arm(&mut self, number: usize) {
        let arm = if self.rng.below(2) == 0 { Arm::Next } else { Arm::Solicited };
        self.note(number, format_args!("is armed: {arm:?}"));
        self.queues[number].arm(arm, &mut self.tally);
    }

    /// *Modify CQ*: moves the queue to another handler. An event that was raised without a handler goes there now.
    fn move_to(&mut self, number: usize, to: Option<usize>) {
        self.note(number, format_args!("is moved to handler {to:?}"));
        let queue = &mut self.queues[number];
        let has = |handler: Option<usize>| handler.is_some_and(|it| self.handlers[it].has(queue.cq.id()));
        let moves = queue.handler != to;
        for (what, is) in [
            (Met::Moved, queue.len() > 0),
            (Met::MovedArmed, queue.is_armed()),
            (Met::MovedHeld, queue.is_held()),
            (Met::MovedUntaken, has(queue.handler)),
            (Met::MovedBack, has(to)),
            (Met::MovedToNone, to.is_none()),
        ] {
            self.tally.met_if(what, moves && is);
        }
        queue.cq.set_handler(to.map(|to| Arc::clone(&self.handlers[to].inner)));
        (queue.handler, queue.last) = (to, None);
        queue.moved(&mut self.tally);
        if to.is_some() && std::mem::take(&mut queue.owed) {
            self.tally.met(Met::Owed);
            self.raise(number);
        }
    }

    fn moderate(&mut self, number: usize) {
        let by = (self.rng.below(4) > 0).then(|| {
            let period = PERIODS[index(&mut self.rng, PERIODS.len())];
            ([1, 2, 4, 16][index(&mut self.rng, 4)], period)
        });
        self.note(number, format_args!("is moderated: {by:?}"));
        if self.queues[number].moderate(by, &self.timers, &mut self.tally) {
            self.raise(number);
        }
    }

    fn moderate_handler(&mut self, number: usize) {
        let interval = PERIODS[index(&mut self.rng, PERIODS.len())];
        let interval = Some(interval).filter(|interval| !interval.is_zero() && self.rng.below(2) == 0);
        self.trace.note(number, format_args!("handler is moderated: {interval:?}"));
        self.handlers[number].moderate(interval, self.queues.len() + number, &self.timers);
    }

    /// Handles the event of a queue.
    fn raise(&mut self, number: usize) {
        self.note(number, format_args!("raises its event"));
        let queue = &mut self.queues[number];
        match queue.handler {
            Some(handler) => self.handlers[handler].gets(queue.cq.id(), &mut queue.last, &mut self.tally),
            None => queue.owed = true,
        }
    }

    /// Advances the time and expires timers.
    fn pass(&mut self, until: Duration) {
        while let Some(next) = self.timers.next().filter(|next| *next <= until) {
            self.clock.advance_to(next);
            let Some(name) = self.timers.ring() else { continue }; // moderation was changed
            let (now, tally) = (self.clock.now(), &mut self.tally);
            if self.queues.get_mut(name).is_some_and(|queue| queue.reminded(now, tally)) {
                self.raise(name);
            }
        }
        self.clock.advance_to(until);
        self.queues.iter().for_each(|queue| queue.expect_in_time(until));
    }

    fn check(&mut self) {
        self.handlers.iter_mut().for_each(|handler| handler.check(&mut self.tally));
    }

    /// Lets everything settle. When all timers have expired and all programs sleep again, none sleeps that should not.
    fn rest(&mut self) {
        for number in 0..self.queues.len() {
            self.move_to(number, Some(0));
        }
        loop {
            self.check();
            if (0..self.handlers.len()).any(|handler| self.attend(handler)) {
                continue;
            }
            let Some(next) = self.timers.next() else { break };
            self.pass(next);
        }
        for queue in &mut self.queues {
            queue.expect_rest();
            queue.expect_all(&mut self.tally);
        }
    }

    fn note(&self, queue: usize, what: std::fmt::Arguments<'_>) {
        self.trace.note(queue, what);
    }
}

fn index(rng: &mut Rng, many: usize) -> usize {
    usize::try_from(rng.below(many as u64)).expect("an index")
}
