//! Runs a program under test. Its output goes to a file, it has a time limit, and all of its processes are killed at
//! the end.

use rustix::process::{Pid, Signal, kill_process_group};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The time limit of a program, unless [`Process::set_timeout`] sets another.
pub const TIMEOUT: Duration = Duration::from_secs(90);
/// Number of lines from the beginning of the output that an error shows.
const FIRST: usize = 6;
/// Number of lines from the end of the output that an error shows.
const LAST: usize = 6;
/// Interval between two checks of a condition for which there is no notification.
const POLL: Duration = Duration::from_millis(2);

/// The result of an operation. The error is a sentence for the reader of the test's output.
pub type Result<T = ()> = std::result::Result<T, String>;

/// A running program. When dropped, kills the program and all its children.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// The file with the output.
    log: PathBuf,
    /// The name of the program in errors.
    name: String,
    /// When the time limit ends.
    deadline: Instant,
}

/// How a program ended.
#[derive(Debug)]
pub struct Exit {
    /// The exit code; 128 plus the number of the signal if one killed the program, as in shells.
    pub code: i32,
    pub output: String,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ended with {}", self.code)?;
        let lines: Vec<_> = self.output.lines().collect();
        lines[lines.len().saturating_sub(FIRST + LAST)..]
            .iter()
            .try_for_each(|line| write!(f, "\n      {line}"))
    }
}

impl Process {
    /// Starts a command in a process group of its own. Its output goes to the file `log`.
    pub fn start(mut command: Command, name: &str, log: &Path) -> Result<Self> {
        let failed = |error: io::Error| format!("{name}: {error}");
        let out = File::create(log).map_err(failed)?;
        let err = out.try_clone().map_err(failed)?;
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        let child = command.spawn().map_err(failed)?;
        let deadline = Instant::now() + TIMEOUT;
        Ok(Self { child, log: log.to_owned(), name: name.to_owned(), deadline })
    }

    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns what the program has printed so far.
    pub fn output(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until the program ends, and returns its output. Fails unless the program succeeds.
    pub fn finish(&mut self) -> Result<String> {
        let status = self.wait()?;
        if status.success() { Ok(self.output()) } else { Err(self.error(&format!("ended with {status}"))) }
    }

    /// Waits until the program ends, with success or not. Fails only if the time limit expires.
    pub fn exit(&mut self) -> Result<Exit> {
        let status = self.wait()?;
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1);
        Ok(Exit { code, output: self.output() })
    }

    /// Sets the time limit, counted from now.
    pub fn set_timeout(&mut self, time: Duration) {
        self.deadline = Instant::now() + time;
    }

    /// Waits until `ready` returns true. Fails if the program ends or the time limit expires first; the error contains
    /// `what`.
    pub fn wait_until(&mut self, what: &str, mut ready: impl FnMut(&Self) -> bool) -> Result {
        while !ready(self) {
            if let Some(status) = self.try_wait()? {
                return Err(self.error(&format!("ended with {status} before {what}")));
            }
            if Instant::now() > self.deadline {
                return Err(self.error(&format!("took too long until {what}")));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Waits until the program ends. Fails if the time limit expires.
    fn wait(&mut self) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > self.deadline {
                return Err(self.error("did not end"));
            }
            thread::sleep(POLL);
        }
    }

    /// Returns the exit status if the program has ended.
    fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().map_err(|error| format!("{}: {error}", self.name))
    }

    /// Returns a description of the program's state, for the error of another program that depends on this one.
    pub fn state(&mut self) -> String {
        match self.try_wait() {
            Ok(Some(status)) => self.error(&format!("had ended with {status}")),
            Ok(None) => self.error("was running"),
            Err(error) => error,
        }
    }

    /// Returns an error text: the name of the program, `what`, and the beginning and the end of the output.
    pub fn error(&self, what: &str) -> String {
        // Errors are often at the beginning, because standard error is not buffered, unlike standard output.
        let output = self.output();
        let lines: Vec<_> = output.lines().collect();
        let (first, last) = lines.split_at(lines.len().min(FIRST));
        let last = &last[last.len().saturating_sub(LAST)..];
        let tail: String = first.iter().chain(last).map(|line| format!("\n      {line}")).collect();
        format!("{} {what}{tail}", self.name)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}
