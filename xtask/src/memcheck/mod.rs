//! `memcheck`: runs some of the stock programs, and the C program that makes every mistake a caller can make,
//! under valgrind. An error with the drop-in in its stack trace fails the job; programs may have errors of
//! their own.

use crate::dropin;
use crate::shell::{Result, at, command, run as run_command};
use crate::workspace::Workspace;
use ironwarp_testkit::net::{free_port, listens};
use ironwarp_testkit::process::Process;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// The command lines of a server and of its client, without the server's address at the end.
const PAIRS: [(&[&str], &[&str]); 5] = [
    (&["ibv_rc_pingpong", "-g", "0", "-n", "10", "-p", "{port}"], SAME),
    (&["ibv_srq_pingpong", "-g", "0", "-n", "10", "-q", "2", "-p", "{port}"], SAME),
    (&["ibv_ud_pingpong", "-g", "0", "-n", "10", "-p", "{port}"], SAME),
    (&["ib_write_bw", "-n", "10", "-s", "1024", "-p", "{port}"], SAME),
    (
        &["rping", "-s", "-a", "127.0.0.1", "-C", "3", "-p", "{port}"],
        &["rping", "-c", "-C", "3", "-V", "-p", "{port}", "-a"],
    ),
];
const SAME: &[&str] = &[];
const ADDRESS: &str = "127.0.0.1";
/// Time limit of a program, on a machine that is also busy with others.
const PATIENCE: Duration = Duration::from_secs(300);

struct Checker {
    /// The drop-in without debug information, which would take valgrind ten seconds to read each time.
    libraries: PathBuf,
    suppressions: PathBuf,
    logs: PathBuf,
}

/// A program under valgrind.
struct Checked {
    process: Process,
    name: String,
    log: PathBuf,
}

pub(crate) fn run(workspace: &Workspace, _: &[String]) -> Result {
    let checker = Checker::new(workspace)?;
    checker.finds_a_bug()?;
    // They mostly wait, so two run at a time.
    for some in PAIRS.chunks(2) {
        let play = |(server, client): &(&[&str], &[&str])| -> Result {
            let start = Instant::now();
            checker.pair(server, if *client == SAME { server } else { client })?;
            println!("{:<20}{:>6.1} s", server[0], start.elapsed().as_secs_f64());
            Ok(())
        };
        thread::scope(|scope| {
            let running: Vec<_> = some.iter().map(|pair| scope.spawn(|| play(pair))).collect();
            running.into_iter().try_for_each(|one| one.join().map_err(|_| "a thread panicked")?)
        })?;
    }
    checker.start(&[checker.compile("untrusted")?], "untrusted")?.finish()
}

impl Checker {
    fn new(workspace: &Workspace) -> Result<Self> {
        let file = dropin::build(workspace, false)?.file;
        let folder = workspace.target.join("memcheck");
        let (libraries, logs) = (folder.join("lib/ironwarp"), folder.join("logs"));
        let _ = fs::remove_dir_all(&folder);
        for folder in [&libraries, &logs] {
            fs::create_dir_all(folder).map_err(at(folder))?;
        }
        let copy = libraries.join("libibverbs.so.1");
        run_command(command("strip", &["--strip-debug", "-o"]).arg(&copy).arg(&file))?;
        for name in ["librdmacm.so.1", "libibverbs.so", "librdmacm.so"] {
            let name = libraries.join(name);
            std::os::unix::fs::symlink("libibverbs.so.1", &name).map_err(at(&name))?;
        }
        let suppressions = workspace.root.join("xtask/src/memcheck/valgrind.supp");
        Ok(Self { libraries, suppressions, logs })
    }

    /// Checks that valgrind works, with a program that reads freed memory through the drop-in.
    fn finds_a_bug(&self) -> Result {
        match self.start(&[self.compile("freed")?], "freed")?.finish() {
            Err(error) if error.contains("Invalid read") => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Err("valgrind did not find a deliberate bug".into()),
        }
    }

    /// Compiles a program of crates/ibverbs/tests/untrusted.
    fn compile(&self, name: &str) -> Result<String> {
        let program = self.logs.join(format!("{name}.bin"));
        let source = format!("crates/ibverbs/tests/untrusted/{name}.c");
        let arguments = ["-Wno-nonnull", &source, "-libverbs", "-lrdmacm"];
        run_command(command("cc", &["-o"]).arg(&program).args(arguments))?;
        Ok(program.to_string_lossy().into_owned())
    }

    fn start(&self, words: &[String], name: &str) -> Result<Checked> {
        let log = self.logs.join(format!("{name}.valgrind"));
        let mut valgrind = Command::new("valgrind");
        // Schedule fairly: a thread that spins must not keep the others from running.
        valgrind.args(["-q", "--fair-sched=yes", "--num-callers=40"]);
        valgrind.arg(format!("--suppressions={}", self.suppressions.display()));
        valgrind.arg(format!("--log-file={}", log.display())).args(words);
        valgrind.env("LD_PRELOAD", self.libraries.join("libibverbs.so.1"));
        valgrind.env("LD_LIBRARY_PATH", &self.libraries).env("IRONWARP_LOG", "info");
        let mut process = Process::start(valgrind, name, &self.logs.join(format!("{name}.out")))?;
        process.set_timeout(PATIENCE);
        Ok(Checked { process, name: name.to_owned(), log })
    }

    fn pair(&self, server: &[&str], client: &[&str]) -> Result {
        let port = free_port();
        let fill = |words: &[&str]| -> Vec<String> {
            words.iter().map(|word| word.replace("{port}", &port.to_string())).collect()
        };
        let mut serving = self.start(&fill(server), &format!("{}-server", server[0]))?;
        serving.process.wait_until("it listens", |server| listens(server.id(), port))?;
        let mut words = fill(client);
        words.push(ADDRESS.into());
        self.start(&words, &format!("{}-client", server[0]))?.finish()?;
        serving.finish()
    }
}

impl Checked {
    /// Waits until it ends, which it must do with success and without an error in the drop-in.
    fn finish(&mut self) -> Result {
        let ended = self.process.finish();
        let log = fs::read_to_string(&self.log).map_err(at(&self.log))?;
        ended.map_err(|error| format!("{error}\n{log}"))?;
        match ours(&log) {
            Some(error) => Err(format!("{}: valgrind reports\n{error}", self.name)),
            None => Ok(()),
        }
    }
}

/// The first error of a log with the drop-in in its stack trace. Lines that contain only the process ID
/// separate errors.
fn ours(log: &str) -> Option<String> {
    let lines = log.lines().map(|line| line.splitn(3, "==").nth(2).unwrap_or(line).trim_end());
    let lines: Vec<_> = lines.collect();
    let errors = lines.split(|line| line.is_empty());
    errors.map(|error| error.join("\n")).find(|error| error.contains("libibverbs.so.1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_counts_if_the_drop_in_has_a_part_in_it() {
        let theirs = "==7== Invalid read\n==7==    at 0x1: ??? (in /usr/bin/rping)\n==7== \n";
        let ours_too = "==7== Invalid write\n==7==    by 0x2: ibv_reg_mr (in /x/libibverbs.so.1)\n==7== \n";
        assert_eq!(ours(theirs), None);
        let both = format!("{theirs}{ours_too}");
        assert_eq!(
            ours(&both).as_deref(),
            Some(" Invalid write\n    by 0x2: ibv_reg_mr (in /x/libibverbs.so.1)")
        );
    }
}
