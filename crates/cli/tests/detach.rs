//! Runs `ironwarp detach` beside two programs that ping each other in shared memory.

mod common;

use common::{command, stderr, stdout};
use ironwarp_engine::status;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Output, Stdio};
use std::time::{Duration, Instant};

/// Maximum time to wait, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A process of the command, killed on drop.
struct Running {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut command = command(env!("CARGO_BIN_EXE_ironwarp"));
        command.args(arguments).env("IRONWARP_SHM", "on").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("starts");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        Self { process, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("output").expect("a line")
    }

    /// Returns how the stream of the only connection travels; empty if there is none.
    fn route(&self) -> String {
        let prefix = format!("ironwarp/{}/", self.process.id());
        let names = status::adapters().expect("a list");
        let adapters = names.iter().filter(|name| name.starts_with(&prefix));
        let rows = adapters
            .filter_map(|name| status::request(name, None).and_then(status::Answer::read).ok())
            .flat_map(|adapter| adapter.rows);
        rows.into_iter()
            .find(|row| row.kind() == "qp")
            .map_or_else(String::new, |row| row.text("route").to_owned())
    }

    /// Number of mappings of memory that the process shares with others.
    fn rings(&self) -> usize {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.process.id())).expect("maps");
        maps.lines().filter(|line| line.contains("ironwarp-ring")).count()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until `done` returns true. Panics if that takes too long.
#[track_caller]
fn until(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < deadline, "the condition did not become true in time");
        std::thread::yield_now();
    }
}

fn detach(arguments: &[&str]) -> Output {
    command(env!("CARGO_BIN_EXE_ironwarp")).arg("detach").args(arguments).output().expect("runs")
}

/// The pings go on, with every byte verified, and neither process shares memory any more.
#[test]
fn programs_that_ping_each_other_leave_shared_memory_and_go_on() {
    let mut server = Running::start(&["ping", "--listen", "127.0.0.1:0"]);
    let address = server.line();
    let address =
        address.strip_prefix("listening on ").and_then(|rest| rest.split(';').next()).expect("an address");
    let mut client = Running::start(&["ping", address, "-c", "0", "-i", "0.01", "-s", "1000"]);
    until(|| client.route() == "shm" && server.route() == "shm");
    assert!(client.rings() > 0 && server.rings() > 0);

    let process = client.process.id().to_string();
    let detached = detach(&[&process]);
    assert!(detached.status.success(), "{detached:?}");
    assert_eq!(stdout(&detached), format!("process {process}: shares no memory with others\n"));
    let left = "tcp: left shared memory";
    assert_eq!(client.route(), left);
    until(|| server.route() == left && server.rings() == 0);
    assert_eq!(client.rings(), 0);
    for _ in 0..20 {
        client.line();
    }
    assert_eq!(client.process.try_wait().expect("known"), None, "it goes on");
    assert!(detach(&[&process, &server.process.id().to_string()]).status.success(), "again");
}

#[test]
fn a_process_without_an_adapter_is_reported() {
    let process = std::process::id().to_string();
    let detached = detach(&[&process]);
    assert_eq!(detached.status.code(), Some(1));
    let error = stderr(&detached);
    assert!(error.starts_with(&format!("ironwarp: process {process}: not found")), "{error}");
}
