//! `fuzz`: runs every fuzz target for a while and counts the executions.
//!
//! Stable Rust can instrument code for libFuzzer with plain compiler flags. Only the sanitizers need nightly,
//! and they look for memory errors that safe Rust does not have. So this builds the targets with cargo and
//! runs them, without another tool.
//!
//! A run adds new inputs to a scratch corpus under `target/fuzz` and only reads the committed corpus,
//! `fuzz/corpus`. `--minimize` replaces the committed corpus with the fewest inputs of both that reach the
//! same code.

use crate::arguments::Arguments;
use crate::shell::{Result, at, command, output, run as run_command};
use crate::workspace::Workspace;
use std::fs;
use std::iter;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

pub(crate) const PACKAGE: &str = "ironwarp-fuzz";
pub(crate) const USAGE: &str = "fuzz [--seconds N] [--runs N] [--minimize] [TARGET...]";

/// Time for each target. CI has two minutes for all of them, and runs one per processor at a time.
const DEFAULT_SECONDS: u64 = 7;
/// An input that takes longer is a failure. libFuzzer's default is twenty minutes.
const HANG_SECONDS: u64 = 10;
/// Long enough for two markers with an FPDU across each. Longer inputs only make it slower.
const MAX_LEN: usize = 1200;
/// Number of lines shown of the log of a target that failed.
const TAIL_LINES: usize = 40;

/// Instrumentation that guides libFuzzer, and the checks of a debug build.
const RUSTFLAGS: &str = "--cfg fuzzing \
    -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Ccodegen-units=1 \
    -Cdebug-assertions";

#[derive(Debug, Default, PartialEq)]
struct Options {
    seconds: Option<u64>,
    runs: Option<u64>,
    minimize: bool,
    /// Empty for all targets.
    targets: Vec<String>,
}

/// A target and its folders.
struct Target<'a> {
    name: &'a str,
    program: PathBuf,
    committed: PathBuf,
    scratch: PathBuf,
    artifacts: PathBuf,
    log: PathBuf,
}

pub(crate) fn run(workspace: &Workspace, options: &[String]) -> Result {
    let options = Options::parse(options)?;
    let names = names(workspace, &options.targets)?;
    let programs = build(workspace)?;
    let targets =
        names.iter().map(|name| Target::new(workspace, &programs, name)).collect::<Result<Vec<_>>>()?;
    if options.minimize {
        return targets.iter().try_for_each(Target::minimize);
    }
    let executions = at_once(&targets, |target| target.fuzz(&options))?;
    println!("fuzz: {} executions of {} targets", executions.iter().sum::<u64>(), names.len());
    Ok(())
}

/// Runs `work` for all targets, one per processor at a time: each target has one thread.
fn at_once<'t, T: Send>(
    targets: &[Target<'t>],
    work: impl Fn(&Target<'t>) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let worker = || -> Result<Vec<T>> {
        let mine = iter::from_fn(|| targets.get(next.fetch_add(1, Ordering::Relaxed)));
        mine.map(&work).collect()
    };
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    let done: Result<Vec<Vec<T>>> = thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        running.into_iter().map(|one| one.join().map_err(|_| "a thread panicked")?).collect()
    });
    Ok(done?.into_iter().flatten().collect())
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut arguments = Arguments::new(arguments, USAGE);
        while let Some(argument) = arguments.next() {
            match argument {
                // To libFuzzer, zero means no limit.
                "--seconds" => options.seconds = Some(arguments.number::<NonZero<u64>>()?.get()),
                "--runs" => options.runs = Some(arguments.number::<NonZero<u64>>()?.get()),
                "--minimize" => options.minimize = true,
                option if option.starts_with('-') => return Err(arguments.unknown()),
                target => options.targets.push(target.to_owned()),
            }
        }
        Ok(options)
    }

    /// The limits as options of libFuzzer. If none is given, the time is limited.
    fn limits(&self) -> Vec<String> {
        let seconds = self.seconds.or((self.runs.is_none()).then_some(DEFAULT_SECONDS));
        let seconds = seconds.map(|seconds| format!("-max_total_time={seconds}"));
        let runs = self.runs.map(|runs| format!("-runs={runs}"));
        seconds.into_iter().chain(runs).collect()
    }
}

fn names<'a>(workspace: &'a Workspace, wanted: &'a [String]) -> Result<Vec<&'a str>> {
    let member = workspace.member(PACKAGE).ok_or_else(|| format!("no crate {PACKAGE} in the workspace"))?;
    let all: Vec<&str> = member.targets_of("bin").map(|target| target.name.as_str()).collect();
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(&name.as_str())) {
        return Err(format!("unknown fuzz target `{unknown}`, expected one of {}", all.join(", ")));
    }
    Ok(if wanted.is_empty() { all } else { wanted.iter().map(String::as_str).collect() })
}

