//! Queue pairs that switch between TCP and shared memory: at every FPDU boundary, and whatever the link takes at once.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod leaving;
mod offers;
mod pair;
mod violations;

use ironwarp_rnic::fault::Rng;
use ironwarp_rnic::link::Route;
use ironwarp_rnic::qp::State;
use ironwarp_rnic::queue::{Operation, Status};
use ironwarp_wire::mpa::Framing;
use pair::{BOTH, End, OPEN, Options, SEND, addr, pair, settle};

/// Length of a message of several FPDUs, which have at most 64 KiB.
const LONG: usize = 150_000;
/// A number of bytes within the second FPDU of a long message.
const IN_SECOND: usize = 70_000;
/// Length of a switch signal.
const SIGNAL: usize = 2 + 14 + 4;

/// A message is switched to the other route after its first FPDU, whether it is a Send, a Write or a Read Response. The
/// link took a part of the second FPDU before.
#[test]
fn a_message_continues_on_the_other_route() {
    for crc in [false, true] {
        for kind in ["Send", "Write", "Read"] {
            let ends = pair(Options { framing: Framing { crc, markers: false }, ..Options::default() });
            let [near, far] = &ends;
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
            near.qp.switch_route(Route::SharedMemory);
            assert_eq!((near.qp.send_route(), far.qp.recv_route()), (Route::Tcp, Route::Tcp));
            let before = near.sent();
            settle(&ends);
            assert_eq!(
                (near.qp.send_route(), far.qp.recv_route()),
                (Route::SharedMemory, Route::SharedMemory)
            );
            assert_eq!((near.qp.recv_route(), far.qp.send_route()), (Route::Tcp, Route::Tcp));
            let after = near.sent();
            assert!(before[0] < LONG && after[0] - before[0] < 64 << 10, "{kind}: {before:?} {after:?}");
            assert!(after[1] > 0 && after.iter().sum::<usize>() > LONG, "{kind}: {after:?}");
            far.expect(to, 7);
            let poster = if kind == "Read" { far } else { near };
            assert_eq!(poster.ended(), [(1, Status::Success)], "{kind}");
        }
    }
}

/// Bytes that were sent by TCP after a switch there and back are received together with the first switch signal, and
/// belong behind those that were sent by shared memory meanwhile.
#[test]
fn bytes_of_a_later_time_on_tcp_wait_for_the_switch_back() {
    for quiet_tcp in [false, true] {
        let ends = pair(Options { quiet_tcp, ..Options::default() });
        let [near, far] = &ends;
        let buffers = [1, 2, 3, 4, 5].map(|id| far.post_receive(id, 1000));
        for (id, route) in
            (1..).zip([Route::SharedMemory, Route::Tcp, Route::SharedMemory, Route::Tcp, Route::SharedMemory])
        {
            near.post(id.into(), SEND, near.register(1000, id));
            near.qp.switch_route(route);
        }
        assert_eq!(near.switches().len(), 5);
        far.qp.drive(BOTH);
        assert_eq!(far.ended(), [1, 2, 3, 4, 5].map(|id| (id, Status::Success)));
        for (id, buffer) in (1..).zip(buffers) {
            far.expect(buffer, id);
        }
        assert_eq!(far.qp.recv_route(), Route::SharedMemory);
    }
}

#[test]
fn the_last_request_counts() {
    let ends = pair(Options::default());
    let [near, far] = &ends;
    let before = near.sent();
    near.allow(0);
    near.qp.switch_route(Route::SharedMemory);
    near.qp.switch_route(Route::Tcp);
    settle(&ends);
    assert_eq!((near.sent(), near.switches()), (before, vec![]), "no byte had moved");

    // A part of the signal is sent, so the switch back has a signal, too.
    near.allow(1);
    near.qp.switch_route(Route::SharedMemory);
    assert_eq!((near.sent(), near.switches()), ([before[0] + 1, 0], vec![]));
    near.qp.switch_route(Route::Tcp);
    assert_eq!(near.switches(), []);
    settle(&ends);
    assert_eq!(near.switches(), [Route::SharedMemory, Route::Tcp]);
    assert_eq!(near.sent(), [before[0] + SIGNAL, SIGNAL]);
    assert_eq!((near.qp.send_route(), far.qp.recv_route()), (Route::Tcp, Route::Tcp));

    near.qp.switch_route(Route::Tcp);
    settle(&ends);
    assert_eq!(near.switches().len(), 2, "it is used already");
}

