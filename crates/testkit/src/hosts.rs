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

/// A process that keeps namespaces. Ends when dropped.
#[derive(Debug)]
pub struct Keeper(Child);

impl Keeper {
    /// Creates namespaces with these arguments of unshare(1).
    pub fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new("unshare");
        command.args(arguments).args(["--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // The namespaces are there when `cat` runs.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Self(child)
    }

    /// Returns the identifier of the process.
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A host: a network namespace, which ends when this is dropped.
#[derive(Debug)]
pub struct Host(Keeper);

impl Host {
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

/// Returns two hosts, the first of which has the addresses that move.
pub fn two_hosts() -> [Host; 2] {
    let start = || {
        let keeper = Keeper::start(&["--net"]);
        let id = keeper.id();
        (Host(keeper), id)
    };
    joined_hosts(start, Host::ip)
}

/// Creates two hosts, and joins them by a bridge. `start` returns a host and a process or thread in its network namespace, and
/// `ip_on` runs ip(8) there.
pub fn joined_hosts<H>(start: impl Fn() -> (H, u32), ip_on: impl Fn(&H, &str)) -> [H; 2] {
    ip("link set lo up");
    // With an address of its own: otherwise it has that of a port, and another one after a port has come or gone.
    ip("link add br0 address 02:00:00:00:00:01 type bridge");
    ip("link set br0 up");
    ip(&add(PEER, "br0"));
    ip(&add(PEER_V6, "br0"));
    let hosts = [1, 2].map(|number| {
        let (host, id) = start();
        ip(&format!("link add port{number} type veth peer name {INTERFACE} netns {id}"));
        ip(&format!("link set port{number} master br0 up"));
        ip_on(&host, "link set lo up");
        ip_on(&host, &format!("link set {INTERFACE} up"));
        ip_on(&host, &add(&format!("10.77.0.1{number}"), INTERFACE));
        ip_on(&host, &add(&format!("fd77::1{number}"), INTERFACE));
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
    ip_on(&hosts[0], &add(MOVING, INTERFACE));
    ip_on(&hosts[0], &add(MOVING_V6, INTERFACE));
    hosts
}

/// Returns the length of the prefix of all addresses of an IP version.
pub fn prefix_of(is_ipv6: bool) -> u8 {
    if is_ipv6 { 64 } else { 24 }
}

/// Returns the arguments of ip(8) that add an address, which need not be verified first.
pub fn add(address: &str, interface: &str) -> String {
    let is_ipv6 = address.contains(':');
    let no_detection = if is_ipv6 { " nodad" } else { "" };
    format!("addr add {address}/{} dev {interface}{no_detection}", prefix_of(is_ipv6))
}
