//! The contenders, and how each takes its turn: our own program, or a server and a client of another project.
//! The result of a turn is text that is not parsed yet, because `judge.rs` decides first whether it counts.

use super::judge::Load;
use super::neighbours::Neighbours;
use super::peers::{self, Peer, Tool};
use super::turn::{Figure, Place};
use crate::shell::{Result, command, output};
use std::process::Command;

/// A contender of a group.
#[derive(Clone, Debug)]
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) how: How,
    /// Whether Ironwarp may use the ring in shared memory instead of TCP.
    ring: bool,
    /// Whether other processes compute meanwhile.
    busy: bool,
}

#[derive(Clone, Debug)]
pub(super) enum How {
    /// The arguments of our own program.
    Ours(String),
    Peer(Peer),
}

/// Our own program with these arguments, over TCP.
pub(super) fn ours(name: &'static str, words: &str) -> Contender {
    Contender::new(name, How::Ours(words.to_owned()))
}

/// A program of another project. `a_second` is about the number of messages that it moves per second.
pub(super) fn peer(
    name: &'static str,
    tool: Tool,
    test: &'static str,
    size: usize,
    a_second: u64,
) -> Contender {
    Contender::new(name, How::Peer(Peer { tool, test, size, a_second, crc: size <= 8 }))
}

/// A name that was put together. It lives as long as the program, like those that are written out.
pub(super) fn name(text: String) -> &'static str {
    text.leak()
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
    /// A contender over TCP, without busy neighbours.
    fn new(name: &'static str, how: How) -> Self {
        Self { name, how, ring: false, busy: false }
    }

    /// The name of a contender's twin over the ring.
    pub(super) fn ring_name(of: &str) -> &'static str {
        name(format!("{of}, ring"))
    }

    /// Its twin over the ring.
    pub(super) fn over_ring(&self) -> Self {
        Self { name: Self::ring_name(self.name), ring: true, ..self.clone() }
    }

    /// The name of a contender's twin beside busy neighbours.
    pub(super) fn busy_name(of: &str) -> &'static str {
        name(format!("{of}, busy"))
    }

    /// Its twin beside busy neighbours.
    pub(super) fn beside_neighbours(&self) -> Self {
        Self { name: Self::busy_name(self.name), busy: true, ..self.clone() }
    }

    /// Whether it runs Ironwarp, natively or as the drop-in.
    pub(super) fn is_ironwarp(&self) -> bool {
        match &self.how {
            How::Ours(words) => !words.contains("transport=bare"),
            How::Peer(peer) => peer.tool == Tool::Perftest,
        }
    }

    /// Whether it is a plain socket.
    pub(super) fn is_bare(&self) -> bool {
        matches!(self.how, How::Ours(_)) && !self.is_ironwarp()
    }

    pub(super) fn take_turn(&self, place: &Place) -> Result<Output> {
        if !self.busy {
            return self.run_turn(place);
        }
        let mut neighbours = Neighbours::start(&place.program)?;
        let output = self.run_turn(place)?;
        neighbours.check()?;
        Ok(output)
    }

    /// Selects what carries Ironwarp's messages, for both ends of a turn.
    fn set_transport(&self, command: &mut Command) {
        command.env(RING, if self.ring { "on" } else { "off" });
    }

    fn run_turn(&self, place: &Place) -> Result<Output> {
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
                self.set_transport(&mut turn);
                Ok(Output { text: output(&mut turn)?, processor: None })
            }
            How::Peer(peer) => {
                let before = Load::now()?;
                let (text, between) = peers::run(peer, place, |command| self.set_transport(command))?;
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

/// The setting of Ironwarp that switches the ring on and off.
const RING: &str = "IRONWARP_SHM";

fn read_ours(text: &str, figure: Figure) -> Option<Sample> {
    let find = |key: &str| {
        let word = text.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        word?.parse::<f64>().ok()
    };
    let (seconds, messages, bytes) = (find("seconds")?, find("messages")?, find("bytes")?);
    let value = match figure {
        Figure::Latency => find("half")? * 1e6,
        Figure::MeanLatency => seconds / messages * 1e6,
        Figure::Bandwidth => bytes / seconds / 1e9,
        Figure::Rate => messages / seconds / 1e6,
        Figure::Memory => find("resident")?,
        Figure::Wakes => find("wakes")?,
        Figure::Switches => find("switches")?,
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
        assert_eq!(read_ours(line, Figure::MeanLatency).unwrap().value, 500.0, "seconds per message");
        assert_eq!(read_ours("seconds=0.5", Figure::Rate), None);
    }

    #[test]
    fn only_twins_use_the_ring() {
        let tcp = ours("x", "");
        let setting = |contender: &Contender| {
            let mut command = Command::new("true");
            contender.set_transport(&mut command);
            let set: Vec<_> = command
                .get_envs()
                .map(|(key, value)| (key.to_owned(), value == Some("on".as_ref())))
                .collect();
            set
        };
        assert_eq!(setting(&tcp), [(RING.into(), false)]);
        let ring = tcp.over_ring();
        assert_eq!((ring.name, setting(&ring)), ("x, ring", vec![(RING.into(), true)]));
        let busy = ring.beside_neighbours();
        assert_eq!((busy.name, setting(&busy)), ("x, ring, busy", vec![(RING.into(), true)]));
        assert!(busy.busy && !ring.busy);
    }
}
