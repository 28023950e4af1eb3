//! `ironwarp ping`: messages there and back, each byte verified. `client.rs` asks, `server.rs` answers, `hello.rs` is what
//! they say when they connect.

mod client;
mod hello;
mod report;
mod server;

use crate::say::Failure;
use clap::{Args, ValueEnum};
use ironwarp::{Adapter, Completion, Config, RequestError};
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

const PORT: u16 = 7471;

/// The longest message that a server has memory for.
const LONGEST: u32 = 64 << 20;

/// Nothing takes so long that still works.
const PATIENCE: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "\
Examples:
  ironwarp ping --listen                        answer on port 7471 of all IPv4 addresses
  ironwarp ping server.example                  five messages of 64 bytes, one each second
  ironwarp ping 10.0.0.2 --op write -s 1000000  RDMA Writes of a megabyte, both ways
  ironwarp ping 10.0.0.2 -c 10000 -i 0 --quiet  as fast as it goes, and only the summary

Settings are taken from the environment, such as IRONWARP_CRC=off.";

/// Send messages there and back, verify each byte, and tell how long it took
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// Whom to ping; the port is 7471 if there is none
    #[arg(value_name = "ADDR[:PORT]", required_unless_present = "listen")]
    peer: Option<String>,

    /// Answer pings, until Ctrl-C
    #[arg(
        long,
        value_name = "ADDR:PORT",
        num_args = 0..=1,
        default_missing_value = "0.0.0.0:7471",
        conflicts_with_all = ["peer", "count", "size", "interval", "op", "acknowledged", "quiet"]
    )]
    listen: Option<SocketAddr>,

    /// Answer one client, then end
    #[arg(long, requires = "listen", conflicts_with = "peer")]
    once: bool,

    /// Pings to send; 0 for no end
    #[arg(short, long, default_value_t = 5)]
    count: u64,

    /// Bytes in each message
    #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(..=i64::from(LONGEST)))]
    size: u32,

    /// Seconds between pings
    #[arg(short, long, default_value = "1", value_parser = seconds)]
    interval: Duration,

    /// How the bytes travel: a Send there and back, a Write there and back, or a Read
    #[arg(long, value_enum, default_value_t = Op::Send)]
    op: Op,

    /// Wait until the peer has placed each message, too
    #[arg(long)]
    acknowledged: bool,

    /// Print the first line and the summary, not each reply
    #[arg(short, long)]
    quiet: bool,
}

/// How the bytes of a ping travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Op {
    // No comments that clap would take for help: they would spread it over three pages.
    Send,
    Write, // each with an empty Send that tells of it
    Read,  // of memory that the server filled
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "Send",
            Self::Write => "RDMA Write",
            Self::Read => "RDMA Read",
        })
    }
}

/// Runs the command. False: it was run, and told of failures.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let adapter = Adapter::open(Config::from_env()?)?;
    match (&arguments.listen, &arguments.peer) {
        (Some(at), _) => server::run(&adapter, *at, arguments.once),
        (None, Some(peer)) => client::run(&adapter, resolve(peer)?, arguments),
        (None, None) => Err("whom shall it ping? See `ironwarp ping --help`".into()),
    }
}

/// The byte at `index` of the message of ping `seq`. Neighbours differ, and so do the messages of neighbouring pings.
fn expected(seq: u64, index: usize) -> u8 {
    let mixed = (index as u64).wrapping_add(seq << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.to_be_bytes()[0]
}

fn message(seq: u64, len: usize) -> Vec<u8> {
    (0..len).map(|index| expected(seq, index)).collect()
}

/// Why a request failed, in the words of its cause: a person need not know of requests.
fn succeeded(completion: Completion) -> Result<Completion, Failure> {
    completion.success().map_err(|RequestError(failed)| match &failed.cause {
        Some(cause) => cause.to_string().into(),
        None => failed.status.to_string().into(),
    })
}

fn resolve(peer: &str) -> Result<SocketAddr, Failure> {
    let unbracketed = peer.trim_start_matches('[').trim_end_matches(']');
    let found = match unbracketed.parse() {
        Ok(ip) => Ok(Some(SocketAddr::new(ip, PORT))),
        Err(_) if peer.contains(':') => peer.to_socket_addrs().map(|mut found| found.next()),
        Err(_) => (peer, PORT).to_socket_addrs().map(|mut found| found.next()),
    };
    match found {
        Ok(Some(addr)) => Ok(addr),
        Ok(None) => Err(format!("`{peer}` has no address").into()),
        Err(error) => Err(format!("`{peer}` cannot be found: {error}").into()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "a number of seconds is wanted, such as 0.2".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_found_with_and_without_port() {
        for (text, addr) in [
            ("127.0.0.1", "127.0.0.1:7471"),
            ("127.0.0.1:9", "127.0.0.1:9"),
            ("::1", "[::1]:7471"),
            ("[::1]", "[::1]:7471"),
            ("[::1]:9", "[::1]:9"),
        ] {
            assert_eq!(resolve(text).unwrap(), addr.parse().unwrap(), "{text}");
        }
        assert!(resolve("127.0.0.1:x").is_err());
    }

    #[test]
    fn messages_of_neighbouring_pings_differ_in_most_bytes() {
        let differ = (0..1000).filter(|&index| expected(1, index) != expected(2, index)).count();
        assert!(differ > 900, "{differ} of 1000");
    }
}
