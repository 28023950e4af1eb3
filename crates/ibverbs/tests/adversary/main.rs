//! Tests of `ironwarp run --adversary`: programs that rely on what no specification promises fail, and programs that do
//! not succeed. docs/adversary.md lists what the adversary does.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/programs.rs"]
mod programs;

use common::{libraries, scratch};
use programs::{run, run_pair};

/// Number of seeds within which a program that relies on what is not promised must fail.
const SEEDS: u64 = 100;
/// Number of seeds with which a correct program must succeed: fewer in the short form.
fn passing_seeds() -> u64 {
    if std::env::var_os("IRON_TEST_FULL").is_some() { SEEDS } else { 4 }
}

/// Exit status of the C program if what it relied on was not so.
const FOUND: i32 = 3;

/// Compiles the C program for a test, and returns its path.
fn compile(test: &str) -> String {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/adversary/relies.c");
    let program = scratch(test).join("relies");
    let folder = libraries();
    let folder = folder.to_str().unwrap();
    common::compile(&program, &["-O1", "-g", "-pthread", source, "-L", folder, "-lrdmacm", "-libverbs"]);
    program.to_str().unwrap().to_owned()
}

/// Checks that the mode `relies` of the C program fails with some seed, and prints `message`, but not without an
/// adversary, and that the mode `correct` succeeds with every seed.
fn finds(test: &str, relies: &str, message: &str, correct: &str) {
    let program = compile(test);
    for mode in [relies, correct] {
        let ended = run(test, &[], &[&program, mode]);
        assert_eq!(ended.code, 0, "{mode}: {}", ended.output);
        assert!(!ended.output.contains("adversary"), "{}", ended.output);
    }
    let found = (1..=SEEDS).find_map(|seed| {
        let ended = run(test, &["--adversary", &seed.to_string()], &[&program, relies]);
        (ended.code != 0).then_some((seed, ended))
    });
    let (seed, ended) = found.expect("not found");
    assert_eq!(ended.code, FOUND, "seed {seed}: {}", ended.output);
    assert!(ended.output.contains(message), "seed {seed}: {}", ended.output);
    assert!(
        ended.output.contains(&format!("ironwarp: adversary with seed {seed}; reproduce")),
        "{}",
        ended.output
    );
    assert!(ended.output.contains(&format!("adversary {seed}: ")), "{}", ended.output);
    for seed in 1..=passing_seeds() {
        let ended = run(test, &["--adversary", &seed.to_string()], &[&program, correct]);
        assert_eq!(ended.code, 0, "{correct}, seed {seed}: {}", ended.output);
    }
    std::fs::remove_dir_all(scratch(test)).unwrap();
}

/// RFC 5040 §5.5, rules 3 and 5.
#[test]
fn a_program_that_polls_the_memory_of_a_write_is_found() {
    finds("adversary-write", "last-byte", "the payload is not complete", "after-send");
}

/// No manual page promises that a connection is reported before its first message.
#[test]
fn a_program_that_expects_the_report_of_a_connection_first_is_found() {
    let message = "the connection was not reported";
    finds("adversary-established", "established-first", message, "established-any-time");
}

/// ibv_get_cq_event(3): "there may be an extra event with no completion in the CQ".
#[test]
fn a_program_that_expects_a_completion_for_each_event_is_found() {
    let message = "an event without a completion";
    finds("adversary-event", "event-means-completion", message, "event-may-be-empty");
}

/// perftest polls once after an event, takes what it finds for a completion, and posts more than its queue can hold.
#[test]
fn perftest_expects_a_completion_for_each_event() {
    let test = "adversary-perftest";
    let words = ["ib_send_lat", "-F", "-n", "100"];
    let with_events = [&words[..], &["-e"]].concat();
    let (_, plain) = run_pair(test, &[], &[], &with_events);
    assert_eq!(plain.code, 0, "{}", plain.output);
    let fails = |seed: u64| {
        let seed = ["--adversary", &seed.to_string()].map(str::to_owned);
        let options = [&*seed[0], &*seed[1]];
        run_pair(test, &options, &options, &with_events).1.code != 0
    };
    assert!((1..=SEEDS).any(fails), "not found");
    for seed in 1..=passing_seeds() / 2 {
        let seed = seed.to_string();
        let options = ["--adversary", &seed];
        let (server, client) = run_pair(test, &options, &options, &words);
        assert_eq!((server.code, client.code), (0, 0), "{}\n{}", server.output, client.output);
    }
    std::fs::remove_dir_all(scratch(test)).unwrap();
}
