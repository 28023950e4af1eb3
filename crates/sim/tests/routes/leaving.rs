//! Streams that leave shared memory for good (requirement X2), whatever the link moves at once.

use crate::pair::{BOTH, End, OPEN, Options, SEND, addr, pair, settle};
use crate::violations::{encode, expect_violation};
use crate::{IN_SECOND, LONG};
use ironwarp_rnic::error::Protocol;
use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::link::Route;
use ironwarp_rnic::queue::{Operation, Status};
use ironwarp_wire::mpa::Framing;
use ironwarp_wire::private::{Capabilities, Signal};

/// Moves both directions to shared memory.
fn share(ends: &[End; 2]) {
    ends.iter().for_each(|end| end.qp.switch_route(Route::SharedMemory));
    settle(ends);
    assert!(ends.iter().all(|end| !end.qp.is_on_tcp()));
}

/// Checks that both ends have left, and are told so once.
fn expect_left(ends: &[End; 2]) {
    for end in ends {
        assert_eq!(end.qp.error(), None);
        assert!(end.qp.has_left_shared_memory() && end.qp.is_on_tcp());
        assert_eq!(*end.driver.leaving.lock().unwrap(), [false, true]);
    }
}

/// One end asks in the middle of a message, whether it is a Send, a Write or a Read Response. A part of an FPDU is in the
/// link.
#[test]
fn both_directions_leave_in_the_middle_of_a_message() {
    for kind in ["Send", "Write", "Read"] {
        for asks in [0, 1] {
            let ends = pair(Options::default());
            let [near, far] = &ends;
            share(&ends);
            let (from, to) = match kind {
                "Send" => (near.register(LONG, 7), far.post_receive(9, LONG)),
                _ => (near.register(LONG, 7), far.register(LONG, 0)),
            };
            near.allow(IN_SECOND);
            match kind {
                "Send" => near.post(1, SEND, from),
                "Write" => near.post(1, Operation::Write(addr(to)), from),
                _ => far.post(1, Operation::Read(addr(from)), to),
            }
            near.qp.drive(BOTH);
            let shared = near.sent()[1];
            assert!(shared < LONG, "{kind}: in the middle");
            assert!(ends[asks].qp.leave_shared_memory());
            assert!(!ends[asks].qp.has_left_shared_memory());
            near.allow(0); // receives the request
            settle(&ends);
            expect_left(&ends);
            assert!(near.sent()[1] - shared < 64 << 10, "{kind}: the rest goes by TCP");
            far.expect(to, 7);
            let poster = if kind == "Read" { far } else { near };
            assert_eq!(poster.ended(), [(1, Status::Success)], "{kind}");
        }
    }
}

/// Neither end uses shared memory again, however often it is requested or offered.
#[test]
fn a_stream_that_has_left_stays_with_tcp() {
    let ends = pair(Options::default());
    share(&ends);
    ends[0].qp.offer([1; 24]);
    settle(&ends);
    assert_eq!(ends[1].driver.offers.lock().unwrap().len(), 1);
    assert!(ends[0].qp.leave_shared_memory());
    settle(&ends);
    expect_left(&ends);
    let before = ends.each_ref().map(End::sent);
    for end in &ends {
        end.qp.switch_route(Route::SharedMemory);
        end.qp.offer([2; 24]);
        assert!(end.qp.leave_shared_memory(), "again");
    }
    settle(&ends);
    assert_eq!(ends.each_ref().map(End::sent), before, "nothing is sent");
    assert_eq!(ends[1].driver.offers.lock().unwrap().len(), 1);
    expect_left(&ends);
}

/// An offer of which only a part was sent, and one that comes after the request, have no effect.
#[test]
fn offers_under_way_are_dropped() {
    let ends = pair(Options::default());
    let [near, far] = &ends;
    near.allow(30); // one of four parts
    near.qp.offer([1; 24]);
    assert!(near.qp.leave_shared_memory());
    settle(&ends);
    expect_left(&ends);
    assert!(far.driver.offers.lock().unwrap().is_empty());

    let ends = pair(Options::default());
    let [near, far] = &ends;
    near.allow(0);
    far.allow(0);
    near.qp.offer([1; 24]);
    assert!(far.qp.leave_shared_memory());
    near.allow(OPEN);
    far.qp.drive(BOTH);
    assert!(far.driver.offers.lock().unwrap().is_empty(), "it was sent before the request arrived");
    settle(&ends);
    expect_left(&ends);
}

/// An end has left only when its peer has received everything, although both directions of this end are on TCP before.
#[test]
fn an_end_waits_until_its_peer_has_received_everything() {
    let ends = pair(Options::default());
    let [near, far] = &ends;
    share(&ends);
    let buffer = far.post_receive(9, 1000);
    near.post(1, SEND, near.register(1000, 5));
    // Both ask at once. The far end sends, but does not receive.
    assert!(near.qp.leave_shared_memory() && far.qp.leave_shared_memory());
    near.qp.drive(BOTH);
    assert!(near.qp.is_on_tcp() && !near.qp.has_left_shared_memory());
    assert_eq!(*near.driver.leaving.lock().unwrap(), [false]);
    settle(&ends);
    expect_left(&ends);
    far.expect(buffer, 5);
}

