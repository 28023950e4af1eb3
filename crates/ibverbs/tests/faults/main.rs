//! Tests of unmodified programs with every fault that `ironwarp run --faults` can inject: perftest, an MPI program,
//! and a C program that prints the results of its calls. docs/faults.md describes the results.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/programs.rs"]
mod programs;

use common::{libraries, scratch};
use ironwarp_testkit::process::Exit;
use programs::{OFI, UCX, mpirun, run, run_pair};
use std::collections::BTreeMap;

/// Faults that only cause delays, with their names in the summary.
const HARMLESS: [(&str, &str); 4] = [
    ("split=0.2", "splits"),
    ("delay=50us..200us@0.2", "delays"),
    ("stall=50us..200us@0.2", "stalls"),
    ("no-receive@0.2", "withheld receives"),
];

/// The options that inject faults.
fn faults<'a>(plan: &'a str, seed: &'a str) -> [&'a str; 4] {
    ["--faults", plan, "--seed", seed]
}

/// Returns the number of injected faults of a kind, from the summaries that all processes log.
fn count(ended: &Exit, fault: &str) -> u64 {
    let ends = format!(" {fault}");
    let summaries = ended.output.lines().filter(|line| line.contains(" splits, "));
    let entries = summaries.flat_map(|line| line.rsplit(": ").next().unwrap().split(", "));
    entries.filter_map(|entry| entry.strip_suffix(&ends)).map(|count| count.parse::<u64>().unwrap()).sum()
}

/// Compiles the C program for a test, and returns its path.
fn compile_meets(test: &str) -> String {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/faults/meets.c");
    let program = scratch(test).join("meets");
    let folder = libraries();
    let folder = folder.to_str().unwrap();
    common::compile(&program, &["-O1", "-g", "-pthread", source, "-L", folder, "-lrdmacm", "-libverbs"]);
    program.to_str().unwrap().to_owned()
}

/// Removes the folder of a test.
fn clean(test: &str) {
    std::fs::remove_dir_all(scratch(test)).unwrap();
}

// --- A program in C ---

#[test]
fn delays_change_nothing_for_a_c_program() {
    let test = "faults-c-harmless";
    let program = compile_meets(test);
    for (plan, fault) in HARMLESS {
        let ended = run(test, &faults(plan, "7"), &[&program, "unharmed"]);
        assert_eq!(ended.code, 0, "{plan}: {}", ended.output);
        assert!(count(&ended, fault) > 0, "{plan}: {}", ended.output);
    }
    clean(test);
}

/// The request in flight fails with IBV_WC_RETRY_EXC_ERR, receives with IBV_WC_WR_FLUSH_ERR, and both ends
/// get DISCONNECTED.
#[test]
fn a_cut_reaches_a_c_program_as_completions_and_events() {
    let test = "faults-c-cut";
    let program = compile_meets(test);
    for seed in ["1", "2", "3"] {
        let ended = run(test, &faults("cut@0.02", seed), &[&program, "cut"]);
        assert_eq!(ended.code, 0, "{}", ended.output);
        // The signals that set up shared memory may be cut as well, between two messages: the next one is flushed.
        let statuses = ["transport retry counter exceeded", "Work Request Flushed Error"];
        let found = statuses.iter().any(|it| ended.output.contains(&format!("messages, then {it}")));
        assert!(found, "{}", ended.output);
        assert_eq!(count(&ended, "cuts"), 1, "{}", ended.output);
    }
    clean(test);
}

/// A sender that gives up gets IBV_WC_RNR_RETRY_EXC_ERR.
#[test]
fn a_receive_withheld_too_long_fails_a_c_program() {
    let test = "faults-c-receive";
    let ended = run(test, &faults("no-receive@1", "7"), &[&compile_meets(test), "not_ready"]);
    assert_eq!(ended.code, 0, "{}", ended.output);
    assert!(ended.output.contains("RNR retry counter exceeded"), "{}", ended.output);
    assert!(count(&ended, "withheld receives") > 0, "{}", ended.output);
    clean(test);
}

