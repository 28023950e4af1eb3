//! Two programs exchange bytes over a simulated link with faults at both ends, driven by events alone. A lost wakeup,
//! here or in fault injection, would stop the exchange.

use ironwarp_rnic::fault::{FaultPlan, Faults, FaultyLink, Report, Rng};
use ironwarp_rnic::host::Span;
use ironwarp_rnic::link::{Link, LinkError, Piece};
use ironwarp_sim::{Alarm, Arena, Clock, Path, SimLink};
use std::sync::Arc;
use std::time::Duration;

const LEN: usize = 5000;

/// A program that sends one half of its memory and receives into the other.
struct Program {
    arena: Arc<Arena>,
    out: Span,
    into: Span,
    sent: usize,
    received: usize,
    ended: bool,
    lost: bool,
    wire: Arc<SimLink>,
    link: Arc<FaultyLink>,
    alarm: Arc<Alarm>,
}

impl Program {
    fn new(number: u8, arena: Arc<Arena>, wire: Arc<SimLink>, faults: &Arc<Faults>, clock: &Clock) -> Self {
        let (out, into) = (arena.alloc(LEN), arena.alloc(LEN));
        arena.fill_pattern(out, u64::from(number));
        arena.record();
        let alarm = Alarm::new(clock);
        let link = faults.wrap_link(u64::from(number), wire.clone(), alarm.clone());
        Self { arena, out, into, sent: 0, received: 0, ended: false, lost: false, wire, link, alarm }
    }

    /// Sends until it would block.
    fn drive_tx(&mut self) {
        while self.sent < LEN && !self.lost {
            let rest = Span::new(self.out.addr + self.sent as u64, LEN - self.sent);
            match self.link.send(&[Piece::Host(rest)]) {
                Ok(count) => self.sent += count,
                Err(LinkError::WouldBlock) => return,
                Err(_) => self.lost = true,
            }
            if self.sent == LEN {
                self.link.finish();
            }
        }
    }

    /// Receives until it would block.
    fn drive_rx(&mut self) {
        while !self.ended && !self.lost {
            let rest = Span::new(self.into.addr + self.received as u64, LEN - self.received);
            match self.link.recv(&[rest], &mut [0]) {
                Ok(count) => self.received += count,
                Err(LinkError::WouldBlock) => return,
                Err(LinkError::Ended) => self.ended = true,
                Err(_) => self.lost = true,
            }
        }
    }

    /// Performs what is due now. Returns whether anything was.
    fn react(&mut self) -> bool {
        let (ready, rung) = (self.wire.take_ready(), self.alarm.take_expired());
        if ready.writable || rung {
            self.drive_tx();
        }
        if ready.readable || rung {
            self.drive_rx();
        }
        ready.writable || ready.readable || rung
    }

    fn next_event(&self) -> Option<Duration> {
        [self.wire.next_ready(), self.alarm.next()].into_iter().flatten().min()
    }

    fn done(&self) -> bool {
        self.lost || self.ended && self.sent == LEN
    }
}

/// Runs both programs. Returns them, the end time, and the injected faults.
fn exchange(plan: FaultPlan, seed: u64) -> ([Program; 2], Duration, Report) {
    let mut rng = Rng::new(seed);
    let (clock, faults) = (Clock::new(), Faults::new(plan, seed));
    let capacity = rng.part_of(2000);
    let arenas = [Arena::new(0), Arena::new(1)];
    let path = Path { capacity, ..Path::default() };
    let [left, right] = SimLink::pair(path, seed, &clock, [&arenas[0], &arenas[1]]);
    let [mine, yours] = arenas;
    let mut programs =
        [Program::new(0, mine, left, &faults, &clock), Program::new(1, yours, right, &faults, &clock)];
    while !programs.iter().all(Program::done) {
        let [left, right] = &mut programs;
        if left.react() | right.react() {
            continue;
        }
        let next = programs.iter().filter_map(Program::next_event).min();
        let Some(next) = next else {
            panic!("seed {seed}: no further event\n{}", faults.report());
        };
        assert!(next > clock.now(), "seed {seed}: an event that is due was not reported");
        clock.advance_to(next);
    }
    (programs, clock.now(), faults.report())
}

#[test]
fn everything_arrives_despite_delays_and_splits() {
    let plan: FaultPlan = "split=0.3,delay=1us..50us@0.1,stall=100us@0.02".parse().unwrap();
    let mut total = [0; 3];
    for seed in 0..60 {
        let ([left, right], _, report) = exchange(plan, seed);
        assert_eq!([left.received, right.received], [LEN, LEN], "seed {seed}");
        right.arena.check_pattern(right.into, 0);
        left.arena.check_pattern(left.into, 1);
        for program in [&left, &right] {
            let (read, written) = program.arena.reached();
            assert_eq!((read.spans(), written.spans()), (vec![program.out], vec![program.into]));
        }
        let counts = report.counts;
        total = [total[0] + counts.splits, total[1] + counts.delays, total[2] + counts.stalls];
    }
    assert!(total.iter().all(|&count| count > 100), "{total:?}");
}

#[test]
fn the_same_seed_ends_at_the_same_time_after_the_same_faults() {
    let plan: FaultPlan = "split=0.3,delay=1us..50us@0.1,cut@0.003".parse().unwrap();
    let run = |seed| {
        let ([left, right], end, report) = exchange(plan, seed);
        (left.received, right.received, end, report)
    };
    let runs: Vec<_> = (0..20).map(run).collect();
    assert!((0..20).map(run).eq(runs.iter().cloned()));
    assert!(runs.windows(2).all(|pair| pair[0].2 != pair[1].2));
}

#[test]
fn both_ends_notice_a_cut_and_earlier_data_is_intact() {
    let plan: FaultPlan = "split=0.3,delay=1us..50us@0.1,stall=100us@0.02,cut@0.02".parse().unwrap();
    let mut cuts = 0;
    for seed in 0..60 {
        let ([left, right], _, report) = exchange(plan, seed);
        cuts += report.counts.cuts;
        assert!(report.counts.cuts == 0 || left.lost || right.lost);
        for (program, of) in [(left, 1), (right, 0)] {
            program.arena.check_pattern(Span { len: program.received, ..program.into }, of);
        }
    }
    assert!(cuts > 40, "{cuts}");
}