/// Builds all targets and returns where they are.
fn build(workspace: &Workspace) -> Result<PathBuf> {
    let version = output(&mut command("rustc", &["--version", "--verbose"]))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or("`rustc --version --verbose` does not name the host")?;
    let directory = workspace.target.join("fuzz/build");
    // With `--target`, the flags do not apply to build scripts, which are not linked with libFuzzer.
    let mut cargo =
        command("cargo", &["build", "--locked", "--release", "--package", PACKAGE, "--target", host]);
    cargo.arg("--target-dir").arg(&directory).env("RUSTFLAGS", RUSTFLAGS);
    // More optimisation does not make instrumented code faster, and takes longer to build.
    run_command(cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"))?;
    Ok(directory.join(host).join("release"))
}

impl<'a> Target<'a> {
    fn new(workspace: &Workspace, programs: &Path, name: &'a str) -> Result<Self> {
        let place = workspace.target.join("fuzz");
        let target = Self {
            name,
            program: programs.join(name),
            committed: workspace.root.join("fuzz/corpus").join(name),
            scratch: place.join("corpus").join(name),
            artifacts: place.join("artifacts").join(name),
            log: place.join(format!("{name}.log")),
        };
        for directory in [&target.committed, &target.scratch, &target.artifacts] {
            fs::create_dir_all(directory).map_err(at(directory))?;
        }
        Ok(target)
    }

    /// Runs the target to its limits and returns the number of executions.
    fn fuzz(&self, options: &Options) -> Result<u64> {
        let mut program = self.libfuzzer();
        program
            .args(options.limits())
            .args(["-print_final_stats=1".to_owned(), format!("-timeout={HANG_SECONDS}")]);
        // libFuzzer writes new inputs to the first directory, and only reads the others.
        let log = self.logged(program.arg(&self.scratch).arg(&self.committed))?;
        let executions = log
            .lines()
            .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
            .and_then(|count| count.trim().parse().ok())
            .ok_or_else(|| format!("{} does not contain the number of executions", self.log.display()))?;
        println!("{}: {executions} executions", self.name);
        Ok(executions)
    }

    fn minimize(&self) -> Result {
        let fewest = self.scratch.with_extension("fewest");
        if fewest.exists() {
            fs::remove_dir_all(&fewest).map_err(at(&fewest))?;
        }
        fs::create_dir_all(&fewest).map_err(at(&fewest))?;
        let mut program = self.libfuzzer();
        self.logged(program.arg("-set_cover_merge=1").args([&fewest, &self.scratch, &self.committed]))?;
        fs::remove_dir_all(&self.committed).map_err(at(&self.committed))?;
        fs::rename(&fewest, &self.committed).map_err(at(&self.committed))?;
        let count = fs::read_dir(&self.committed).map_err(at(&self.committed))?.count();
        println!("{}: {count} inputs in {}", self.name, self.committed.display());
        Ok(())
    }

    fn libfuzzer(&self) -> Command {
        let mut program = command(&self.program.to_string_lossy(), &[]);
        program.arg(format!("-artifact_prefix={}/", self.artifacts.display()));
        program.arg(format!("-max_len={MAX_LEN}"));
        program
    }

    /// Runs the program with its output going to the log, and returns the log. If it fails, the error shows
    /// the end of the log.
    fn logged(&self, program: &mut Command) -> Result<String> {
        let file = fs::File::create(&self.log).map_err(at(&self.log))?;
        let also = file.try_clone().map_err(at(&self.log))?;
        let outcome = run_command(program.stdout(file).stderr(also));
        let log = fs::read(&self.log).map_err(at(&self.log))?;
        let log = String::from_utf8_lossy(&log).into_owned();
        outcome.map_err(|error| {
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
            let (name, log, program) = (self.name, self.log.display(), self.program.display());
            format!("target `{name}`:\n{tail}\n{error}\nthe log is {log}; to run one input: {program} FILE")
        })?;
        Ok(log)
    }
}

#[cfg(test)]
mod tests {
    use super::Options;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn time_is_the_limit_unless_runs_are_given() {
        assert_eq!(parse("").unwrap().limits(), ["-max_total_time=7"]);
        assert_eq!(parse("--runs 9").unwrap().limits(), ["-runs=9"]);
        assert_eq!(parse("--runs 9 --seconds 5").unwrap().limits(), ["-max_total_time=5", "-runs=9"]);
    }

    #[test]
    fn targets_may_be_named_and_options_must_be_right() {
        assert_eq!(parse("--minimize fpdu mpa").unwrap().targets, ["fpdu", "mpa"]);
        for wrong in ["--seconds", "--seconds x", "--runs 0", "--jobs 2"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