/// `ibv_reg_mr` returns NULL with ENOMEM, which the program checks. The same calls fail each time.
#[test]
fn the_same_registrations_fail_with_the_same_seed() {
    let test = "faults-c-register";
    let program = compile_meets(test);
    let failed = |seed| {
        let ended = run(test, &faults("no-register@0.3", seed), &[&program, "registers"]);
        assert_eq!(ended.code, 0, "{}", ended.output);
        let line = ended.output.lines().find(|line| line.starts_with(['.', 'x'])).unwrap().to_owned();
        assert_eq!(
            count(&ended, "failed registrations"),
            line.matches('x').count() as u64,
            "{}",
            ended.output
        );
        line
    };
    let first = failed("7");
    assert!(first.contains('x') && first.contains('.'), "{first}");
    assert_eq!(first, failed("7"));
    assert_ne!(first, failed("8"));
    clean(test);
}

// --- The same seed ---

/// How often a receive is withheld depends only on the messages.
#[test]
fn the_same_seed_withholds_as_many_receives() {
    let test = "faults-seed-receives";
    let program = compile_meets(test);
    let withheld = |seed: &str| {
        let ended = run(test, &faults("no-receive@0.2", seed), &[&program, "unharmed"]);
        assert_eq!(ended.code, 0, "{}", ended.output);
        count(&ended, "withheld receives")
    };
    let first = withheld("7");
    assert_eq!(first, withheld("7"));
    assert!((8..20).any(|seed| withheld(&seed.to_string()) != first), "whatever the seed");
    clean(test);
}

/// A call on a connection: the number of the connection, the direction, and the number of calls before it.
type Call = (u64, String, u64);

/// Parses the adapter's log: which fault was injected at which call.
fn decisions(log: &str) -> BTreeMap<Call, String> {
    let injected = log.lines().filter_map(|line| line.strip_prefix("ironwarp: injected fault (stream "));
    let decision = |line: &str| {
        let (stream, rest) = line.split_once(", at call ").unwrap();
        let (call, rest) = rest.split_once(" that ").unwrap();
        let (does, fault) = rest.split_once(", fault ").unwrap();
        ((stream.parse().unwrap(), does.to_owned(), call.parse().unwrap()), fault.to_owned())
    };
    injected.map(decision).collect()
}

