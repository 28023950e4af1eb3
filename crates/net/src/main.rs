//! The programs of the push-push I/O unit (requirements P1, P4 to P9): a layer-2 network that containers on several hosts
//! share, without root on any of them.
//!
//! | module | task |
//! |---|---|
//! | `unit`, `host` | the two programs |
//! | `switch` | which host gets a frame |
//! | `endpoint`, `channel` | the messaging layer on queue pairs and registered memory |
//! | `frame` | checks of frames and their virtio headers |
//! | `tap`, `netns` | TAP devices, also in namespaces of other processes |
//! | `keys` | key files |

mod channel;
mod endpoint;
mod frame;
mod host;
mod keys;
mod netns;
mod switch;
mod tap;
mod unit;

use crate::channel::Failure;
use clap::{Parser, Subcommand, ValueEnum};
use ironwarp_io_unit::message::{HostName, Mac};
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A layer-2 network across hosts, without root.
#[derive(Debug, Parser)]
#[command(name = "ironwarp-net", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs an I/O unit, whose LAN hosts attach to.
    Unit {
        /// Address and port to listen on. Port 0 is any free port.
        #[arg(long, value_name = "ADDR")]
        listen: SocketAddr,
        /// The LAN.
        #[arg(long, value_enum, default_value_t = Lan::Switch)]
        lan: Lan,
        /// File with a line for each host: name, MAC addresses with commas between (or `auto`), and key.
        #[arg(long, value_name = "FILE")]
        keys: PathBuf,
        /// Largest MTU of a host.
        #[arg(long, value_name = "BYTES", default_value_t = 9000, value_parser = mtu())]
        mtu: u32,
        /// Unix socket that answers with a line for each host.
        #[arg(long, value_name = "SOCKET")]
        status: Option<PathBuf>,
    },
    /// Attaches a TAP device of this host to the LAN of a unit.
    Host {
        /// Address and port of the unit.
        unit: String,
        /// Name of this host.
        #[arg(long, value_parser = HostName::new)]
        name: HostName,
        /// File with the key of this host.
        #[arg(long, value_name = "FILE")]
        key_file: PathBuf,
        /// Create the TAP device in the network namespace of this process, usually of a container.
        #[arg(long, value_name = "PID")]
        netns: Option<u32>,
        /// Name of the TAP device: `iw0` in another namespace.
        #[arg(long, value_name = "NAME", required_unless_present = "netns")]
        tap: Option<String>,
        /// MAC address of the TAP device. By default, it is derived from the name of the host.
        #[arg(long, value_parser = keys::parse_mac)]
        mac: Option<Mac>,
        /// MTU of the TAP device.
        #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = mtu())]
        mtu: u32,
    },
    /// Opens a TAP device in the namespaces of a process, and sends its descriptor to standard input.
    #[command(name = netns::OPEN_TAP, hide = true)]
    OpenTap {
        pid: u32,
        name: String,
        #[arg(value_parser = keys::parse_mac)]
        mac: Mac,
        mtu: u32,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Lan {
    /// A switch inside the unit.
    Switch,
}

/// IPv4 needs 68 bytes (RFC 791). Elements hold 64 KiB.
fn mtu() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(68..=65_521)
}

/// Creates the status socket, in place of one that a killed unit has left.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    };
    let why = |error: io::Error| {
        io::Error::new(error.kind(), format!("failed to listen at `{}`: {error}", path.display()))
    };
    let listener = listener.map_err(why)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Returns whether a path is a socket that nobody listens at.
fn is_stale(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ironwarp-net: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Unit { listen, lan: Lan::Switch, keys, mtu, status } => {
            let registry = keys::unit(&keys)?;
            let status = status.as_deref().map(listen_at).transpose()?;
            let mut unit = unit::Unit::open(listen, registry, mtu, status)?;
            println!("listening on {}", unit.local_addr()?);
            unit.run()
        }
        Command::Host { unit, name, key_file, netns, tap, mac, mtu } => {
            let key = keys::host(&key_file)?;
            let mac = mac.unwrap_or_else(|| keys::default_mac(&name));
            let device = tap.as_deref().unwrap_or("iw0");
            let tap = match netns {
                Some(pid) => netns::open(pid, device, mac, mtu)?,
                None => tap::Tap::open(device, mac, mtu)?,
            };
            host::Host { unit, name, mac, key, mtu, tap }.run()
        }
        Command::OpenTap { pid, name, mac, mtu } => Ok(netns::open_and_send(pid, &name, mac, mtu)?),
    }
}
