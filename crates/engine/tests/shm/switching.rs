//! Switching between shared memory and TCP, to and fro, while messages stream in both directions.

use super::common::{End, Waits, shared_ends};
use super::stream::{Place, stream_between};
use ironwarp_engine::config::Config;
use ironwarp_rnic::link::Route;
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::queue::{Opcode, Operation};
use ironwarp_testkit::long_form;
use ironwarp_testkit::wait::until;
use std::sync::atomic::{AtomicUsize, Ordering};

const PLACE: Place = Place { at: 0, slots: 8, max: 300_000 };

/// Number of switches of each end.
fn switches() -> usize {
    if long_form::is_requested() { 10_000 } else { 300 }
}

/// What the threads of a test know of each other.
#[derive(Default)]
struct Progress {
    /// Number of messages sent.
    sent: AtomicUsize,
    /// Number of ends that do not switch any more.
    done: AtomicUsize,
}

impl Progress {
    /// Switches the sending direction of an end to and fro, `count` times. At least one message is sent meanwhile, of
    /// either end.
    fn switch(&self, end: &End, count: usize) {
        let qp = end.pair.qp();
        for number in 0..count {
            let route = if number % 2 == 0 { Route::Tcp } else { Route::SharedMemory };
            let sent = self.sent.load(Ordering::Relaxed);
            qp.switch_route(route);
            until(|| qp.send_route() == route && self.sent.load(Ordering::Relaxed) != sent);
        }
        self.done.fetch_add(1, Ordering::Release);
    }

    /// Counts a message, and returns whether fewer than `ends` ends are done.
    fn is_on(&self, ends: usize) -> bool {
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.done.load(Ordering::Acquire) < ends
    }
}

fn switch_under_load(completes: Completes, waits: Waits) {
    let (client, server) = shared_ends(&Config::default().shm(true), completes, PLACE.len());
    let (client, server) = (client.waits(waits), server.waits(waits));
    let (count, progress) = (switches(), Progress::default());
    std::thread::scope(|scope| {
        scope.spawn(|| progress.switch(&client, count));
        scope.spawn(|| progress.switch(&server, count));
        let (received, read) = stream_between(&client, &server, PLACE, |_| progress.is_on(2));
        assert!(received >= count as u64 && read > 0, "{received} messages, {read} Reads");
    });
}

#[test]
fn streams_that_switch_all_the_time_lose_nothing_when_ends_sleep() {
    switch_under_load(Completes::WhenSent, Waits::Sleeping);
}

#[test]
fn streams_that_switch_all_the_time_lose_nothing_when_ends_poll() {
    switch_under_load(Completes::WhenAcknowledged, Waits::Polling);
}

#[test]
fn streams_that_switch_all_the_time_lose_nothing_when_lanes_receive() {
    switch_under_load(Completes::WhenAcknowledged, Waits::ForEvents);
}

/// Length of the messages that no receive waits for.
const LEN: usize = 16 << 10;
const SEND: Operation = Operation::Send { invalidate: None };
/// Maximum number of messages that a stalled receiver holds: it parks 256 KiB, and up to 256 KiB more that it has received
/// with them; the credit of its channel allows 256 KiB.
const MAX_HELD: usize = 3 * (256 << 10) / LEN;

/// Sends until nothing more leaves, and returns the number of messages that have left. No receive is posted for them.
fn sends_until_full(from: &End) -> usize {
    let mut left = 0;
    for number in 0.. {
        from.post(number, SEND, 0, LEN);
        match from.next_within(std::time::Duration::from_millis(300)) {
            Some(completion) => assert_eq!(completion.opcode, Opcode::Send),
            None => break,
        }
        left += 1;
    }
    left
}

/// Bytes that were received, put back at a switch and received again return their credit once.
#[test]
fn switches_do_not_add_to_what_a_stalled_receiver_must_hold() {
    let (client, server) = shared_ends(&Config::default().shm(true), Completes::WhenSent, PLACE.len());
    let progress = Progress::default();
    std::thread::scope(|scope| {
        scope.spawn(|| progress.switch(&client, 400));
        stream_between(&client, &server, PLACE, |_| progress.is_on(1));
    });
    assert_eq!(client.pair.qp().send_route(), Route::SharedMemory);
    let sent = sends_until_full(&client);
    // The receives that are left from the stream take some.
    assert!(sent <= MAX_HELD + 2 * PLACE.slots, "{sent} messages have left, a receiver holds {MAX_HELD}");
}
