//! The state of a unit in text: written at its status socket, and shown by `ironwarp-net status`.

use crate::channel::Failure;
use std::fmt;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Interval of `--watch`.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time limit for a unit to answer.
const LIMIT: Duration = Duration::from_secs(5);

/// What a unit tells.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) hosts: Vec<HostReport>,
    pub(crate) strangers: usize,
    pub(crate) closing: usize,
    pub(crate) tags: usize,
}

#[derive(Debug)]
pub(crate) struct HostReport {
    pub(crate) name: String,
    pub(crate) session: u64,
    pub(crate) peer: SocketAddr,
    pub(crate) pools: u64,
    pub(crate) frames_in: u64,
    pub(crate) bytes_in: u64,
    pub(crate) frames_out: u64,
    pub(crate) bytes_out: u64,
    pub(crate) drops: u64,
    pub(crate) refused: u64,
    pub(crate) stalls: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hosts, strangers, closing, tags } = self;
        let pools: u64 = hosts.iter().map(|host| host.pools).sum();
        let count = hosts.len();
        writeln!(f, "unit hosts={count} pools={pools} tags={tags} strangers={strangers} closing={closing}")?;
        for host in hosts {
            let HostReport { name, session, peer, pools, frames_in, bytes_in, .. } = host;
            let HostReport { frames_out, bytes_out, drops, refused, stalls, .. } = host;
            writeln!(
                f,
                "host name={name} session={session} peer={peer} pools={pools} frames_in={frames_in} \
                 bytes_in={bytes_in} frames_out={frames_out} bytes_out={bytes_out} drops={drops} \
                 refused={refused} stalls={stalls}"
            )?;
        }
        Ok(())
    }
}

/// Sends a report. A reader that does not read gets what fits into the socket.
pub(crate) fn send(mut stream: &UnixStream, report: &Report) {
    let _ = stream.set_nonblocking(true).and_then(|()| stream.write_all(report.to_string().as_bytes()));
}

/// Shows the state of the unit whose status socket is at `path`, once, or every second with rates.
pub(crate) fn show(path: &Path, watch: bool) -> Result<(), Failure> {
    let mut last = None;
    loop {
        let (now, text) = (Instant::now(), read(path)?);
        let lines: Vec<Line> = text.lines().map(Line::parse).collect();
        let rates = last.as_ref().map(|(then, lines): &(Instant, Vec<Line>)| (now - *then, &lines[..]));
        print!("{}", table(&lines, rates));
        if !watch {
            return Ok(());
        }
        last = Some((now, lines));
        std::thread::sleep(INTERVAL);
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    let failed =
        |error: std::io::Error| format!("failed to read the status at `{}`: {error}", path.display());
    let mut stream = UnixStream::connect(path).map_err(failed)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// A line of a report: its kind, and its fields.
#[derive(Debug)]
struct Line {
    kind: String,
    fields: Vec<(String, String)>,
}

impl Line {
    fn parse(text: &str) -> Self {
        let mut words = text.split(' ');
        let kind = words.next().unwrap_or_default().to_owned();
        let fields = words.filter_map(|word| word.split_once('='));
        Self { kind, fields: fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect() }
    }

    fn get(&self, field: &str) -> &str {
        self.fields.iter().find(|(name, _)| name == field).map_or("?", |(_, value)| value)
    }

    fn number(&self, field: &str) -> u64 {
        self.get(field).parse().unwrap_or(0)
    }
}

/// Formats a report for a person. With an earlier report, shows rates.
fn table(lines: &[Line], earlier: Option<(Duration, &[Line])>) -> String {
    let mut text = String::new();
    let mut add = |line: String| {
        text += line.trim_end();
        text.push('\n');
    };
    for line in lines.iter().filter(|line| line.kind == "unit") {
        add(format!(
            "{} hosts, {} pools, {} tags, {} connections not attached, {} closing",
            line.get("hosts"),
            line.get("pools"),
            line.get("tags"),
            line.get("strangers"),
            line.get("closing"),
        ));
    }
    let unit = if earlier.is_some() { "Mbit/s" } else { "MB" };
    add(format!(
        "{:<16} {:>7} {:<24} {:>5} {:>10} {:>10} {:>8} {:>8} {:>8}",
        "host",
        "session",
        "peer",
        "pools",
        format!("in {unit}"),
        format!("out {unit}"),
        "drops",
        "refused",
        "stalls"
    ));
    for line in lines.iter().filter(|line| line.kind == "host") {
        let same = |other: &&Line| {
            other.get("name") == line.get("name") && other.get("session") == line.get("session")
        };
        let amount = |field: &str| match earlier {
            Some((time, lines)) => {
                let before = lines.iter().find(same).map_or(0, |before| before.number(field));
                let bits = line.number(field).saturating_sub(before) as f64 * 8.0;
                bits / time.as_secs_f64() / 1e6
            }
            None => line.number(field) as f64 / 1e6,
        };
        add(format!(
            "{:<16} {:>7} {:<24} {:>5} {:>10.1} {:>10.1} {:>8} {:>8} {:>8}",
            line.get("name"),
            line.get("session"),
            line.get("peer"),
            line.get("pools"),
            amount("bytes_in"),
            amount("bytes_out"),
            line.get("drops"),
            line.get("refused"),
            line.get("stalls"),
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(bytes: u64) -> Vec<Line> {
        let host = HostReport {
            name: "left".to_owned(),
            session: 3,
            peer: "192.0.2.7:4711".parse().unwrap(),
            pools: 4,
            frames_in: 9,
            bytes_in: bytes,
            frames_out: 8,
            bytes_out: 2 * bytes,
            drops: 5,
            refused: 6,
            stalls: 7,
        };
        let report = Report { hosts: vec![host], strangers: 1, closing: 2, tags: 11 };
        report.to_string().lines().map(Line::parse).collect()
    }

    #[test]
    fn a_report_is_shown_as_a_table_with_amounts_or_rates() {
        let (early, late) = (report(1_000_000), report(3_000_000));
        let amounts = table(&late, None);
        let expected = "\
1 hosts, 4 pools, 11 tags, 1 connections not attached, 2 closing
host             session peer                     pools      in MB     out MB    drops  refused   stalls
left                   3 192.0.2.7:4711               4        3.0        6.0        5        6        7
";
        assert_eq!(amounts, expected);
        let rates = table(&late, Some((Duration::from_secs(2), &early[..])));
        assert!(rates.contains("in Mbit/s") && rates.contains("       8.0       16.0 "), "{rates}");
    }
}
