//! Hosts that an adapter moves between: network namespaces whose interfaces are joined by a bridge in the namespace of the test,
//! which is a third host. Processes enter them with `nsenter`, which takes the place of `ssh`.
//!
//! Tests call [`child::in_network`] first, so that they are root of a user namespace.

use super::scene::Process;
use ironwarp_testkit::child;
use ironwarp_testkit::control::pair;
use ironwarp_testkit::net::ip;
use ironwarp_testkit::wait::until;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::{FdFlags, fcntl_setfd};
use std::fs::File;
use std::process::{Child, Command, Stdio};

/// The address of the end that stays, that of the end that moves, and the interface of the latter.
pub(crate) const PEER: &str = "10.77.0.1";
pub(crate) const MOVING: &str = "10.77.0.2";
pub(crate) const INTERFACE: &str = "eth0";
/// The test in which processes arrive. It is the first of those between hosts.
pub(crate) const HOST: &str = "host_load::connections_under_load_move_from_host_to_host_without_a_wrong_byte";
/// The role of processes that another host has started.
pub(crate) const ARRIVER: &str = "arriver";
/// Where the pipes from and to the other host are in a process that arrives.
const INPUT: &str = "/proc/self/fd/8";
const OUTPUT: &str = "/proc/self/fd/9";

/// A host: a process that keeps a network namespace. Ends when dropped.
#[derive(Debug)]
pub(crate) struct Host(Child);

impl Host {
    fn start() -> Self {
        let mut command = Command::new("unshare");
        let mut child = command
            .args(["--net", "--", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The namespace is there when `cat` runs.
        use std::io::{Read, Write};
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Self(child)
    }

    fn namespace(&self) -> String {
        format!("--net=/proc/{}/ns/net", self.0.id())
    }

    /// Runs ip(8) on the host.
    pub(crate) fn ip(&self, arguments: &str) {
        let mut command = Command::new("nsenter");
        let status = command.arg(self.namespace()).arg("ip").args(arguments.split(' ')).status().unwrap();
        assert!(status.success(), "ip {arguments}");
    }

    /// Returns whether an interface of the host has the address that moves.
    pub(crate) fn has_address(&self) -> bool {
        let mut command = Command::new("nsenter");
        let output = command.arg(self.namespace()).args(["ip", "-o", "addr"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains(&format!("{MOVING}/"))
    }

    /// Starts a process that can have the end that moves.
    pub(crate) fn process(&self) -> Process {
        Process::run(child::in_front(&["nsenter", &self.namespace()], HOST, "mover"))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns two hosts, the first of which has the address that moves.
pub(crate) fn two_hosts() -> [Host; 2] {
    ip("link set lo up");
    // With an address of its own: otherwise it has that of a port, and another one after a port has come or gone.
    ip("link add br0 address 02:00:00:00:00:01 type bridge");
    ip("link set br0 up");
    ip(&format!("addr add {PEER}/24 dev br0"));
    let hosts = [1, 2].map(|number| {
        let host = Host::start();
        ip(&format!("link add port{number} type veth peer name {INTERFACE} netns {}", host.0.id()));
        ip(&format!("link set port{number} master br0 up"));
        host.ip("link set lo up");
        host.ip(&format!("link set {INTERFACE} up"));
        host.ip(&format!("addr add 10.77.0.1{number}/24 dev {INTERFACE}"));
        host
    });
    // The bridge notices some time later that a port has a carrier. Until then it drops frames.
    for number in [1, 2] {
        until(|| {
            let port =
                Command::new("ip").args(["-d", "link", "show", &format!("port{number}")]).output().unwrap();
            String::from_utf8_lossy(&port.stdout).contains("state forwarding")
        });
    }
    hosts[0].ip(&format!("addr add {MOVING}/24 dev {INTERFACE}"));
    hosts
}

/// Returns the command by which a process reaches another host: there, a process of this test takes the adapter over. Its
/// standard input is `control`, and its pipes have other numbers, because a test prints to its standard output.
pub(crate) fn arriving(namespace: &str, control: &OwnedFd) -> Command {
    fcntl_setfd(control, FdFlags::empty()).unwrap(); // the command inherits it
    let redirect = format!("exec \"$@\" 8<&0 9>&1 0<&{} >/dev/null", control.as_raw_fd());
    let mut command =
        child::in_front(&["nsenter", namespace, "bash", "-c", &redirect, "bash"], HOST, ARRIVER);
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
