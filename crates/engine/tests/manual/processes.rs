//! Two processes that exchange a GID and a QPN over a pipe, and nothing else.

use super::common::{Host, TIMEOUT};
use ironwarp_engine::Remote;
use ironwarp_engine::config::Config;
use ironwarp_rnic::queue::Opcode;
use ironwarp_testkit::child::{self, Partner};

const TEST: &str = "processes::two_processes_that_know_gid_and_number_find_each_other";
/// Lengths of the messages, each used in every round.
const LENGTHS: [usize; 6] = [1, 7, 64, 4095, 65_535, 250_000];
const ROUNDS: usize = 8;

/// The contents of a message: its bytes differ from their neighbours, and from those of all other messages.
fn message(of: u32, round: usize, len: usize) -> Vec<u8> {
    let seed = of as usize ^ round << 8;
    (0..len).map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b9) >> 7).to_le_bytes()[0]).collect()
}

/// Runs one end: exchanges GID and QPN, then sends and receives concurrently.
fn take_part(own: &str, exchange: impl FnOnce(&str) -> String) {
    let mut host = Host::new(Config::default());
    let pair = host.pair();
    let other = exchange(&format!("queue pair {own} {}", pair.id()));
    let (gid, qpn) = other.split_once(' ').unwrap();
    let qpn = qpn.parse().unwrap();
    host.bring_up(&pair, own, (gid, qpn));
    pair.wait_connected(TIMEOUT).unwrap();
    assert_eq!(pair.remote(), Some(Remote { gid: gid.parse().unwrap(), qpn }));
    for round in 0..ROUNDS {
        for len in LENGTHS {
            host.receive(&pair, 0, len);
            host.send(&pair, 512 << 10, &message(pair.id(), round, len));
            let mut opcodes = [host.one().opcode, host.one().opcode];
            opcodes.sort_by_key(|opcode| *opcode == Opcode::Send);
            assert_eq!(opcodes, [Opcode::Receive, Opcode::Send]);
            assert!(host.bytes(0, len) == message(qpn, round, len), "round {round}, {len} bytes");
        }
    }
    pair.disconnect();
    assert!(pair.wait_closed(TIMEOUT));
}

fn between(own: &str, others: &str) {
    let mut other = Partner::start(child::command(TEST, others));
    take_part(own, |line| {
        other.tell(line);
        other.wait_for("queue pair ")
    });
    other.finish();
}

#[test]
fn two_processes_that_know_gid_and_number_find_each_other() {
    // The other process is this test in a role: its address.
    if let Some(own) = child::role() {
        return take_part(&own, |line| {
            child::tell(line);
            child::wait_for("queue pair ")
        });
    }
    between("127.0.0.2", "127.0.0.3");
    between("127.0.0.3", "127.0.0.2");
    between("127.0.0.1", "127.0.0.1");
    between("::1", "::1");
}
