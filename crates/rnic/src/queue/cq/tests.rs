//! Tests of the completion queue, with one thread and with many.

mod frozen;
mod held;

use super::super::{Opcode, Status};
use super::*;
use crate::event::{Routing, Sizes};
use std::cell::Cell;
use std::thread;

const ID: u32 = 7;

/// A wake without effect: the tests poll the handler.
#[derive(Debug)]
struct Silent;

impl Wake for Silent {
    fn signal(&self) {}
    fn consume(&self) {}
}

/// A handler, and the number of events taken from it so far.
#[derive(Debug)]
struct Count(Arc<CompletionHandler>, Cell<u32>);

impl Count {
    fn new() -> Self {
        Self(CompletionHandler::new(HandlerId(2), Box::new(Silent), None), Cell::new(0))
    }

    /// Takes all events from the handler, and returns how many were taken since the start of the test.
    fn events(&self) -> u32 {
        while let Some(event) = self.0.try_next() {
            assert_eq!(event.cq, ID);
            self.1.set(self.1.get() + 1);
        }
        self.1.get()
    }
}

/// Creates a queue with a handler.
fn cq(capacity: usize) -> (Cq, Count) {
    let (cq, count) = (Cq::new(ID, capacity), Count::new());
    cq.set_handler(Some(count.0.clone()));
    (cq, count)
}

fn plain(wr_id: u64) -> Completion {
    Completion::succeeded(wr_id, Opcode::Receive, 1, 0)
}

fn solicited(wr_id: u64) -> Completion {
    Completion { solicited: true, ..plain(wr_id) }
}

fn flushed(wr_id: u64) -> Completion {
    Completion::failed(wr_id, Opcode::Receive, 1, Status::Flushed, None)
}

/// Polls up to `max` completions, and returns their request identifiers.
fn poll(cq: &Cq, max: usize) -> Result<Vec<u64>, Overrun> {
    let mut ids = Vec::new();
    let n = cq.poll(max, |completion| ids.push(completion.wr_id))?;
    assert_eq!(n, ids.len());
    Ok(ids)
}

#[test]
fn hands_out_in_order_and_no_more_than_asked() {
    let (cq, count) = cq(3);
    assert_eq!((poll(&cq, 9), cq.len(), cq.is_empty()), (Ok(vec![]), 0, true));
    for wr_id in 1..=3 {
        cq.push(plain(wr_id)).unwrap();
    }
    assert_eq!((poll(&cq, 0), cq.len(), cq.is_empty()), (Ok(vec![]), 3, false));
    assert_eq!((poll(&cq, 2), cq.len()), (Ok(vec![1, 2]), 1));
    cq.push(plain(4)).unwrap();
    assert_eq!((poll(&cq, 9), cq.len()), (Ok(vec![3, 4]), 0));
    assert_eq!(count.events(), 0, "the queue was never armed");
}

#[test]
fn armed_once_is_one_event() {
    let (cq, count) = cq(9);
    assert!(!cq.arm(Arm::Next));
    assert!(!cq.arm(Arm::Next));
    for wr_id in 1..=3 {
        cq.push(plain(wr_id)).unwrap();
    }
    assert_eq!(count.events(), 1);
    assert!(cq.arm(Arm::Next), "three completions exist");
    assert_eq!(count.events(), 1, "existing completions raise no event");
    cq.push(plain(4)).unwrap();
    assert_eq!(count.events(), 2, "the queue was armed");
}

#[test]
fn only_an_armed_queue_has_an_early_event() {
    let (cq, count) = cq(4);
    cq.raise_early(0);
    assert_eq!(count.events(), 0);
    assert!(!cq.arm(Arm::Solicited));
    cq.raise_early(0);
    cq.raise_early(0);
    assert_eq!(count.events(), 1);
    cq.push(solicited(1)).unwrap();
    assert_eq!(count.events(), 1, "the early event has used up the arming");
}

#[test]
fn solicited_events_are_for_solicited_completions_and_errors() {
    for waking in [solicited(2), flushed(2)] {
        let (cq, count) = cq(9);
        assert!(!cq.arm(Arm::Solicited));
        cq.push(plain(1)).unwrap();
        assert_eq!(count.events(), 0);
        assert!(!cq.arm(Arm::Solicited), "no existing completion is solicited");
        cq.push(waking).unwrap();
        assert_eq!(count.events(), 1);
        assert!(cq.arm(Arm::Solicited), "the solicited completion exists");
        assert_eq!(poll(&cq, 1), Ok(vec![1]));
        assert!(cq.arm(Arm::Solicited), "the solicited completion was not polled");
        assert_eq!(poll(&cq, 1), Ok(vec![2]));
        assert!(!cq.arm(Arm::Solicited), "the solicited completion was polled");
    }
}

