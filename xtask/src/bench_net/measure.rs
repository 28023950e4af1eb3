//! Measures an open tunnel: round trips with ping, then throughput and CPU time with iperf3. Also checks that what arrives is
//! what was sent, and that it crossed the link between the machines.

use super::network::{LEFT, Machines, Namespace, RIGHT};
use super::tunnel::Open;
use crate::bench::statistics::Summary;
use crate::cost;
use crate::shell::{Result, at, output};
use ironwarp_testkit::net::listens;
use ironwarp_testkit::process::Process;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Ports inside of the namespaces, which are ours alone.
const IPERF_PORT: u16 = 5201;
const CHECK_PORT: u16 = 5202;
/// Number of bytes that are compared.
const CHECKED: usize = 64 << 20;
/// Number of pings, and how many of them may remain without an answer.
const PINGS: usize = 200;
const LOST_PINGS: usize = 4;
/// Maximum time until a tunnel answers the first ping.
const PATIENCE: Duration = Duration::from_secs(20);

/// The results of one turn. Throughput is in Gbit/s.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    /// From the left to the right, and back.
    pub(super) directions: [f64; 2],
    /// Bytes that arrived for each second of CPU time of the forwarding processes.
    pub(super) bytes_per_cpu: f64,
    /// The median round trip.
    pub(super) micros: f64,
}

impl Figures {
    /// The mean of both directions.
    pub(super) fn gigabits(&self) -> f64 {
        f64::midpoint(self.directions[0], self.directions[1])
    }
}

/// A tunnel that is measured.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    pub(super) machines: &'a Machines,
    pub(super) open: Open,
    pub(super) folder: &'a Path,
}

impl Turn<'_> {
    pub(super) fn measure(&self, seconds: u32) -> Result<Figures> {
        let micros = self.ping()?;
        let (cpu, crossed, looped) = (self.cpu()?, self.machines.crossed()?, self.looped()?);
        let arrived = [self.iperf(seconds, &[])?, self.iperf(seconds, &["--reverse"])?];
        let bytes = arrived[0].bytes + arrived[1].bytes;
        expect_at_least(bytes, self.machines.crossed()? - crossed, "the link between the machines")?;
        if self.open.loopback {
            expect_at_least(bytes, self.looped()? - looped, "the loopback interface of the right machine")?;
        }
        let cpu = self.cpu()?.saturating_sub(cpu);
        if cpu.is_zero() {
            return Err("the forwarding processes used no CPU time".to_owned());
        }
        let directions = arrived.map(|one| one.bits_per_second / 1e9);
        Ok(Figures { directions, bytes_per_cpu: bytes as f64 / cpu.as_secs_f64(), micros })
    }

    /// Waits until the tunnel works.
    pub(super) fn wait(&mut self) -> Result {
        let deadline = Instant::now() + PATIENCE;
        let mut once = self.client().command(&["ping", "-n", "-c", "1", "-W", "1", self.open.address]);
        while let Err(error) = output(&mut once) {
            if Instant::now() > deadline {
                let states: Vec<_> = self.open.forwarders.iter_mut().map(Process::state).collect();
                return Err(format!("no connection within {PATIENCE:?}: {error}\n{}", states.join("\n")));
            }
        }
        Ok(())
    }

    /// Sends known bytes in both directions.
    pub(super) fn check(&self) -> Result {
        let (known, arrived) = (self.folder.join("known"), self.folder.join("arrived"));
        let bytes = pattern(CHECKED);
        fs::write(&known, &bytes).map_err(at(&known))?;
        let (file, copy) = (format!("FILE:{}", known.display()), format!("CREATE:{}", arrived.display()));
        let (listen, connect) =
            (format!("TCP-LISTEN:{CHECK_PORT},reuseaddr"), format!("TCP:{}:{CHECK_PORT}", self.open.address));
        let socat = |space: &Namespace, from: &str, to: &str| {
            space.command(&["socat", "-u", "-b", "65536", from, to])
        };
        for (server, client) in [
            (socat(self.server(), &listen, &copy), socat(self.client(), &file, &connect)),
            (socat(self.server(), &file, &listen), socat(self.client(), &connect, &copy)),
        ] {
            let mut client = client;
            let mut server = self.listener(server, "socat", CHECK_PORT)?;
            output(&mut client)?;
            server.finish()?;
            let found = fs::read(&arrived).map_err(at(&arrived))?;
            if found != bytes {
                let same = found.iter().zip(&bytes).take_while(|(found, sent)| found == sent).count();
                return Err(format!(
                    "sent {CHECKED} bytes, received {}: the first {same} are equal",
                    found.len()
                ));
            }
        }
        fs::remove_file(&known).map_err(at(&known))?;
        fs::remove_file(&arrived).map_err(at(&arrived))
    }

    fn client(&self) -> &Namespace {
        &self.open.containers[LEFT]
    }

    fn server(&self) -> &Namespace {
        if self.open.to_machine { &self.machines.0[RIGHT] } else { &self.open.containers[RIGHT] }
    }

    /// Starts a server and waits until it listens.
    fn listener(&self, command: std::process::Command, name: &str, port: u16) -> Result<Process> {
        let mut server = Process::start(command, name, &self.folder.join(format!("{name}.log")))?;
        server.wait_until("it listens", |server| listens(server.id(), port))?;
        Ok(server)
    }

    /// Returns the median of the times of all pings, in microseconds.
    fn ping(&self) -> Result<f64> {
        let count = PINGS.to_string();
        let words = ["ping", "-n", "-i", "0.01", "-c", &count, "-W", "1", self.open.address];
        let printed = output(&mut self.client().command(&words))?;
        let times = ping_times(&printed);
        if times.len() + LOST_PINGS < PINGS {
            return Err(format!("{} of {PINGS} pings were answered", times.len()));
        }
        Ok(Summary::of(times).median)
    }

    /// Measures one direction. Each has a server of its own, because a server does not listen for a while between two clients.
    fn iperf(&self, seconds: u32, options: &[&str]) -> Result<Arrived> {
        let (seconds, port) = (seconds.to_string(), IPERF_PORT.to_string());
        let server = self.server().command(&["iperf3", "--server", "--one-off", "--port", &port]);
        let mut server = self.listener(server, "iperf3", IPERF_PORT)?;
        let words = ["iperf3", "--client", self.open.address, "--port", &port, "--time", &seconds, "--json"];
        let printed = output(&mut self.client().command(&[&words, options].concat()))?;
        server.finish()?;
        arrived(&printed)
    }

    /// Returns the CPU time that all forwarding processes have used so far. Each was started in a group of its own.
    fn cpu(&self) -> Result<Duration> {
        let groups: Vec<_> = self.open.forwarders.iter().map(Process::id).collect();
        let processes = fs::read_dir("/proc").map_err(at(Path::new("/proc")))?;
        // A process that ends meanwhile has no file.
        let stats =
            processes.flatten().filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
        let ours = stats.filter(|stat| group(stat).is_some_and(|group| groups.contains(&group)));
        Ok(ours.filter_map(|stat| cost::parse(&stat)).sum())
    }

    /// Returns how many bytes have crossed the loopback interface of the right machine.
    fn looped(&self) -> Result<u64> {
        self.machines.0[RIGHT].bytes("lo")
    }
}

