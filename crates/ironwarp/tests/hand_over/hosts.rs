//! Processes of a test on two hosts, between which an adapter moves.

use super::scene::Process;
use ironwarp_testkit::child;
use ironwarp_testkit::control::pair;
use ironwarp_testkit::hosts::Host;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::{FdFlags, fcntl_setfd};
use std::fs::File;
use std::process::Command;

/// The test in which processes arrive. It is the first of those between hosts.
pub(crate) const HOST: &str = "host_load::connections_under_load_move_from_host_to_host_without_a_wrong_byte";
/// The role of processes that another host has started.
pub(crate) const ARRIVER: &str = "arriver";
/// Where the pipes from and to the other host are in a process that arrives.
const INPUT: &str = "/proc/self/fd/8";
const OUTPUT: &str = "/proc/self/fd/9";

/// Starts a process on a host that can have the end that moves.
pub(crate) fn start(host: &Host) -> Process {
    start_in(HOST, host)
}

/// Starts a process on a host that runs this test in a role.
pub(crate) fn start_in(test: &str, host: &Host) -> Process {
    Process::run(child::in_front(&["nsenter", &host.namespace()], test, "mover"))
}

/// Returns the command by which a process reaches another host: there, a process takes the adapter over in `test`. Its
/// standard input is `control`, and its pipes have other numbers, because a test prints to its standard output.
pub(crate) fn arriving(test: &str, namespace: &str, control: &OwnedFd) -> Command {
    fcntl_setfd(control, FdFlags::empty()).unwrap(); // the command inherits it
    let redirect = format!("exec \"$@\" 8<&0 9>&1 0<&{} >/dev/null", control.as_raw_fd());
    let mut command =
        child::in_front(&["nsenter", namespace, "bash", "-c", &redirect, "bash"], test, ARRIVER);
    command.arg("--include-ignored");
    command
}

/// Returns the pipes from and to the other host.
pub(crate) fn pipes() -> (File, File) {
    (File::open(INPUT).unwrap(), File::options().write(true).open(OUTPUT).unwrap())
}

/// Begins to move the adapter of a process to another host. `timeouts` and `source_acts` are those of the source. Returns
/// the process at the other host.
pub(crate) fn begin_move(
    from: &Process,
    to: &Host,
    timeouts: &str,
    [source_acts, target_acts]: [&str; 2],
) -> Process {
    let (control, its) = pair();
    let words = format!("give-host {timeouts} {} {source_acts}", to.namespace());
    from.tell(words.trim_end(), Some(its));
    let process = Process::arriving(control);
    process.tell(format!("take 60000 {target_acts}").trim_end(), None);
    process
}

/// Moves the adapter of a process to another host. Returns the process there.
pub(crate) fn move_to(from: &Process, to: &Host) -> Process {
    let process = begin_move(from, to, "60000 60000", ["", ""]);
    let (given, taken) = (from.says(), process.says());
    assert_eq!(taken, "ok taken", "{given}");
    let flooded = given.strip_prefix("ok ").unwrap_or_else(|| panic!("{given}"));
    process.tell(&format!("flood {flooded}"), None);
    process
}
