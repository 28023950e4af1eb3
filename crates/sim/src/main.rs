//! `ironwarp-sim`: runs scenarios, each from a seed, until one fails.

use ironwarp_sim::Trace;
use ironwarp_sim::scenario::{self, Outcome};
use std::env::args;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, available_parallelism};

const HELP: &str = "\
Runs two adapters in a simulated world, and checks all that they do.

Usage:
  ironwarp-sim              run the first 10,000 seeds
  ironwarp-sim --seeds N    run the first N seeds
  ironwarp-sim --seed N     run seed N, and print all that happens in it
  ironwarp-sim --help       print this
";

const SEEDS: u64 = 10_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["-h" | "--help"] => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        [] => run(0..SEEDS),
        ["--seeds", number] => with(number, |count| run(0..count)),
        ["--seed", number] => with(number, trace),
        _ => wrong("what shall it do?"),
    }
}

fn with(number: &str, run: impl Fn(u64) -> ExitCode) -> ExitCode {
    number.parse().map_or_else(|_| wrong(&format!("`{number}` is not a number")), run)
}

fn wrong(message: &str) -> ExitCode {
    eprintln!("ironwarp-sim: {message}; `ironwarp-sim --help` lists what it does");
    ExitCode::FAILURE
}

/// Runs one seed and prints its trace, however it ends.
fn trace(seed: u64) -> ExitCode {
    let mut kept = None;
    let outcome = catch_unwind(AssertUnwindSafe(|| scenario::trace(seed, |trace| kept = Some(trace))));
    for line in kept.iter().flat_map(Trace::lines) {
        println!("{line}");
    }
    match outcome {
        Ok(outcome) => {
            println!("seed {seed}: {outcome}");
            ExitCode::SUCCESS
        }
        Err(_) => {
            println!("seed {seed} failed, as said above");
            ExitCode::FAILURE
        }
    }
}

/// Runs the seeds on all processors: each is a world of its own.
fn run(seeds: Range<u64>) -> ExitCode {
    let runs = seeds.end - seeds.start;
    let threads = available_parallelism().map_or(1, usize::from);
    let failed = AtomicBool::new(false);
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut total = Outcome::default();
        while !failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            match catch_unwind(|| scenario::run(seed)) {
                Ok(outcome) => total += &outcome,
                Err(_) => {
                    failed.store(true, Ordering::Relaxed);
                    // In one piece: others may be saying why they failed.
                    let line = format!("seed {seed} failed: `cargo xtask sim --seed {seed}` does it again\n");
                    eprint!("{line}");
                }
            }
        }
        total
    };
    let mut total = Outcome::default();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            total += &thread.join().expect("what panics is caught");
        }
    });
    if failed.into_inner() {
        return ExitCode::FAILURE;
    }
    println!("{}\n\n{runs} seeds: {total}", total.coverage);
    let missing = total.coverage.missing();
    // A few seeds cannot come across everything.
    if runs >= SEEDS && !missing.is_empty() {
        eprintln!("ironwarp-sim: no seed came across: {}", missing.join("; "));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
