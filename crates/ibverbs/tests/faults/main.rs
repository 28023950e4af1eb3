//! Unmodified programs meet every fault that `ironwarp run --faults` knows: perftest, an MPI program, and one in C that says
//! what it was told. docs/faults.md has what is found here, in words.

#![expect(clippy::unwrap_used, reason = "a test may stop")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/programs.rs"]
mod programs;

use common::{libraries, scratch};
use programs::{Ended, OFI, UCX, mpirun, run, run_pair};
use std::collections::BTreeMap;

/// Faults after which all is as it would have been, only later, and what the summary calls them.
const HARMLESS: [(&str, &str); 4] = [
    ("split=0.2", "splits"),
    ("delay=50us..200us@0.2", "delays"),
    ("stall=50us..200us@0.2", "stalls"),
    ("no-receive@0.2", "withheld receives"),
];

fn faults<'a>(plan: &'a str, seed: &'a str) -> [&'a str; 4] {
    ["--faults", plan, "--seed", seed]
}

/// How often a fault was made, by the summaries of all processes.
fn count(ended: &Ended, fault: &str) -> u64 {
    let ends = format!(" {fault}");
    let summaries = ended.said.lines().filter(|line| line.contains(" splits, "));
    let entries = summaries.flat_map(|line| line.rsplit(": ").next().unwrap().split(", "));
    entries.filter_map(|entry| entry.strip_suffix(&ends)).map(|count| count.parse::<u64>().unwrap()).sum()
}

/// The program in C, compiled for this test.
fn meets(test: &str) -> String {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/faults/meets.c");
    let program = scratch(test).join("meets");
    let folder = libraries();
    let folder = folder.to_str().unwrap();
    common::compile(&program, &["-O1", "-g", "-pthread", source, "-L", folder, "-lrdmacm", "-libverbs"]);
    program.to_str().unwrap().to_owned()
}

fn clean(test: &str) {
    std::fs::remove_dir_all(scratch(test)).unwrap();
}

// --- A program in C ---

#[test]
fn what_takes_time_changes_nothing_for_a_c_program() {
    let test = "faults-c-harmless";
    let program = meets(test);
    for (plan, fault) in HARMLESS {
        let ended = run(test, &faults(plan, "7"), &[&program, "unharmed"]);
        assert_eq!(ended.code, 0, "{plan}: {}", ended.said);
        assert!(count(&ended, fault) > 0, "{plan}: {}", ended.said);
    }
    clean(test);
}

/// The request that was under way: IBV_WC_RETRY_EXC_ERR. Receives: IBV_WC_WR_FLUSH_ERR. Both ends: DISCONNECTED.
#[test]
fn a_cut_is_told_to_a_c_program_by_completions_and_events() {
    let test = "faults-c-cut";
    let program = meets(test);
    for seed in ["1", "2", "3"] {
        let ended = run(test, &faults("cut@0.02", seed), &[&program, "cut"]);
        assert_eq!(ended.code, 0, "{}", ended.said);
        assert!(ended.said.contains("messages, then transport retry counter exceeded"), "{}", ended.said);
        assert_eq!(count(&ended, "cuts"), 1, "{}", ended.said);
    }
    clean(test);
}

/// A sender that gives up: IBV_WC_RNR_RETRY_EXC_ERR.
#[test]
fn a_receive_that_is_withheld_too_long_is_told_to_a_c_program() {
    let test = "faults-c-receive";
    let ended = run(test, &faults("no-receive@1", "7"), &[&meets(test), "not_ready"]);
    assert_eq!(ended.code, 0, "{}", ended.said);
    assert!(ended.said.contains("RNR retry counter exceeded"), "{}", ended.said);
    assert!(count(&ended, "withheld receives") > 0, "{}", ended.said);
    clean(test);
}

/// `ibv_reg_mr` returns NULL with ENOMEM, which the program checks. The same ones fail each time.
#[test]
fn the_same_registrations_fail_with_the_same_seed() {
    let test = "faults-c-register";
    let program = meets(test);
    let failed = |seed| {
        let ended = run(test, &faults("no-register@0.3", seed), &[&program, "registers"]);
        assert_eq!(ended.code, 0, "{}", ended.said);
        let line = ended.said.lines().find(|line| line.starts_with(['.', 'x'])).unwrap().to_owned();
        assert_eq!(count(&ended, "failed registrations"), line.matches('x').count() as u64, "{}", ended.said);
        line
    };
    let first = failed("7");
    assert!(first.contains('x') && first.contains('.'), "{first}");
    assert_eq!(first, failed("7"));
    assert_ne!(first, failed("8"));
    clean(test);
}

