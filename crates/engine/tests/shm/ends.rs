//! The end of connections in shared memory: both ends see what they would see over TCP.

use super::common::{End, SHARED, TCP, TIMEOUT, begin_sharing, drain, ends, greet};
use ironwarp_engine::config::Config;
use ironwarp_rnic::qp::{Completes, State};
use ironwarp_rnic::queue::{Completion, Opcode, Operation, Status};
use ironwarp_testkit::wait::until;
use ironwarp_wire::{RemoteAddr, Tag};
use std::time::Duration;

const LEN: usize = 5_000;
const BYTES: usize = 64 * LEN;
const SEND: Operation = Operation::Send { invalidate: None };
/// Time without completions after which no more are expected. The connection is closed by then.
const QUIET: Duration = Duration::from_millis(50);

/// What an end has seen: the opcode, identifier, status and cause of each completion.
type Seen = Vec<(Opcode, u64, Status, Option<String>)>;

fn seen(completions: Vec<Completion>) -> Seen {
    // Those of the two queues may come in either order.
    let mut seen: Seen = completions
        .into_iter()
        .map(|it| (it.opcode, it.wr_id, it.status, it.cause.map(|cause| cause.to_string())))
        .collect();
    seen.sort_by_key(|(opcode, ..)| *opcode == Opcode::Receive);
    seen
}

/// Runs a scenario in shared memory and over TCP, with both completion modes, and compares what both ends see.
fn compare(scenario: impl Fn(&End, &End)) {
    for completes in [Completes::WhenSent, Completes::WhenAcknowledged] {
        let [shared, tcp] = [true, false].map(|shm| {
            let (client, server) = ends(&Config::default().shm(shm), completes, BYTES);
            if shm {
                begin_sharing(&client, &server);
            } else {
                greet(&client, &server);
            }
            let routes = if shm { SHARED } else { TCP };
            assert_eq!((client.routes(), server.routes()), (routes, routes));
            scenario(&client, &server);
            // A queue pair that was reset has no connection.
            let is_closed = |end: &End| end.pair.wait_closed(Duration::ZERO) || end.pair.lane().is_none();
            until(|| is_closed(&client) && is_closed(&server));
            [seen(drain(&client, QUIET)), seen(drain(&server, QUIET))]
        });
        assert_eq!(shared, tcp, "in shared memory and over TCP, {completes:?}");
    }
}

fn receives(end: &End) {
    (0..8)
        .for_each(|number| end.receive(100 + number, 10 * LEN + usize::try_from(number).unwrap() * LEN, LEN));
}

#[test]
fn an_orderly_close_delivers_everything() {
    compare(|client, server| {
        receives(server);
        receives(client);
        (0..5).for_each(|number| client.post(number, SEND, 0, LEN));
        client.pair.disconnect();
        for number in 0..5 {
            let received = server.next();
            assert_eq!((received.wr_id, received.status), (100 + number, Status::Success), "{received:?}");
        }
        assert_eq!(server.next().status, Status::Flushed);
        server.pair.disconnect();
    });
}

#[test]
fn an_orderly_close_of_the_other_end_delivers_everything() {
    compare(|client, server| {
        receives(client);
        (0..5).for_each(|number| server.post(number, SEND, 0, LEN));
        server.pair.disconnect();
        (0..5).for_each(|number| assert_eq!(client.next().wr_id, 100 + number));
        assert_eq!(client.next().status, Status::Flushed);
        client.pair.disconnect();
    });
}

#[test]
fn a_queue_pair_that_is_moved_to_the_error_state_ends_both_ends() {
    compare(|client, server| {
        receives(client);
        receives(server);
        client.pair.modify(State::Error).unwrap();
    });
}

/// A Write to memory that does not exist. The peer sends a Terminate.
#[test]
fn a_remote_access_error_ends_both_ends() {
    compare(|client, server| {
        receives(client);
        receives(server);
        let nowhere = RemoteAddr { tag: Tag(0x1234), offset: 0 };
        client.post(1, Operation::Write(nowhere), 0, LEN);
        client.post(2, Operation::Read(server.remote_addr(0)), 0, 8);
    });
}

/// A Read from memory that does not exist.
#[test]
fn a_refused_read_ends_both_ends() {
    compare(|client, server| {
        receives(server);
        server.post(1, Operation::Read(RemoteAddr { tag: Tag(0x1234), offset: 0 }), 0, LEN);
        server.post(2, Operation::Read(client.remote_addr(0)), 0, 8);
    });
}

/// A message that is longer than the receive.
#[test]
fn a_message_that_is_too_long_ends_both_ends() {
    compare(|client, server| {
        client.receive(100, 0, 10);
        receives(server);
        server.post(1, SEND, 0, LEN);
        server.post(2, Operation::Read(client.remote_addr(0)), 0, 8);
    });
}

#[test]
fn a_reset_queue_pair_ends_the_other_end() {
    compare(|client, server| {
        receives(client);
        receives(server);
        client.pair.modify(State::Reset).unwrap();
    });
}

/// After a reset, the queue pair can be connected again, and uses shared memory again.
#[test]
fn a_queue_pair_that_was_reset_shares_memory_again() {
    let (client, server) = ends(&Config::default().shm(true), Completes::WhenAcknowledged, BYTES);
    begin_sharing(&client, &server);
    for _ in 0..20 {
        client.pair.modify(State::Reset).unwrap();
        assert!(server.pair.wait_closed(TIMEOUT));
        server.pair.modify(State::Reset).unwrap();
        super::common::connect(&client, &server);
        begin_sharing(&client, &server);
    }
}

/// The adapter is closed while messages are on their way.
#[test]
fn an_adapter_that_is_dropped_ends_the_other_end() {
    for completes in [Completes::WhenSent, Completes::WhenAcknowledged] {
        let (client, server) = ends(&Config::default().shm(true), completes, BYTES);
        begin_sharing(&client, &server);
        receives(&server);
        (0..4).for_each(|number| client.post(number, SEND, 0, LEN));
        drop(client);
        assert!(server.pair.wait_closed(TIMEOUT));
        let found = seen(drain(&server, QUIET));
        assert_eq!(found.len(), 8, "{found:?}");
    }
}
