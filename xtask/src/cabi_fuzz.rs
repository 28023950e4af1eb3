//! `cabi-fuzz`: fuzzes the C interface from several threads. A C program (crates/ibverbs/tests/cabi/fuzz.c)
//! creates, uses and destroys objects on several threads, forks, cancels threads and exits, as directed by a
//! seed, on a drop-in with AddressSanitizer. Each seed is a short process. A seed that fails is printed;
//! `--seed` runs it repeatedly until it fails again, because the system schedules the threads.

use crate::arguments::Arguments;
use crate::sanitize::{OPTIONS, Sanitized};
use crate::shell::{Result, at, command, run as run_command};
use crate::workspace::Workspace;
use ironwarp_testkit::process::Process;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const USAGE: &str = "cabi-fuzz [--seconds N] [--seed S]";
pub(crate) const NIGHTLY: &[&str] = &["--seconds", "3600"];

const DEFAULT_SECONDS: u64 = 30;
/// Time limit of a process: one takes less than three seconds on an idle machine, and a minute at a load of
/// 20.
const PATIENCE: Duration = Duration::from_secs(300);
/// Number of processes for each processor. More than one, because some only wait for a peer that does not
/// respond.
const AT_ONCE: usize = 3;
/// How often a seed is run with `--seed`.
const REPLAYS: u64 = 200;

struct Options {
    time: Duration,
    /// The only seed to run.
    seed: Option<u64>,
}

/// The sanitized library, and the folder for the output of programs.
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
    fuzzer.finds_a_bug(&library)?;
    let program = fuzzer.link(&library, "cabi/fuzz.c")?;
    let runs = fuzzer.fuzz(&program, &options)?;
    println!("cabi-fuzz: {runs} sequences");
    Ok(())
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self { time: Duration::from_secs(DEFAULT_SECONDS), seed: None };
        let mut arguments = Arguments::new(arguments, USAGE);
        while let Some(argument) = arguments.next() {
            match argument {
                "--seconds" => options.time = Duration::from_secs(arguments.number()?),
                "--seed" => options.seed = Some(arguments.number()?),
                _ => return Err(arguments.unknown()),
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

    /// Checks that the sanitizer works, with a program that reads freed memory through the library.
    fn finds_a_bug(&self, library: &Path) -> Result {
        let program = self.link(library, "untrusted/freed.c")?;
        match self.start(&program, 0)?.finish() {
            Err(error) if error.contains("heap-use-after-free") => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err("the sanitizer did not find a deliberate bug".into()),
        }
    }

    fn start(&self, program: &Path, seed: u64) -> Result<Process> {
        let mut command = command(&program.to_string_lossy(), &[&seed.to_string()]);
        command.env(OPTIONS.0, OPTIONS.1).env("IRONWARP_LOG", "off");
        let log = self.folder.join(format!("{seed}.log"));
        let mut process = Process::start(command, &format!("seed {seed}"), &log)?;
        process.set_timeout(PATIENCE);
        Ok(process)
    }

    /// Runs seeds until the time is up or one fails, and returns their number.
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
                    format!("{error}\nto reproduce: cargo xtask cabi-fuzz --seed {seed}")
                })?;
                done.fetch_add(1, Ordering::Relaxed);
                let _ = fs::remove_file(self.folder.join(format!("{seed}.log")));
            }
        };
        // Runs of the same seed write to the same log, so they run one at a time.
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let workers = if options.seed.is_some() { 1 } else { processors * AT_ONCE };
        thread::scope(|scope| {
            let running: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
            running.into_iter().try_for_each(|one| one.join().map_err(|_| "a thread panicked")?)
        })?;
        Ok(done.into_inner())
    }
}
