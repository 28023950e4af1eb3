//! A hostile peer: its own session ends, with an error that names what was wrong. Others go on.

use crate::input::{Random, frame};
use crate::model::{OTHER_HOST, Pair, START, Who};
use ironwarp_io_unit::message::{
    Function, Immediate, Indication, Message, Mode, PoolEntry, Reply, UpdateEntry,
};
use ironwarp_io_unit::pool::Shape;
use ironwarp_io_unit::session::{Channel, Config, Reason};
use std::time::Duration;

const CONTROL: Channel = Channel::Control;
const DATA: Channel = Channel::Data;

fn open(mode: Mode) -> Pair {
    let shape = Shape { count: 4, element_size: 2048 };
    Pair::open(mode, &Config { pools: vec![shape], max_pools: 2, ..Config::default() })
}

/// Returns the error with which the unit ends the session after `attack`, and checks that it cleans up.
fn end_of(pair: &mut Pair, attack: impl FnOnce(&mut Pair)) -> String {
    assert_eq!(pair.unit.closed, None);
    attack(pair);
    let reason = pair.unit.closed.clone().expect("the session has ended");
    pair.settle();
    assert_eq!(pair.unit.pools(), 0, "pools are left after: {reason}");
    assert!(matches!(reason, Reason::Violation(_)), "{reason}");
    reason.to_string().strip_prefix("protocol violation: ").unwrap().to_owned()
}

fn after_message(mode: Mode, channel: Channel, message: &Message<'_>) -> String {
    end_of(&mut open(mode), |pair| {
        pair.call(Who::Unit, |unit| unit.receive(channel, &message.encode(9)));
    })
}

fn after_immediate(mode: Mode, pool: u32, element: u32, len: u32) -> String {
    let value = Immediate::new(Indication { pool, element, len }).unwrap().0;
    end_of(&mut open(mode), |pair| pair.call(Who::Unit, |unit| unit.immediate(value)))
}

#[test]
fn indications_of_what_was_not_advertised_end_the_session() {
    assert_eq!(after_immediate(Mode::Rdma, 7, 0, 100), "BufferRDMAIndicate: unknown pool 7");
    assert_eq!(
        after_immediate(Mode::Rdma, 0, 4, 100),
        "BufferRDMAIndicate: element 4 out of range: pool 0 has 4"
    );
    let length = "BufferRDMAIndicate: invalid frame length 2049: elements of pool 0 hold 1 to 2048 bytes";
    assert_eq!(after_immediate(Mode::Rdma, 0, 0, 2049), length);
    assert!(after_immediate(Mode::Rdma, 0, 0, 0).contains("invalid frame length 0"));
    let indicate = |pool, element, len| {
        after_message(Mode::Rdma, DATA, &Message::Indicate(Indication { pool, element, len }))
    };
    assert_eq!(indicate(u32::MAX, 0, 1), "BufferRDMAIndicate: unknown pool 4294967295");
    assert!(indicate(0, u32::MAX, 1).contains("element 4294967295 out of range"));
    assert!(indicate(0, 0, u32::MAX).contains("invalid frame length 4294967295"));
}

#[test]
fn an_element_that_is_used_twice_ends_the_session() {
    let twice = |release: bool| {
        let mut pair = Pair::open(
            Mode::Rdma,
            &Config { pools: vec![Shape { count: 64, element_size: 2048 }], ..Config::default() },
        );
        pair.send(Who::Host, frame(1, 1000)).unwrap();
        pair.settle_and_hold();
        if release {
            // Released, and too little for an Update: the host does not know.
            pair.release(Who::Unit, 0);
            assert_eq!(pair.unit.control_messages(), []);
        }
        let value = Immediate::new(Indication { pool: 0, element: 0, len: 1000 }).unwrap().0;
        end_of(&mut pair, |pair| pair.call(Who::Unit, |unit| unit.immediate(value)))
    };
    let expected = "BufferRDMAIndicate: element 0 of pool 0 was used twice without an update";
    assert_eq!((twice(false).as_str(), twice(true).as_str()), (expected, expected));
}

