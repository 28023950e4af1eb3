//! Copies a file to another process by RDMA Write.
//!
//!     cargo run --release --example copy -- receive DIRECTORY
//!     cargo run --release --example copy -- send FILE ADDRESS
//!
//! The receiver has a ring of slots. The sender writes a chunk of the file to a slot, and sends its length in a
//! message. The receiver replies with an empty message when the slot is free again. So up to one chunk per slot is in
//! flight, and neither side needs memory for the whole file.

use clap::Parser;
use crc_fast::{CrcAlgorithm, Digest};
use ironwarp::Adapter;
use ironwarp::completion::CompletionQueue;
use ironwarp::connection::{AcceptOptions, ConnectOptions, Incoming};
use ironwarp::memory::{Access, Buffer, MemoryRegion, RemoteAddr};
use ironwarp::queue::{QpError, QueuePair, WorkRequest};
use std::error::Error;
use std::fs::{self, File};
use std::io::{IsTerminal, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Copy a file to another process by RDMA Write
#[derive(Parser)]
enum Command {
    /// Receive one file
    Receive {
        /// Directory to store the file in
        directory: PathBuf,
        /// Replace a file of the same name
        #[arg(long)]
        overwrite: bool,
        /// Address to listen at; with port 0 the kernel chooses the port
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: SocketAddr,
    },
    /// Send a file
    Send {
        file: PathBuf,
        /// Address that the receiver printed
        receiver: SocketAddr,
    },
}

/// Number of chunks in flight: enough to keep the network busy during disk I/O.
const SLOTS: usize = 16;
/// Size of a chunk in bytes.
const CHUNK: usize = 256 << 10;
/// Maximum length of a file name, which is sent as private data. Some peers accept only 252 bytes of that.
const MAX_NAME: usize = 200;
const TIMEOUT: Duration = Duration::from_secs(30);

type Failure = Box<dyn Error>;

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Receive { directory, overwrite, listen } => receive(&directory, overwrite, listen),
        Command::Send { file, receiver } => send(&file, receiver),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("copy: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The connection, and a ring of slots of registered memory.
struct Ring {
    qp: QueuePair,
    cq: CompletionQueue,
    /// The slots, followed by receive buffers for one short message per slot, and one more.
    region: MemoryRegion,
}

/// Maximum length of a message: a checksum from the sender, or an error text from the receiver.
const MAX_MESSAGE: usize = 256;

impl Ring {
    /// Creates an adapter, a queue pair with posted receives, and the ring.
    fn new(access: Access) -> Result<(Adapter, Self), Failure> {
        let adapter = Adapter::new()?;
        let (cq, domain) = (adapter.completion_queue(8 * SLOTS)?, adapter.protection_domain());
        let buffer = Buffer::new(SLOTS * CHUNK + (SLOTS + 1) * MAX_MESSAGE)?;
        let region = domain.register(buffer, access | Access::LOCAL_READ | Access::LOCAL_WRITE)?;
        let ring = Self { qp: domain.queue_pair(&cq).create()?, cq, region };
        // Receives are posted before connecting, so that every message finds one.
        (0..=SLOTS).try_for_each(|message| ring.post_receive(message))?;
        Ok((adapter, ring))
    }

    /// Posts the receive buffer with this index.
    fn post_receive(&self, message: usize) -> Result<(), Failure> {
        let at = SLOTS * CHUNK + message * MAX_MESSAGE;
        let room = self.region.slice(at..at + MAX_MESSAGE)?;
        Ok(self.qp.post_receive(message as u64, &[room])?)
    }

    /// Waits for the peer's next message, and returns it. Nothing else completes, because all requests of this end are
    /// unsignaled.
    fn next_message(&self) -> Result<Vec<u8>, Failure> {
        let completion = self.cq.wait(TIMEOUT)?;
        if let Some(QpError::Closed | QpError::CutShort | QpError::Lost(_)) = completion.cause.as_deref() {
            return Err("the peer disconnected before the file was complete".into());
        }
        let completion = completion.success()?;
        let message = usize::try_from(completion.wr_id)?;
        let mut bytes = vec![0; completion.byte_len as usize];
        self.region.read(SLOTS * CHUNK + message * MAX_MESSAGE, &mut bytes)?;
        self.post_receive(message)?;
        Ok(bytes)
    }
}

// --- The sender ---

/// Sends a file to a receiver.
fn send(path: &Path, receiver: SocketAddr) -> Result<(), Failure> {
    let of_path = |error| format!("{}: {error}", path.display());
    let mut file = File::open(path).map_err(of_path)?;
    let size = file.metadata().map_err(of_path)?.len();
    let name = path.file_name().and_then(|name| name.to_str()).ok_or("the file name is not valid UTF-8")?;
    let (_adapter, ring) = Ring::new(Access::LOCAL_READ)?;
    let hello = [&size.to_be_bytes(), name.as_bytes()].concat();
    let established = ring
        .qp
        .connect(receiver, &ConnectOptions::new().private_data(&hello))
        .map_err(|error| format!("failed to connect to {receiver}: {error}"))?;
    let there =
        RemoteAddr::from_bytes(&established.private_data).ok_or("the receiver is not a `copy receive`")?;

    let start = Instant::now();
    let (mut digest, mut sent, mut chunks, mut free) = (digest(), 0, 0, SLOTS);
    let mut bytes = vec![0; CHUNK];
    let mut bar = Bar::new(size);
    while sent < size {
        // An empty message frees a slot. Any other message is an early error of the receiver.
        while free == 0 {
            let message = ring.next_message()?;
            if !message.is_empty() {
                return Err(describe_error(&message));
            }
            free += 1;
        }
        let len = file.read(&mut bytes).map_err(of_path)?;
        if len == 0 {
            return Err(of_path(std::io::ErrorKind::UnexpectedEof.into()).into());
        }
        digest.update(&bytes[..len]);
        let at = chunks % SLOTS * CHUNK;
        ring.region.write(at, &bytes[..len])?;
        let addr = RemoteAddr { offset: there.offset + at as u64, ..there };
        ring.qp.post_send_all(vec![
            WorkRequest::write(0, &[ring.region.slice(at..at + len)?], addr).unsignaled(),
            WorkRequest::send_inline(0, &u32::try_from(len)?.to_be_bytes()).unsignaled().into(),
        ])?;
        (sent, chunks, free) = (sent + len as u64, chunks + 1, free - 1);
        bar.show(sent);
    }
    let checksum = digest.finalize();
    ring.qp.post_send(WorkRequest::send_inline(0, &checksum.to_be_bytes()).unsignaled())?;
    let verdict = loop {
        let message = ring.next_message()?;
        if !message.is_empty() {
            break message;
        }
    };
    bar.finish();
    if verdict != VERIFIED {
        return Err(describe_error(&verdict));
    }
    println!("sent {name}: {size} bytes, {}, checksum {checksum:016x} verified", rate(size, start.elapsed()));
    Ok(())
}

/// Returns the error for a message in which the receiver reports why it failed.
fn describe_error(message: &[u8]) -> Failure {
    format!("the receiver failed: {}", String::from_utf8_lossy(message)).into()
}

/// A progress bar on standard error, if that is a terminal.
struct Bar {
    size: u64,
    /// The percentage shown; `None` if standard error is not a terminal.
    percent: Option<u64>,
}

impl Bar {
    fn new(size: u64) -> Self {
        Self { size, percent: std::io::stderr().is_terminal().then_some(0) }
    }

    /// Shows how much was sent, if the percentage has changed.
    fn show(&mut self, sent: u64) {
        let percent = sent * 100 / self.size.max(1);
        if self.percent.is_some_and(|shown| shown != percent) {
            let done = "#".repeat(usize::try_from(percent / 2).unwrap_or(50));
            eprint!("\r[{done:<50}] {percent:>3} %");
            self.percent = Some(percent);
        }
    }

    /// Ends the line of the bar.
    fn finish(&self) {
        if self.percent.is_some() {
            eprintln!();
        }
    }
}

// --- The receiver ---

/// The receiver's message after it has verified the checksum.
const VERIFIED: &[u8] = b"verified";

/// Receives one file into a directory.
fn receive(directory: &Path, overwrite: bool, listen: SocketAddr) -> Result<(), Failure> {
    let (adapter, ring) = Ring::new(Access::REMOTE_WRITE)?;
    let listener =
        adapter.listen(listen).map_err(|error| format!("failed to listen at {listen}: {error}"))?;
    println!("listening at {}", listener.local_addr()?);
    let incoming = listener.accept(None)?;
    let (size, partial) = match create_partial(&incoming, directory, overwrite) {
        Ok(prepared) => prepared,
        Err(reason) => {
            incoming.reject(reason.as_bytes())?;
            return Err(reason.into());
        }
    };
    incoming.accept(&ring.qp, &AcceptOptions::new().private_data(&ring.region.remote_addr(0)?.to_bytes()))?;
    let start = Instant::now();
    let received = receive_chunks(&ring, &partial, size)
        .and_then(|checksum| partial.rename(overwrite).map(|()| checksum));
    let verdict =
        received.as_ref().map_or_else(|error| error.to_string().into_bytes(), |_| VERIFIED.to_vec());
    // Sending fails if the sender has disconnected. Otherwise the message is delivered before the connection closes.
    let _ = ring
        .qp
        .post_send(WorkRequest::send_inline(0, &verdict[..verdict.len().min(MAX_MESSAGE)]).unsignaled());
    let checksum = received?;
    let path = partial.path.display();
    println!("received {path}: {size} bytes, {}, checksum {checksum:016x}", rate(size, start.elapsed()));
    Ok(())
}

/// An incomplete file with a temporary name. Dropping it removes the file.
struct Partial {
    /// The final path.
    path: PathBuf,
    temporary: PathBuf,
    file: File,
}

/// Creates a temporary file for the file that the sender announces. Returns the announced size and the temporary file,
/// or the reason to reject the sender.
fn create_partial(incoming: &Incoming, directory: &Path, overwrite: bool) -> Result<(u64, Partial), String> {
    let (size, name) = incoming.private_data().split_first_chunk().ok_or("expected a `copy send`")?;
    // The peer chose the name: it must not lead out of the directory.
    let name = std::str::from_utf8(name).map_err(|_| "the name is not UTF-8")?;
    let plain = Path::new(name).file_name().is_some_and(|plain| plain == name);
    if !plain || name.len() > MAX_NAME {
        return Err(format!("invalid file name `{}`", name.escape_default()));
    }
    let path = directory.join(name);
    if path.exists() && !overwrite {
        return Err(format!("{} exists: use --overwrite to replace it", path.display()));
    }
    let temporary = directory.join(format!(".{name}.partial-{}", std::process::id()));
    let file = File::create_new(&temporary).map_err(|error| format!("{}: {error}", temporary.display()))?;
    Ok((u64::from_be_bytes(*size), Partial { path, temporary, file }))
}

/// Receives all chunks into the file, and verifies the sender's checksum.
fn receive_chunks(ring: &Ring, partial: &Partial, size: u64) -> Result<u64, Failure> {
    let (mut digest, mut received, mut chunks) = (digest(), 0, 0);
    loop {
        let message = ring.next_message()?;
        if let Ok(checksum) = message[..].try_into().map(u64::from_be_bytes) {
            let found = digest.finalize();
            return match (received == size, found == checksum) {
                (false, _) => Err(format!("received {received} bytes, expected {size}").into()),
                (_, false) => {
                    Err(format!("checksum mismatch: {found:016x}, expected {checksum:016x}").into())
                }
                _ => Ok(found),
            };
        }
        let len = message[..].try_into().map(u32::from_be_bytes).map_err(|_| "invalid message")? as usize;
        if len > CHUNK {
            return Err(format!("chunk of {len} bytes exceeds the maximum of {CHUNK}").into());
        }
        let mut bytes = vec![0; len];
        ring.region.read(chunks % SLOTS * CHUNK, &mut bytes)?;
        digest.update(&bytes);
        (&partial.file)
            .write_all(&bytes)
            .map_err(|error| format!("{}: {error}", partial.temporary.display()))?;
        (received, chunks) = (received + len as u64, chunks + 1);
        ring.qp.post_send(WorkRequest::send(0, &[]).unsignaled())?;
    }
}

impl Partial {
    /// Syncs the complete file to disk, and gives it its final name.
    fn rename(&self, overwrite: bool) -> Result<(), Failure> {
        self.file.sync_all()?;
        // A rename replaces an existing file, a link does not: another process may have created one meanwhile.
        let named = if overwrite {
            fs::rename(&self.temporary, &self.path)
        } else {
            fs::hard_link(&self.temporary, &self.path)
        };
        named.map_err(|error| format!("{}: {error}", self.path.display()).into())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Fails after a rename, because the temporary name does not exist any more.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Returns a new checksum.
fn digest() -> Digest {
    Digest::new(CrcAlgorithm::Crc64Nvme)
}

/// Formats a rate.
fn rate(bytes: u64, time: Duration) -> String {
    format!("{:.1} MB/s", bytes as f64 / 1e6 / time.as_secs_f64())
}