#[test]
fn armed_in_both_ways_the_earlier_counts() {
    for arms in [[Arm::Next, Arm::Solicited], [Arm::Solicited, Arm::Next]] {
        let (cq, count) = cq(9);
        assert!(!arms.iter().any(|&arm| cq.arm(arm)));
        cq.push(plain(1)).unwrap();
        assert_eq!(count.events(), 1);
        cq.push(solicited(2)).unwrap();
        assert_eq!(count.events(), 1);
    }
}

#[test]
fn an_overrun_is_told_to_all() {
    const OVERRUN: Overrun = Overrun { cq: ID };
    let (cq, count) = cq(1);
    cq.push(plain(1)).unwrap();
    assert!(!cq.arm(Arm::Solicited));
    assert!(!cq.has_overrun());
    assert_eq!(cq.push(plain(2)), Err(OVERRUN), "the stream learns of it");
    assert!(cq.has_overrun());
    assert_eq!(count.events(), 1, "a sleeping consumer learns of it");
    assert!(cq.arm(Arm::Solicited), "a consumer that arms learns of it");
    assert_eq!(cq.len(), 1);
    assert_eq!(poll(&cq, 9), Ok(vec![1]), "earlier completions are kept");
    assert_eq!(poll(&cq, 9), Err(OVERRUN), "a consumer that polls learns of it");
    assert_eq!(cq.push(plain(3)), Err(OVERRUN), "there is room, but a completion is missing");
    assert_eq!(poll(&cq, 9), Err(OVERRUN));
    assert_eq!(cq.len(), 0);
}

#[test]
fn an_armed_queue_moves_to_another_handler() {
    let (cq, old) = cq(9);
    let new = Count::new();
    assert!(!cq.arm(Arm::Next));
    cq.set_handler(Some(new.0.clone()));
    cq.push(plain(1)).unwrap();
    assert_eq!((old.events(), new.events()), (0, 1));
}

#[test]
fn events_wait_while_there_is_no_handler() {
    let (cq, old) = cq(9);
    let new = Count::new();
    cq.set_handler(None);
    for wr_id in 1..=2 {
        assert!(!cq.arm(Arm::Next));
        cq.push(plain(wr_id)).unwrap();
        assert_eq!(poll(&cq, 9), Ok(vec![wr_id]));
    }
    cq.set_handler(None);
    cq.set_handler(Some(new.0.clone()));
    assert_eq!((old.events(), new.events()), (0, 1), "one pending event serves both arms");
    cq.set_handler(Some(old.0.clone()));
    assert_eq!((old.events(), new.events()), (0, 1), "the pending event is raised once");
}

#[test]
fn an_event_that_nobody_took_does_for_the_next_arm_as_well() {
    let (cq, count) = cq(9);
    for wr_id in 1..=3 {
        assert!(!cq.arm(Arm::Next));
        cq.push(plain(wr_id)).unwrap();
        assert_eq!(poll(&cq, 9), Ok(vec![wr_id]));
    }
    assert_eq!(count.events(), 1);
    assert!(!cq.arm(Arm::Next));
    cq.push(plain(4)).unwrap();
    assert_eq!(count.events(), 2, "the first event was taken, so there is another");
}

#[test]
fn one_handler_serves_many_queues() {
    let count = Count::new();
    let queues = [1, 2, 3].map(|id| Cq::new(id, 9));
    for cq in &queues {
        assert_eq!(cq.handler(), None);
        cq.set_handler(Some(count.0.clone()));
        assert_eq!(cq.handler(), Some(HandlerId(2)));
        assert!(!cq.arm(Arm::Next));
    }
    for cq in [&queues[2], &queues[0]] {
        cq.push(plain(1)).unwrap();
    }
    let events: Vec<_> = std::iter::from_fn(|| count.0.try_next()).map(|event| event.cq).collect();
    assert_eq!(events, [3, 1], "the queues, in the order of their events");
}

