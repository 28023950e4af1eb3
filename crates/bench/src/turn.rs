//! What one turn does, as both processes are told it: words of the form `key=value`, each with a default.

use crate::Result;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::time::Duration;

/// Who moves the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Bare,
    Ironwarp,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A message there, and one back: half of the time that both take.
    PingPong,
    /// The same, where each side watches its memory and nothing else.
    Watch,
    /// One way, as much as there is room for.
    Stream,
    /// Requests and answers on many connections.
    Requests,
    /// A message there, and one back, beside bulk traffic: half of what 99 of 100 take at most.
    Priority,
    /// What a connection takes of memory while it does nothing.
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Write,
    Read,
    Send,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) who: Who,
    pub(crate) what: What,
    pub(crate) operation: Operation,
    /// Bytes of a message.
    pub(crate) size: usize,
    /// So many are outstanding at most.
    pub(crate) queued: usize,
    /// So many are handed over with one call.
    pub(crate) batch: usize,
    /// How long is measured. Before that comes a quarter of it to warm up.
    pub(crate) millis: u64,
    /// Sleep for completions, or bytes, instead of polling.
    pub(crate) blocking: bool,
    pub(crate) crc: bool,
    /// A message is done when the peer has it. Over bare TCP the peer answers each with a byte then.
    pub(crate) acked: bool,
    /// Who watches its memory polls first until its own Write is done, as perftest does.
    pub(crate) polls: bool,
    /// The congestion control of bare sockets is reno, not the system's choice.
    pub(crate) reno: bool,
    pub(crate) connections: usize,
    /// The server of a stream of Sends sleeps at a completion handler, which wakes it for so many completions at a time; zero: it does as
    /// the rest of the turn says.
    pub(crate) events: usize,
    /// So many connections carry bulk traffic meanwhile.
    pub(crate) load: usize,
    /// The one that is measured beside them is of the low-latency class.
    pub(crate) urgent: bool,
    /// Both processes may not have a priority, whoever runs them.
    pub(crate) ordinary: bool,
    /// Where the server listens.
    pub(crate) at: IpAddr,
    /// The network namespace of the server, as a file; none if it is the client's.
    pub(crate) network: String,
}

const WHO: &[(&str, Who)] = &[("bare", Who::Bare), ("ironwarp", Who::Ironwarp)];
const WHAT: &[(&str, What)] = &[
    ("pingpong", What::PingPong),
    ("watch", What::Watch),
    ("stream", What::Stream),
    ("requests", What::Requests),
    ("priority", What::Priority),
    ("idle", What::Idle),
];
const OPERATION: &[(&str, Operation)] =
    &[("write", Operation::Write), ("read", Operation::Read), ("send", Operation::Send)];

impl Turn {
    pub(crate) fn parse(words: &[String]) -> Result<Self> {
        let mut turn = Self {
            who: Who::Ironwarp,
            what: What::Stream,
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
            let (key, value) = word.split_once('=').ok_or_else(|| format!("{word}: not key=value"))?;
            match key {
                "who" => turn.who = named(WHO, value)?,
                "what" => turn.what = named(WHAT, value)?,
                "operation" => turn.operation = named(OPERATION, value)?,
                "size" => turn.size = number(word, value)?,
                "queued" => turn.queued = number(word, value)?,
                "batch" => turn.batch = number(word, value)?,
                "millis" => turn.millis = number(word, value)?,
                "blocking" => turn.blocking = number(word, value)?,
                "crc" => turn.crc = number(word, value)?,
                "acked" => turn.acked = number(word, value)?,
                "polls" => turn.polls = number(word, value)?,
                "reno" => turn.reno = number(word, value)?,
                "connections" => turn.connections = number(word, value)?,
                "events" => turn.events = number(word, value)?,
                "load" => turn.load = number(word, value)?,
                "urgent" => turn.urgent = number(word, value)?,
                "ordinary" => turn.ordinary = number(word, value)?,
                "at" => turn.at = number(word, value)?,
                "network" => value.clone_into(&mut turn.network),
                _ => return Err(format!("{word}: no such word").into()),
            }
        }
        match turn.size > 0 && turn.batch > 0 && turn.queued >= turn.batch && turn.connections > 0 {
            true => Ok(turn),
            false => Err(format!("{turn}: cannot be done").into()),
        }
    }

    pub(crate) fn time(&self) -> Duration {
        Duration::from_millis(self.millis)
    }

    pub(crate) fn warm_up(&self) -> Duration {
        self.time() / 4
    }
}

impl fmt::Display for Turn {
    /// The words that make it again.
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
        let (who, what) = (name(WHO, self.who), name(WHAT, self.what));
        let operation = name(OPERATION, self.operation);
        write!(f, "who={who} what={what} operation={operation} size={size} queued={queued} batch={batch} ")?;
        write!(f, "millis={millis} blocking={blocking} crc={crc} acked={acked} polls={polls} reno={reno} ")?;
        write!(
            f,
            "connections={connections} events={events} load={load} urgent={urgent} ordinary={ordinary} "
        )?;
        write!(f, "at={at}")
    }
}

fn number<T: FromStr>(word: &str, value: &str) -> Result<T> {
    value.parse().map_err(|_| format!("{word}: not a value for it").into())
}

fn named<T: Copy>(names: &[(&str, T)], value: &str) -> Result<T> {
    let found = names.iter().find(|(name, _)| *name == value);
    found.map(|(_, it)| *it).ok_or_else(|| format!("{value}: no such word").into())
}

fn name<T: PartialEq>(names: &[(&'static str, T)], of: T) -> &'static str {
    names.iter().find(|(_, it)| *it == of).map_or("", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Turn> {
        Turn::parse(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_server_is_told_what_the_client_was_told() {
        let turn =
            parse("who=bare what=requests size=64 queued=32 acked=true connections=100 at=::1").unwrap();
        assert_eq!((turn.who, turn.size, turn.acked), (Who::Bare, 64, true));
        assert_eq!(parse(&turn.to_string()).unwrap(), turn);
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        for words in ["size", "size=x", "who=nobody", "colour=red", "size=0", "queued=4 batch=8"] {
            assert!(parse(words).is_err(), "{words}");
        }
    }
}