/// The number of calls depends on how TCP delivers bytes. The fault at each call, and its delay, depends only on the
/// seed.
#[test]
fn the_same_seed_makes_the_same_decisions_at_the_same_calls() {
    let test = "faults-seed-calls";
    let program = compile_meets(test);
    let decided = |seed| {
        let options =
            [&["--log", "debug"], &faults("delay=20us..90us@0.1,stall=20us..90us@0.05", seed)[..]].concat();
        let ended = run(test, &options, &[&program, "unharmed"]);
        assert_eq!(ended.code, 0, "{}", ended.output);
        decisions(&ended.output)
    };
    let (first, second, other) = (decided("7"), decided("7"), decided("8"));
    // Both runs have made all calls up to their last faults, in each direction of each connection. Only those are
    // compared.
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
fn delays_change_nothing_for_perftest() {
    let test = "faults-perftest-harmless";
    for (plan, fault) in HARMLESS {
        let options = faults(plan, "7");
        for words in [&["ib_send_lat", "-n", "200", "-F"][..], &["ib_write_bw", "-n", "200", "-F"]] {
            let (server, client) = run_pair(test, &options, &options, words);
            assert_eq!((server.code, client.code), (0, 0), "{plan}: {}{}", server.output, client.output);
            let made = count(&server, fault) + count(&client, fault);
            // Writes use no receives.
            assert_eq!(
                made > 0,
                words[0] == "ib_send_lat" || !plan.starts_with("no-receive"),
                "{plan}: {words:?}"
            );
        }
    }
    clean(test);
}

/// Status 12 is IBV_WC_RETRY_EXC_ERR. If all Sends had completed and only the message of the peer was missing, a
/// receive is flushed instead: status 5, with the same reason.
#[test]
fn a_cut_ends_perftest_with_an_error_completion() {
    let test = "faults-perftest-cut";
    for words in [&["ib_send_lat", "-n", "1000", "-F"][..], &["ib_write_bw", "-n", "1000", "-F"]] {
        let (server, client) = run_pair(test, &[], &faults("cut@0.02", CUT_LATE), words);
        assert!(client.code != 0 && server.code != 0, "{}{}", server.output, client.output);
        let status = if words[0] == "ib_send_lat" && no_request_failed(&client.output) { 5 } else { 12 };
        let failed = format!("Failed status {status}: wr_id 0 syndrom 0x49080067");
        assert!(client.output.contains(&failed), "{}", client.output);
        assert_eq!(count(&client, "cuts"), 1, "{}", client.output);
    }
    clean(test);
}

/// Whether the adapter logged the end of the connection without a failed request.
fn no_request_failed(log: &str) -> bool {
    log.contains("ironwarp: the connection ended: the connection was lost: ")
}

/// A seed whose first cut of a program's first connection comes while it is in use.
const CUT_LATE: &str = "3";

#[test]
fn perftest_says_that_memory_is_not_registered() {
    let test = "faults-perftest-register";
    let (_, client) = run_pair(test, &[], &faults("no-register@1", "7"), &["ib_write_bw", "-F"]);
    assert_eq!(client.code, 1, "{}", client.output);
    assert!(client.output.contains("Couldn't allocate MR"), "{}", client.output);
    assert_eq!(count(&client, "failed registrations"), 1, "{}", client.output);
    clean(test);
}

// --- MPI ---

#[test]
fn delays_change_nothing_for_an_mpi_program() {
    let test = "faults-mpi-harmless";
    let program = programs::compile_exchange(test);
    for (plan, fault) in HARMLESS {
        let ended = mpirun(test, &faults(plan, "7"), UCX, &program);
        assert_eq!(ended.code, 0, "{plan}: {}", ended.output);
        assert!(ended.output.contains("exchange: all bytes as sent"), "{plan}: {}", ended.output);
        assert!(count(&ended, fault) > 0, "{plan}: {}", ended.output);
    }
    clean(test);
}

/// UCX aborts a rank whose request failed, and `mpirun` aborts the others.
#[test]
fn a_cut_ends_an_mpi_program_with_an_error_completion() {
    let test = "faults-mpi-cut";
    let ended = mpirun(test, &faults("cut@0.03", CUT_IN_MPI), UCX, &programs::compile_exchange(test));
    assert_ne!(ended.code, 0, "{}", ended.output);
    assert!(
        ended.output.contains("failed: transport retries exceeded: no acknowledgement from the peer"),
        "{}",
        ended.output
    );
    assert!(ended.output.contains("send completion with error: "), "{}", ended.output);
    assert!(!ended.output.contains("all bytes as sent"), "{}", ended.output);
    clean(test);
}

/// A seed that cuts the connections of two ranks while they are in use.
const CUT_IN_MPI: &str = "2";

/// libfabric returns the error, and Open MPI exits with MPI_ERR_OTHER. UCX would retry forever.
#[test]
fn an_mpi_program_learns_that_memory_is_not_registered() {
    let test = "faults-mpi-register";
    let options = [&["--log", "debug"], &faults("no-register@1", "7")[..]].concat();
    let ended = mpirun(test, &options, OFI, &programs::compile_exchange(test));
    assert_eq!(ended.code, MPI_ERR_OTHER, "{}", ended.output);
    assert!(ended.output.contains("fault failed registration"), "{}", ended.output);
    clean(test);
}

/// The number of this error in Open MPI.
const MPI_ERR_OTHER: i32 = 16;

// --- The page ---

/// Each block of docs/faults.md has the commands of a server and a client, and the output of the client.
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
            assert!(client.output.contains(line), "{line}: {}", client.output);
        }
    }
    clean(test);
}