#[test]
fn a_queue_grows_and_shrinks_and_keeps_what_waits() {
    let (cq, count) = cq(2);
    cq.push(solicited(1)).unwrap();
    cq.push(plain(2)).unwrap();
    assert!(cq.arm(Arm::Next));
    cq.resize(3).unwrap();
    assert_eq!((cq.capacity(), cq.len()), (3, 2));
    cq.push(plain(3)).unwrap();
    assert_eq!(count.events(), 1, "the queue is still armed");
    let refused = TooSmall { cq: ID, capacity: 2, waiting: 3 };
    assert_eq!((cq.resize(2), cq.capacity()), (Err(refused), 3));
    assert!(cq.arm(Arm::Solicited), "the solicited completion still counts");
    assert_eq!(poll(&cq, 2), Ok(vec![1, 2]));
    cq.resize(1).unwrap();
    assert_eq!(cq.push(plain(4)), Err(Overrun { cq: ID }), "the capacity is the requested one");
    assert_eq!(poll(&cq, 2), Ok(vec![3]));
    assert_eq!(cq.resize(0), Err(TooSmall { cq: ID, capacity: 0, waiting: 0 }));
}

#[test]
fn purging_takes_the_completions_of_one_queue_pair() {
    let (cq, _) = cq(9);
    for (qp, wr_id) in [(1, 1), (2, 2), (1, 3), (2, 4)] {
        cq.push(Completion { qp, ..solicited(wr_id) }).unwrap();
    }
    assert_eq!((cq.purge(3), cq.len()), (0, 4));
    assert_eq!((cq.purge(1), cq.len()), (2, 2));
    assert_eq!(poll(&cq, 9), Ok(vec![2, 4]));
    assert!(!cq.arm(Arm::Solicited), "purged completions no longer count");
    cq.push(solicited(5)).unwrap();
    assert_eq!((cq.purge(1), cq.is_empty(), cq.arm(Arm::Solicited)), (1, true, false));
}

#[test]
fn an_overrun_is_one_asynchronous_event() {
    let reports = Arc::new(AsyncEvents::new(Sizes::default(), &Routing::new(1)));
    let cq = Cq::new(ID, 1);
    cq.set_reports(&reports);
    reports.open(Box::new(Silent));
    cq.push(plain(1)).unwrap();
    assert_eq!(reports.try_next(), None);
    for wr_id in 2..=3 {
        cq.push(plain(wr_id)).unwrap_err();
    }
    assert_eq!([reports.try_next(), reports.try_next()], [Some(AsyncEvent::CqError(ID)), None]);
}

/// Requirement I2: a handler has memory before it gets an event, whatever the order of steps. All orders of up to six
/// steps are tried.
#[test]
fn no_order_of_arming_and_moving_raises_an_event_at_a_handler_without_memory() {
    const STEPS: u32 = 6;
    const KINDS: u32 = 6;
    for order in 0..KINDS.pow(STEPS) {
        let reports = Arc::new(AsyncEvents::new(Sizes::default(), &Routing::new(1)));
        let handler = |id| CompletionHandler::new(HandlerId(id), Box::new(Silent), Some(&reports));
        let (cq, handlers) = (Cq::new(ID, 9), [handler(2), handler(3)]);
        let (mut armed, mut due) = (false, 0);
        for step in 0..STEPS {
            match order / KINDS.pow(step) % KINDS {
                0 => {
                    let _ = cq.arm(Arm::Next);
                    armed = true;
                }
                1 => cq.set_handler(Some(handlers[0].clone())),
                2 => cq.set_handler(Some(handlers[1].clone())),
                3 => cq.set_handler(None),
                4 => {
                    cq.push(plain(1)).unwrap();
                    due += u32::from(std::mem::take(&mut armed));
                }
                _ => cq.resize(10 + step as usize).unwrap(),
            }
        }
        assert!(!reports.is_stopped(), "order {order}");
        cq.set_handler(Some(handlers[0].clone()));
        let taken = handlers.iter().any(|handler| handler.try_next().is_some());
        assert_eq!((reports.is_stopped(), taken), (false, due > 0), "order {order}");
    }
}

