//! Runs every kind of turn briefly, with both ends and real sockets, and checks its output. The program itself verifies its data.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::collections::HashMap;
use std::process::Command;

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
