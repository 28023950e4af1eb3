//! The parameters of a turn. Both processes receive them as arguments of the form `key=value`; each has a default.

use crate::result::Result;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::time::Duration;

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Plain TCP sockets.
    Bare,
    /// Queue pairs of the native API.
    Ironwarp,
}

/// The workload, and what it measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// Half of the round-trip time of a message.
    PingPong,
    /// Half of the round-trip time of a Write, where each side only polls its memory.
    Watch,
    /// Throughput in one direction.
    Stream,
    /// Requests and answers on many connections.
    Requests,
    /// Half of the 99th percentile of the round-trip time beside bulk traffic.
    Priority,
    /// Memory of an idle connection.
    Idle,
}

/// The operation of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Write,
    Read,
    Send,
}

/// The parameters of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) transport: Transport,
    pub(crate) workload: Workload,
    pub(crate) operation: Operation,
    /// Payload of a message in bytes.
    pub(crate) size: usize,
    /// Maximum number of outstanding messages.
    pub(crate) queued: usize,
    /// Number of messages per call.
    pub(crate) batch: usize,
    /// Duration of the measurement, which a warm-up of a quarter of it precedes.
    pub(crate) millis: u64,
    /// Whether to sleep until completions or bytes arrive, instead of polling.
    pub(crate) blocking: bool,
    pub(crate) crc: bool,
    /// Whether a message completes only when the peer has received it. Over bare TCP, the peer answers each message
    /// with a byte.
    pub(crate) acked: bool,
    /// Whether an end polls for the completion of its own Write before it polls its memory, like perftest.
    pub(crate) polls: bool,
    /// Whether bare sockets use reno congestion control instead of the system's default.
    pub(crate) reno: bool,
    pub(crate) connections: usize,
    /// Number of completions after which a completion handler wakes the server of a stream of Sends, or either end of a
    /// ping-pong with Sends. With zero they do not use a handler.
    pub(crate) events: usize,
    /// Number of connections with bulk traffic in the background.
    pub(crate) load: usize,
    /// Whether the measured connection has the low-latency class.
    pub(crate) urgent: bool,
    /// Whether both processes give up the permission to raise their priority.
    pub(crate) ordinary: bool,
    /// Address of the server.
    pub(crate) at: IpAddr,
    /// File of the network namespace of the server; empty for that of the client.
    pub(crate) network: String,
}

const TRANSPORTS: &[(&str, Transport)] = &[("bare", Transport::Bare), ("ironwarp", Transport::Ironwarp)];
const WORKLOADS: &[(&str, Workload)] = &[
    ("pingpong", Workload::PingPong),
    ("watch", Workload::Watch),
    ("stream", Workload::Stream),
    ("requests", Workload::Requests),
    ("priority", Workload::Priority),
    ("idle", Workload::Idle),
];
const OPERATIONS: &[(&str, Operation)] =
    &[("write", Operation::Write), ("read", Operation::Read), ("send", Operation::Send)];

