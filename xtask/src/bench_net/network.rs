//! Two machines, which are network namespaces joined by a veth pair, and containers, which have a namespace of their own.

use crate::inside::{network, network_host};
use crate::shell::{Result, at, command, output};
use ironwarp_testkit::process::Process;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The interface of each machine.
const LINK: &str = "eth0";
/// The addresses of the machines.
pub(super) const MACHINES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
/// Index of the machine whose container connects, and of the one whose container listens.
pub(super) const LEFT: usize = 0;
pub(super) const RIGHT: usize = 1;

/// A network namespace, which exists as long as this value.
#[derive(Debug)]
pub(super) struct Namespace(Process);

impl Namespace {
    pub(super) fn new(name: &str, folder: &Path) -> Result<Self> {
        let space = Self(network_host(name, &folder.join(format!("{name}.log")))?);
        space.ip("link set lo up")?;
        Ok(space)
    }

    /// A process in the namespace.
    pub(super) fn process(&self) -> u32 {
        self.0.id()
    }

    pub(super) fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.process())
    }

    /// Returns a command that runs in the namespace.
    pub(super) fn command(&self, words: &[&str]) -> Command {
        command("nsenter", &[&[&network(&self.process().to_string()), "--"], words].concat())
    }

    /// Runs ip(8).
    pub(super) fn ip(&self, line: &str) -> Result {
        let words: Vec<_> = std::iter::once("ip").chain(line.split(' ')).collect();
        output(&mut self.command(&words)).map(drop)
    }

    pub(super) fn has_device(&self, device: &str) -> bool {
        self.bytes(device).is_ok()
    }

    /// Returns how many bytes an interface has received and sent.
    pub(super) fn bytes(&self, device: &str) -> Result<u64> {
        let path = format!("/proc/{}/net/dev", self.process());
        let table = fs::read_to_string(&path).map_err(at(Path::new(&path)))?;
        bytes(&table, device).ok_or_else(|| format!("{path} has no interface {device}:\n{table}"))
    }
}

/// Reads proc_net_dev(5): the first column is bytes received, the ninth is bytes sent.
fn bytes(table: &str, device: &str) -> Option<u64> {
    let row = table.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'))?;
    let column = |index| row.split_whitespace().nth(index)?.parse::<u64>().ok();
    Some(column(0)? + column(8)?)
}

#[derive(Debug)]
pub(super) struct Machines(pub(super) [Namespace; 2]);

impl Machines {
    pub(super) fn new(folder: &Path) -> Result<Self> {
        let machines = [Namespace::new("left", folder)?, Namespace::new("right", folder)?];
        let [left, right] = &machines;
        left.ip(&format!("link add {LINK} type veth peer name {LINK} netns {}", right.process()))?;
        for (machine, address) in machines.iter().zip(MACHINES) {
            machine.ip(&format!("addr add {address}/24 dev {LINK}"))?;
            machine.ip(&format!("link set {LINK} up"))?;
        }
        Ok(Self(machines))
    }

    /// Returns how many bytes have crossed the link between the machines.
    pub(super) fn crossed(&self) -> Result<u64> {
        self.0[LEFT].bytes(LINK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_both_directions_are_counted_for_the_named_interface_only() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes packets\n\
            \x20   lo: 7 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n\
            \x20 eth0: 100 2 0 0 0 0 0 0 23 1 0 0 0 0 0 0\n\
            eth01: 900 2 0 0 0 0 0 0 900 1 0 0 0 0 0 0\n";
        assert_eq!(bytes(table, "eth0"), Some(123));
        assert_eq!(bytes(table, "lo"), Some(14));
        assert_eq!(bytes(table, "eth"), None);
    }
}
