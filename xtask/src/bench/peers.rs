//! Programs of other projects: the benchmarks of UCX and libfabric, and stock perftest under `ironwarp run`.
//! Each is a server and a client that are started for one turn, with a processor each.

use super::judge::Load;
use super::turn::{Figure, Place};
use crate::shell::{Result, command, output};
use ironwarp_testkit::net::listens;
use ironwarp_testkit::process::Process;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    /// `ucx_perftest` with these transports only, separated by commas.
    Ucx(&'static str),
    /// `fi_pingpong` with this provider.
    Fabric(&'static str),
    /// A perftest program on the drop-in.
    Perftest,
}

/// A program to run.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) tool: Tool,
    /// UCX: the test. libfabric: the type of endpoint. perftest: the program.
    pub(super) test: &'static str,
    pub(super) size: usize,
    /// Approximate number of messages per second.
    pub(super) a_second: u64,
    pub(super) crc: bool,
}

impl Peer {
    pub(super) fn messages(&self, millis: u64) -> u64 {
        (self.a_second * millis / 1000).max(20)
    }

    /// The command lines of the server and of the client.
    fn lines(&self, port: u16, place: &Place) -> [Vec<String>; 2] {
        let count = self.messages(place.millis);
        let Self { test, size, .. } = self;
        let words = |line: String| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        match self.tool {
            Tool::Ucx(_) => [
                words(format!("ucx_perftest -p {port}")),
                words(format!(
                    "ucx_perftest {SERVER} -p {port} -t {test} -s {size} -n {count} -w {} -f -v",
                    (count / 4).max(1)
                )),
            ],
            Tool::Fabric(provider) => {
                let common = format!("fi_pingpong -p {provider} -e {test} -S {size} -I {count}");
                [words(format!("{common} -B {port}")), words(format!("{common} -P {port} {SERVER}"))]
            }
            Tool::Perftest => {
                let run = [&*place.ironwarp.to_string_lossy(), "run", "--"].map(str::to_owned).to_vec();
                let depth = if test.ends_with("_bw") { format!(" -t {DEPTH} -Q 1") } else { String::new() };
                let common = format!("{test} -R -F -p {port} -s {size} -n {count}{depth}");
                [
                    [run.clone(), words(common.clone())].concat(),
                    [run, words(format!("{common} {SERVER}"))].concat(),
                ]
            }
        }
    }

    /// The figure in the client's output.
    pub(super) fn read(&self, text: &str, figure: Figure) -> Option<f64> {
        let last = |separator: fn(char) -> bool| -> Option<Vec<f64>> {
            let mut lines =
                text.lines().rev().map(|line| line.split(separator).filter(|word| !word.is_empty()));
            lines.find_map(|line| {
                let words: Vec<_> = line.collect();
                let numbers: Vec<f64> = words.iter().filter_map(|word| word.trim().parse().ok()).collect();
                (words.len() >= 4 && numbers.len() + 5 >= words.len() && numbers.len() >= 3)
                    .then_some(numbers)
            })
        };
        let blank: fn(char) -> bool = char::is_whitespace;
        const MIB: f64 = 1_048_576.0;
        match (self.tool, figure) {
            // iterations, median, mean now, mean; MiB/s now, MiB/s; messages/s now, messages/s
            (Tool::Ucx(_), _) => match (figure, *last(|c| c == ',')?.first_chunk::<8>()?) {
                (Figure::Latency, [_, median, ..]) => Some(median),
                (Figure::Bandwidth, [.., mib, _, _]) => Some(mib * MIB / 1e9),
                (Figure::Rate, [.., rate]) => Some(rate / 1e6),
                _ => None,
            },
            // bytes, sent, acknowledged, total, time (with letters behind them), MB/s, µs for one, millions a second
            (Tool::Fabric(_), Figure::Latency) => last(blank)?.iter().rev().nth(1).copied(),
            (Tool::Fabric(_), Figure::Bandwidth) => Some(last(blank)?.iter().rev().nth(2)? / 1e3),
            // bytes, iterations, least, most, typical, …
            (Tool::Perftest, Figure::Latency) => last(blank)?.get(4).copied(),
            // bytes, iterations, peak, mean in MiB/s, millions of messages
            (Tool::Perftest, Figure::Bandwidth) => Some(last(blank)?.get(3)? * MIB / 1e9),
            _ => None,
        }
    }
}

/// The address of the server.
const SERVER: &str = "127.0.0.1";
/// Queue depth, as in our own loops.
pub(super) const DEPTH: usize = 4;

/// Runs both. `set` adds to their environment. Returns the client's output, and the CPU time used after the
/// client but before the server has ended.
pub(super) fn run(peer: &Peer, place: &Place, set: impl Fn(&mut Command)) -> Result<(String, Load)> {
    let port = next_port();
    let start = |line: &[String], processor: &str, log: &str| {
        let mut command = Command::new("taskset");
        command.args(["-c", processor]).args(line);
        set(&mut command);
        if let Tool::Ucx(transports) = peer.tool {
            command.env("UCX_TLS", transports);
        }
        if !peer.crc {
            command.env("IRONWARP_CRC", "off");
        }
        Process::start(command, peer.test, &place.folder.join(log))
    };
    let [server, client] = peer.lines(port, place);
    let mut server = start(&server, "1", "server.log")?;
    server.wait_until("it listens", |server| listens(server.id(), port))?;
    let mut client = start(&client, "0", "client.log")?;
    let text = client.finish().map_err(|error| format!("{error}\n    {}", server.state()))?;
    let between = Load::now()?;
    server.finish()?;
    Ok((text, between))
}