/// Both ends ask, often at once, and traffic goes on, over links that move a few bytes at once.
#[test]
fn every_byte_arrives_while_the_ends_leave() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let crc = rng.below(2) == 0;
        let quiet_tcp = rng.below(2) == 0;
        let ends =
            pair(Options { framing: Framing { crc, markers: false }, quiet_tcp, ..Options::default() });
        let mut pick = |from: &[usize]| from[usize::try_from(rng.below(from.len() as u64)).unwrap()];
        for end in &ends {
            end.set_step(pick(&[1, 3, 64, 2000, OPEN]));
        }
        let mut sent = [const { Vec::new() }; 2];
        let leaves_at = [pick(&[0, 20, 40, 80]), pick(&[0, 20, 40, 80, OPEN])];
        for turn in 0..120 {
            for (end, at) in ends.iter().zip(leaves_at) {
                if turn == at {
                    assert!(end.qp.leave_shared_memory());
                }
            }
            let who = pick(&[0, 1]);
            let (end, peer) = (&ends[who], &ends[1 - who]);
            match pick(&[0, 1, 2, 3, 4, 4, 4]) {
                0 if sent[who].len() < 8 => {
                    let (id, len) = (sent[who].len() as u64, pick(&[1, 100, 3000, 3000]));
                    sent[who].push(peer.post_receive(100 + id, len));
                    end.post(id, SEND, end.register(len, u8::try_from(id).unwrap()));
                }
                1 => end.qp.switch_route(Route::Tcp),
                2 => end.qp.switch_route(Route::SharedMemory),
                3 => end.qp.drive(BOTH),
                _ => end.allow(pick(&[1, 2, 20, 100, 3000])),
            }
        }
        settle(&ends);
        expect_left(&ends);
        for (who, buffers) in sent.iter().enumerate() {
            (0..).zip(buffers).for_each(|(id, buffer)| ends[1 - who].expect(*buffer, id));
            let done = ends[who].ended();
            let all = (0..buffers.len() as u64).chain(100..100 + sent[1 - who].len() as u64);
            assert!(all.into_iter().all(|id| done.contains(&(id, Status::Success))), "seed {seed}: {done:?}");
        }
    }
}

/// A request that was not agreed on is ignored, as other unknown signals are.
#[test]
fn a_peer_without_the_capability_is_not_asked_and_may_not_ask() {
    let markers = Framing { crc: true, markers: true };
    for (announces, framing) in
        [([true, false], Framing::default()), ([false, true], Framing::default()), ([true; 2], markers)]
    {
        let ends = pair(Options { announces, framing, ..Options::default() });
        let before = ends.each_ref().map(End::sent);
        assert!(ends.iter().all(|end| !end.qp.leave_shared_memory()));
        if !framing.markers {
            ends[1].inject(Route::Tcp, &encode(Signal::Leave, framing.crc));
            ends[1].inject(Route::Tcp, &encode(Signal::Left, framing.crc));
        }
        settle(&ends);
        assert_eq!(ends.each_ref().map(End::sent), before);
        for end in &ends {
            assert!(end.driver.leaving.lock().unwrap().is_empty() && !end.qp.has_left_shared_memory());
            assert_eq!(end.qp.error(), None);
            assert!(!end.driver.capabilities.lock().unwrap()[0].contains(Capabilities::LEAVE));
        }
    }
}

/// A hostile peer repeats the signals, or sends them by shared memory, or answers what nobody has asked.
#[test]
fn repeated_and_misplaced_signals_cost_nothing() {
    let ends = pair(Options::default());
    let [_, far] = &ends;
    let quiet = far.sent();
    for _ in 0..1000 {
        far.inject(Route::Tcp, &encode(Signal::Left, true));
    }
    far.qp.drive(BOTH);
    assert!(far.sent() == quiet && far.driver.leaving.lock().unwrap().is_empty());

    for _ in 0..1000 {
        far.inject(Route::Tcp, &encode(Signal::Leave, true));
    }
    far.qp.drive(BOTH);
    let signal = encode(Signal::Leave, true).len();
    assert_eq!(far.sent(), [quiet[0] + 2 * signal, 0], "one leave, one left");
    assert_eq!(*far.driver.leaving.lock().unwrap(), [false]);

    let ends = pair(Options::default());
    let [near, far] = &ends;
    near.qp.switch_route(Route::SharedMemory);
    settle(&ends);
    let before = far.sent();
    far.inject(Route::SharedMemory, &encode(Signal::Leave, false));
    settle(&ends);
    assert!(far.sent() == before && far.driver.leaving.lock().unwrap().is_empty());
}

#[test]
fn a_switch_after_a_leave_ends_the_stream() {
    let ends = pair(Options::default());
    ends[1].inject(Route::Tcp, &encode(Signal::Leave, true));
    ends[1].inject(Route::Tcp, &encode(Signal::Switch(Route::SharedMemory), true));
    ends[1].qp.drive(BOTH);
    let rule = Protocol::UnexpectedSwitch(Route::SharedMemory);
    expect_violation(&ends, rule, ironwarp_wire::Operation::Opcode);
}
