//! Two processes that tell each other a GID and a number over a pipe, and nothing else.

use super::common::{Host, PATIENCE};
use ironwarp_engine::Remote;
use ironwarp_rnic::config::Config;
use ironwarp_rnic::queue::Opcode;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// The other process is this test again, told its address.
const OTHER: &str = "IRON_TEST_BY_HAND_OTHER";
/// Lengths of the messages, many times over.
const LENGTHS: [usize; 6] = [1, 7, 64, 4095, 65_535, 250_000];
const ROUNDS: usize = 8;

/// Bytes of one end's message that differ from their neighbours, and from all other messages.
fn message(of: u32, round: usize, len: usize) -> Vec<u8> {
    let seed = of as usize ^ round << 8;
    (0..len).map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b9) >> 7).to_le_bytes()[0]).collect()
}

/// One end: tells, is told, and then sends and receives at the same time.
fn take_part(own: &str, tell: &mut impl Write, told: &mut impl BufRead) {
    let mut host = Host::new(Config::default());
    let pair = host.pair();
    writeln!(tell, "queue pair {own} {}", pair.id()).unwrap();
    tell.flush().unwrap();
    let line = told.lines().map(Result::unwrap).find(|line| line.contains("queue pair ")).unwrap();
    let mut words = line.split("queue pair ").nth(1).unwrap().split(' ');
    let (gid, qpn) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
    host.bring_up(&pair, own, (gid, qpn));
    pair.wait_connected(PATIENCE).unwrap();
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
    assert!(pair.wait_closed(PATIENCE));
}

fn between(own: &str, others: &str) {
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::two_processes_that_know_gid_and_number_find_each_other", "--nocapture"])
        .env(OTHER, others)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(other.stdout.take().unwrap());
    take_part(own, &mut other.stdin.take().unwrap(), &mut told);
    for line in told.lines() {
        assert!(!line.unwrap().contains("FAILED"));
    }
    assert!(other.wait().unwrap().success());
}

#[test]
fn two_processes_that_know_gid_and_number_find_each_other() {
    if let Ok(own) = std::env::var(OTHER) {
        return take_part(&own, &mut std::io::stdout(), &mut std::io::stdin().lock());
    }
    between("127.0.0.2", "127.0.0.3");
    between("127.0.0.3", "127.0.0.2");
    between("127.0.0.1", "127.0.0.1");
    between("::1", "::1");
}