/// Checks that all tools are installed: otherwise results would be missing without a reason. Looks for the
/// files, because some tools cannot print their version.
pub(super) fn need_tools() -> Result {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing = |tool: &&&str| !std::env::split_paths(&path).any(|folder| folder.join(tool).is_file());
    match TOOLS.iter().find(missing) {
        Some(tool) => Err(format!("`{tool}` is missing: run `cargo xtask setup`")),
        None => Ok(()),
    }
}

/// What the installed UCX and libfabric can use.
#[derive(Debug)]
pub(super) struct Offered {
    /// What `ucx_info -d` prints.
    ucx: String,
    /// What `fi_info -l` prints.
    fabric: String,
}

impl Offered {
    pub(super) fn now() -> Result<Self> {
        let ucx = output(&mut command("ucx_info", &["-d"]))?;
        Ok(Self { ucx, fabric: output(&mut command("fi_info", &["-l"]))? })
    }

    #[cfg(test)]
    pub(super) fn for_test(ucx: &str, fabric: &str) -> Self {
        Self { ucx: ucx.to_owned(), fabric: fabric.to_owned() }
    }

    /// Returns why a program cannot run, or `None` if it can.
    pub(super) fn lacks(&self, peer: &Peer) -> Option<String> {
        match peer.tool {
            Tool::Ucx(transports) => {
                let offers = |name: &str| {
                    let names = self.ucx.lines().filter_map(|line| line.split_once("Transport:"));
                    names.into_iter().any(|(_, found)| found.trim() == name)
                };
                let missing = transports.split(',').find(|name| !offers(name))?;
                Some(format!("the installed UCX has no transport `{missing}`"))
            }
            Tool::Fabric(provider) => {
                let found = self.fabric.lines().any(|line| line.trim_end_matches(':') == provider);
                (!found).then(|| format!("the installed libfabric has no provider `{provider}`"))
            }
            Tool::Perftest => None,
        }
    }
}

const TOOLS: &[&str] = &[
    "fi_info",
    "fi_pingpong",
    "ib_read_bw",
    "ib_send_bw",
    "ib_send_lat",
    "ib_write_bw",
    "ib_write_lat",
    "ip",
    "tc",
    "taskset",
    "timeout",
    "ucx_info",
    "ucx_perftest",
];

/// The port for a turn. Each turn uses the next one, below the kernel's ephemeral ports; nothing else uses
/// this network.
fn next_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    10_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 20_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tool: Tool, text: &str, figure: Figure) -> Option<f64> {
        Peer { tool, test: "", size: 8, a_second: 1, crc: true }.read(text, figure)
    }

    #[test]
    fn figures_are_found_in_what_programs_print() {
        let ucx = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n \
                   500,0.497,2051.1,2051.2,487.5,1000,487,488000\n";
        assert_eq!(read(Tool::Ucx("tcp"), ucx, Figure::Latency), Some(0.497));
        assert_eq!(read(Tool::Ucx("tcp"), ucx, Figure::Bandwidth), Some(1.048576));
        assert_eq!(read(Tool::Ucx("tcp"), ucx, Figure::Rate), Some(0.488));
        let fabric = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                      1m      200     =200     400m        1.86s    225.55    4649.01       0.00\n";
        assert_eq!(read(Tool::Fabric("tcp"), fabric, Figure::Latency), Some(4649.01));
        assert_eq!(read(Tool::Fabric("tcp"), fabric, Figure::Bandwidth), Some(0.22555));
        let many = "1m      1k      =1k      1.9g        0.37s   5697.30     184.05       0.01\n";
        assert_eq!(read(Tool::Fabric("tcp"), many, Figure::Bandwidth), Some(5.6973));
        let bandwidth = " 1048576    500              3154.62            1000.00\t\t   0.001331\n------\n";
        assert_eq!(read(Tool::Perftest, bandwidth, Figure::Bandwidth), Some(1.048576));
        let latency = " 8  2000  4.78  4352.26  5.18     \t  21.65  \t156.71 \t\t877.70  \t2863.41 \n-----\n";
        assert_eq!(read(Tool::Perftest, latency, Figure::Latency), Some(5.18));
        assert_eq!(read(Tool::Perftest, "nothing\n", Figure::Latency), None);
    }

    #[test]
    fn missing_transports_are_named() {
        let offered = Offered::for_test(
            "#      Transport: posix\n#         Device: memory\n#      Transport: self\n",
            "tcp:\n    version: 117.0\nofi_hook_noop:\n",
        );
        let lacks = |tool| offered.lacks(&Peer { tool, test: "", size: 8, a_second: 1, crc: true });
        assert_eq!((lacks(Tool::Ucx("posix,self")), lacks(Tool::Fabric("tcp"))), (None, None));
        assert!(lacks(Tool::Ucx("posix,cma,self")).unwrap().contains("`cma`"));
        assert!(lacks(Tool::Fabric("shm")).unwrap().contains("`shm`"));
    }
}
