//! The monitor of a QEMU process: one line of JSON in each direction.

use crate::shell::Result;
use ironwarp_testkit::process::Process;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Time limit for a request to a machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Monitor {
    stream: BufReader<UnixStream>,
}

impl Monitor {
    /// Connects to the monitor of a machine that was just started.
    pub(super) fn open(machine: &mut Process, socket: &Path) -> Result<Self> {
        let mut stream = None;
        machine.wait_until("its monitor answers", |_| {
            stream = UnixStream::connect(socket).ok();
            stream.is_some()
        })?;
        let stream = BufReader::new(stream.ok_or("no monitor")?);
        let mut monitor = Self { stream };
        monitor.line()?; // the greeting
        monitor.ask(r#"{"execute":"qmp_capabilities"}"#)?;
        Ok(monitor)
    }

    /// Sends a request and returns the answer. Skips events.
    pub(super) fn ask(&mut self, question: &str) -> Result<String> {
        writeln!(self.stream.get_mut(), "{question}").map_err(|error| error.to_string())?;
        loop {
            let line = self.line()?;
            if line.contains("\"error\"") && !line.contains("\"status\"") {
                return Err(format!("QEMU answered {line} to {question}"));
            }
            if line.contains("\"return\"") {
                return Ok(line);
            }
        }
    }

    /// Repeats a request until the answer is as wanted.
    pub(super) fn ask_until(&mut self, question: &str, good: impl Fn(&str) -> bool) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.ask(question)?;
            if good(&answer) {
                return Ok(answer);
            }
            if Instant::now() > deadline {
                return Err(format!("QEMU still answers {answer} to {question}"));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => Err("QEMU closed its monitor".into()),
            Ok(_) => Ok(line),
            Err(error) => Err(error.to_string()),
        }
    }
}