// --- The same seed ---

/// How often a receive is withheld depends on the messages alone.
#[test]
fn the_same_seed_withholds_as_many_receives() {
    let test = "faults-seed-receives";
    let program = meets(test);
    let withheld = |seed: &str| {
        let ended = run(test, &faults("no-receive@0.2", seed), &[&program, "unharmed"]);
        assert_eq!(ended.code, 0, "{}", ended.said);
        count(&ended, "withheld receives")
    };
    let first = withheld("7");
    assert_eq!(first, withheld("7"));
    assert!((8..20).any(|seed| withheld(&seed.to_string()) != first), "whatever the seed");
    clean(test);
}

/// A call of a connection: its number, the direction, and how many calls were before it.
type Call = (u64, String, u64);

/// What happened at which call, by the adapter's log.
fn decisions(said: &str) -> BTreeMap<Call, String> {
    let made = said.lines().filter_map(|line| line.strip_prefix("ironwarp: a fault was made (stream "));
    let decision = |line: &str| {
        let (stream, rest) = line.split_once(", at call ").unwrap();
        let (call, rest) = rest.split_once(" that ").unwrap();
        let (does, fault) = rest.split_once(", fault ").unwrap();
        ((stream.parse().unwrap(), does.to_owned(), call.parse().unwrap()), fault.to_owned())
    };
    made.map(decision).collect()
}

/// How many calls there are depends on how TCP passes bytes on. What happens at each does not: which one waits, and how long.
#[test]
fn the_same_seed_makes_the_same_decisions_at_the_same_calls() {
    let test = "faults-seed-calls";
    let program = meets(test);
    let decided = |seed| {
        let options =
            [&["--log", "debug"], &faults("delay=20us..90us@0.1,stall=20us..90us@0.05", seed)[..]].concat();
        let ended = run(test, &options, &[&program, "unharmed"]);
        assert_eq!(ended.code, 0, "{}", ended.said);
        decisions(&ended.said)
    };
    let (first, second, other) = (decided("7"), decided("7"), decided("8"));
    // Of each direction of each connection, as far as both runs got for certain: to their last faults.
    let last = |of: &BTreeMap<Call, String>, call: &Call| {
        of.keys().filter(|it| (it.0, &it.1) == (call.0, &call.1)).map(|it| it.2).max().unwrap_or(0)
    };
    let common = |of: &BTreeMap<Call, String>| -> BTreeMap<Call, String> {
        let reached = |call: &Call| call.2 <= last(&first, call).min(last(&second, call));
        of.iter()
            .filter(|(call, _)| reached(call))
            .map(|(call, fault)| (call.clone(), fault.clone()))
            .collect()
    };
    assert!(common(&first).len() > 40, "{first:?}");
    assert_eq!(common(&first), common(&second));
    assert_ne!(common(&first), common(&other));
    clean(test);
}

// --- perftest ---

#[test]
fn what_takes_time_changes_nothing_for_perftest() {
    let test = "faults-perftest-harmless";
    for (plan, fault) in HARMLESS {
        let options = faults(plan, "7");
        for words in [&["ib_send_lat", "-n", "200", "-F"][..], &["ib_write_bw", "-n", "200", "-F"]] {
            let (server, client) = run_pair(test, &options, &options, words);
            assert_eq!((server.code, client.code), (0, 0), "{plan}: {}{}", server.said, client.said);
            let made = count(&server, fault) + count(&client, fault);
            // Writes take no receives.
            assert_eq!(
                made > 0,
                words[0] == "ib_send_lat" || !plan.starts_with("no-receive"),
                "{plan}: {words:?}"
            );
        }
    }
    clean(test);
}

/// Status 12 is IBV_WC_RETRY_EXC_ERR. Where all Sends were done already, and the answer was awaited, there is only a receive to fail: flushed, status
/// 5, with the same reason.
#[test]
fn a_cut_ends_perftest_with_an_error_completion() {
    let test = "faults-perftest-cut";
    for words in [&["ib_send_lat", "-n", "1000", "-F"][..], &["ib_write_bw", "-n", "1000", "-F"]] {
        let (server, client) = run_pair(test, &[], &faults("cut@0.02", CUT_LATE), words);
        assert!(client.code != 0 && server.code != 0, "{}{}", server.said, client.said);
        let status = if words[0] == "ib_send_lat" && no_request_failed(&client.said) { 5 } else { 12 };
        let failed = format!("Failed status {status}: wr_id 0 syndrom 0x49080068");
        assert!(client.said.contains(&failed), "{}", client.said);
        assert_eq!(count(&client, "cuts"), 1, "{}", client.said);
    }
    clean(test);
}

