//! Random runs: frames in both directions, random delays, flushes from either side, full pools, and deaths.

use crate::input::{Random, frame};
use crate::model::{Pair, Who};
use ironwarp_io_unit::message::{Mode, Request, Statistics};
use ironwarp_io_unit::pool::Shape;
use ironwarp_io_unit::session::{Blocked, Channel, Config, Reason, Session};
use ironwarp_testkit::long_form;
use std::panic::AssertUnwindSafe;

const SEEDS: u64 = 1000;
/// In the long form.
const MANY_SEEDS: u64 = 20_000;
const STEPS: u64 = 500;

/// What the runs must have covered, so that a change of the mix does not go unnoticed.
#[derive(Debug, Default)]
struct Covered {
    frames: u64,
    stalls: u64,
    drops: u64,
    resumed: u64,
    flushes: u64,
    deaths: u64,
    indications: u64,
    answers: u64,
}

fn config(random: &mut Random) -> Config {
    let shapes: &[Shape] = match random.below(4) {
        0 => &[Shape { count: 1, element_size: 1024 }],
        1 => &[Shape { count: 4, element_size: 512 }, Shape { count: 3, element_size: 2048 }],
        2 => &[Shape { count: 2, element_size: 70_000 }],
        _ => &[Shape { count: 300, element_size: 320 }, Shape { count: 9, element_size: 700 }],
    };
    let send_queue = 2 + usize::try_from(random.below(20)).unwrap();
    Config { pools: shapes.to_vec(), max_pools: 4, send_queue, ..Config::default() }
}

fn len(random: &mut Random, max: u32) -> u32 {
    let limit = match random.below(4) {
        0 => 256,
        1 => return max - u32::try_from(random.below(u64::from(max.min(9)))).unwrap(),
        _ => 1500,
    };
    1 + u32::try_from(random.below(u64::from(limit.min(max)))).unwrap()
}

/// Makes one random step. Returns whether an end died.
fn step(pair: &mut Pair, random: &mut Random, covered: &mut Covered, deadly: bool) -> bool {
    let who = if random.one_in(2) { Who::Host } else { Who::Unit };
    let channel = if random.one_in(2) { Channel::Control } else { Channel::Data };
    match random.below(20) {
        0..=4 => send(pair, random, who),
        5..=8 => drop(pair.carry(who, channel)),
        9..=11 => drop(pair.complete(who, channel)),
        12..=15 => drop(pair.process(who)),
        16 => drop(pair.register(who)),
        17 => drop(pair.release(who, random.next())),
        18 if pair.mode == Mode::Rdma && random.one_in(8) => {
            covered.flushes += u64::from(flush(pair, random, who));
        }
        18 if random.one_in(8) => drop(pair.call(who, |session| session.request(&Request::Statistics))),
        19 if deadly && random.one_in(20) => {
            if random.one_in(2) {
                pair.call(who, |session| session.end(Reason::Shutdown));
            } else {
                pair.cut();
            }
            return true;
        }
        _ => {}
    }
    false
}

fn send(pair: &mut Pair, random: &mut Random, who: Who) {
    let Some(max) = pair.end(who).session.max_frame() else { return };
    let len = len(random, max);
    let before = pair.end(who).session.statistics().drops;
    // A host asks before it reads a frame, and then has room for it.
    if who == Who::Host && !pair.call(who, |session| session.ready(len)) {
        assert_eq!(pair.end(who).session.statistics().drops, before, "a host drops nothing");
        return;
    }
    match pair.send(who, frame(random.next(), len)) {
        Ok(()) => {}
        Err(Blocked::Full) => {
            assert_eq!(who, Who::Unit, "a host that is ready has room");
            assert_eq!(pair.end(who).session.statistics().drops, before + 1);
        }
        Err(blocked) => panic!("{blocked}"),
    }
}

fn flush(pair: &mut Pair, random: &mut Random, who: Who) -> bool {
    let own = random.one_in(2);
    let session = &pair.end(who).session;
    let pools = if own { session.own_pools() } else { session.peer_pools() };
    // The last pool stays, so that frames of all lengths can be sent.
    if pools.len() < 2 {
        return false;
    }
    let pool = pools[usize::try_from(random.below(pools.len() as u64)).unwrap()];
    let result = pair.call(who, |session| if own { session.flush(pool) } else { session.give_back(pool) });
    result.unwrap();
    true
}

fn run(seed: u64, covered: &mut Covered) {
    let mut random = Random::new(seed);
    let mode = if random.one_in(3) { Mode::Send } else { Mode::Rdma };
    let mut pair = Pair::new(mode, config(&mut random), config(&mut random));
    if !random.one_in(3) {
        pair.settle();
    }
    let deadly = random.one_in(3);
    let died = (0..STEPS).any(|_| step(&mut pair, &mut random, covered, deadly));
    covered.deaths += u64::from(died);
    if !died {
        // In Send mode nothing tells an end that its last frames have arrived. In RDMA mode detaching waits for them.
        if mode == Mode::Send || random.one_in(2) {
            pair.settle();
            assert_eq!(pair.unit.received, pair.host.sent.len(), "frames to the unit");
            assert_eq!(pair.host.received, pair.unit.sent.len(), "frames to the host");
        }
        pair.call(Who::Host, Session::detach);
    }
    pair.settle();
    for (who, end) in [("host", &pair.host), ("unit", &pair.unit)] {
        let reason = end.closed.as_ref().unwrap_or_else(|| panic!("the {who} has not ended"));
        let expected: &[Reason] =
            if died { &[Reason::Shutdown, Reason::Disconnected] } else { &[Reason::Detached] };
        assert!(expected.contains(reason), "the {who} ended: {reason}");
        assert_eq!(end.pools(), 0, "pools of the {who} are left");
        let Statistics { frames_sent, bytes_sent, drops, stalls, .. } = end.session.statistics();
        assert_eq!(frames_sent, end.sent.len() as u64);
        assert_eq!(bytes_sent, end.sent.iter().map(|frame| frame.len() as u64).sum::<u64>());
        covered.frames += end.received as u64;
        covered.drops += drops;
        covered.stalls += stalls;
        covered.resumed += end.resumed;
        covered.indications += end.writes_without_immediate;
        covered.answers += end.answers.len() as u64;
    }
    if !died {
        assert_eq!(pair.unit.received, pair.host.sent.len(), "frames to the unit after detaching");
        assert_eq!(pair.host.received, pair.unit.sent.len(), "frames to the host after detaching");
    }
}

#[test]
fn random_sessions_deliver_every_byte_and_leave_no_pool() {
    let mut covered = Covered::default();
    let only = std::env::var("IRON_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let seeds = if long_form::is_requested() { MANY_SEEDS } else { SEEDS };
    for seed in only.map_or(0..seeds, |seed| seed..seed + 1) {
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| run(seed, &mut covered)));
        assert!(result.is_ok(), "seed {seed} failed: run it alone with IRON_SEED={seed}");
    }
    println!("{covered:?}");
    if only.is_none() {
        assert!(covered.frames > 20_000 && covered.deaths > 100 && covered.flushes > 50, "{covered:?}");
        assert!(covered.stalls > 500 && covered.drops > 500 && covered.resumed > 500, "{covered:?}");
        assert!(covered.indications > 300 && covered.answers > 100, "{covered:?}");
    }
}