impl Turn {
    /// Parses arguments. Fails if one is unknown or invalid, or if they do not fit together.
    pub(crate) fn parse(words: &[String]) -> Result<Self> {
        let mut turn = Self {
            transport: Transport::Ironwarp,
            workload: Workload::Stream,
            operation: Operation::Write,
            size: 8,
            queued: 1,
            batch: 1,
            millis: 300,
            blocking: false,
            crc: true,
            acked: false,
            polls: false,
            reno: true,
            connections: 1,
            events: 0,
            load: 0,
            urgent: false,
            ordinary: false,
            at: Ipv4Addr::LOCALHOST.into(),
            network: String::new(),
        };
        for word in words {
            let (key, value) =
                word.split_once('=').ok_or_else(|| format!("invalid word `{word}`: expected key=value"))?;
            match key {
                "transport" => turn.transport = parse_name(TRANSPORTS, value)?,
                "workload" => turn.workload = parse_name(WORKLOADS, value)?,
                "operation" => turn.operation = parse_name(OPERATIONS, value)?,
                "size" => turn.size = parse_value(word, value)?,
                "queued" => turn.queued = parse_value(word, value)?,
                "batch" => turn.batch = parse_value(word, value)?,
                "millis" => turn.millis = parse_value(word, value)?,
                "blocking" => turn.blocking = parse_value(word, value)?,
                "crc" => turn.crc = parse_value(word, value)?,
                "acked" => turn.acked = parse_value(word, value)?,
                "polls" => turn.polls = parse_value(word, value)?,
                "reno" => turn.reno = parse_value(word, value)?,
                "connections" => turn.connections = parse_value(word, value)?,
                "events" => turn.events = parse_value(word, value)?,
                "load" => turn.load = parse_value(word, value)?,
                "urgent" => turn.urgent = parse_value(word, value)?,
                "ordinary" => turn.ordinary = parse_value(word, value)?,
                "at" => turn.at = parse_value(word, value)?,
                "network" => value.clone_into(&mut turn.network),
                _ => return Err(format!("unknown key in `{word}`").into()),
            }
        }
        match turn.size > 0 && turn.batch > 0 && turn.queued >= turn.batch && turn.connections > 0 {
            true => Ok(turn),
            false => Err(format!("unsupported combination: {turn}").into()),
        }
    }

    /// Returns the duration of the measurement.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_millis(self.millis)
    }

    /// Returns the duration of the warm-up.
    pub(crate) fn warm_up(&self) -> Duration {
        self.time() / 4
    }
}

impl fmt::Display for Turn {
    /// Writes the arguments that [`parse`](Self::parse) converts to the same turn, without the network namespace.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            size,
            queued,
            batch,
            millis,
            blocking,
            crc,
            acked,
            polls,
            reno,
            connections,
            events,
            load,
            urgent,
            ordinary,
            at,
            ..
        } = self;
        let (transport, workload) = (name_of(TRANSPORTS, self.transport), name_of(WORKLOADS, self.workload));
        let operation = name_of(OPERATIONS, self.operation);
        write!(
            f,
            "transport={transport} workload={workload} operation={operation} size={size} queued={queued} batch={batch} "
        )?;
        write!(f, "millis={millis} blocking={blocking} crc={crc} acked={acked} polls={polls} reno={reno} ")?;
        write!(
            f,
            "connections={connections} events={events} load={load} urgent={urgent} ordinary={ordinary} "
        )?;
        write!(f, "at={at}")
    }
}

/// Parses the value of an argument, which the error contains.
fn parse_value<T: FromStr>(word: &str, value: &str) -> Result<T> {
    value.parse().map_err(|_| format!("invalid value in `{word}`").into())
}

/// Returns the value with this name.
fn parse_name<T: Copy>(names: &[(&str, T)], value: &str) -> Result<T> {
    let found = names.iter().find(|(name, _)| *name == value);
    found.map(|(_, it)| *it).ok_or_else(|| format!("unknown value `{value}`").into())
}

/// Returns the name of a value.
fn name_of<T: PartialEq>(names: &[(&'static str, T)], of: T) -> &'static str {
    names.iter().find(|(_, it)| *it == of).map_or("", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Turn> {
        Turn::parse(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn parameters_survive_printing_and_parsing() {
        let turn =
            parse("transport=bare workload=requests size=64 queued=32 acked=true connections=100 at=::1")
                .unwrap();
        assert_eq!((turn.transport, turn.size, turn.acked), (Transport::Bare, 64, true));
        assert_eq!(parse(&turn.to_string()).unwrap(), turn);
    }

    #[test]
    fn unsupported_combinations_are_rejected() {
        for words in ["size", "size=x", "transport=nobody", "colour=red", "size=0", "queued=4 batch=8"] {
            assert!(parse(words).is_err(), "{words}");
        }
    }
}
