//! Flush from either side (P6).

use crate::input::frame;
use crate::model::{Pair, Who};
use ironwarp_io_unit::message::{Function, Mode};
use ironwarp_io_unit::pool::{PoolError, Shape};
use ironwarp_io_unit::session::{Channel, Config, Reason, Session};

fn open() -> Pair {
    let shape = Shape { count: 4, element_size: 2048 };
    Pair::open(Mode::Rdma, &Config { pools: vec![shape, shape], max_pools: 2, ..Config::default() })
}

/// Moves all control messages, in both directions.
fn exchange_control(pair: &mut Pair) {
    for _ in 0..8 {
        for who in [Who::Host, Who::Unit] {
            while pair.carry(who, Channel::Control) {}
            while pair.process(who) {}
        }
    }
}

#[test]
fn the_owner_frees_a_pool_after_the_reply_and_the_last_release() {
    let mut pair = open();
    (0..5).for_each(|number| pair.send(Who::Host, frame(number, 1000)).unwrap());
    pair.settle_and_hold();
    assert_eq!((pair.unit.pools(), pair.unit.held.len()), (2, 5));
    pair.call(Who::Unit, |unit| unit.flush(0)).unwrap();
    assert_eq!(pair.unit.session.flush(0), Err(PoolError::Flushing { pool: 0 }));
    exchange_control(&mut pair);
    assert_eq!(pair.host.session.peer_pools(), [1], "the host has stopped using it");
    for left in (0..4).rev() {
        assert_eq!(pair.unit.pools(), 2, "{} frames are held in it", left + 1);
        let first = pair.unit.held.iter().position(|held| held.0 == 0).unwrap();
        pair.release(Who::Unit, first as u64);
        assert_eq!(pair.unit.control_messages(), [], "a pool that is flushed gets no update");
    }
    assert_eq!(pair.unit.pools(), 1);
}

#[test]
fn a_flush_reply_waits_until_every_write_is_acknowledged() {
    let mut pair = open();
    pair.send(Who::Host, frame(1, 1000)).unwrap();
    pair.call(Who::Unit, |unit| unit.flush(0)).unwrap();
    exchange_control(&mut pair);
    assert_eq!(pair.host.control_messages(), []);
    pair.carry(Who::Host, Channel::Data);
    exchange_control(&mut pair);
    assert_eq!(pair.host.control_messages(), [], "placed, and not acknowledged yet");
    pair.complete(Who::Host, Channel::Data);
    assert_eq!(pair.host.control_messages(), [Function::BufferPoolFlushReply]);
    pair.settle();
    assert_eq!((pair.unit.received, pair.unit.pools()), (1, 1));
}

#[test]
fn a_flush_waits_until_the_indication_of_a_write_is_acknowledged() {
    let shape = Shape { count: 2, element_size: 70_000 };
    for who in [Who::Unit, Who::Host] {
        let config = Config { pools: vec![shape, shape], max_pools: 2, ..Config::default() };
        let mut pair = Pair::open(Mode::Rdma, &config);
        pair.send(Who::Host, frame(1, 65_536)).unwrap();
        assert_eq!(pair.host.data_requests(), 2, "a Write, and the message that indicates it");
        // Of the owner, or of the sender.
        let flush =
            |session: &mut Session| if who == Who::Unit { session.flush(0) } else { session.give_back(0) };
        pair.call(who, flush).unwrap();
        exchange_control(&mut pair);
        for _ in 0..2 {
            assert_eq!(pair.host.control_messages(), []);
            pair.carry(Who::Host, Channel::Data);
            pair.complete(Who::Host, Channel::Data);
        }
        pair.settle();
        assert_eq!((pair.unit.received, pair.unit.pools(), &pair.unit.closed), (1, 1, &None));
    }
}

/// Order rule 3: both connections have delivered, the frame and the reply that lets its pool go.
fn frame_and_flush_reply_have_arrived() -> Pair {
    let mut pair = open();
    pair.send(Who::Host, frame(1, 1000)).unwrap();
    pair.call(Who::Unit, |unit| unit.flush(0)).unwrap();
    pair.carry(Who::Unit, Channel::Control);
    pair.process(Who::Host);
    pair.carry(Who::Host, Channel::Data);
    pair.complete(Who::Host, Channel::Data);
    assert!(pair.carry(Who::Host, Channel::Control), "the reply follows the acknowledgement");
    assert_eq!((pair.unit.received, pair.unit.pools()), (0, 2));
    pair
}

#[test]
fn a_frame_that_has_arrived_is_delivered_before_its_pool_disappears() {
    let mut pair = frame_and_flush_reply_have_arrived();
    while pair.process(Who::Unit) {}
    assert_eq!((pair.unit.received, pair.unit.pools(), &pair.unit.closed), (1, 2, &None));
    pair.release(Who::Unit, 0);
    assert_eq!(pair.unit.pools(), 1, "the frame was the last");
    pair.settle();
    assert_eq!((&pair.host.closed, &pair.unit.closed), (&None, &None));
}

