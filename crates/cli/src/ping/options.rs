//! The options of `ironwarp ping`.

use clap::{Args, ValueEnum};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// Default port of the server.
pub(super) const PORT: u16 = 7471;

/// Maximum size of a message, in bytes. A server allocates memory for two messages of each client.
pub(super) const MAX_SIZE: u32 = 64 << 20;

const EXAMPLES: &str = "\
Examples:
  ironwarp ping --listen                        answer on port 7471 of all IPv4 addresses
  ironwarp ping server.example                  send five messages of 64 bytes, one per second
  ironwarp ping 10.0.0.2 --op write -s 1000000  send RDMA Writes of a megabyte in both directions
  ironwarp ping 10.0.0.2 -c 10000 -i 0 --quiet  ping at full speed, and print only the summary

All settings can be set by environment variables, such as IRONWARP_CRC=off.";

/// Measure round trips to another machine and verify every byte
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// Address of the server [default port: 7471]
    #[arg(value_name = "ADDR[:PORT]", required_unless_present = "listen")]
    pub(super) peer: Option<String>,

    /// Answer pings until interrupted
    #[arg(
        long,
        value_name = "ADDR:PORT",
        num_args = 0..=1,
        default_missing_value = "0.0.0.0:7471",
        conflicts_with_all = ["peer", "count", "size", "interval", "op", "acknowledged", "quiet"]
    )]
    pub(super) listen: Option<SocketAddr>,

    /// Exit after one client
    #[arg(long, requires = "listen", conflicts_with = "peer")]
    pub(super) once: bool,

    /// Number of pings; 0 for no limit
    #[arg(short, long, default_value_t = 5)]
    pub(super) count: u64,

    /// Size of each message in bytes
    #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_SIZE)))]
    pub(super) size: u32,

    /// Seconds between pings
    #[arg(short, long, default_value = "1", value_parser = seconds)]
    pub(super) interval: Duration,

    /// Operation: Send or Write in both directions, or Read
    #[arg(long, value_enum, default_value_t = Op::Send)]
    pub(super) op: Op,

    /// Also wait until the peer has acknowledged each message
    #[arg(long)]
    pub(super) acknowledged: bool,

    /// Print only the first line and the summary
    #[arg(short, long)]
    pub(super) quiet: bool,
}

/// The operation of a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Op {
    // No doc comments, which clap would print in the help of each value.
    Send,
    Write, // each followed by an empty Send as notification
    Read,  // of memory that the server has filled
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

/// Parses a number of seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number of seconds, such as 0.2".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}