/// The adapter names the request that is to blame, if there is one.
fn no_request_failed(said: &str) -> bool {
    said.contains("ironwarp: the connection ended: the connection was lost: ")
}

/// A seed whose first cut of a program's first connection comes when it is in use.
const CUT_LATE: &str = "3";

#[test]
fn perftest_says_that_memory_is_not_registered() {
    let test = "faults-perftest-register";
    let (_, client) = run_pair(test, &[], &faults("no-register@1", "7"), &["ib_write_bw", "-F"]);
    assert_eq!(client.code, 1, "{}", client.said);
    assert!(client.said.contains("Couldn't allocate MR"), "{}", client.said);
    assert_eq!(count(&client, "failed registrations"), 1, "{}", client.said);
    clean(test);
}

// --- MPI ---

#[test]
fn what_takes_time_changes_nothing_for_an_mpi_program() {
    let test = "faults-mpi-harmless";
    let program = programs::exchange(test);
    for (plan, fault) in HARMLESS {
        let ended = mpirun(test, &faults(plan, "7"), UCX, &program);
        assert_eq!(ended.code, 0, "{plan}: {}", ended.said);
        assert!(ended.said.contains("exchange: all bytes as sent"), "{plan}: {}", ended.said);
        assert!(count(&ended, fault) > 0, "{plan}: {}", ended.said);
    }
    clean(test);
}

/// UCX ends a rank whose request failed, and `mpirun` the others.
#[test]
fn a_cut_ends_an_mpi_program_with_an_error_completion() {
    let test = "faults-mpi-cut";
    let ended = mpirun(test, &faults("cut@0.03", CUT_IN_MPI), UCX, &programs::exchange(test));
    assert_ne!(ended.code, 0, "{}", ended.said);
    assert!(
        ended.said.contains("failed: transport retries exceeded: the connection was lost"),
        "{}",
        ended.said
    );
    assert!(ended.said.contains("send completion with error: "), "{}", ended.said);
    assert!(!ended.said.contains("all bytes as sent"), "{}", ended.said);
    clean(test);
}

/// The same for the connections of two ranks.
const CUT_IN_MPI: &str = "2";

/// libfabric passes the error on, and Open MPI ends with MPI_ERR_OTHER; UCX would ask again and again, for ever.
#[test]
fn an_mpi_program_learns_that_memory_is_not_registered() {
    let test = "faults-mpi-register";
    let options = [&["--log", "debug"], &faults("no-register@1", "7")[..]].concat();
    let ended = mpirun(test, &options, OFI, &programs::exchange(test));
    assert_eq!(ended.code, MPI_ERR_OTHER, "{}", ended.said);
    assert!(ended.said.contains("fault failed registration"), "{}", ended.said);
    clean(test);
}

/// Open MPI's number for it.
const MPI_ERR_OTHER: i32 = 16;

// --- The page ---

/// Each block of docs/faults.md has the commands of a server and a client, and what the client prints.
#[test]
fn the_commands_of_the_page_do_what_it_says() {
    let test = "faults-page";
    let page = include_str!("../../../../docs/faults.md");
    let blocks: Vec<_> =
        page.split("```text\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 3);
    for block in blocks {
        let (commands, shown): (Vec<_>, Vec<_>) = block.lines().partition(|line| line.starts_with("$ "));
        let [server, client] = commands[..] else { panic!("{block}") };
        let words = |line: &'static str| -> (Vec<&str>, Vec<&str>) {
            let line = line.strip_prefix("$ ironwarp run ").unwrap();
            let (options, program) = line.split_once("-- ").unwrap();
            (options.split_whitespace().collect(), program.split_whitespace().collect())
        };
        let ((server, program), (client, mut same)) = (words(server), words(client));
        assert_eq!(same.pop(), Some("127.0.0.1"));
        assert_eq!(program, same);
        let (_, client) = run_pair(test, &server, &client, &program);
        for line in shown {
            assert!(client.said.contains(line), "{line}: {}", client.said);
        }
    }
    clean(test);
}
