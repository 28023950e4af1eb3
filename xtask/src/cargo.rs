//! Jobs that only run cargo.

use crate::dropin;
use crate::fuzz;
use crate::no_std;
use crate::shell::{Result, command, output, run};
use crate::workspace::Workspace;
use std::num::NonZero;
use std::process::Command;
use std::thread;

pub(crate) fn fmt(_: &Workspace, _: &[String]) -> Result {
    run(&mut command("cargo", &["fmt", "--all", "--check"]))
}

/// Enables the optional features of the native API, which is checked and tested with all of them. The programs of the
/// workspace use none, so jobs that build only those build the crate without.
pub(crate) const FEATURES: [&str; 2] = ["--features", "ironwarp/tokio"];

pub(crate) fn clippy(_: &Workspace, _: &[String]) -> Result {
    let arguments = ["clippy", "--workspace", "--all-targets", "--locked"];
    run(command("cargo", &arguments).args(FEATURES).args(["--", "-D", "warnings"]))
}

pub(crate) const TEST_USAGE: &str = "test [--full]";

/// Tests that do more, or check more strictly, if `IRON_TEST_FULL` is set. They then run one at a time.
const LONG_FORMS: &str = "test(/^flood::/) + test(/^revocation::/) + test(strangers_at_the_peers_address) \
    + test(/^cancel::dropped_futures/) + (binary(shm) & test(/^(switching|kills|idle)::/)) \
    + (binary(ports) & test(/^a_program_recovers/)) + (binary(hand_over_protocol) & test(/^instants::/)) \
    + test(/^sys::tcp_repair::tests::moving::/) + (binary(hand_over) & test(/^(host_)?(load|kills)::/)) \
    + (binary(sessions) & test(/^random::/)) + (binary(lies) & test(/^late::/)) \
    + (binary(real) & test(/^(copies|kills)::/)) \
    + (binary(lan) & test(/^(kills|stalled)::/)) + (binary(adversary) & test(/_is_found$/))";

/// Leaves out the fuzz targets, which have no tests and get their `main` from libFuzzer.
pub(crate) fn test(workspace: &Workspace, options: &[String]) -> Result {
    let full = is_full(options, TEST_USAGE)?;
    dropin::run(workspace, &[])?; // some tests run programs on it
    let nextest = ["nextest", "run", "--workspace", "--locked", "--no-fail-fast", "--exclude", fuzz::PACKAGE];
    // Many tests wait for a timeout, so more of them run at a time than there are processors.
    let threads = thread::available_parallelism().map_or(1, NonZero::get) * 3 / 2;
    run(command("cargo", &nextest).args(FEATURES).args(["--test-threads", &threads.to_string()]))?;
    if full {
        let long = ["--test-threads", "1", "--profile", "long", "--filterset", LONG_FORMS];
        run(command("cargo", &nextest).args(FEATURES).args(long).env("IRON_TEST_FULL", "1"))?;
    }
    // Without std, the wire crate computes the CRC differently.
    run(&mut command(
        "cargo",
        &["nextest", "run", "--package", no_std::PACKAGE, "--locked", "--no-default-features", "--lib"],
    ))?;
    let doc = ["test", "--doc", "--workspace", "--locked", "--exclude", fuzz::PACKAGE];
    run(command("cargo", &doc).args(FEATURES))
}

pub(crate) fn doc(_: &Workspace, _: &[String]) -> Result {
    let arguments = ["doc", "--no-deps", "--workspace", "--locked", "--exclude", fuzz::PACKAGE];
    run(command("cargo", &arguments).args(FEATURES).env("RUSTDOCFLAGS", "-D warnings"))
}

/// Where tests called `loom` are. Each entry is one run of cargo.
const LOOM: [&[&str]; 2] = [
    &["--package", "ironwarp-rnic", "--lib", "--test", "loom_memory"],
    &["--package", "ironwarp-shm", "--lib"],
];

/// Runs the tests called `loom`, in a build of its own that replaces threads and locks with loom's.
pub(crate) fn loom(workspace: &Workspace, _: &[String]) -> Result {
    LOOM.iter().try_for_each(|tests| {
        let mut command = command("cargo", &["test", "--profile", "optimized", "--locked"]);
        command.args(*tests).arg("loom").env("CARGO_TARGET_DIR", workspace.target.join("loom"));
        run(command.env("RUSTFLAGS", "--cfg loom").env("LOOM_MAX_PREEMPTIONS", "3"))
    })
}

/// Passes ten million events between threads, which needs an optimised build; `test` passes 200,000.
pub(crate) fn events(_: &Workspace, _: &[String]) -> Result {
    let test = ["--package", "ironwarp-engine", "--test", "notification", "ten_million", "--", "--nocapture"];
    run(command("cargo", &["test", "--profile", "optimized", "--locked", "--quiet"]).args(test))
}

pub(crate) const SIM_USAGE: &str = "sim [--full | [--events | --datagrams | --iscsi] [--seed N | --seeds N]]";

const SIM: [&str; 8] =
    ["run", "--profile", "optimized", "--locked", "--quiet", "--package", "ironwarp-sim", "--"];

