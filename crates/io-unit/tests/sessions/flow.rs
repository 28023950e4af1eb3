//! Which way a frame takes, and flow control (P7, P9).

use crate::input::frame;
use crate::model::{Pair, Who};
use ironwarp_io_unit::message::{Function, Mode};
use ironwarp_io_unit::pool::Shape;
use ironwarp_io_unit::session::{Blocked, Channel, Config};

fn config(shapes: &[(u32, u32)]) -> Config {
    let shape = |(count, element_size): &(u32, u32)| Shape { count: *count, element_size: *element_size };
    let pools: Vec<Shape> = shapes.iter().map(shape).collect();
    Config { max_pools: pools.len(), pools, ..Config::default() }
}

/// Sends frames of one length until one is refused. Returns how many were taken.
fn fill(pair: &mut Pair, who: Who, len: u32) -> u64 {
    let mut taken = 0;
    while pair.send(who, frame(taken, len)).is_ok() {
        taken += 1;
        assert!(taken < 10_000, "nothing bounds what is on its way");
    }
    taken
}

#[test]
fn frames_are_pushed_without_a_question() {
    let mut pair = Pair::open(Mode::Rdma, &Config::default());
    for who in [Who::Host, Who::Unit] {
        for number in 0..100 {
            pair.send(who, frame(number, 1514)).unwrap();
        }
        assert_eq!(pair.end(who).data_requests(), 100, "one request for each frame");
        assert_eq!(pair.end(who).control_messages(), [], "and no message that asks");
    }
    pair.settle();
    assert_eq!((pair.host.received, pair.unit.received), (100, 100));
}

#[test]
fn small_frames_use_no_element() {
    let mut pair = Pair::open(Mode::Rdma, &config(&[(1, 2048)]));
    let free = |pair: &Pair| pair.host.session.statistics().elements_free;
    pair.send(Who::Host, frame(1, 256)).unwrap();
    assert_eq!(free(&pair), 1);
    pair.send(Who::Host, frame(2, 257)).unwrap();
    assert_eq!(free(&pair), 0);
    pair.send(Who::Host, frame(3, 256)).unwrap();
    assert_eq!(pair.send(Who::Host, frame(4, 257)), Err(Blocked::Full));
    pair.settle();
    assert_eq!(pair.unit.received, 3);
}

#[test]
fn the_smallest_fitting_element_is_used_and_a_larger_one_if_none_is_left() {
    let mut pair = Pair::open(Mode::Rdma, &config(&[(2, 4096), (1, 1024)]));
    pair.send(Who::Host, frame(1, 1000)).unwrap();
    pair.send(Who::Host, frame(2, 4000)).unwrap();
    pair.send(Who::Host, frame(3, 1000)).unwrap();
    assert_eq!(pair.send(Who::Host, frame(4, 1000)), Err(Blocked::Full));
    pair.settle_and_hold();
    // Pools are registered in the order of their element sizes.
    let used: Vec<_> = pair.unit.held.iter().map(|(pool, element, ..)| (*pool, *element)).collect();
    assert_eq!(used, [(0, 0), (1, 0), (1, 1)]);
}

#[test]
fn what_does_not_fit_in_immediate_data_is_indicated_behind_its_write() {
    let mut pair = Pair::open(Mode::Rdma, &config(&[(2, 70_000)]));
    pair.send(Who::Unit, frame(1, 65_535)).unwrap();
    assert_eq!(pair.unit.writes_without_immediate, 0);
    pair.send(Who::Unit, frame(2, 65_536)).unwrap();
    assert_eq!((pair.unit.writes_without_immediate, pair.unit.data_requests()), (1, 3));
    assert_eq!(pair.unit.control_messages(), [], "the indication is on the data channel");
    pair.settle();
    assert_eq!(pair.host.received, 2);

    let mut pair = Pair::open(Mode::Rdma, &Config { send_queue: 1000, ..config(&[(300, 512)]) });
    assert_eq!(fill(&mut pair, Who::Host, 500), 300);
    assert_eq!(pair.host.writes_without_immediate, 300 - 256, "elements from 256 on");
    pair.settle();
    assert_eq!(pair.unit.received, 300);
    assert_eq!(pair.host.session.statistics().elements_free, 300, "updates return elements of both windows");
}