/// A completion queue that is only polled needs no memory for events.
#[test]
fn a_handler_gets_memory_when_a_queue_is_armed() {
    let (cq, count) = cq(9);
    let size = || count.0.stats().size;
    cq.push(plain(1)).unwrap();
    assert_eq!((poll(&cq, 9), size()), (Ok(vec![1]), 0));
    assert!(!cq.arm(Arm::Next));
    assert_eq!(size(), Sizes::default().initial);
}

/// Requirement N11.
#[test]
fn after_the_shutdown_completions_come_and_events_do_not() {
    let (cq, count) = cq(9);
    assert!(!cq.arm(Arm::Next));
    cq.push(plain(1)).unwrap();
    assert!(cq.arm(Arm::Next));
    cq.shut_down();
    assert_eq!(count.events(), 0, "the event that was raised is removed");
    cq.push(plain(2)).unwrap();
    cq.set_handler(Some(count.0.clone()));
    assert_eq!((count.events(), cq.handler()), (0, None));
    assert_eq!(poll(&cq, 9), Ok(vec![1, 2]));

    let (cq, count) = self::cq(9);
    for wr_id in 1..=2 {
        let _ = cq.arm(Arm::Next);
        cq.push(plain(wr_id)).unwrap();
        count.0.shut_down();
    }
    assert_eq!(count.events(), 1, "a handler that is shut down keeps its events, and gets no more");
}

#[test]
fn many_push_while_two_poll() {
    const PUSHERS: u32 = 3;
    const EACH: u64 = 5_000;
    let all = usize::try_from(u64::from(PUSHERS) * EACH).unwrap();
    let (cq, _) = cq(all);
    let polled = AtomicUsize::new(0);
    let poller = || {
        let mut mine = Vec::new();
        while polled.load(Ordering::Relaxed) < all {
            let n = cq.poll(16, |completion| mine.push((completion.qp, completion.wr_id))).unwrap();
            polled.fetch_add(n, Ordering::Relaxed);
        }
        mine
    };
    let (one, two) = thread::scope(|scope| {
        for qp in 0..PUSHERS {
            let cq = &cq;
            scope.spawn(move || {
                for wr_id in 0..EACH {
                    cq.push(Completion::succeeded(wr_id, Opcode::Send, qp, 0)).unwrap();
                }
            });
        }
        let (one, two) = (scope.spawn(poller), scope.spawn(poller));
        (one.join().unwrap(), two.join().unwrap())
    });
    for qp in 0..PUSHERS {
        let of = |list: &[(u32, u64)]| -> Vec<u64> {
            list.iter().filter(|entry| entry.0 == qp).map(|entry| entry.1).collect()
        };
        assert!(
            of(&one).is_sorted() && of(&two).is_sorted(),
            "each poller sees the order of queue pair {qp}"
        );
        let mut both = [of(&one), of(&two)].concat();
        both.sort_unstable();
        assert!(both.into_iter().eq(0..EACH), "each completion of queue pair {qp} once");
    }
}

#[test]
fn completions_have_the_time_at_which_they_came() {
    let (cq, _) = cq(2);
    cq.push(Completion::succeeded(1, Opcode::Send, 1, 0)).unwrap();
    cq.set_clock(|| 42);
    cq.push(Completion::succeeded(2, Opcode::Send, 1, 0)).unwrap();
    let mut times = Vec::new();
    cq.poll(2, |completion| times.push(completion.time)).unwrap();
    assert_eq!(times, [0, 42]);
}

/// A timer that never expires by itself. Counts how often it was started.
#[derive(Debug, Default)]
struct Clock(AtomicUsize);