/// The simulator's options by default: first whole programs, then events only, then acknowledged datagrams, then
/// iSCSI. With `--full` it runs with its own defaults, which reach everything the simulation is meant to reach, and checks that they do.
const SOME_SEEDS: [&[&str]; 4] = [
    &["--seeds", "2000"],
    &["--events", "--seeds", "600"],
    &["--datagrams", "--seeds", "1000"],
    &["--iscsi", "--seeds", "1000"],
];
const ALL_SEEDS: [&[&str]; 4] = [&[], &["--events"], &["--datagrams"], &["--iscsi"]];

/// Deliberate bugs: it does not take back what was not sent, executes an atomic operation again when its
/// response is sent again, does not wake a queue pair that waits for a shared receive, drops the bytes that arrived
/// together with the signal to switch to another route, sends the message of a request whose registration was refused,
/// assigns the tags of a used-up index again, or asks the peer to leave shared memory before it has left itself.
const BROKEN: [&str; 7] = ["batch", "atomic", "waiter", "unread", "combined", "retire", "leave"];

/// What a program that moves to another function forgets in each of these builds: the unsent tail of an FPDU, the part of one
/// that has arrived, messages that wait for a receive, a claim on one-touch memory, responses that it owes, the results
/// of atomic operations, the Reads that were not answered, its receives, completions that were not polled, or that a
/// completion queue is armed.
const BROKEN_MOVES: [&str; 10] = [
    "tail",
    "partial",
    "parked",
    "claim",
    "responses",
    "result",
    "unanswered",
    "receives",
    "completions",
    "arming",
];

/// Further deliberate bugs: a resized completion queue loses its last entry, one moved to another handler
/// stays unarmed, or a moderated one does not start its timer. Both simulations must find these.
const BROKEN_EVENTS: [&str; 3] = ["resize", "move", "timer"];

/// Deliberate bugs that only the simulation of events can find: a resized event queue stays unarmed, early
/// asynchronous events are dropped, a new handler gets no memory when a queue is moved to it, or an event queue stays
/// unarmed after it was polled.
const BROKEN_QUEUES: [&str; 4] = ["switch", "early", "memory", "late"];

/// Bugs of acknowledged datagrams: the cookies of a session stay valid after it was replaced, any cookie is valid, a message
/// is placed whenever it arrives, or is sent again in another session.
const BROKEN_DATAGRAMS: [&str; 4] = ["evicted", "cookie", "window", "resend"];

/// Runs the simulator, with our options. Without options, or with `--full`, it must also find the deliberate
/// bugs.
pub(crate) fn sim(workspace: &Workspace, options: &[String]) -> Result {
    let runs = match options {
        [] => SOME_SEEDS,
        [option] if option == FULL => ALL_SEEDS,
        _ => return run(simulator(workspace).args(options)),
    };
    runs.iter().try_for_each(|options| run(simulator(workspace).args(*options)))?;
    BROKEN
        .into_iter()
        .chain(BROKEN_MOVES)
        .chain(BROKEN_EVENTS)
        .try_for_each(|bug| find_bug(workspace, bug, &[]))?;
    let mut bugs = BROKEN_EVENTS.into_iter().chain(BROKEN_QUEUES);
    bugs.try_for_each(|bug| find_bug(workspace, bug, &["--events"]))?;
    BROKEN_DATAGRAMS.into_iter().try_for_each(|bug| find_bug(workspace, bug, &["--datagrams"]))
}

/// One build serves all runs: `IRONWARP_BROKEN` enables a deliberate bug.
fn simulator(workspace: &Workspace) -> Command {
    let mut simulator = command("cargo", &SIM);
    simulator.env("CARGO_TARGET_DIR", workspace.target.join("sim"));
    simulator.env("RUSTFLAGS", "--cfg ironwarp_broken").env_remove("IRONWARP_BROKEN");
    simulator
}

/// Runs the simulator with a deliberate bug, which it must find.
fn find_bug(workspace: &Workspace, bug: &str, options: &[&str]) -> Result {
    match output(simulator(workspace).args(options).env("IRONWARP_BROKEN", bug)) {
        Ok(_) => Err(format!("the simulation did not find the deliberate bug `{bug}`")),
        Err(error) => match error.lines().find(|line| line.contains("failed: reproduce with")) {
            Some(seed) => {
                println!("found the deliberate bug `{bug}`: {seed}");
                Ok(())
            }
            None => Err(error),
        },
    }
}

/// The option for everything, where CI runs only a part.
pub(crate) const FULL: &str = "--full";

fn is_full(options: &[String], usage: &str) -> Result<bool> {
    match options {
        [] => Ok(false),
        [option] if option == FULL => Ok(true),
        _ => Err(format!("usage: cargo xtask {usage}")),
    }
}

/// Does not check advisories: their database changes from day to day, so the same commit could pass today and
/// fail tomorrow.
pub(crate) fn deny(_: &Workspace, _: &[String]) -> Result {
    run(&mut command(
        "cargo",
        &["deny", "--locked", "--all-features", "check", "licenses", "bans", "sources"],
    ))
}
