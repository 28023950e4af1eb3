//! Copies a logical unit of an iSCSI target to a file, or a file to a logical unit. Needs neither root nor a kernel module.
//!
//!     cargo run --release -p ironwarp-iscsi --example iscsi_copy -- iscsi://192.0.2.1:3260/TARGET/LUN disk.img
//!     cargo run --release -p ironwarp-iscsi --example iscsi_copy -- disk.img iscsi://192.0.2.1:3260/TARGET/LUN
//!
//! Name and secret for CHAP are read from ISCSI_CHAP_NAME and ISCSI_CHAP_SECRET. If the connection is lost, the program
//! reconnects for up to a minute and issues again what the target has not acknowledged.

use clap::Parser;
use ironwarp::Adapter;
use ironwarp::memory::{Access, Buffer, MemoryRegion};
use ironwarp_iscsi::{Capacity, Credentials, DigestPolicy, Options, Request, Session, TaskId};
use std::collections::HashMap;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Copy a logical unit to a file, or a file to a logical unit
#[derive(Parser)]
struct Arguments {
    /// What to copy: a file, or iscsi://HOST:PORT/TARGET/LUN
    from: String,
    /// Where to: a file, or iscsi://HOST:PORT/TARGET/LUN
    to: String,
    /// Number of commands in flight
    #[arg(long, default_value_t = 16)]
    depth: usize,
    /// Number of bytes of each command
    #[arg(long, default_value_t = 256 << 10)]
    size: usize,
    /// Require digests of headers and data; without this option they are used if the target offers them
    #[arg(long)]
    digests: bool,
    /// Name of this initiator, which the target may ask for
    #[arg(long, default_value = "iqn.2026-01.org.example.ironwarp:copy")]
    initiator: String,
}

/// How long a command may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long the program tries to reconnect.
const RECONNECT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let (from, to) = (Url::parse(&arguments.from)?, Url::parse(&arguments.to)?);
    match (from, to) {
        (Some(lun), None) => {
            let mut disk = Disk::open(&lun, arguments)?;
            let file = OpenOptions::new().write(true).create(true).truncate(true).open(&arguments.to)?;
            disk.copy(&file, disk.capacity.bytes(), Way::ToFile)?;
            file.sync_all()?;
            disk.session.logout()?;
        }
        (None, Some(lun)) => {
            let file = File::open(&arguments.from)?;
            let len = file.metadata()?.len();
            let mut disk = Disk::open(&lun, arguments)?;
            let (bytes, block) = (disk.capacity.bytes(), u64::from(disk.capacity.block_size));
            if len > bytes || !len.is_multiple_of(block) {
                return Err(format!("{len} bytes do not fit {bytes} bytes in blocks of {block}").into());
            }
            disk.copy(&file, len, Way::ToDisk)?;
            disk.session.execute(Request::synchronize_cache(lun.lun), TIMEOUT)?;
            disk.session.logout()?;
        }
        _ => return Err("exactly one of the two must be iscsi://HOST:PORT/TARGET/LUN".into()),
    }
    Ok(())
}

/// A logical unit: iscsi://HOST:PORT/TARGET/LUN.
struct Url {
    address: SocketAddr,
    target: String,
    lun: u16,
}

impl Url {
    /// Parses a name. `None` if it is that of a file.
    fn parse(name: &str) -> Result<Option<Self>, Box<dyn Error>> {
        let Some(rest) = name.strip_prefix("iscsi://") else { return Ok(None) };
        let parts: Vec<_> = rest.split('/').collect();
        let [host, target, lun] = parts[..] else {
            return Err(format!("invalid name {name}: expected iscsi://HOST:PORT/TARGET/LUN").into());
        };
        let host = if host.contains(':') { host.to_owned() } else { format!("{host}:3260") };
        let address = host.to_socket_addrs()?.next().ok_or("the host has no address")?;
        Ok(Some(Self { address, target: target.to_owned(), lun: lun.parse()? }))
    }
}

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    ToFile,
    ToDisk,
}

/// A logical unit, and memory for its commands.
struct Disk {
    session: Session,
    lun: u16,
    capacity: Capacity,
    memory: MemoryRegion,
    /// Number of bytes of a command.
    size: usize,
    depth: usize,
}

