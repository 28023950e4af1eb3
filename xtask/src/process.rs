//! One process of a program under test: its output goes to a file, it has a time limit, and it leaves nothing running.

use crate::shell::Result;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// No program of the catalogue takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
/// So many lines of its output are shown if it fails: from the beginning, and from the end.
const FIRST: usize = 6;
const LAST: usize = 6;
/// How often it is looked whether something has happened that cannot be waited for.
const LOOK: Duration = Duration::from_millis(2);

/// A running program. Dropped, it and all its children are killed.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
    name: String,
    deadline: Instant,
}

/// What came of a program.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit code; that of a program which a signal killed is 128 and the signal's number, as in shells.
    pub(crate) code: i32,
    pub(crate) output: String,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ended with {}", self.code)?;
        let lines: Vec<_> = self.output.lines().collect();
        lines[lines.len().saturating_sub(FIRST + LAST)..]
            .iter()
            .try_for_each(|line| write!(f, "\n      {line}"))
    }
}

impl Process {
    /// Starts a command, with its output in `log`.
    pub(crate) fn start(mut command: Command, name: &str, log: &Path) -> Result<Self> {
        let failed = |error: io::Error| format!("{name}: {error}");
        let out = File::create(log).map_err(failed)?;
        let err = out.try_clone().map_err(failed)?;
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        let child = command.spawn().map_err(failed)?;
        let deadline = Instant::now() + PATIENCE;
        Ok(Self { child, log: log.to_owned(), name: name.to_owned(), deadline })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed so far.
    pub(crate) fn output(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until it ends. It must end well.
    pub(crate) fn finish(&mut self) -> Result<String> {
        let status = self.wait()?;
        if status.success() {
            Ok(self.output())
        } else {
            Err(self.complaint(&format!("ended with {status}")))
        }
    }

    /// Waits until it ends, well or not.
    pub(crate) fn ended(&mut self) -> Result<Ended> {
        let status = self.wait()?;
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1);
        Ok(Ended { code, output: self.output() })
    }

    /// It has so long from now on.
    pub(crate) fn patience(&mut self, time: Duration) {
        self.deadline = Instant::now() + time;
    }

    /// Waits until `ready` holds, as long as the process lives.
    pub(crate) fn wait_until(&mut self, what: &str, mut ready: impl FnMut(&Self) -> bool) -> Result {
        while !ready(self) {
            if let Some(status) = self.try_wait()? {
                return Err(self.complaint(&format!("ended with {status} before {what}")));
            }
            if Instant::now() > self.deadline {
                return Err(self.complaint(&format!("took too long until {what}")));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > self.deadline {
                return Err(self.complaint("did not end"));
            }
            thread::sleep(LOOK);
        }
    }

    fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().map_err(|error| format!("{}: {error}", self.name))
    }

    /// What has become of it, while another failed.
    pub(super) fn meanwhile(&mut self) -> String {
        match self.try_wait() {
            Ok(Some(status)) => self.complaint(&format!("had ended with {status}")),
            Ok(None) => self.complaint("was running"),
            Err(error) => error,
        }
    }

    /// An error with the last of what it printed.
    pub(crate) fn complaint(&self, what: &str) -> String {
        // What it says on standard error is in front: the C library keeps the rest until the end.
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
        let group = self.child.id().to_string();
        let _ =
            Command::new("kill").args(["-KILL", "--", &format!("-{group}")]).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }
}