/// Nothing of a batch with a switch signal is sent: what is built again later has the CRCs of the route that is used then.
#[test]
fn a_rolled_back_switch_restores_the_route() {
    for route in [Route::SharedMemory, Route::Tcp] {
        let ends = pair(Options::default());
        let [near, far] = &ends;
        let buffer = far.post_receive(7, 100);
        near.allow(0);
        near.qp.switch_route(Route::SharedMemory);
        near.post(1, SEND, near.register(100, 7));
        near.qp.switch_route(route);
        let before = near.sent();
        settle(&ends);
        far.expect(buffer, 7);
        assert_eq!((near.ended(), far.ended()), (vec![(1, Status::Success)], vec![(7, Status::Success)]));
        assert_eq!(near.qp.send_route(), route);
        let [tcp, shared] = near.sent();
        match route {
            Route::SharedMemory => assert_eq!(tcp - before[0], SIGNAL, "only the signal went by TCP"),
            Route::Tcp => assert_eq!(shared, 0),
        }
    }
}

/// Both ends send at random moments, by random routes, over links that move a few bytes at once, often only one.
#[test]
fn every_byte_arrives_whatever_the_link_moves_at_once() {
    for seed in 0..10 {
        let mut rng = Rng::new(seed);
        let crc = rng.below(2) == 0;
        let quiet_tcp = rng.below(2) == 0;
        let ends =
            pair(Options { framing: Framing { crc, markers: false }, quiet_tcp, ..Options::default() });
        let mut pick = |from: &[usize]| from[usize::try_from(rng.below(from.len() as u64)).unwrap()];
        for end in &ends {
            end.set_step(pick(&[1, 3, 64, 2000, OPEN]));
        }
        let longest = if crc { 3000 } else { 70_000 }; // of several FPDUs, which are too slow with CRCs
        let mut sent = [const { Vec::new() }; 2];
        for _ in 0..300 {
            let who = pick(&[0, 1]);
            let (end, peer) = (&ends[who], &ends[1 - who]);
            match pick(&[0, 1, 2, 3, 4, 4, 4]) {
                0 if sent[who].len() < 8 => {
                    let (id, len) = (sent[who].len() as u64, pick(&[1, 100, 3000, 3000, longest]));
                    sent[who].push(peer.post_receive(100 + id, len));
                    end.post(id, SEND, end.register(len, u8::try_from(id).unwrap()));
                }
                1 => end.qp.switch_route(Route::Tcp),
                2 => end.qp.switch_route(Route::SharedMemory),
                3 => end.qp.drive(BOTH),
                _ => end.allow(pick(&[1, 2, 20, 100, 3000, 70_000])),
            }
        }
        settle(&ends);
        for (who, buffers) in sent.iter().enumerate() {
            let (end, peer) = (&ends[who], &ends[1 - who]);
            assert_eq!(end.qp.error(), None, "seed {seed}");
            assert_eq!(
                (end.qp.send_route(), end.qp.recv_route()),
                (peer.qp.recv_route(), peer.qp.send_route())
            );
            (0..).zip(buffers).for_each(|(id, buffer)| peer.expect(*buffer, id));
            let done = end.ended();
            let is = |ids: std::ops::Range<usize>, first: u64| {
                ids.clone().all(|id| done.contains(&(first + id as u64, Status::Success)))
            };
            assert!(is(0..buffers.len(), 0) && is(0..sent[1 - who].len(), 100), "seed {seed}: {done:?}");
        }
    }
}

/// An end that is moved to the error state receives first what has arrived, by both routes, and acknowledges it.
#[test]
fn a_close_receives_what_has_arrived_by_both_routes() {
    let ends = pair(Options::default());
    let [near, far] = &ends;
    for id in 1..=4 {
        far.post_receive(id, 100);
    }
    for (id, route) in [(1, Route::SharedMemory), (2, Route::Tcp), (3, Route::SharedMemory)] {
        near.post(id, SEND, near.register(100, 0));
        near.qp.switch_route(route);
    }
    far.qp.modify(State::Error).unwrap();
    let received = [1, 2, 3].map(|id| (id, Status::Success));
    assert_eq!(far.ended(), [&received[..], &[(4, Status::Flushed)]].concat());
    settle(&ends);
    assert_eq!(near.ended(), received);
}

/// The request that ends the stream and the Terminate travel by the route that is used then.
#[test]
fn a_terminate_goes_by_the_current_route() {
    for who in [0, 1] {
        let ends = pair(Options::default());
        let switch = |end: &End| end.qp.switch_route(Route::SharedMemory);
        let [bad, good] = if who == 0 { [&ends[0], &ends[1]] } else { [&ends[1], &ends[0]] };
        switch(bad);
        switch(good);
        settle(&ends);
        let before = good.sent();
        good.post_receive(7, 10);
        bad.post(1, SEND, bad.register(100, 1)); // longer than the receive
        settle(&ends);
        assert_eq!(bad.ended()[0], (1, Status::RemoteInvalidRequest));
        assert_eq!(good.sent()[0], before[0]);
        assert!(good.sent()[1] > before[1]);
    }
}
