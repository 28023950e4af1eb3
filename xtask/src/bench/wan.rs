//! Two hosts and a link between them that takes its time and loses packets: network namespaces, joined by a veth pair with
//! netem. A kernel that was built without netem gets a link of our own, `link.c`, which does the same in a process; the result
//! says which it was.

use super::contender::{Contender, Figure, How};
use super::group::{Group, Link, metric};
use crate::inside::{network, network_host};
use crate::process::Process;
use crate::shell::{Result, command, output};
use std::path::Path;

const SERVER: &str = "10.78.0.1";
const CLIENT: &str = "10.78.0.2";
const DEVICE: &str = "iw0";
/// Packets that are on their way, at most.
const LIMIT: &str = "100000";

#[derive(Debug)]
pub(super) struct Wan {
    /// The client's, and the server's.
    hosts: [Process; 2],
    /// Our own link, where netem is missing.
    own: Option<Process>,
}

impl Wan {
    pub(super) fn new(link: Link, folder: &Path) -> Result<Self> {
        let host = |name: &str| network_host(name, &folder.join(format!("{name}.log")));
        let mut wan = Self { hosts: [host("client-host")?, host("server-host")?], own: None };
        wan.join()?;
        if !wan.netem(link)? {
            wan.own = Some(wan.own_link(link, folder)?);
        }
        Ok(wan)
    }

    /// What the link is made of.
    pub(super) fn made_of(&self) -> &'static str {
        if self.own.is_some() { "a link of our own: this kernel has no netem" } else { "netem" }
    }

    /// Of the client, and of the server.
    pub(super) fn networks(&self) -> [String; 2] {
        self.hosts.each_ref().map(|host| format!("/proc/{}/ns/net", host.id()))
    }

    fn inside(&self, host: usize, line: &str) -> Result {
        let target = network(&self.hosts[host].id().to_string());
        let words: Vec<_> = line.split(' ').collect();
        output(&mut command("nsenter", &[&[target.as_str(), "--"], &words[..]].concat())).map(drop)
    }

    fn join(&self) -> Result {
        let server = self.hosts[1].id();
        self.inside(0, &format!("ip link add {DEVICE} type veth peer name {DEVICE} netns {server}"))?;
        self.addresses()
    }

    fn addresses(&self) -> Result {
        for (host, address) in [(0, CLIENT), (1, SERVER)] {
            self.inside(host, "ip link set lo up")?;
            self.inside(host, &format!("ip addr add {address}/24 dev {DEVICE}"))?;
            self.inside(host, &format!("ip link set {DEVICE} txqueuelen 10000 up"))?;
        }
        Ok(())
    }

    /// False if the kernel has none.
    fn netem(&self, Link { round_trip_millis, lost }: Link) -> Result<bool> {
        let delay = round_trip_millis * 1000 / 2;
        let loss = if lost == 0 { String::new() } else { format!(" loss {}%", f64::from(lost) / 1e4) };
        for host in [0, 1] {
            let line = format!("tc qdisc add dev {DEVICE} root netem limit {LIMIT} delay {delay}us{loss}");
            match self.inside(host, &line) {
                Err(error) if error.contains("kind is unknown") => return Ok(false),
                other => other?,
            }
        }
        Ok(true)
    }

    fn own_link(&self, Link { round_trip_millis, lost }: Link, folder: &Path) -> Result<Process> {
        let program = folder.join("link");
        let compile =
            ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "xtask/src/bench/link.c", "-o"];
        output(command("cc", &compile).arg(&program))?;
        self.inside(0, &format!("ip link del {DEVICE}"))?;
        let mut link = command(&program.to_string_lossy(), &[DEVICE]);
        link.args(self.networks());
        link.args([(round_trip_millis * 1000 / 2).to_string(), lost.to_string(), LIMIT.to_owned()]);
        let mut link = Process::start(link, "link", &folder.join("link.log"))?;
        link.wait_until("its devices are there", |link| link.output().contains("ready"))?;
        // It has to outlive all turns of a group, repeated or not.
        link.patience(std::time::Duration::from_secs(3600));
        self.addresses()?;
        Ok(link)
    }
}

const BARE: &str = "bare TCP, 1 MiB";
const BARE_ACKED: &str = "bare TCP, 64 KiB, acknowledged";
const WRITE: &str = "Ironwarp, 1 MiB";
const WRITE_ACKED: &str = "Ironwarp, 1 MiB, acknowledged";
const SMALL_ACKED: &str = "Ironwarp, 64 KiB, acknowledged";

/// The links, with the names of what is measured there.
const LINKS: [(Link, &str, &str, [&str; 3]); 3] = [
    (
        Link { round_trip_millis: 1, lost: 0 },
        "wan_1ms",
        "Across a link of 1 ms",
        ["wan_1ms_write_1m", "wan_1ms_write_1m_acked", "wan_1ms_write_64k_acked"],
    ),
    (
        Link { round_trip_millis: 20, lost: 0 },
        "wan_20ms",
        "Across a link of 20 ms",
        ["wan_20ms_write_1m", "wan_20ms_write_1m_acked", "wan_20ms_write_64k_acked"],
    ),
    (
        Link { round_trip_millis: 20, lost: 1000 },
        "wan_20ms_loss",
        "Across a link of 20 ms that loses 0.1 % of packets",
        ["wan_20ms_loss_write_1m", "wan_20ms_loss_write_1m_acked", "wan_20ms_loss_write_64k_acked"],
    ),
];

/// The congestion control is the system's there, for all. Nobody polls: a link of our own needs the processors, too.
pub(super) fn groups() -> Vec<Group> {
    let own = |name, words: &str| {
        let common = format!("at={SERVER} reno=false crc=false queued=16 blocking=true {words}");
        Contender { name, how: How::Ours(common) }
    };
    let group = |(link, name, title, metrics): (Link, &'static str, &'static str, [&'static str; 3])| Group {
        name,
        title,
        figure: Figure::Bandwidth,
        patience: 3,
        link: Some(link),
        contenders: vec![
            own(BARE, "who=bare size=1048576"),
            own(WRITE, "size=1048576"),
            own(WRITE_ACKED, "size=1048576 acked=true"),
            own(BARE_ACKED, "who=bare size=65536 acked=true"),
            own(SMALL_ACKED, "size=65536 acked=true"),
        ],
        metrics: vec![
            metric(metrics[0], WRITE, &[BARE], 0.9, 1.0),
            metric(metrics[1], WRITE_ACKED, &[BARE], 0.9, 1.0),
            metric(metrics[2], SMALL_ACKED, &[BARE_ACKED], 0.9, 1.0),
        ],
    };
    LINKS.into_iter().map(group).collect()
}
