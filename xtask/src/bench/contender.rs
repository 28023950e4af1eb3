//! Who takes part, and how each takes its turn: our own program, or a pair of foreign ones. A turn ends with text that nobody has
//! read; `judge.rs` decides before `Unread::read` is called.

use super::judge::Load;
use super::peers::{self, Peer};
use crate::shell::{Result, command, output};
use std::path::PathBuf;

/// What is read from a turn, and what is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    /// Half a round trip, in microseconds.
    Latency,
    /// In GB/s.
    Bandwidth,
    /// Millions of messages a second.
    Rate,
    /// Bytes of memory.
    Memory,
    /// How often a consumer was woken for each completion.
    Wakes,
}

impl Figure {
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Latency => "µs",
            Self::Bandwidth => "GB/s",
            Self::Rate => "M/s",
            Self::Memory => "B",
            Self::Wakes => "wakes",
        }
    }

    pub(super) fn less_is_better(self) -> bool {
        matches!(self, Self::Latency | Self::Memory | Self::Wakes)
    }
}

/// One that takes turns in a group.
#[derive(Clone, Debug)]
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) how: How,
}

#[derive(Clone, Debug)]
pub(super) enum How {
    /// The words that our own program is told.
    Ours(String),
    Peer(Peer),
}

/// Where turns are taken.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Our own program.
    pub(super) program: PathBuf,
    /// `ironwarp`, with the drop-in beside it.
    pub(super) ironwarp: PathBuf,
    /// What foreign programs print goes here.
    pub(super) folder: PathBuf,
    /// Network namespaces of the client and of the server, as files: none, if both are in ours.
    pub(super) networks: Option<[String; 2]>,
    /// How long a turn of our own is measured, in milliseconds; others are told as many messages as take about as long.
    pub(super) millis: u64,
}

/// What a turn printed.
#[derive(Debug)]
pub(super) struct Unread {
    text: String,
    /// Processor time of client and server in seconds, if they do not tell themselves.
    processor: Option<[f64; 2]>,
}

/// What it says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) value: f64,
    /// For each second that a processor worked, at the client and at the server. Zero where it is not known.
    pub(super) bytes: [f64; 2],
    pub(super) messages: [f64; 2],
}

impl Contender {
    pub(super) fn take_turn(&self, place: &Place) -> Result<Unread> {
        match &self.how {
            How::Ours(words) => {
                // What hangs would keep the whole run: it is given far more than it needs.
                let limit = format!("{}", 60 + place.millis / 100);
                let program = place.program.to_string_lossy();
                let mut all = vec!["-s", "KILL", &limit];
                let enter = place.networks.as_ref().map(|[client, _]| format!("--net={client}"));
                if let Some(enter) = &enter {
                    all.extend(["nsenter", enter, "--"]);
                }
                all.push(&program);
                let mut turn = command("timeout", &all);
                turn.arg(format!("millis={}", place.millis)).args(words.split_whitespace());
                if let Some([_, server]) = &place.networks {
                    turn.arg(format!("network={server}"));
                }
                Ok(Unread { text: output(&mut turn)?, processor: None })
            }
            How::Peer(peer) => {
                let before = Load::now()?;
                let (text, between) = peers::run(peer, place)?;
                let processor =
                    [before.seconds_of_children(&between), between.seconds_of_children(&Load::now()?)];
                Ok(Unread { text, processor: Some(processor) })
            }
        }
    }

    pub(super) fn read(&self, turn: &Unread, figure: Figure, place: &Place) -> Result<Sample> {
        let strange = || format!("{}: cannot be read:\n{}", self.name, turn.text);
        match &self.how {
            How::Ours(_) => read_ours(&turn.text, figure).ok_or_else(strange),
            How::Peer(peer) => {
                let value = peer.read(&turn.text, figure).ok_or_else(strange)?;
                let processor = turn.processor.unwrap_or_default();
                // They tell their mean or median, not how long they worked: all that they did is counted, with their start.
                let count = peer.messages(place.millis) as f64;
                let per =
                    |work: f64| processor.map(|seconds| if seconds > 0.0 { work / seconds } else { 0.0 });
                Ok(Sample { value, messages: per(count), bytes: per(count * peer.size as f64) })
            }
        }
    }
}

fn read_ours(text: &str, figure: Figure) -> Option<Sample> {
    let find = |key: &str| {
        let word = text.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        word?.parse::<f64>().ok()
    };
    let (seconds, messages, bytes) = (find("seconds")?, find("messages")?, find("bytes")?);
    let value = match figure {
        Figure::Latency => find("half")? * 1e6,
        Figure::Bandwidth => bytes / seconds / 1e9,
        Figure::Rate => messages / seconds / 1e6,
        Figure::Memory => find("resident")?,
        Figure::Wakes => find("wakes")?,
    };
    let processor = [find("client")?, find("server")?];
    let per = |work: f64| processor.map(|seconds| if seconds > 0.0 { work / seconds } else { 0.0 });
    (value.is_finite() && value > 0.0).then(|| Sample { value, messages: per(messages), bytes: per(bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_our_own_program_is_read() {
        let line =
            "seconds=0.5 messages=1000 bytes=1000000000 half=0.000004 resident=0 client=0.25 server=0.5\n";
        let sample = read_ours(line, Figure::Bandwidth).unwrap();
        assert_eq!((sample.value, sample.bytes, sample.messages), (2.0, [4e9, 2e9], [4000.0, 2000.0]));
        assert_eq!(read_ours(line, Figure::Latency).unwrap().value, 4.0);
        assert_eq!(read_ours(line, Figure::Memory), None, "nothing was measured");
        assert_eq!(read_ours("seconds=0.5", Figure::Rate), None);
    }
}
