//! `cabi-fuzz`: the C interface under threads. A program of C makes, uses and destroys objects on several threads, forks,
//! cancels threads and exits, as a seed has it (crates/ibverbs/tests/cabi/fuzz.c), on a drop-in with AddressSanitizer. Many
//! short processes, each with a seed. A seed that fails is printed; with `--seed` it is run again and again until it fails,
//! because the order of threads is the system's.

use crate::process::Process;
use crate::sanitize::{OPTIONS, Sanitized};
use crate::shell::{Result, at, command, run as run_command};
use crate::workspace::Workspace;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const USAGE: &str = "cabi-fuzz [--seconds N] [--seed S]";
pub(crate) const NIGHTLY: &[&str] = &["--seconds", "3600"];

const DEFAULT_SECONDS: u64 = 30;
/// A process takes less than three seconds of an idle machine, a minute of one with a load of 20. One that takes this long hangs.
const PATIENCE: Duration = Duration::from_secs(300);
/// For each processor: some of them only wait for a peer that does not answer.
const AT_ONCE: usize = 3;
/// How often a seed that failed is run again.
const REPLAYS: u64 = 200;

struct Options {
    time: Duration,
    /// This one only.
    seed: Option<u64>,
}

/// The programs, and where they leave what they say.
struct Fuzzer {
    sanitized: Sanitized,
    folder: PathBuf,
}

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result {
    let options = Options::parse(arguments)?;
    let folder = workspace.target.join("cabi-fuzz");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let fuzzer = Fuzzer { sanitized: Sanitized::new(workspace)?, folder };
    let library = fuzzer.sanitized.library()?;
    fuzzer.finds_a_fault(&library)?;
    let program = fuzzer.link(&library, "cabi/fuzz.c")?;
    let runs = fuzzer.fuzz(&program, &options)?;
    println!("cabi-fuzz: {runs} sequences");
    Ok(())
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self { time: Duration::from_secs(DEFAULT_SECONDS), seed: None };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let number = arguments.next().and_then(|number| number.parse().ok());
            match (argument.as_str(), number) {
                ("--seconds", Some(seconds)) => options.time = Duration::from_secs(seconds),
                ("--seed", Some(seed)) => options.seed = Some(seed),
                _ => return Err(format!("usage: cargo xtask {USAGE}")),
            }
        }
        Ok(options)
    }
}

impl Fuzzer {
    /// Links a program of crates/ibverbs/tests with the library.
    fn link(&self, library: &Path, source: &str) -> Result<PathBuf> {
        let program = self.folder.join(source.replace('/', "-")).with_extension("bin");
        let mut cc = command("cc", &["-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]);
        cc.arg(&program).arg(Path::new("crates/ibverbs/tests").join(source));
        cc.arg("-Wl,--whole-archive").arg(self.sanitized.runtime()?).arg("-Wl,--no-whole-archive");
        run_command(cc.arg(library).args(["-rdynamic", "-lgcc_s", "-lm", "-ldl", "-lrt", "-lresolv"]))?;
        Ok(program)
    }

    /// A program that reads freed memory by way of the library.
    fn finds_a_fault(&self, library: &Path) -> Result {
        let program = self.link(library, "untrusted/freed.c")?;
        match self.start(&program, 0)?.finish() {
            Err(error) if error.contains("heap-use-after-free") => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err("the sanitizer did not find a fault that was made on purpose".into()),
        }
    }

    fn start(&self, program: &Path, seed: u64) -> Result<Process> {
        let mut command = command(&program.to_string_lossy(), &[&seed.to_string()]);
        command.env(OPTIONS.0, OPTIONS.1).env("IRONWARP_LOG", "off");
        let log = self.folder.join(format!("{seed}.log"));
        let mut process = Process::start(command, &format!("seed {seed}"), &log)?;
        process.patience(PATIENCE);
        Ok(process)
    }

    /// Runs seeds until the time is up, and returns how many; the first that fails ends it.
    fn fuzz(&self, program: &Path, options: &Options) -> Result<u64> {
        let (next, done, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let end = Instant::now() + options.time;
        let worker = || -> Result {
            loop {
                let run = next.fetch_add(1, Ordering::Relaxed);
                let over = options.seed.map_or(Instant::now() > end, |_| run >= REPLAYS);
                if over || failed.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let seed = options.seed.unwrap_or(run);
                self.start(program, seed)?.finish().map_err(|error| {
                    failed.store(true, Ordering::Relaxed);
                    format!("{error}\nto run it again: cargo xtask cabi-fuzz --seed {seed}")
                })?;
                done.fetch_add(1, Ordering::Relaxed);
                let _ = fs::remove_file(self.folder.join(format!("{seed}.log")));
            }
        };
        // Each replay has a log of the same name: one at a time.
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let workers = if options.seed.is_some() { 1 } else { processors * AT_ONCE };
        thread::scope(|scope| {
            let running: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
            running.into_iter().try_for_each(|one| one.join().map_err(|_| "a thread panicked")?)
        })?;
        Ok(done.into_inner())
    }
}