impl Timer for Clock {
    fn start(&self, after: Duration) {
        assert_eq!(after, PERIOD);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

const PERIOD: Duration = Duration::from_micros(50);

/// Creates a queue whose events are moderated, with its handler and its timer.
fn moderated(count: usize, period: Duration) -> (Cq, Count, Arc<Clock>) {
    let (cq, events) = cq(16);
    let clock = Arc::<Clock>::default();
    cq.moderate(Some(Moderation { count, period, timer: Arc::<Clock>::clone(&clock) }));
    (cq, events, clock)
}

#[test]
fn an_event_waits_for_company() {
    let (cq, events, clock) = moderated(3, PERIOD);
    for round in 1..=2 {
        assert!(!cq.arm(Arm::Next));
        for wr_id in 1..=2 {
            cq.push(plain(wr_id)).unwrap();
            assert_eq!(events.events(), round - 1, "the event is held back");
        }
        cq.push(plain(3)).unwrap();
        assert_eq!((events.events(), poll(&cq, 9)), (round, Ok(vec![1, 2, 3])));
    }
    cq.push(plain(4)).unwrap();
    assert_eq!(
        (events.events(), clock.0.load(Ordering::Relaxed)),
        (2, 1),
        "the queue is not armed, and the timer runs"
    );
}

#[test]
fn an_event_waits_for_a_time_and_no_longer() {
    let (cq, events, clock) = moderated(3, PERIOD);
    assert!(!cq.arm(Arm::Next));
    cq.push(plain(1)).unwrap();
    cq.push(plain(2)).unwrap();
    assert_eq!(
        (events.events(), clock.0.load(Ordering::Relaxed)),
        (0, 1),
        "the first completion started the timer"
    );
    cq.on_timer();
    assert_eq!(events.events(), 1);
    cq.on_timer();
    assert_eq!(events.events(), 1, "no event is held back");
    assert!(cq.arm(Arm::Next), "the completions were not polled");
    cq.push(plain(3)).unwrap();
    assert_eq!((events.events(), clock.0.load(Ordering::Relaxed)), (1, 2));
    cq.on_timer();
    assert_eq!(events.events(), 2);
}

#[test]
fn without_a_period_no_clock_is_started() {
    let (cq, events, clock) = moderated(2, Duration::ZERO);
    assert!(!cq.arm(Arm::Next));
    cq.push(plain(1)).unwrap();
    assert_eq!((events.events(), clock.0.load(Ordering::Relaxed)), (0, 0));
    cq.push(plain(2)).unwrap();
    assert_eq!(events.events(), 1);
}

#[test]
fn errors_and_the_end_of_moderation_do_not_wait() {
    let (cq, events, _) = moderated(9, PERIOD);
    assert!(!cq.arm(Arm::Solicited));
    cq.push(plain(1)).unwrap();
    cq.on_timer();
    assert_eq!(events.events(), 0, "the completion is not solicited");
    cq.push(flushed(2)).unwrap();
    assert_eq!(events.events(), 1);
    assert!(cq.arm(Arm::Solicited));
    cq.push(solicited(3)).unwrap();
    assert_eq!(events.events(), 1);
    cq.moderate(None);
    assert_eq!(events.events(), 2);
    cq.moderate(None);
    assert_eq!(events.events(), 2);
}

/// Requirement I8: also if the event is held back, or kept until there is a handler.
#[test]
fn an_event_goes_to_the_handler_of_its_lane() {
    let counts = [(); 2].map(|()| Count::new());
    let handlers = counts.each_ref().map(|count| count.0.clone());
    let taken = || counts.each_ref().map(Count::events);
    let (cq, _, _) = moderated(9, PERIOD);
    cq.moderate(None);
    cq.set_lane_handlers(&handlers);
    for (lane, expected) in [(0, [1, 0]), (1, [1, 1]), (2, [2, 1])] {
        cq.poll(9, drop).unwrap();
        assert!(!cq.arm(Arm::Next));
        cq.push_from(|| lane, plain(1)).unwrap();
        assert_eq!(taken(), expected, "lane {lane}");
    }
    // Untaken events count for each handler by itself.
    for lane in [0, 1, 0, 1] {
        assert!(cq.arm(Arm::Next));
        cq.push_from(|| lane, plain(1)).unwrap();
    }
    assert_eq!(taken(), [3, 2]);
    // Held back until the timer.
    cq.moderate(Some(Moderation { count: 9, period: PERIOD, timer: Arc::<Clock>::default() }));
    for (lane, expected) in [(1, [3, 3]), (0, [4, 3])] {
        assert!(cq.arm(Arm::Next));
        cq.push_from(|| lane, plain(1)).unwrap();
        cq.on_timer();
        assert_eq!(taken(), expected, "lane {lane}");
    }
    cq.moderate(None);
    // Without a handler.
    cq.set_handler(None);
    assert!(cq.arm(Arm::Next));
    cq.push_from(|| 1, plain(1)).unwrap();
    cq.set_lane_handlers(&handlers);
    assert_eq!(taken(), [4, 4]);
    assert!(cq.arm(Arm::Next));
    cq.push_from(|| 1, plain(1)).unwrap();
    cq.shut_down();
    assert_eq!(taken(), [4, 4], "the untaken event is gone");
}