/// What iperf3's receiver received.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Arrived {
    bytes: u64,
    bits_per_second: f64,
}

/// Reads the output of `iperf3 --json`.
fn arrived(json: &str) -> Result<Arrived> {
    let value: Value = serde_json::from_str(json).map_err(|error| format!("iperf3: {error}:\n{json}"))?;
    if let Some(error) = value["error"].as_str() {
        return Err(format!("iperf3: {error}"));
    }
    let received = &value["end"]["sum_received"];
    match (received["bytes"].as_u64(), received["bits_per_second"].as_f64()) {
        (Some(bytes), Some(bits_per_second)) if bytes > 0 => Ok(Arrived { bytes, bits_per_second }),
        _ => Err(format!("iperf3 received nothing:\n{json}")),
    }
}

/// Reads the output of ping: microseconds.
fn ping_times(printed: &str) -> Vec<f64> {
    let time = |line: &str| line.split_once(" time=")?.1.strip_suffix(" ms")?.parse::<f64>().ok();
    printed.lines().filter_map(time).map(|millis| millis * 1000.0).collect()
}

/// Reads a `stat` file of a process: its process group, the fifth field.
fn group(stat: &str) -> Option<u32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(2)?.parse().ok()
}

/// Headers only add to what iperf3 counts, and super-packets have few of them.
fn expect_at_least(bytes: u64, counted: u64, place: &str) -> Result {
    match counted >= bytes {
        true => Ok(()),
        false => Err(format!("{bytes} bytes arrived, but only {counted} crossed {place}")),
    }
}

/// Bytes of a xorshift generator, which no two places of a stream have in common.
fn pattern(len: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receiver_of_iperf3_counts() {
        let end = r#"{"sum_sent": {"bytes": 9, "bits_per_second": 9.5}, "sum_received": {"bytes": 8, "bits_per_second": 7.5}}"#;
        let json = format!(r#"{{"start": {{}}, "end": {end}}}"#);
        assert_eq!(arrived(&json), Ok(Arrived { bytes: 8, bits_per_second: 7.5 }));
        let refused = r#"{"start": {}, "end": {}, "error": "unable to connect to server"}"#;
        assert_eq!(arrived(refused), Err("iperf3: unable to connect to server".to_owned()));
        assert!(arrived(r#"{"end": {"sum_received": {"bytes": 0, "bits_per_second": 0}}}"#).is_err());
        assert!(arrived("").is_err());
    }

    #[test]
    fn each_answered_ping_has_a_time() {
        let printed = "PING 10.5.0.2 (10.5.0.2) 56(84) bytes of data.\n\
            64 bytes from 10.5.0.2: icmp_seq=1 ttl=64 time=0.250 ms\n\
            64 bytes from 10.5.0.2: icmp_seq=3 ttl=64 time=1.5 ms\n\n\
            --- 10.5.0.2 ping statistics ---\n\
            3 packets transmitted, 2 received, 33% packet loss, time 20ms\n\
            rtt min/avg/max/mdev = 0.250/0.875/1.500/0.625 ms\n";
        assert_eq!(ping_times(printed), [250.0, 1500.0]);
    }

    #[test]
    fn the_group_of_a_process_is_found_behind_any_name() {
        assert_eq!(group("7 (a) b) S 1 42 7 0 -1\n"), Some(42));
        assert_eq!(group("7 (a)"), None);
    }

    #[test]
    fn bytes_that_bypass_the_link_are_noticed() {
        assert_eq!(expect_at_least(10, 11, "the link"), Ok(()));
        assert_eq!(
            expect_at_least(10, 9, "the link"),
            Err("10 bytes arrived, but only 9 crossed the link".to_owned())
        );
    }
}
