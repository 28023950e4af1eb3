//! Connections that come and go while others share their memory: each one works, and none loses what was sent.

use super::common::{
    End, Held, Host, SHARED, TCP, begin_sharing, check, connect, greet, pattern, rings_mapped,
};
use ironwarp_engine::config::Config;
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Opcode, Operation, Status};
use ironwarp_testkit::child;
use ironwarp_testkit::wait::until;
use std::sync::Arc;

const SEND: Operation = Operation::Send { invalidate: None };
const BYTES: usize = 1 << 20;
const LEN: usize = 3_000;

/// Sends messages, and closes the connection at once. They all arrive.
fn send_and_close(from: &End, to: &End, at: usize, count: u64) {
    for number in 0..count {
        to.receive(number, at + usize::try_from(number).unwrap() * LEN, LEN);
    }
    from.host.memory.write(at, &pattern(at as u64, LEN));
    for number in 0..count {
        from.post(number, SEND, at, LEN);
    }
    from.pair.disconnect();
    for number in 0..count {
        let received = to.next();
        let found = (received.opcode, received.wr_id, received.status);
        assert_eq!(
            found,
            (Opcode::Receive, number, Status::Success),
            "of {count} messages, at {at}: {received:?}"
        );
        let bytes = to.host.memory.read(at + usize::try_from(number).unwrap() * LEN, LEN);
        check(&bytes, at as u64, "a message before the end");
    }
}

/// Several threads open and close connections between two adapters, each as soon as its last one is closed. Often there is
/// none left but the one that is being set up.
#[test]
fn connections_work_while_others_open_and_close() {
    let hosts = [(); 2].map(|()| Host::new(Config::default().shm(true), BYTES));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let hosts = &hosts;
            scope.spawn(move || {
                let at = thread * 50_000;
                for round in 0..60 {
                    let (mut from, mut to) =
                        (hosts[0].end(Completes::WhenSent), hosts[1].end(Completes::WhenSent));
                    connect(&from, &to);
                    // A connection stays with TCP if it asks for a channel just when the last one of the others closes.
                    if round % 3 > 0 {
                        greet(&from, &to);
                    }
                    if round % 2 == 0 {
                        (from, to) = (to, from);
                    }
                    send_and_close(&from, &to, at, 1 + round % 8);
                }
            });
        }
    });
}

/// Everything that was sent before an orderly close arrives, also if other threads read the same ring.
#[test]
fn nothing_is_lost_at_the_end_while_other_threads_read() {
    let hosts = [(); 2].map(|()| Host::new(Config::default().shm(true).lanes(1), BYTES));
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let hosts = &hosts;
            scope.spawn(move || {
                // One connection stays open, so that the shared memory does.
                let stays = (hosts[0].end(Completes::WhenSent), hosts[1].end(Completes::WhenSent));
                connect(&stays.0, &stays.1);
                begin_sharing(&stays.0, &stays.1);
                for _ in 0..30 {
                    let (from, to) = (hosts[0].end(Completes::WhenSent), hosts[1].end(Completes::WhenSent));
                    connect(&from, &to);
                    begin_sharing(&from, &to);
                    send_and_close(&from, &to, thread * 60_000, 15);
                }
            });
        }
    });
}

/// Both adapters connect to each other at the same time, so that each offers memory to the other.
#[test]
fn connections_in_both_directions_share_memory() {
    for _ in 0..15 {
        let hosts = [(); 2].map(|()| Host::new(Config::default().shm(true).lanes(1), BYTES));
        let new = |host: &Arc<Host>| host.end(Completes::WhenSent);
        let pairs: Vec<_> = (0..4).map(|_| (new(&hosts[0]), new(&hosts[1]))).collect();
        for (number, (one, other)) in pairs.iter().enumerate() {
            if number % 2 == 0 { connect(one, other) } else { connect(other, one) }
        }
        // All offers are made at the same time.
        std::thread::scope(|scope| {
            pairs.iter().for_each(|(one, other)| drop(scope.spawn(|| greet(one, other))));
        });
        until(|| pairs.iter().all(|(one, other)| one.routes() == SHARED && other.routes() == SHARED));
    }
}

/// Nothing is left of shared memory when the last connection has closed, however far it was set up.
#[test]
fn closed_connections_leave_neither_mappings_nor_descriptors() {
    if !child::in_child("churn::closed_connections_leave_neither_mappings_nor_descriptors") {
        return;
    }
    let hosts = [(); 2].map(|()| Host::new(Config::default().shm(true), BYTES));
    let open_and_close = |round: u64| {
        let (from, to) = (hosts[0].end(Completes::WhenSent), hosts[1].end(Completes::WhenSent));
        connect(&from, &to);
        match round % 4 {
            0 => begin_sharing(&from, &to),
            1 => greet(&from, &to),
            2 => {
                to.receive(0, 0, 10);
                from.post(0, SEND, 0, 10);
            }
            _ => assert_eq!(from.routes(), TCP),
        }
        if round % 8 < 4 {
            from.pair.disconnect();
        } else {
            to.pair.disconnect();
        }
        assert!(from.pair.wait_closed(super::common::TIMEOUT) && to.pair.wait_closed(super::common::TIMEOUT));
    };
    (0..16).for_each(open_and_close);
    until(|| rings_mapped() == 0);
    let before = Held::now();
    (0..200).for_each(open_and_close);
    let mut now = before;
    until(|| {
        now = Held::now();
        now.rings == 0 && now.descriptors <= before.descriptors
    });
}
