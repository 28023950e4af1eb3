//! A run: performs random steps, and checks the results.

use super::handler::Handler;
use super::queue::Queue;
use super::tally::{Situation, Tally};
use crate::arena::Arena;
use crate::clock::{Clock, Timers};
use crate::tags::tag_cipher;
use crate::trace::Trace;
use ironwarp_rnic::config::DeviceConfig;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::event::{AsyncEvent, QueueState, Wake};
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::queue::Arm;
use std::sync::Arc;
use std::time::Duration;

/// Number of random steps of a run.
const STEPS: u64 = 20_000;
/// Maximum capacity of completion queues.
const MAX_CAPACITY: usize = 64;
/// Times for which moderation holds events back; zero means without a time limit.
const PERIODS: [Duration; 4] =
    [Duration::ZERO, Duration::from_micros(1), Duration::from_micros(10), Duration::from_micros(100)];
/// One in this many completions is added to a full queue; the others wait for room.
const OVERRUN_ODDS: u64 = 2000;
/// Sizes of event queues. The first is refused.
const EVENT_QUEUE_SIZES: [usize; 8] = [1, 2, 3, 4, 8, 64, 65, 256];
/// Maximum number of handlers.
const MAX_HANDLERS: usize = 8;

/// An adapter with completion queues and handlers.
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

/// The wakeup of a program that never sleeps: does nothing.
#[derive(Debug)]
struct Awake;

impl Wake for Awake {
    fn signal(&self) {}
    fn consume(&self) {}
}

impl Scene {
    /// Creates an adapter with a random number of handlers and completion queues.
    pub(super) fn new(seed: u64, traced: bool) -> Self {
        let mut rng = Rng::stream(seed, 3);
        let clock = Clock::new();
        let device = Device::new(DeviceConfig::default(), Arena::new(0), tag_cipher(0));
        if rng.below(2) == 0 {
            device.events().open(Box::new(Awake)); // otherwise at the end
        }
        let handlers = (0..=rng.below(4)).map(|_| Handler::new(&device, &clock)).collect();
        let count = [1, 2, 4, 8, 100][index(&mut rng, 5)];
        let queue = |id| {
            let queue = Queue::new(id, 1 + index(&mut rng, MAX_CAPACITY));
            queue.cq.set_reports(device.events());
            queue
        };
        let queues = (0..count).map(queue).collect();
        let (timers, trace) = (Timers::new(&clock), Trace::new(&clock, traced));
        Self { rng, clock, timers, device, handlers, queues, tally: Tally::default(), trace }
    }

    /// Returns the trace of the run.
    pub(super) fn trace(&self) -> Trace {
        self.trace.clone()
    }

    /// Performs all steps, then waits until nothing happens. Panics if a check fails.
    pub(super) fn run(mut self) -> Tally {
        for number in 0..self.queues.len() {
            self.move_to(number, Some(0));
            self.poll_and_arm(number);
        }
        for _ in 0..STEPS {
            self.step();
            self.check();
        }
        self.settle();
        self.tally.wakes = self.handlers.iter().map(Handler::wakes).sum();
        let overrun = self.queues.iter().filter(|queue| queue.overrun).count();
        let [_, unopened] = self.device.events().stats();
        let unopened = unopened.state == QueueState::Unarmed && unopened.wakes == 0;
        self.tally.record_if(Situation::OverrunUnopened, unopened && overrun > 0);
        self.device.events().open(Box::new(Awake));
        let events = std::iter::from_fn(|| self.device.events().try_next());
        assert_eq!(events.filter(|event| matches!(event, AsyncEvent::CqError(_))).count(), overrun);
        assert!(!self.device.events().is_stopped(), "an event reached an undefined event queue");
        self.tally
    }

