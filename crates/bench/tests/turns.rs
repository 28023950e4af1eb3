//! Runs every kind of turn briefly, with both ends and real sockets, and checks its output. The program itself verifies its data.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

fn turn(words: &str) -> HashMap<String, f64> {
    let program = env!("CARGO_BIN_EXE_ironwarp-bench");
    let output = Command::new(program).arg("millis=10").args(words.split_whitespace()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    let pair = |word: &str| word.split_once('=').map(|(key, value)| (key.to_owned(), value.parse().unwrap()));
    said.split_whitespace().filter_map(pair).collect()
}

fn all_of(words: &[&str], figure: &str) {
    for words in words {
        let said = turn(words);
        assert!(said[figure] > 0.0, "{words}: {said:?}");
        assert!(
            figure == "resident" || (said["client"] >= 0.0 && said["server"] >= 0.0),
            "{words}: {said:?}"
        );
    }
}

#[test]
fn ping_pong() {
    let ways = [
        "",
        "acked=true",
        "blocking=true",
        "blocking=true acked=true",
        "size=262144",
        "transport=bare",
        "transport=bare blocking=true",
    ];
    all_of(&ways.map(|way| format!("workload=pingpong {way}")).each_ref().map(String::as_str), "half");
}

#[test]
fn beside_bulk_traffic() {
    let ways = ["", "urgent=true", "load=2", "load=2 urgent=true"];
    all_of(
        &ways.map(|way| format!("workload=priority size=64 {way}")).each_ref().map(String::as_str),
        "half",
    );
}

#[test]
fn a_consumer_that_sleeps() {
    let words = |events: usize| format!("operation=send size=64 queued=8 acked=true events={events}");
    all_of(&[&words(1), &words(8)], "wakes");
}

#[test]
fn ends_that_sleep_for_every_message() {
    for words in ["events=1", "transport=bare blocking=true"] {
        let said = turn(&format!("workload=pingpong {words}"));
        // At least one each on an idle machine; on a busy one, a message may arrive before its receiver sleeps.
        assert!(said["switches"] > 0.5, "{words}: {said:?}");
    }
}

#[test]
fn settings_of_the_environment_apply() {
    let capture = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("turn-{}.pcap", std::process::id()));
    let program = env!("CARGO_BIN_EXE_ironwarp-bench");
    let done = Command::new(program).args(["millis=1", "queued=4"]).env("IRONWARP_PCAP", &capture).status();
    assert!(done.unwrap().success());
    assert!(fs::metadata(&capture).unwrap().len() > 0);
    fs::remove_file(capture).unwrap();
}

#[test]
fn a_busy_neighbour_computes_until_it_is_killed() {
    let mut neighbour = Command::new(env!("CARGO_BIN_EXE_ironwarp-bench")).arg("compute").spawn().unwrap();
    let times = format!("/proc/{}/schedstat", neighbour.id());
    let computed = || fs::read_to_string(&times).unwrap().split(' ').next().unwrap().parse::<u64>().unwrap();
    // Far more than a process needs in order to start and to end.
    while computed() < 50_000_000 {
        assert_eq!(neighbour.try_wait().unwrap(), None);
        thread::yield_now();
    }
    neighbour.kill().unwrap();
    neighbour.wait().unwrap();
}

#[test]
fn memory_is_watched() {
    all_of(
        &[
            "workload=watch",
            "workload=watch acked=true",
            "workload=watch acked=true polls=true",
            "workload=watch transport=bare",
        ],
        "half",
    );
}

#[test]
fn bulk() {
    for operation in ["write", "read", "send"] {
        let common = format!("operation={operation} size=262144 queued=4 crc=false");
        all_of(&[&common, &format!("{common} acked=true")], "bytes");
    }
    let crc = "size=262144 queued=4 crc=true";
    all_of(
        &[crc, "transport=bare size=262144", "transport=bare size=262144 blocking=true reno=false"],
        "bytes",
    );
}

#[test]
fn many_small_messages() {
    for size in [8, 4096, 65_536] {
        let queued = format!("size={size} queued=16 batch=16");
        all_of(&[&queued, &format!("{queued} acked=true"), &format!("transport=bare {queued}")], "messages");
    }
    all_of(&["size=8 queued=64", "size=8 queued=64 acked=true", "transport=bare size=30"], "messages");
    all_of(&["transport=bare size=65536 queued=16 acked=true"], "messages");
}

#[test]
fn requests_on_many_connections() {
    let common = "workload=requests size=64 queued=32 connections=50";
    all_of(&[common, &format!("{common} acked=true"), &format!("transport=bare {common}")], "messages");
}

#[test]
fn idle_queue_pairs() {
    all_of(&["workload=idle connections=100"], "resident");
}

#[test]
fn nonsense_is_refused() {
    let program = env!("CARGO_BIN_EXE_ironwarp-bench");
    assert!(!Command::new(program).arg("size=none").output().unwrap().status.success());
}
