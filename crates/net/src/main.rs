//! The programs of the push-push I/O unit (requirements P1, P4 to P9): a layer-2 network that containers on several hosts
//! share, without root on any of them.
//!
//! | module | task |
//! |---|---|
//! | `unit`, `members`, `switch` | the program of a unit, its hosts, and which of them gets a frame |
//! | `host` | the program of a host |
//! | `status` | the state of a unit in text |
//! | `endpoint`, `channel` | the messaging layer on queue pairs |
//! | `ring`, `arrived` | registered memory of frames that leave and that have arrived |
//! | `port`, `tap`, `super_packets`, `stream`, `wait` | where frames come from and go to: TAP devices and virtual machines |
//! | `netns` | TAP devices in namespaces of other processes |
//! | `keys` | key files |

mod arrived;
mod channel;
mod endpoint;
mod host;
#[cfg(test)]
mod kernel_segments;
mod keys;
mod members;
mod netns;
mod port;
mod ring;
mod status;
mod stream;
mod super_packets;
mod switch;
mod tap;
mod unit;
mod wait;

use crate::channel::Failure;
use crate::port::Port;
use crate::stream::Stream;
use crate::tap::Tap;
use clap::{Parser, Subcommand, ValueEnum};
use ironwarp_io_unit::message::{HostName, Mac, Mode};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// How long a host waits for a virtual machine that does not read its frames before it drops them.
const PATIENCE: Duration = Duration::from_millis(100);

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
        /// The LAN: `switch` connects the hosts with each other; `tap=NAME` and `stream=SOCKET` also with a TAP device, or with
        /// QEMU's `-netdev stream`.
        #[arg(long, value_name = "LAN", default_value = "switch", value_parser = parse_lan)]
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
    /// Shows the hosts of a unit: their pools, traffic, drops and stalls.
    Status {
        /// The socket that the unit has created with `--status`.
        socket: PathBuf,
        /// Show rates every second.
        #[arg(long)]
        watch: bool,
    },
    /// Attaches a container or virtual machine of this host to the LAN of a unit.
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
        #[arg(long, value_name = "NAME", required_unless_present_any = ["netns", "stream"])]
        tap: Option<String>,
        /// Unix socket to create for QEMU's `-netdev stream`, instead of a TAP device.
        #[arg(long, value_name = "SOCKET", conflicts_with_all = ["netns", "tap"])]
        stream: Option<PathBuf>,
        /// MAC address of the TAP device or virtual machine. By default, it is derived from the name of the host.
        #[arg(long, value_parser = keys::parse_mac)]
        mac: Option<Mac>,
        /// MTU of the TAP device or virtual machine.
        #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = mtu())]
        mtu: u32,
        /// How frames travel.
        #[arg(long, value_enum, default_value_t = Frames::Rdma)]
        mode: Frames,
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

#[derive(Clone, Debug)]
enum Lan {
    Switch,
    Tap(String),
    Stream(PathBuf),
}

fn parse_lan(text: &str) -> Result<Lan, String> {
    match text.split_once('=') {
        None if text == "switch" => Ok(Lan::Switch),
        Some(("tap", name)) => Ok(Lan::Tap(name.to_owned())),
        Some(("stream", path)) => Ok(Lan::Stream(path.into())),
        _ => Err("expected switch, tap=NAME or stream=SOCKET".to_owned()),
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Frames {
    /// Written to memory that the receiver has advertised.
    Rdma,
    /// Sent to receives that the receiver has posted.
    Send,
}

/// IPv4 needs 68 bytes (RFC 791). Elements hold 64 KiB.
fn mtu() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(68..=65_521)
}

/// Creates a socket, in place of one that a killed program has left.
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
    listener.map_err(why)
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
        Command::Unit { listen, lan, keys, mtu, status } => {
            let registry = keys::unit(&keys)?;
            let status = status.as_deref().map(listen_at).transpose()?;
            let lan = match lan {
                Lan::Switch => None,
                Lan::Tap(name) => Some(Port::Tap(Tap::open(&name, None, mtu)?)),
                // A reader that is slow must not hold up the hosts.
                Lan::Stream(path) => Some(Port::Stream(open_stream(&path, Duration::ZERO, mtu)?)),
            };
            let unit = Arc::new(unit::Unit::open(listen, registry, mtu, lan)?);
            println!("listening on {}", unit.local_addr()?);
            unit.run(status)
        }
        Command::Status { socket, watch } => status::show(&socket, watch),
        Command::Host { unit, name, key_file, netns, tap, stream, mac, mtu, mode } => {
            let key = keys::host(&key_file)?;
            let mac = mac.unwrap_or_else(|| keys::default_mac(&name));
            let device = tap.as_deref().unwrap_or("iw0");
            let port = match (stream, netns) {
                (Some(path), _) => Port::Stream(open_stream(&path, PATIENCE, mtu)?),
                (None, Some(pid)) => Port::Tap(netns::open(pid, device, mac, mtu)?),
                (None, None) => Port::Tap(Tap::open(device, Some(mac), mtu)?),
            };
            let mode = match mode {
                Frames::Rdma => Mode::Rdma,
                Frames::Send => Mode::Send,
            };
            let current = host::Current::default();
            let host = Arc::new(host::Host { unit, name, mac, key, mode, mtu, port, current });
            detach_on_signal(Arc::clone(&host))?;
            host.run()
        }
        Command::OpenTap { pid, name, mac, mtu } => Ok(netns::open_and_send(pid, &name, mac, mtu)?),
    }
}

fn open_stream(path: &Path, patience: Duration, mtu: u32) -> io::Result<Stream> {
    let listener = listen_at(path)?;
    listener.set_nonblocking(true)?;
    Ok(Stream::new(listener, patience, mtu))
}

/// Detaches the host when it is told to stop, so that the unit knows at once. A second signal ends it.
fn detach_on_signal(host: Arc<host::Host>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::spawn(move || {
        let mut signals = signals.forever();
        if signals.next().is_some() && host.current.detach() {
            signals.next();
        }
        std::process::exit(0)
    });
    Ok(())
}
