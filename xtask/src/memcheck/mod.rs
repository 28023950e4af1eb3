//! `memcheck`: some of the stock programs, and the C program that makes every mistake a caller can, under valgrind. An error
//! that goes through the drop-in fails the job; those that programs make by themselves are theirs.

use crate::dropin;
use crate::shell::{Result, at, command, run as run_command};
use crate::workspace::Workspace;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A server, and its client, which has these words and the server's address behind them.
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
/// Nothing here takes longer, even on a busy machine: a program that needs seconds of CPU time under valgrind has to share.
const PATIENCE: Duration = Duration::from_secs(300);

struct Checker {
    /// The drop-in without its debugging information, which valgrind would read for ten seconds each time.
    libraries: PathBuf,
    suppressions: PathBuf,
    logs: PathBuf,
}

/// A program under valgrind. Killed, if it is not done when this is dropped.
struct Checked {
    child: Child,
    name: String,
    log: PathBuf,
    output: PathBuf,
}

pub(crate) fn run(workspace: &Workspace, _: &[String]) -> Result {
    let checker = Checker::new(workspace)?;
    checker.finds_a_fault()?;
    // They wait more than they compute: two at a time.
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

    /// A program that reads freed memory by way of the drop-in.
    fn finds_a_fault(&self) -> Result {
        match self.start(&[self.compile("freed")?], "freed")?.finish() {
            Err(error) if error.contains("Invalid read") => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Err("valgrind did not find a fault that was made on purpose".into()),
        }
    }

    /// A program of crates/ibverbs/tests/untrusted.
    fn compile(&self, name: &str) -> Result<String> {
        let program = self.logs.join(format!("{name}.bin"));
        let source = format!("crates/ibverbs/tests/untrusted/{name}.c");
        let arguments = ["-Wno-nonnull", &source, "-libverbs", "-lrdmacm"];
        run_command(command("cc", &["-o"]).arg(&program).args(arguments))?;
        Ok(program.to_string_lossy().into_owned())
    }

    fn start(&self, words: &[String], name: &str) -> Result<Checked> {
        let (log, output) =
            (self.logs.join(format!("{name}.valgrind")), self.logs.join(format!("{name}.out")));
        let out = fs::File::create(&output).map_err(at(&output))?;
        let err = out.try_clone().map_err(at(&output))?;
        let mut valgrind = Command::new("valgrind");
        // Threads take turns: one that spins must not keep the others from running.
        valgrind.args(["-q", "--fair-sched=yes", "--num-callers=40"]);
        valgrind.arg(format!("--suppressions={}", self.suppressions.display()));
        valgrind.arg(format!("--log-file={}", log.display())).args(words);
        valgrind.env("LD_PRELOAD", self.libraries.join("libibverbs.so.1"));
        valgrind.env("LD_LIBRARY_PATH", &self.libraries).env("IRONWARP_LOG", "info");
        let child = valgrind.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
        let child = child.map_err(|error| format!("valgrind: {error}"))?;
        Ok(Checked { child, name: name.to_owned(), log, output })
    }

    fn pair(&self, server: &[&str], client: &[&str]) -> Result {
        let port = free_port()?;
        let fill = |words: &[&str]| -> Vec<String> {
            words.iter().map(|word| word.replace("{port}", &port.to_string())).collect()
        };
        let mut serving = self.start(&fill(server), &format!("{}-server", server[0]))?;
        serving.wait_until(|| listens(port))?;
        let mut words = fill(client);
        words.push(ADDRESS.into());
        self.start(&words, &format!("{}-client", server[0]))?.finish()?;
        serving.finish()
    }
}

impl Checked {
    fn wait_until(&mut self, ready: impl Fn() -> bool) -> Result {
        let deadline = Instant::now() + PATIENCE;
        while !ready() {
            let ended = self.child.try_wait().map_err(|error| error.to_string())?;
            if let Some(status) = ended {
                return Err(self.complaint(&format!("ended with {status} too early")));
            }
            if Instant::now() > deadline {
                return Err(self.complaint("took too long"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// It ends well, and no error went through the drop-in.
    fn finish(&mut self) -> Result {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                break status;
            }
            if Instant::now() > deadline {
                return Err(self.complaint("did not end"));
            }
            thread::sleep(Duration::from_millis(20));
        };
        if !status.success() {
            return Err(self.complaint(&format!("ended with {status}")));
        }
        let log = fs::read_to_string(&self.log).map_err(at(&self.log))?;
        match ours(&log) {
            Some(error) => Err(format!("{}: valgrind says\n{error}", self.name)),
            None => Ok(()),
        }
    }

    fn complaint(&self, what: &str) -> String {
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        format!("{} {what}; it said:\n{}{}", self.name, read(&self.output), read(&self.log))
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first error of a log that the drop-in has a part in. Errors are parted by lines with nothing but the number of the
/// process.
fn ours(log: &str) -> Option<String> {
    let lines = log.lines().map(|line| line.splitn(3, "==").nth(2).unwrap_or(line).trim_end());
    let lines: Vec<_> = lines.collect();
    let errors = lines.split(|line| line.is_empty());
    errors.map(|error| error.join("\n")).find(|error| error.contains("libibverbs.so.1"))
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("0.0.0.0:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|error| error.to_string())
}

fn listens(port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        fs::read_to_string(table).unwrap_or_default().lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            words.next().is_some_and(|local| local.ends_with(&wanted)) && words.nth(1) == Some("0A")
        })
    })
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