#[test]
fn false_updates_end_the_session() {
    let update = |pool, element| {
        after_message(Mode::Rdma, CONTROL, &Message::Update(vec![UpdateEntry::new(pool, element)]))
    };
    let not_consumed = "BufferRecvPoolUpdate: update of element 3 of pool 0, which was not consumed";
    assert_eq!(update(0, 3), not_consumed);
    assert_eq!(update(5, 0), "BufferRecvPoolUpdate: unknown pool 5");
    assert_eq!(update(0, 4), "BufferRecvPoolUpdate: element 4 out of range: pool 0 has 4");
    for mode in [Mode::Rdma, Mode::Send] {
        let mut pair = open(mode);
        pair.send(Who::Unit, frame(1, 1000)).unwrap();
        let update = Message::Update(vec![UpdateEntry::new(0, 0)]).encode(0);
        pair.call(Who::Unit, |unit| unit.receive(CONTROL, &update));
        let error = end_of(&mut pair, |pair| pair.call(Who::Unit, |unit| unit.receive(CONTROL, &update)));
        assert!(error.contains("update of element 0 of pool 0, which was not consumed"), "{error}");
    }
}

#[test]
fn pools_beyond_the_limits_end_the_session() {
    let good = PoolEntry { index: 9, count: 4, element_size: 2048, tag: 1, offset: 0, context: 0 };
    let pools = |entry| after_message(Mode::Rdma, CONTROL, &Message::Pools(vec![entry]));
    assert_eq!(pools(PoolEntry { index: 0, ..good }), "BufferRecvPool: pool 0 was advertised twice");
    assert!(pools(PoolEntry { count: 4097, ..good }).contains("invalid element count 4097 of pool 9"));
    assert!(pools(PoolEntry { count: 0, ..good }).contains("invalid element count 0"));
    assert!(pools(PoolEntry { element_size: 63, ..good }).contains("invalid element size 63 of pool 9"));
    assert!(pools(PoolEntry { element_size: u32::MAX, ..good }).contains("invalid element size 4294967295"));
    assert!(pools(PoolEntry { offset: u64::MAX - 8191, ..good }).contains("exceeds the address space"));
    assert!(pools(PoolEntry { index: 1 << 31, ..good }).contains("invalid pool index 0x80000000"));
    let mixed = Message::Pools(vec![PoolEntry { element_size: 1024, ..good }]);
    assert!(
        after_message(Mode::Send, CONTROL, &mixed).contains("element size 1024 of pool 9 differs from 2048")
    );
    let error = end_of(&mut open(Mode::Rdma), |pair| {
        for index in 1..=256 {
            let pools = Message::Pools(vec![PoolEntry { index, ..good }]).encode(0);
            pair.call(Who::Unit, |unit| unit.receive(CONTROL, &pools));
            assert_eq!(pair.unit.closed.is_some(), index == 256);
        }
    });
    assert_eq!(error, "BufferRecvPool: too many pools: the maximum is 256");
}

#[test]
fn a_flush_storm_ends_the_session() {
    let flush = |pools: Vec<u32>| after_message(Mode::Rdma, CONTROL, &Message::FlushRequest(pools));
    assert_eq!(flush(vec![3]), "BufferPoolFlushRequest: unknown pool 3");
    assert_eq!(flush(vec![1 << 31 | 3]), "BufferPoolFlushRequest: unknown pool 3");
    assert_eq!(flush(vec![0, 0]), "BufferPoolFlushRequest: pool 0 is already being flushed");
    for (pool, error) in [(0, "unknown pool 0"), (1 << 31, "unknown pool 0")] {
        let request = Message::FlushRequest(vec![pool]).encode(1);
        let mut pair = open(Mode::Rdma);
        pair.call(Who::Unit, |unit| unit.receive(CONTROL, &request));
        assert_eq!(pair.unit.control_messages(), [Function::BufferPoolFlushReply]);
        let second = end_of(&mut pair, |pair| pair.call(Who::Unit, |unit| unit.receive(CONTROL, &request)));
        assert_eq!(second, format!("BufferPoolFlushRequest: {error}"));
    }
    let send_mode = after_message(Mode::Send, CONTROL, &Message::FlushRequest(vec![0]));
    assert!(send_mode.contains("cannot be flushed in Send mode"), "{send_mode}");
}

#[test]
fn a_flush_while_a_write_is_on_its_way_is_answered_once() {
    let mut pair = open(Mode::Rdma);
    pair.send(Who::Unit, frame(1, 1000)).unwrap();
    let request = Message::FlushRequest(vec![0]).encode(1);
    pair.call(Who::Unit, |unit| unit.receive(CONTROL, &request));
    assert_eq!(pair.unit.control_messages(), []);
    let error = end_of(&mut pair, |pair| pair.call(Who::Unit, |unit| unit.receive(CONTROL, &request)));
    assert_eq!(error, "BufferPoolFlushRequest: pool 0 is already being flushed");
}

