//! `ironwarp-sim`: runs scenarios, each from a seed, until one fails.

use ironwarp_sim::{Trace, notification, scenario};
use std::env::args;
use std::fmt::Display;
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, available_parallelism};

const HELP: &str = "\
Runs adapters in a simulated world, and checks all that they do.

Usage:
  ironwarp-sim                    two programs at work: the first 10,000 seeds
  ironwarp-sim --seeds N          the first N seeds
  ironwarp-sim --seed N           seed N, and print all that happens in it
  ironwarp-sim --events           completion queues, handlers and who is woken: ten million events
  ironwarp-sim --events --seeds N
  ironwarp-sim --events --seed N
  ironwarp-sim --help             print this
";

const SEEDS: u64 = 10_000;
/// So many seeds have ten million events.
const EVENT_SEEDS: u64 = 6_000;
const EVENTS: u64 = 10_000_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["-h" | "--help"] => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        [] => scenarios(SEEDS),
        ["--seeds", number] => with(number, scenarios),
        ["--seed", number] => with(number, |seed| trace(seed, |keep| scenario::trace(seed, keep))),
        ["--events"] => events(EVENT_SEEDS),
        ["--events", "--seeds", number] => with(number, events),
        ["--events", "--seed", number] => {
            with(number, |seed| trace(seed, |keep| notification::trace(seed, keep)))
        }
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
fn trace<T: Display>(seed: u64, run: impl FnOnce(&mut dyn FnMut(Trace)) -> T) -> ExitCode {
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
            println!("seed {seed} failed, as said above");
            ExitCode::FAILURE
        }
    }
}

/// Two programs at work.
fn scenarios(seeds: u64) -> ExitCode {
    let Some(total) = run(seeds, scenario::run, "") else { return ExitCode::FAILURE };
    println!("{}\n\n{seeds} seeds: {total}", total.coverage);
    // A few seeds cannot come across everything.
    if seeds < SEEDS { ExitCode::SUCCESS } else { complete(&total.coverage.missing()) }
}

/// Who is told of completions.
fn events(seeds: u64) -> ExitCode {
    let Some(total) = run(seeds, notification::run, "--events ") else { return ExitCode::FAILURE };
    println!("{total} in {seeds} seeds");
    if seeds < EVENT_SEEDS {
        return ExitCode::SUCCESS;
    }
    assert!(total.events >= EVENTS, "the seeds have fewer events than they should");
    complete(&total.missing())
}

fn complete(missing: &[String]) -> ExitCode {
    if missing.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("ironwarp-sim: no seed came across: {}", missing.join("; "));
    ExitCode::FAILURE
}

/// Runs the seeds on all processors: each is a world of its own. `None`: one failed, and `options` run it again.
fn run<T>(seeds: u64, one: fn(u64) -> T, options: &str) -> Option<T>
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
                    // In one piece: others may be saying why they failed.
                    let line = format!(
                        "seed {seed} failed: `cargo xtask sim {options}--seed {seed}` does it again\n"
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
            total += &thread.join().expect("what panics is caught");
        }
    });
    (!failed.into_inner()).then_some(total)
}
