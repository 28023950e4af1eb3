//! Helpers for tests that need more than one process. The test program starts itself again as a child that runs only
//! one test; an environment variable tells the child its role in that test.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The environment variable with the role of a child.
const ROLE: &str = "IRONWARP_TEST_ROLE";

/// Returns the role of this process, or `None` if the test runner started it.
pub fn role() -> Option<String> {
    env::var(ROLE).ok()
}

/// Returns a command that runs `test` of this program in a role.
pub fn command(test: &str, role: &str) -> Command {
    in_front(&[], test, role)
}

/// Returns a command that runs `test` of this program in a role, in a network namespace of its own, where no interface
/// is up yet. Needs no root where the system allows user namespaces.
pub fn command_in_network(test: &str, role: &str) -> Command {
    in_front(&["unshare", "--user", "--map-root-user", "--net"], test, role)
}

/// Returns a command that runs `test` of this program in a role, started by the program and arguments of `starter`.
pub fn in_front(starter: &[&str], test: &str, role: &str) -> Command {
    let this = env::current_exe().unwrap();
    let mut command = match starter {
        [] => Command::new(this),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(this);
            command
        }
    };
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

/// Runs `test` in a process of its own. The test calls this function first. Returns true in the child, which then does
/// the work. Returns false in the parent, after the child has passed.
pub fn in_child(test: &str) -> bool {
    passes(command(test, "child"), test)
}

/// Runs `test` in a process and a network namespace of its own, like [`in_child`].
pub fn in_network(test: &str) -> bool {
    passes(command_in_network(test, "child"), test)
}

/// Runs `test` like [`in_network`], with further arguments of the test program.
pub fn in_network_with(test: &str, arguments: &[&str]) -> bool {
    let mut command = command_in_network(test, "child");
    command.args(arguments);
    passes(command, test)
}

/// Runs `test` where it can start threads and processes as any user: in this process if it is root, and otherwise in a
/// child that is root of a user namespace. The test calls this function first. Returns true in the process that does
/// the work. Returns false in the parent, after the child has passed.
///
/// Panics unless the process is root or may map more than its own user ID, which requires the programs newuidmap and
/// newgidmap (package uidmap), and a range of IDs for the user in /etc/subuid and /etc/subgid.
pub fn as_root(test: &str) -> bool {
    if rustix::process::geteuid().is_root() {
        return true;
    }
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--map-auto"]).arg(env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    let needs = "needs a second user: run it as root, or install newuidmap and newgidmap (package uidmap) and add \
                 your user to /etc/subuid and /etc/subgid";
    assert_passes(command, test, needs);
    false
}

/// Runs the command in the parent, and panics unless the test passes. Returns whether this process is the child.
fn passes(command: Command, test: &str) -> bool {
    let is_child = role().is_some();
    if !is_child {
        assert_passes(command, test, "failed in a child process");
    }
    is_child
}

/// Runs a command that runs `test`, and prints its output. Panics with the output, and `hint`, unless the test passes.
fn assert_passes(mut command: Command, test: &str, hint: &str) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{test} {hint}: {}\n{text}\n{errors}", output.status);
    println!("{text}");
}

/// Sends a line to the parent.
pub fn tell(line: &str) {
    // The first line break ends the line that the test harness has begun to print.
    println!("\n{line}");
    io::stdout().flush().unwrap();
}

/// Waits for a line with `marker` from the parent, and returns the rest of the line after the marker.
pub fn wait_for(marker: &str) -> String {
    let mut lines = io::stdin().lines().map(Result::unwrap);
    lines.find_map(|line| Some(line.split_once(marker)?.1.to_owned())).expect("the test is still there")
}

/// Waits until the parent closes the input of this process.
pub fn wait_for_end() {
    io::stdin().lines().for_each(drop);
}

/// A child process that takes part in a test, and exchanges lines with it. Killed when dropped.
#[derive(Debug)]
pub struct Partner {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Partner {
    /// Starts a command, usually one of [`command`].
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a line to the child.
    pub fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{line}").unwrap();
        input.flush().unwrap();
    }

    /// Waits for the next line of the child, and returns it.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the other process ended");
        line.trim_end().to_owned()
    }

    /// Waits for a line with `marker` and returns the rest of the line after the marker. Output of the test harness may
    /// precede the marker.
    pub fn wait_for(&mut self, marker: &str) -> String {
        loop {
            let line = self.line();
            if let Some((_, rest)) = line.split_once(marker) {
                return rest.to_owned();
            }
        }
    }

    /// Closes the input of the child, which tells the child to end.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Closes the input of the child and waits until the child ends. Panics unless it succeeds.
    pub fn finish(mut self) {
        self.close_input();
        for line in (&mut self.output).lines() {
            let line = line.unwrap();
            assert!(!line.contains("FAILED"), "{line}");
        }
        assert!(self.child.wait().unwrap().success());
    }

    /// Kills the child, and waits until it has ended.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        assert_eq!(self.child.wait().unwrap().code(), None, "it ended before it was killed");
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