/// A command in flight.
struct Piece {
    /// The part of the memory that it uses.
    slot: usize,
    /// The position in the file and on the disk, and the length.
    at: u64,
    len: usize,
}

impl Disk {
    fn open(url: &Url, arguments: &Arguments) -> Result<Self, Box<dyn Error>> {
        let digest = if arguments.digests { DigestPolicy::Require } else { DigestPolicy::Prefer };
        let mut options = Options::new(arguments.initiator.as_str(), url.target.as_str())
            .header_digest(digest)
            .data_digest(digest)
            .reconnect(RECONNECT);
        if let Ok(name) = std::env::var("ISCSI_CHAP_NAME") {
            let secret = std::env::var("ISCSI_CHAP_SECRET")?;
            options = options.chap(Credentials::new(name, secret.as_bytes())?);
        }
        let mut session = Session::connect(&Adapter::new()?, url.address, &options)?;
        let inquiry = session.inquiry(url.lun)?;
        let capacity = session.capacity(url.lun)?;
        eprintln!("{} {}, {} bytes", inquiry.vendor, inquiry.product, capacity.bytes());
        let block = capacity.block_size as usize;
        let (size, depth) = (arguments.size.max(block) / block * block, arguments.depth.max(1));
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let memory = session.domain().register(Buffer::new(size * depth)?, access)?;
        Ok(Self { session, lun: url.lun, capacity, memory, size, depth })
    }

    /// Copies the first `len` bytes.
    fn copy(&mut self, file: &File, len: u64, way: Way) -> Result<(), Box<dyn Error>> {
        let (start, mut progress) = (Instant::now(), Progress::new(len));
        let mut free: Vec<_> = (0..self.depth).collect();
        let mut flying: HashMap<TaskId, Piece> = HashMap::new();
        let (mut next, mut done) = (0, 0);
        while done < len {
            let mut pieces = Vec::new();
            while next < len
                && let Some(slot) = free.pop()
            {
                let piece = Piece { slot, at: next, len: self.size.min(usize::try_from(len - next)?) };
                if way == Way::ToDisk {
                    let mut bytes = vec![0; piece.len];
                    file.read_exact_at(&mut bytes, piece.at)?;
                    self.memory.write(slot * self.size, &bytes)?;
                }
                next += piece.len as u64;
                pieces.push(piece);
            }
            let requests =
                pieces.iter().map(|piece| self.request(piece, way)).collect::<Result<Vec<_>, _>>()?;
            flying.extend(self.session.start_all(requests)?.into_iter().zip(pieces));
            let finished = self.session.next(TIMEOUT)?.ok_or("the target does not answer")?;
            let piece = flying.remove(&finished.task).ok_or("unknown command")?;
            finished.result?;
            if way == Way::ToFile {
                let mut bytes = vec![0; piece.len];
                self.memory.read(piece.slot * self.size, &mut bytes)?;
                file.write_all_at(&bytes, piece.at)?;
            }
            free.push(piece.slot);
            done += piece.len as u64;
            progress.show(done);
        }
        let seconds = start.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let rate = len as f64 / seconds / 1e6;
        eprintln!("{len} bytes in {seconds:.1} s, {rate:.0} MB/s");
        Ok(())
    }

    fn request(&self, piece: &Piece, way: Way) -> Result<Request, Box<dyn Error>> {
        let start = piece.slot * self.size;
        let list = [self.memory.slice(start..start + piece.len)?];
        let lba = piece.at / u64::from(self.capacity.block_size);
        Ok(match way {
            Way::ToFile => Request::read(self.lun, &self.capacity, lba, &list)?,
            Way::ToDisk => Request::write(self.lun, &self.capacity, lba, &list)?,
        })
    }
}

/// The progress in percent, on standard error, if that is a terminal.
struct Progress {
    len: u64,
    shown: Option<u64>,
}

impl Progress {
    fn new(len: u64) -> Self {
        Self { len, shown: None }
    }

    fn show(&mut self, done: u64) {
        let percent = done * 100 / self.len;
        if self.shown != Some(percent) && std::io::stderr().is_terminal() {
            let end = if done == self.len { "\n" } else { "" };
            eprint!("\r{percent:3} %{end}");
            let _ = std::io::stderr().flush(); // only the display would be late
            self.shown = Some(percent);
        }
    }
}
