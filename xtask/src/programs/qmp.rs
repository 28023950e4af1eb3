//! The monitor of a QEMU: one line of JSON each way.

use crate::process::Process;
use crate::shell::Result;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// So long a machine may take to do what it is asked.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Monitor {
    stream: BufReader<UnixStream>,
}

impl Monitor {
    /// Opens the monitor of a machine that was just started.
    pub(super) fn open(machine: &mut Process, socket: &Path) -> Result<Self> {
        let mut stream = None;
        machine.wait_until("its monitor answers", |_| {
            stream = UnixStream::connect(socket).ok();
            stream.is_some()
        })?;
        let stream = BufReader::new(stream.ok_or("no monitor")?);
        let mut monitor = Self { stream };
        monitor.line()?; // its greeting
        monitor.ask(r#"{"execute":"qmp_capabilities"}"#)?;
        Ok(monitor)
    }

    /// Asks, and returns the answer. Events that come meanwhile are passed over.
    pub(super) fn ask(&mut self, question: &str) -> Result<String> {
        writeln!(self.stream.get_mut(), "{question}").map_err(|error| error.to_string())?;
        loop {
            let line = self.line()?;
            if line.contains("\"error\"") && !line.contains("\"status\"") {
                return Err(format!("QEMU says to {question}: {line}"));
            }
            if line.contains("\"return\"") {
                return Ok(line);
            }
        }
    }

    /// Asks again and again until the answer is good.
    pub(super) fn ask_until(&mut self, question: &str, good: impl Fn(&str) -> bool) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.ask(question)?;
            if good(&answer) {
                return Ok(answer);
            }
            if Instant::now() > deadline {
                return Err(format!("QEMU still says to {question}: {answer}"));
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
