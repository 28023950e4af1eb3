//! Hosts of a test: network namespaces whose interfaces are joined by a bridge in the namespace of the test, which is another
//! host. Processes enter them with `nsenter`, which takes the place of `ssh`.
//!
//! Tests call [`in_network`](crate::child::in_network) first, so that they are root of a user namespace.

use crate::net::ip;
use crate::wait::until;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

/// The address of the test.
pub const PEER: &str = "10.77.0.1";
/// The IPv6 address of the test.
pub const PEER_V6: &str = "fd77::1";
/// The address that moves. The first host has it in the beginning.
pub const MOVING: &str = "10.77.0.2";
/// The IPv6 address that moves.
pub const MOVING_V6: &str = "fd77::2";
/// The interface of each host.
pub const INTERFACE: &str = "eth0";

/// A host: a process that keeps a network namespace. Ends when dropped.
#[derive(Debug)]
pub struct Host(Child);

impl Host {
    fn start() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // The namespace is there when `cat` runs.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Self(child)
    }

    /// Returns the argument of nsenter(1) that enters the host.
    pub fn namespace(&self) -> String {
        format!("--net=/proc/{}/ns/net", self.0.id())
    }

    /// Returns a command that runs a program on the host.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(self.namespace()).arg(program);
        command
    }

    /// Runs ip(8) on the host.
    pub fn ip(&self, arguments: &str) {
        let status = self.command("ip").args(arguments.split(' ')).status().unwrap();
        assert!(status.success(), "ip {arguments}");
    }

    /// Returns whether an interface of the host has an address.
    pub fn has_address(&self, address: &str) -> bool {
        let output = self.command("ip").args(["-o", "addr"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains(&format!(" {address}/"))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns two hosts, the first of which has the address that moves.
pub fn two_hosts() -> [Host; 2] {
    ip("link set lo up");
    // With an address of its own: otherwise it has that of a port, and another one after a port has come or gone.
    ip("link add br0 address 02:00:00:00:00:01 type bridge");
    ip("link set br0 up");
    ip(&format!("addr add {PEER}/24 dev br0"));
    ip(&format!("addr add {PEER_V6}/64 dev br0 nodad"));
    let hosts = [1, 2].map(|number| {
        let host = Host::start();
        ip(&format!("link add port{number} type veth peer name {INTERFACE} netns {}", host.0.id()));
        ip(&format!("link set port{number} master br0 up"));
        host.ip("link set lo up");
        host.ip(&format!("link set {INTERFACE} up"));
        host.ip(&format!("addr add 10.77.0.1{number}/24 dev {INTERFACE}"));
        host.ip(&format!("addr add fd77::1{number}/64 dev {INTERFACE} nodad"));
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
    hosts[0].ip(&format!("addr add {MOVING_V6}/64 dev {INTERFACE} nodad"));
    hosts
}