#[test]
fn a_pool_that_both_flush_is_given_back_once() {
    let mut pair = open(Mode::Rdma);
    pair.call(Who::Unit, |unit| unit.flush(0)).unwrap();
    let request = Message::FlushRequest(vec![1 << 31]).encode(1);
    pair.call(Who::Unit, |unit| unit.receive(CONTROL, &request));
    let error = end_of(&mut pair, |pair| pair.call(Who::Unit, |unit| unit.receive(CONTROL, &request)));
    assert_eq!(error, "BufferPoolFlushRequest: pool 0 is already being flushed");
}

#[test]
fn a_late_flush_reply_leaves_a_new_pool_with_the_same_index_alone() {
    let mut pair = open(Mode::Rdma);
    pair.call(Who::Unit, |unit| unit.give_back(0)).unwrap();
    let entry = PoolEntry { index: 0, count: 4, element_size: 2048, tag: 1, offset: 0, context: 0 };
    for message in [Message::FlushRequest(vec![0]), Message::Pools(vec![entry])] {
        pair.call(Who::Unit, |unit| unit.receive(CONTROL, &message.encode(1)));
    }
    // The first request of this unit has context 1.
    pair.call(Who::Unit, |unit| unit.receive(CONTROL, &Message::FlushReply.encode(1)));
    assert_eq!((&pair.unit.closed, pair.unit.session.peer_pools()), (&None, vec![0]));
}

#[test]
fn replies_that_answer_nothing_end_the_session() {
    let reply = after_message(Mode::Rdma, CONTROL, &Message::FlushReply);
    assert_eq!(reply, "BufferPoolFlushReply with context 0x9, which answers no request");
    let reply = after_message(Mode::Rdma, CONTROL, &Message::Reply(Reply::Mtu(1)));
    assert_eq!(reply, "CfgUtilReply with context 0x9, which answers no request");
    let mut pair = open(Mode::Rdma);
    pair.call(Who::Unit, |unit| unit.flush(0)).unwrap();
    let zero = Message::FlushReply.encode(0);
    let error = end_of(&mut pair, |pair| pair.call(Who::Unit, |unit| unit.receive(CONTROL, &zero)));
    assert!(error.contains("answers no request"), "{error}");
}

#[test]
fn messages_on_the_wrong_channel_or_in_the_wrong_mode_end_the_session() {
    let frame = Message::SendData(b"frame");
    assert_eq!(after_message(Mode::Rdma, CONTROL, &frame), "unexpected SendData on the Control channel");
    let update = Message::Update(vec![UpdateEntry::new(0, 0)]);
    assert_eq!(
        after_message(Mode::Rdma, DATA, &update),
        "unexpected BufferRecvPoolUpdate on the Data channel"
    );
    let indicate = Message::Indicate(Indication { pool: 0, element: 0, len: 9 });
    assert_eq!(
        after_message(Mode::Send, DATA, &indicate),
        "unexpected BufferRDMAIndicate on the Data channel"
    );
    assert_eq!(after_immediate(Mode::Send, 0, 0, 9), "unexpected immediate data 0x00000009");
    let long = [0; 257];
    let expected = "SendData with a frame of 257 bytes: expected 1 to 256";
    assert_eq!(after_message(Mode::Rdma, DATA, &Message::SendData(&long)), expected);
    assert!(after_message(Mode::Rdma, DATA, &Message::SendData(b"")).contains("a frame of 0 bytes"));
    assert!(
        after_message(Mode::Send, DATA, &Message::SendData(&[0; 2033])).contains("invalid frame length 2033")
    );
    let mut early = Pair::new(Mode::Rdma, Config::default(), Config::default());
    let error = end_of(&mut early, |pair| {
        pair.call(Who::Unit, |unit| unit.receive(CONTROL, &update.encode(0)));
    });
    assert_eq!(error, "unexpected BufferRecvPoolUpdate on the Control channel");
}

#[test]
fn a_frame_without_a_credit_ends_the_session() {
    let mut pair = open(Mode::Send);
    let bytes = Message::SendData(b"frame").encode(0);
    (0..4).for_each(|_| pair.unit.session.receive(DATA, &bytes));
    assert_eq!(pair.unit.session.reason(), None);
    pair.unit.session.receive(DATA, &bytes);
    let reason = pair.unit.session.reason().unwrap().to_string();
    assert_eq!(
        reason,
        "protocol violation: SendData: frame without a free element: every receive buffer was used"
    );
}

