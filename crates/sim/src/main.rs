//! `ironwarp-sim`: runs simulations, each from a seed, until one fails.

use ironwarp_sim::{Trace, datagrams, iscsi, notification, scenario};
use std::env::args;
use std::fmt::Display;
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, available_parallelism};

const HELP: &str = "\
Simulate adapters and check everything they do.

Usage:
  ironwarp-sim                    run the first 10,000 seeds of two programs at work
  ironwarp-sim --seeds N          run the first N seeds
  ironwarp-sim --seed N           run seed N and print its trace
  ironwarp-sim --events           run ten million events of completion queues and handlers
  ironwarp-sim --events --seeds N
  ironwarp-sim --events --seed N
  ironwarp-sim --datagrams        run the first 4,000 seeds of acknowledged datagrams
  ironwarp-sim --datagrams --seeds N
  ironwarp-sim --datagrams --seed N
  ironwarp-sim --iscsi            run the first 10,000 seeds of an iSCSI initiator and its target
  ironwarp-sim --iscsi --seeds N
  ironwarp-sim --iscsi --seed N
  ironwarp-sim --help             print this help
";

/// Number of seeds of scenarios that together cover everything.
const SCENARIO_SEEDS: u64 = 10_000;
/// Number of seeds that together have at least `MIN_EVENTS` events.
const EVENT_SEEDS: u64 = 7_000;
/// Minimum number of completion events of a full run.
const MIN_EVENTS: u64 = 10_000_000;

/// Number of seeds of acknowledged datagrams that together cover everything.
const DATAGRAM_SEEDS: u64 = 4_000;
/// Number of seeds of a full run in iSCSI mode.
const ISCSI_SEEDS: u64 = 10_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["-h" | "--help"] => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        [] => run_scenarios(SCENARIO_SEEDS),
        ["--seeds", number] => with_number(number, run_scenarios),
        ["--seed", number] => {
            with_number(number, |seed| print_trace(seed, |keep| scenario::trace(seed, keep)))
        }
        ["--events"] => run_events(EVENT_SEEDS),
        ["--events", "--seeds", number] => with_number(number, run_events),
        ["--events", "--seed", number] => {
            with_number(number, |seed| print_trace(seed, |keep| notification::trace(seed, keep)))
        }
        ["--datagrams"] => run_datagrams(DATAGRAM_SEEDS),
        ["--datagrams", "--seeds", number] => with_number(number, run_datagrams),
        ["--datagrams", "--seed", number] => {
            with_number(number, |seed| print_trace(seed, |keep| datagrams::trace(seed, keep)))
        }
        ["--iscsi"] => run_iscsi(ISCSI_SEEDS),
        ["--iscsi", "--seeds", number] => with_number(number, run_iscsi),
        ["--iscsi", "--seed", number] => {
            with_number(number, |seed| print_trace(seed, |keep| iscsi::trace(seed, keep)))
        }
        _ => print_error("invalid arguments"),
    }
}

/// Parses a number and passes it to `run`. Prints an error if the argument is not a number.
fn with_number(number: &str, run: impl Fn(u64) -> ExitCode) -> ExitCode {
    number.parse().map_or_else(|_| print_error(&format!("invalid number `{number}`")), run)
}

/// Prints a message that the arguments are wrong.
fn print_error(message: &str) -> ExitCode {
    eprintln!("ironwarp-sim: {message}; see `ironwarp-sim --help`");
    ExitCode::FAILURE
}

/// Runs one seed and prints its trace, even if the seed fails.
fn print_trace<T: Display>(seed: u64, run: impl FnOnce(&mut dyn FnMut(Trace)) -> T) -> ExitCode {
    let mut kept = None;
    let outcome = catch_unwind(AssertUnwindSafe(|| run(&mut |trace| kept = Some(trace))));
    for line in kept.iter().flat_map(Trace::lines) {
        println!("{line}");
    }
    match outcome {
        Ok(outcome) => {
            println!("seed {seed}: {outcome}");
            ExitCode::SUCCESS
        }
        Err(_) => {
            println!("seed {seed} failed, see above");
            ExitCode::FAILURE
        }
    }
}

/// Runs the first `seeds` scenarios of two programs at work, and prints what they covered.
fn run_scenarios(seeds: u64) -> ExitCode {
    let Some(total) = run_seeds(seeds, scenario::run, "") else { return ExitCode::FAILURE };
    println!("{}\n\n{seeds} seeds: {total}", total.coverage);
    // Fewer seeds need not cover everything.
    if seeds < SCENARIO_SEEDS { ExitCode::SUCCESS } else { check_coverage(&total.coverage.missing()) }
}

/// Runs the first `seeds` simulations of completion events, and prints what they covered.
fn run_events(seeds: u64) -> ExitCode {
    let Some(total) = run_seeds(seeds, notification::run, "--events ") else { return ExitCode::FAILURE };
    println!("{total} in {seeds} seeds");
    if seeds < EVENT_SEEDS {
        return ExitCode::SUCCESS;
    }
    assert!(total.events >= MIN_EVENTS, "too few events: {}", total.events);
    check_coverage(&total.missing())
}

/// Runs the first `seeds` simulations of acknowledged datagrams, and prints what they covered.
fn run_datagrams(seeds: u64) -> ExitCode {
    let Some(total) = run_seeds(seeds, datagrams::run, "--datagrams ") else { return ExitCode::FAILURE };
    println!("{total} in {seeds} seeds");
    if seeds < DATAGRAM_SEEDS { ExitCode::SUCCESS } else { check_coverage(&total.missing()) }
}

/// Runs the first `seeds` simulations of iSCSI, and prints what they covered.
fn run_iscsi(seeds: u64) -> ExitCode {
    let Some(total) = run_seeds(seeds, iscsi::run, "--iscsi ") else { return ExitCode::FAILURE };
    println!("{total} in {seeds} seeds");
    if seeds < ISCSI_SEEDS { ExitCode::SUCCESS } else { check_coverage(&total.missing()) }
}

/// Fails if anything that the seeds must cover is missing.
fn check_coverage(missing: &[String]) -> ExitCode {
    if missing.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("ironwarp-sim: not covered by any seed: {}", missing.join("; "));
    ExitCode::FAILURE
}

/// Calls `one` for each of the first `seeds` seeds, on all processors, and returns the sum of the results. If a seed
/// fails, prints the command that reproduces the failure, which includes `options`, and returns `None`.
fn run_seeds<T>(seeds: u64, one: fn(u64) -> T, options: &str) -> Option<T>
where
    T: Default + Send + for<'t> AddAssign<&'t T>,
{
    let threads = available_parallelism().map_or(1, usize::from);
    let failed = AtomicBool::new(false);
    let next = AtomicU64::new(0);
    let work = || {
        let mut total = T::default();
        while !failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                break;
            }
            match catch_unwind(|| one(seed)) {
                Ok(outcome) => total += &outcome,
                Err(_) => {
                    failed.store(true, Ordering::Relaxed);
                    // Printed in one piece, because other threads may print failures, too.
                    let line = format!(
                        "seed {seed} failed: reproduce with `cargo xtask sim {options}--seed {seed}`\n"
                    );
                    eprint!("{line}");
                }
            }
        }
        total
    };
    let mut total = T::default();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            total += &thread.join().expect("panics are caught");
        }
    });
    (!failed.into_inner()).then_some(total)
}
