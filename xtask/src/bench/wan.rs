//! Two hosts, and a link between them with delay and loss: network namespaces joined by a veth pair with
//! netem. If the kernel has no netem, a process of our own (`link.c`) does the same; the results say which
//! was used.

use super::contender::ours;
use super::group::{Group, Link, metric};
use super::turn::Figure;
use crate::inside::{network, network_host};
use crate::shell::{Result, command, output};
use ironwarp_testkit::process::Process;
use std::path::Path;

const SERVER: &str = "10.78.0.1";
const CLIENT: &str = "10.78.0.2";
const DEVICE: &str = "iw0";
/// Maximum number of packets in flight.
const LIMIT: &str = "100000";

#[derive(Debug)]
pub(super) struct Wan {
    /// The hosts of the client and of the server.
    hosts: [Process; 2],
    /// Our own link, if netem is missing.
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

    /// How the link is implemented.
    pub(super) fn made_of(&self) -> &'static str {
        if self.own.is_some() { "emulated by a process, because this kernel has no netem" } else { "netem" }
    }

    /// The network namespaces of the client and of the server.
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

    /// Returns false if the kernel has no netem.
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
        // It must outlive all turns of a group, including repetitions.
        link.set_timeout(std::time::Duration::from_secs(3600));
        self.addresses()?;
        Ok(link)
    }
}

const BARE: &str = "bare TCP, 1 MiB";
const BARE_ACKED: &str = "bare TCP, 64 KiB, acknowledged";
const WRITE: &str = "Ironwarp, 1 MiB";
const WRITE_ACKED: &str = "Ironwarp, 1 MiB, acknowledged";
const SMALL_ACKED: &str = "Ironwarp, 64 KiB, acknowledged";

/// The links, with the names of their groups.
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

/// All use the system's congestion control. None polls, because our own link needs the processors, too.
pub(super) fn groups() -> Vec<Group> {
    let own = |name, words: &str| {
        ours(name, &format!("at={SERVER} reno=false crc=false queued=16 blocking=true {words}"))
    };
    let group = |(link, name, title, metrics): (Link, &'static str, &'static str, [&'static str; 3])| Group {
        name,
        title,
        figure: Figure::Bandwidth,
        patience: 3,
        link: Some(link),
        contenders: vec![
            own(BARE, "transport=bare size=1048576"),
            own(WRITE, "size=1048576"),
            own(WRITE_ACKED, "size=1048576 acked=true"),
            own(BARE_ACKED, "transport=bare size=65536 acked=true"),
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