#[test]
fn a_driver_that_lets_control_messages_overtake_frames_loses_its_session() {
    let mut pair = frame_and_flush_reply_have_arrived();
    assert!(pair.process_control_first(Who::Unit));
    assert_eq!((pair.unit.received, pair.unit.pools()), (0, 1), "the pool is gone, with its frame");
    pair.process(Who::Unit);
    let reason = pair.unit.closed.as_ref().unwrap().to_string();
    assert_eq!(reason, "protocol violation: BufferRDMAIndicate: unknown pool 0");
    pair.settle();
    assert_eq!((pair.unit.pools(), pair.host.pools()), (0, 0));
}

#[test]
fn a_sender_flushes_after_its_writes_and_the_owner_frees_after_the_release() {
    let mut pair = open();
    pair.send(Who::Host, frame(1, 1000)).unwrap();
    pair.call(Who::Host, |host| host.give_back(0)).unwrap();
    assert_eq!(pair.host.session.give_back(0), Err(PoolError::Flushing { pool: 0 }));
    assert_eq!(pair.host.control_messages(), [], "a Write is on its way");
    pair.carry(Who::Host, Channel::Data);
    pair.complete(Who::Host, Channel::Data);
    assert_eq!(pair.host.control_messages(), [Function::BufferPoolFlushRequest]);
    pair.settle_and_hold();
    assert_eq!((pair.unit.pools(), pair.unit.held.len()), (2, 1));
    pair.settle();
    assert_eq!((pair.unit.pools(), pair.host.session.peer_pools()), (1, vec![1]));
    pair.send(Who::Host, frame(2, 1000)).unwrap();
    pair.settle();
    assert_eq!(pair.unit.received, 2, "the other pool is still in use");
}

#[test]
fn both_ends_flush_one_pool_at_the_same_time() {
    for with_write in [false, true] {
        let mut pair = open();
        if with_write {
            pair.send(Who::Host, frame(1, 1000)).unwrap();
        }
        pair.call(Who::Host, |host| host.give_back(0)).unwrap();
        pair.call(Who::Unit, |unit| unit.flush(0)).unwrap();
        pair.settle();
        assert_eq!((&pair.host.closed, &pair.unit.closed), (&None, &None));
        assert_eq!((pair.unit.pools(), pair.host.session.peer_pools()), (1, vec![1]));
        assert_eq!(
            (pair.host.session.deadline(), pair.unit.session.deadline()),
            (None, None),
            "all is answered"
        );
    }
}

#[test]
fn pools_of_both_ends_with_the_same_index_are_told_apart() {
    let mut pair = open();
    pair.call(Who::Host, |host| host.flush(0)).unwrap();
    pair.settle();
    assert_eq!((pair.host.session.own_pools(), pair.host.session.peer_pools()), (vec![1], vec![0, 1]));
    assert_eq!((pair.unit.session.own_pools(), pair.unit.session.peer_pools()), (vec![0, 1], vec![1]));
}

#[test]
fn detaching_flushes_the_pools_of_both_ends_before_it_tells_the_unit() {
    let mut pair = open();
    for who in [Who::Host, Who::Unit] {
        (0..3).for_each(|number| pair.send(who, frame(number, 1000)).unwrap());
    }
    pair.settle_and_hold();
    pair.call(Who::Host, Session::detach);
    let flush = Function::BufferPoolFlushRequest;
    assert_eq!(pair.host.control_messages(), [flush, flush], "its own pools, and those of the unit");
    pair.settle_and_hold();
    assert_eq!((&pair.host.closed, pair.host.pools()), (&None, 1), "the application holds frames in one");
    assert_eq!((&pair.unit.closed, pair.unit.pools()), (&None, 1));
    while pair.release(Who::Host, 0) {}
    assert_eq!(pair.host.pools(), 0);
    assert_eq!(pair.host.control_messages(), [Function::CfgUtilRequest]);
    pair.settle();
    assert_eq!((pair.host.closed, pair.unit.closed), (Some(Reason::Detached), Some(Reason::Detached)));
}

#[test]
fn the_unit_answers_a_detach_after_its_frames_are_acknowledged() {
    let mut pair = open();
    pair.send(Who::Unit, frame(1, 100)).unwrap();
    pair.call(Who::Host, Session::detach);
    exchange_control(&mut pair);
    assert_eq!((&pair.host.closed, &pair.unit.closed), (&None, &None), "a frame is on its way");
    pair.settle();
    assert_eq!((pair.host.received, pair.host.closed), (1, Some(Reason::Detached)));
}

#[test]
fn send_mode_has_no_flush() {
    let mut pair = Pair::open(Mode::Send, &Config::default());
    assert_eq!(pair.host.session.flush(0), Err(PoolError::FlushInSendMode));
    assert_eq!(pair.host.session.give_back(0), Err(PoolError::FlushInSendMode));
    pair.settle();
    assert_eq!(pair.host.control_messages(), []);
}
