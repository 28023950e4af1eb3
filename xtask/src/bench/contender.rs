//! The contenders, and how each takes its turn: our own program, or a server and a client of another project.
//! The result of a turn is text that is not parsed yet, because `judge.rs` decides first whether it counts.

use super::judge::Load;
use super::peers::{self, Peer};
use super::turn::{Figure, Place};
use crate::shell::{Result, command, output};

/// A contender of a group.
#[derive(Clone, Debug)]
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) how: How,
}

#[derive(Clone, Debug)]
pub(super) enum How {
    /// The arguments of our own program.
    Ours(String),
    Peer(Peer),
}

/// The output of a turn, not parsed yet.
#[derive(Debug)]
pub(super) struct Output {
    text: String,
    /// CPU time of client and server in seconds, if the output does not contain it.
    processor: Option<[f64; 2]>,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) value: f64,
    /// Per second of CPU time, at the client and at the server. Zero if unknown.
    pub(super) bytes: [f64; 2],
    pub(super) messages: [f64; 2],
}

impl Contender {
    pub(super) fn take_turn(&self, place: &Place) -> Result<Output> {
        match &self.how {
            How::Ours(words) => {
                // A generous time limit, so that a hanging turn does not block the whole run.
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
                Ok(Output { text: output(&mut turn)?, processor: None })
            }
            How::Peer(peer) => {
                let before = Load::now()?;
                let (text, between) = peers::run(peer, place)?;
                let processor =
                    [before.seconds_of_children(&between), between.seconds_of_children(&Load::now()?)];
                Ok(Output { text, processor: Some(processor) })
            }
        }
    }

    pub(super) fn read(&self, turn: &Output, figure: Figure, place: &Place) -> Result<Sample> {
        let strange = || format!("{}: unexpected output:\n{}", self.name, turn.text);
        match &self.how {
            How::Ours(_) => read_ours(&turn.text, figure).ok_or_else(strange),
            How::Peer(peer) => {
                let value = peer.read(&turn.text, figure).ok_or_else(strange)?;
                let processor = turn.processor.unwrap_or_default();
                // They print a mean or median, not their running time, so everything they did counts,
                // including their start.
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
