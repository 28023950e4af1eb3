//! Three hosts on a switch, each a network namespace: the peer, and two between which a program moves.

use crate::inside::{network, network_host};
use crate::shell::{Result, at, command, output};
use ironwarp_testkit::process::Process;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The interface of each host.
pub(super) const DEVICE: &str = "eth0";

/// The addresses of one version of IP.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) name: &'static str,
    pub(super) peer: &'static str,
    /// The address that moves.
    pub(super) moving: &'static str,
    pub(super) prefix: &'static str,
    /// Another address, whose only purpose is to change.
    other: &'static str,
}

pub(super) const FAMILIES: [Addresses; 2] = [
    Addresses { name: "IPv4", peer: "10.77.0.1", moving: "10.77.0.2", prefix: "/24", other: "10.78.0.1/24" },
    Addresses { name: "IPv6", peer: "fd77::1", moving: "fd77::2", prefix: "/64", other: "fd78::1/64" },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    Peer,
    Source,
    Target,
}

#[derive(Debug)]
pub(super) struct Network {
    /// Keep the namespaces alive: those of the switch and of the hosts.
    switch: Process,
    hosts: [Process; 3],
}

impl Network {
    pub(super) fn new(folder: &Path, addresses: &Addresses) -> Result<Self> {
        let host = |name: &str| network_host(name, &folder.join(format!("{name}.log")));
        let hosts = [host("peer")?, host("source")?, host("target")?];
        let all = Self { switch: host("switch")?, hosts };
        let switch = |words: &str| ip(&all.switch, words);
        switch("link add name hub type bridge")?;
        switch("link set dev hub up")?;
        for (number, host) in all.hosts.iter().enumerate() {
            let port = format!("port{number}");
            switch(&format!("link add name {port} type veth peer name {DEVICE} netns {}", host.id()))?;
            switch(&format!("link set dev {port} up master hub"))?;
            ip(host, "link set dev lo up")?;
            // A link-local address would come a second or two later. CRIU refuses a process that is notified of it
            // during the dump.
            ip(host, &format!("link set dev {DEVICE} addrgenmode none"))?;
            ip(host, &format!("link set dev {DEVICE} up"))?;
        }
        let Addresses { peer, moving, prefix, .. } = addresses;
        all.ip(Host::Peer, &format!("{}{DEVICE}", add(&format!("{peer}{prefix}"))))?;
        all.ip(Host::Source, &format!("{}{DEVICE}", add(&format!("{moving}{prefix}"))))?;
        Ok(all)
    }

    /// Gives a host another address, and takes it away again.
    pub(super) fn change_address(&self, host: Host, addresses: &Addresses) -> Result {
        let other = addresses.other;
        self.ip(host, &format!("{}lo", add(other)))?;
        self.ip(host, &format!("address del {other} dev lo"))
    }

    /// Returns whether a host has the address that moves.
    pub(super) fn has_address(&self, host: Host, addresses: &Addresses) -> Result<bool> {
        let mut list = self.on(host);
        list.args(["ip", "-oneline", "address", "show", "to", addresses.moving]);
        output(&mut list).map(|found| !found.is_empty())
    }

    /// Returns an action script for CRIU that runs `hook`, and fails if the target, which has the address but not the sockets
    /// yet, answers the peer. The peer finds the target at that moment, and sends it a packet.
    pub(super) fn probe(&self, hook: &Path, addresses: &Addresses, port: u16) -> String {
        let (peer, hook, address) = (self.host(Host::Peer).id(), hook.display(), addresses.moving);
        format!(
            r#"#!/bin/sh
'{hook}' || exit
if [ "$CRTOOLS_SCRIPT_ACTION" != pre-restore ]; then exit 0; fi
exec nsenter --net=/proc/{peer}/ns/net -- bash -c '
    ip neighbour flush to {address} dev {DEVICE}
    timeout 0.5 bash -c ": </dev/tcp/{address}/{port}"
    [ $? = 124 ]'
"#
        )
    }

    /// Returns a command that runs another one on a host.
    pub(super) fn on(&self, host: Host) -> Command {
        command("nsenter", &[&network(&self.host(host).id().to_string()), "--"])
    }

    /// Returns the number of bytes that the interface of a host has received.
    pub(super) fn received(&self, host: Host) -> Result<u64> {
        let path = format!("/proc/{}/net/dev", self.host(host).id());
        let table = fs::read_to_string(&path).map_err(at(Path::new(&path)))?;
        let row = table.lines().find_map(|line| line.trim().strip_prefix(DEVICE)?.strip_prefix(':'));
        let bytes = row.and_then(|row| row.split_whitespace().next()).and_then(|bytes| bytes.parse().ok());
        bytes.ok_or_else(|| format!("{path} has no interface {DEVICE}:\n{table}"))
    }

    fn ip(&self, host: Host, words: &str) -> Result {
        ip(self.host(host), words)
    }

    fn host(&self, host: Host) -> &Process {
        &self.hosts[host as usize]
    }
}

/// The words that add an address, up to the interface. Without duplicate address detection, an IPv6 address is usable at
/// once.
fn add(address: &str) -> String {
    let detection = if address.contains(':') { "nodad " } else { "" };
    format!("address add {address} {detection}dev ")
}

fn ip(host: &Process, words: &str) -> Result {
    let target = network(&host.id().to_string());
    output(command("nsenter", &[&target, "--", "ip"]).args(words.split(' '))).map(drop)
}