#[test]
fn requests_for_pools_beyond_the_limit_are_ignored() {
    let mut pair = open(Mode::Rdma);
    for element_size in [0, 2048, u32::MAX, 1, 2049] {
        let get = Message::PoolGet { element_size, count: u32::MAX }.encode(0);
        for _ in 0..100 {
            pair.call(Who::Unit, |unit| unit.receive(CONTROL, &get));
        }
    }
    pair.settle();
    assert_eq!((&pair.unit.closed, pair.unit.pools()), (&None, 2));
}

/// Registering and freeing a pool costs megabytes, and asking for it 20 bytes.
#[test]
fn pools_that_are_flushed_and_asked_for_again_are_granted_once_a_second() {
    let mut pair = open(Mode::Rdma);
    let storm = |pair: &mut Pair| {
        let mut granted = 0;
        for _ in 0..100 {
            let get = Message::PoolGet { element_size: 2048, count: 1 }.encode(0);
            pair.call(Who::Unit, |unit| unit.receive(CONTROL, &get));
            while pair.register(Who::Unit) {
                granted += 1;
            }
            let pools = pair.unit.session.own_pools();
            if let Some(last) = pools.last().filter(|_| pools.len() > 1) {
                let flush = Message::FlushRequest(vec![1 << 31 | last]).encode(1);
                pair.call(Who::Unit, |unit| unit.receive(CONTROL, &flush));
            }
            while pair.carry(Who::Unit, CONTROL) {
                pair.complete(Who::Unit, CONTROL);
            }
        }
        granted
    };
    assert_eq!(storm(&mut pair), 2, "as many as it may own");
    assert_eq!(storm(&mut pair), 0);
    for (millis, granted) in
        [(999, 0), (1000, 1), (1500, 0), (2000, 1), (3000, 1), (100_000, 2), (101_000, 1)]
    {
        pair.call(Who::Unit, |unit| unit.tick(START + Duration::from_millis(millis)));
        assert_eq!(storm(&mut pair), granted, "{millis} ms after the start");
    }
    assert_eq!((&pair.unit.closed, pair.unit.pools()), (&None, 1));
}

/// Whatever bytes arrive, on either channel and in any state: no panic, and no pool is left after the end.
#[test]
fn random_and_altered_messages_never_panic() {
    let mut random = Random::new(1);
    let entry = PoolEntry { index: 1, count: 4, element_size: 2048, tag: 1, offset: 0, context: 0 };
    let messages = [
        Message::Pools(vec![entry]).encode(0),
        Message::Update(vec![UpdateEntry::new(0, 1)]).encode(0),
        Message::FlushRequest(vec![0, 1 << 31]).encode(5),
        Message::FlushReply.encode(1),
        Message::SendData(b"frame").encode(0),
        Message::Indicate(Indication { pool: 0, element: 1, len: 64 }).encode(0),
        Message::PoolGet { element_size: 100, count: 1 }.encode(0),
    ];
    for round in 0..500 {
        let mode = if round % 2 == 0 { Mode::Rdma } else { Mode::Send };
        let mut pair = open(mode);
        for _ in 0..random.below(4) {
            // Frames on their way, so that there is something to acknowledge, return and flush.
            let _ = pair.unit.session.send(0, 1000);
        }
        for _ in 0..8 {
            let mut bytes = messages[usize::try_from(random.below(7)).unwrap()].clone();
            for _ in 0..random.below(3) {
                let bit = usize::try_from(random.below(bytes.len() as u64 * 8)).unwrap();
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            let unit = &mut pair.unit.session;
            match random.below(4) {
                0 => unit.receive(DATA, &bytes),
                1 => unit.immediate(u32::try_from(random.below(1 << 12)).unwrap() | 64),
                _ => unit.receive(CONTROL, &bytes),
            }
        }
        pair.unit.session.end(Reason::Shutdown);
        assert_eq!(pair.unit.session.statistics().elements_free, 0);
    }
}

#[test]
fn other_sessions_of_the_unit_go_on() {
    let mut bad = open(Mode::Rdma);
    let mut good = Pair::second(&bad, "right", OTHER_HOST, &Config::default());
    good.settle();
    good.send(Who::Host, frame(1, 1000)).unwrap();
    end_of(&mut bad, |pair| pair.call(Who::Unit, |unit| unit.immediate(u32::MAX)));
    good.settle();
    good.send(Who::Unit, frame(2, 1000)).unwrap();
    good.settle();
    assert_eq!((good.host.received, good.unit.received), (1, 1));
    assert_eq!((&good.host.closed, &good.unit.closed), (&None, &None));
}