#[test]
fn a_full_unit_stops_its_host_which_asks_once_and_resumes() {
    for mode in [Mode::Rdma, Mode::Send] {
        let mut pair = Pair::open(mode, &config(&[(4, 2048)]));
        for number in 0..4 {
            assert!(pair.call(Who::Host, |host| host.ready(1514)));
            pair.send(Who::Host, frame(number, 1514)).unwrap();
        }
        for _ in 0..10 {
            assert!(!pair.call(Who::Host, |host| host.ready(1514)));
        }
        assert_eq!(pair.host.control_messages(), [Function::BufferRecvPoolGet], "once");
        pair.settle_and_hold();
        let statistics = pair.host.session.statistics();
        assert_eq!((statistics.stalls, statistics.drops, statistics.elements_free), (1, 0, 0));
        assert_eq!((pair.host.resumed, pair.unit.held.len()), (0, 4));
        assert_eq!(pair.unit.session.held(), 4);
        pair.release(Who::Unit, 0);
        pair.settle_and_hold();
        assert_eq!(pair.host.resumed, 1, "one element is returned at once, because the host has none");
        assert!(pair.call(Who::Host, |host| host.ready(1514)));
    }
}

#[test]
fn a_full_host_makes_the_unit_drop_and_count() {
    let mut pair = Pair::open(Mode::Rdma, &config(&[(4, 2048)]));
    assert_eq!(fill(&mut pair, Who::Unit, 1514), 4);
    for number in 0..9 {
        assert_eq!(pair.send(Who::Unit, frame(number, 1514)), Err(Blocked::Full));
    }
    let statistics = pair.unit.session.statistics();
    assert_eq!((statistics.drops, statistics.stalls), (10, 1));
    assert_eq!(pair.unit.control_messages(), [Function::BufferRecvPoolGet], "once");
    pair.settle();
    assert_eq!(pair.unit.resumed, 1);
    assert_eq!(fill(&mut pair, Who::Unit, 1514), 4, "it goes on");
}

#[test]
fn a_pool_is_granted_when_asked_for_up_to_the_limit() {
    for mode in [Mode::Rdma, Mode::Send] {
        let mut pair = Pair::open(mode, &Config { max_pools: 3, ..config(&[(4, 2048)]) });
        let mut sent = 0;
        for expected in [4, 4, 4, 0] {
            let taken = fill(&mut pair, Who::Host, 1514);
            assert_eq!(taken, expected);
            sent += taken;
            pair.settle_and_hold();
        }
        assert_eq!((pair.unit.pools(), pair.unit.held.len() as u64), (3, sent));
        pair.settle();
        assert_eq!(fill(&mut pair, Who::Host, 1514), 12);
    }
}

#[test]
fn elements_are_returned_in_batches() {
    let mut pair = Pair::open(Mode::Rdma, &config(&[(16, 2048)]));
    (0..8).for_each(|number| pair.send(Who::Host, frame(number, 1514)).unwrap());
    pair.settle_and_hold();
    for _ in 0..3 {
        pair.release(Who::Unit, 0);
        assert_eq!(pair.unit.control_messages(), []);
    }
    pair.release(Who::Unit, 0);
    assert_eq!(pair.unit.control_messages(), [Function::BufferRecvPoolUpdate], "a quarter of the pool");
}

#[test]
fn the_send_queue_bounds_frames_that_use_no_element() {
    let mut pair = Pair::open(Mode::Rdma, &Config { send_queue: 8, ..config(&[(4, 2048)]) });
    assert_eq!(fill(&mut pair, Who::Host, 60), 7, "a Write and its indication would need two");
    assert_eq!(pair.host.control_messages(), [], "another pool would not help");
    pair.carry(Who::Host, Channel::Data);
    pair.complete(Who::Host, Channel::Data);
    assert_eq!(pair.host.resumed, 1);
    assert_eq!(fill(&mut pair, Who::Host, 60), 1);
}

#[test]
fn a_frame_that_is_too_long_or_empty_is_dropped_and_counted() {
    for (mode, max) in [(Mode::Rdma, 2048), (Mode::Send, 2032)] {
        let mut pair = Pair::open(mode, &config(&[(4, 2048)]));
        assert_eq!(pair.host.session.max_frame(), Some(max));
        for len in [0, max + 1] {
            assert_eq!(pair.send(Who::Host, frame(0, len)), Err(Blocked::Length { len, max }));
        }
        assert_eq!(pair.host.session.statistics().drops, 2);
        pair.send(Who::Host, frame(0, max)).unwrap();
        pair.settle();
        assert_eq!(pair.unit.received, 1);
    }
}

#[test]
fn send_mode_takes_no_more_frames_than_receives_are_posted() {
    let mut pair = Pair::open(Mode::Send, &config(&[(4, 2048)]));
    for _ in 0..10 {
        // Small frames use an element, too: it is a credit.
        assert_eq!(fill(&mut pair, Who::Host, 60), 4);
        pair.settle();
    }
    assert_eq!(pair.unit.received, 40);
}
