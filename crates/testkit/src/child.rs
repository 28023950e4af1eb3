//! Tests that take more than one process: the test program starts itself again, for one test, in a role.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Tells a process its role.
const ROLE: &str = "IRONWARP_TEST_ROLE";

/// The role of this process, or `None` if the test runner started it.
pub fn role() -> Option<String> {
    env::var(ROLE).ok()
}

/// A command that runs `test` of this program in a role.
pub fn command(test: &str, role: &str) -> Command {
    in_front(&[], test, role)
}

/// A command that runs `test` of this program in a role and in a network namespace of its own, where nothing is up yet.
/// That needs no root where the system allows user namespaces.
pub fn command_in_network(test: &str, role: &str) -> Command {
    in_front(&["unshare", "--user", "--map-root-user", "--net"], test, role)
}

/// A command that runs `test` of this program in a role, started by another program.
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

/// Runs `test` in a process of its own. The test calls this first: returns true in the child, which then does the work;
/// in the parent, the child has passed.
pub fn in_child(test: &str) -> bool {
    passes(command(test, "child"), test)
}

/// Runs `test` in a process and a network namespace of its own, like [`in_child`].
pub fn in_network(test: &str) -> bool {
    passes(command_in_network(test, "child"), test)
}

/// Runs `test` where it can start threads and processes as any user: in this process if it is root, and otherwise in a
/// child that is root of a user namespace. The test calls this first: returns true where the test is to do the work;
/// otherwise the child has passed.
///
/// Fails unless the process is root or may map more than its own user ID: that needs the programs newuidmap and
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

fn passes(command: Command, test: &str) -> bool {
    let is_child = role().is_some();
    if !is_child {
        assert_passes(command, test, "failed in a child process");
    }
    is_child
}

/// Runs a command that runs `test`. Panics with its output, and `hint`, unless the test passes.
fn assert_passes(mut command: Command, test: &str, hint: &str) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{test} {hint}: {}\n{text}\n{errors}", output.status);
}

/// Sends a line to the process that started this one.
pub fn tell(line: &str) {
    // The first line break ends what the test harness has printed.
    println!("\n{line}");
    io::stdout().flush().unwrap();
}

/// Waits for a line with `marker` from the process that started this one, and returns what follows it there.
pub fn wait_for(marker: &str) -> String {
    let mut lines = io::stdin().lines().map(Result::unwrap);
    lines.find_map(|line| Some(line.split_once(marker)?.1.to_owned())).expect("the test is still there")
}

/// Waits until the process that started this one closes the input.
pub fn wait_for_end() {
    io::stdin().lines().for_each(drop);
}

/// A process that takes part in a test and talks to it in lines. Killed when dropped.
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

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a line.
    pub fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{line}").unwrap();
        input.flush().unwrap();
    }

    /// Returns the next line.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the other process ended");
        line.trim_end().to_owned()
    }

    /// Waits for a line with `marker` and returns what follows it there. The line can begin with what the test harness
    /// prints.
    pub fn wait_for(&mut self, marker: &str) -> String {
        loop {
            let line = self.line();
            if let Some((_, rest)) = line.split_once(marker) {
                return rest.to_owned();
            }
        }
    }

    /// Closes its input, which asks it to end.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Closes its input and waits until it ends, which it must do with success.
    pub fn finish(mut self) {
        self.close_input();
        for line in (&mut self.output).lines() {
            let line = line.unwrap();
            assert!(!line.contains("FAILED"), "{line}");
        }
        assert!(self.child.wait().unwrap().success());
    }

    /// Kills it, and waits until it is gone.
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