    /// Performs a random step.
    fn step(&mut self) {
        let number = index(&mut self.rng, self.queues.len());
        let handler = index(&mut self.rng, self.handlers.len());
        match self.rng.below(64) {
            0..=23 => self.complete(number),
            24..=51 if self.is_available(handler) => drop(self.take_event(handler)),
            24..=51 => {}
            52..=53 => {
                let max = 1 + index(&mut self.rng, 8);
                self.queues[number].poll(max, &mut self.tally);
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
            61 => self.change_handler(handler),
            _ => {
                let until = self.clock.now() + Duration::from_nanos(self.rng.below(50_000));
                self.advance_time(until);
            }
        }
    }

    /// Adds some completions to a queue.
    fn complete(&mut self, number: usize) {
        for _ in 0..=self.rng.below(4) {
            let queue = &mut self.queues[number];
            if queue.overrun || queue.is_full() && self.rng.below(OVERRUN_ODDS) > 0 {
                return;
            }
            let (solicited, failed) = (self.rng.below(3) == 0, self.rng.below(64) == 0);
            let raised = queue.push(solicited, failed, self.clock.now(), &mut self.tally);
            self.note(number, format_args!("gets a completion: solicited {solicited}, failed {failed}"));
            if raised {
                self.deliver_event(number);
            }
        }
    }

    /// Returns whether the program of a handler can react to a wakeup in this step. Rarely, it is busy for many steps.
    fn is_available(&mut self, handler: usize) -> bool {
        let handler = &mut self.handlers[handler];
        handler.busy_steps = match handler.busy_steps {
            0 if self.rng.below(4000) == 0 => self.rng.below(2000),
            busy_steps => busy_steps.saturating_sub(1),
        };
        handler.busy_steps == 0
    }

    /// Takes an event from a handler, if it has one, and polls and arms the completion queue. Returns whether there was
    /// an event.
    fn take_event(&mut self, number: usize) -> bool {
        let Some(cq) = self.handlers[number].take(&mut self.tally) else { return false };
        self.note(cq as usize, format_args!("has an event at handler {number}"));
        self.tally.record_if(Situation::TakenAfterMove, self.queues[cq as usize].handler != Some(number));
        self.poll_and_arm(cq as usize);
        true
    }

    /// Polls some completions of a queue and arms it. If completions are left, arming polls them.
    fn poll_and_arm(&mut self, number: usize) {
        let max = 1 + index(&mut self.rng, 8);
        self.queues[number].poll(max, &mut self.tally);
        self.arm(number);
    }

    /// Arms a queue.
    fn arm(&mut self, number: usize) {
        let arm = if self.rng.below(2) == 0 { Arm::Next } else { Arm::Solicited };
        self.note(number, format_args!("is armed: {arm:?}"));
        self.queues[number].arm(arm, &mut self.tally);
        self.define_handler(number);
    }

    /// Moves a queue to another handler, or to none (*Modify CQ*). An event that was raised without a handler goes to
    /// the new one.
    fn move_to(&mut self, number: usize, to: Option<usize>) {
        self.note(number, format_args!("is moved to handler {to:?}"));
        let queue = &mut self.queues[number];
        let has = |handler: Option<usize>| handler.is_some_and(|it| self.handlers[it].has(queue.cq.id()));
        let moves = queue.handler != to;
        for (what, is) in [
            (Situation::Moved, queue.len() > 0),
            (Situation::MovedArmed, queue.is_armed()),
            (Situation::MovedHeld, queue.is_held()),
            (Situation::MovedUntaken, has(queue.handler)),
            (Situation::MovedBack, has(to)),
            (Situation::MovedToNone, to.is_none()),
        ] {
            self.tally.record_if(what, moves && is);
        }
        queue.cq.set_handler(to.map(|to| Arc::clone(&self.handlers[to].inner)));
        (queue.handler, queue.last) = (to, None);
        queue.expect_unchanged(&mut self.tally);
        let kept = to.is_some() && std::mem::take(&mut queue.kept_event);
        self.define_handler(number);
        if kept {
            self.tally.record(Situation::Owed);
            self.deliver_event(number);
        }
    }

    /// Changes the moderation of a queue.
    fn moderate(&mut self, number: usize) {
        let by = (self.rng.below(4) > 0).then(|| {
            let period = PERIODS[index(&mut self.rng, PERIODS.len())];
            ([1, 2, 4, 16][index(&mut self.rng, 4)], period)
        });
        self.note(number, format_args!("is moderated: {by:?}"));
        if self.queues[number].moderate(by, &self.timers, &mut self.tally) {
            self.deliver_event(number);
        }
    }

    /// Changes the moderation of a handler.
    fn moderate_handler(&mut self, number: usize) {
        let interval = PERIODS[index(&mut self.rng, PERIODS.len())];
        let interval = Some(interval).filter(|interval| !interval.is_zero() && self.rng.below(2) == 0);
        self.trace.note(number, format_args!("handler is moderated: {interval:?}"));
        self.handlers[number].moderate(interval, self.queues.len() + number, &self.timers);
    }

    /// Resizes the event queue of a handler, has its program poll or arm it, or creates another handler.
    fn change_handler(&mut self, number: usize) {
        let handler = &mut self.handlers[number];
        match self.rng.below(8) {
            0..=3 => {
                let size = EVENT_QUEUE_SIZES[index(&mut self.rng, EVENT_QUEUE_SIZES.len())];
                self.trace.note(number, format_args!("event queue is resized to {size}"));
                handler.resize(size, &mut self.tally);
            }
            4 => {
                self.trace.note(number, format_args!("handler is polled"));
                handler.poll();
            }
            5..=6 => {
                self.trace.note(number, format_args!("handler is armed"));
                handler.arm(&mut self.tally);
            }
            _ if self.handlers.len() < MAX_HANDLERS => {
                self.handlers.push(Handler::new(&self.device, &self.clock));
            }
            _ => {}
        }
    }

    /// Records in the model that the handler of a queue which may raise events has memory.
    fn define_handler(&mut self, number: usize) {
        let queue = &self.queues[number];
        if let (true, Some(handler)) = (queue.may_raise, queue.handler) {
            self.handlers[handler].define();
        }
    }

    /// Records in the model that a queue has raised its event: at its handler, or for the next handler.
    fn deliver_event(&mut self, number: usize) {
        self.note(number, format_args!("raises its event"));
        let queue = &mut self.queues[number];
        match queue.handler {
            Some(handler) => {
                self.handlers[handler].add_event(queue.cq.id(), &mut queue.last, &mut self.tally);
            }
            None => queue.kept_event = true,
        }
    }

    /// Advances the time to `until`, and expires all timers that are due on the way.
    fn advance_time(&mut self, until: Duration) {
        while let Some(next) = self.timers.next().filter(|next| *next <= until) {
            self.clock.advance_to(next);
            let Some(name) = self.timers.expire_next() else { continue }; // moderation was changed
            let (now, tally) = (self.clock.now(), &mut self.tally);
            if self.queues.get_mut(name).is_some_and(|queue| queue.on_timer(now, tally)) {
                self.deliver_event(name);
            }
        }
        self.clock.advance_to(until);
        self.queues.iter().for_each(|queue| queue.expect_in_time(until));
    }

    /// Checks all handlers.
    fn check(&mut self) {
        self.handlers.iter_mut().for_each(|handler| handler.check(&mut self.tally));
    }

    /// Takes all events and expires all timers until nothing happens any more. Then checks that no event is missing.
    fn settle(&mut self) {
        for number in 0..self.queues.len() {
            self.move_to(number, Some(0));
        }
        self.handlers.iter_mut().for_each(|handler| handler.arm(&mut self.tally));
        loop {
            self.check();
            if (0..self.handlers.len()).any(|handler| self.take_event(handler)) {
                continue;
            }
            let Some(next) = self.timers.next() else { break };
            self.advance_time(next);
        }
        for queue in &mut self.queues {
            queue.expect_no_missed_event();
            queue.expect_all_polled(&mut self.tally);
        }
    }

    /// Adds a line about a queue to the trace.
    fn note(&self, queue: usize, what: std::fmt::Arguments<'_>) {
        self.trace.note(queue, what);
    }
}

/// Returns a random index less than `count`.
fn index(rng: &mut Rng, count: usize) -> usize {
    usize::try_from(rng.below(count as u64)).expect("an index")
}
