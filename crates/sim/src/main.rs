//! `ironwarp-sim`: runs scenarios, each from a seed, until one fails.

use ironwarp_sim::Trace;
use ironwarp_sim::scenario::{self, Outcome};
use std::env::args;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

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

fn run(seeds: Range<u64>) -> ExitCode {
    let mut total = Outcome::default();
    let runs = seeds.end - seeds.start;
    for seed in seeds {
        match catch_unwind(|| scenario::run(seed)) {
            Ok(outcome) => total += outcome,
            Err(_) => {
                eprintln!("seed {seed} failed: `cargo xtask sim --seed {seed}` does it again");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{runs} seeds: {total}");
    ExitCode::SUCCESS
}
