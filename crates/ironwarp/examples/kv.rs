//! A one-sided key-value store: the server holds a table in memory and sleeps, while clients read and write it by RDMA.
//!
//!     cargo run --example kv -- serve
//!     cargo run --example kv -- put ADDRESS colour green
//!     cargo run --example kv -- get ADDRESS colour

use clap::Parser;
use ironwarp::completion::CompletionQueue;
use ironwarp::connection::{AcceptOptions, ConnectOptions, Incoming};
use ironwarp::memory::{Access, Buffer, MemoryRegion, RemoteAddr};
use ironwarp::queue::{Completes, QueuePair, WorkRequest};
use ironwarp::{Adapter, ProtectionDomain};
use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

/// A key-value store whose server sleeps: clients access its memory by RDMA Read and Write
#[derive(Parser)]
enum Command {
    /// Serve a table until interrupted
    Serve {
        /// Address to listen at; with port 0 the kernel chooses the port
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: SocketAddr,
        /// Number of keys that the table holds
        #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
        slots: u32,
        /// Size of a slot in bytes, a multiple of 8: a key, its value and 16 bytes of metadata
        #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
        slot: u32,
    },
    /// Print the value of a key
    Get {
        server: SocketAddr,
        key: String,
        /// Number of times to read it; prints each value that differs from the one before
        #[arg(long, default_value_t = 1)]
        repeat: u32,
    },
    /// Set the value of a key
    Put {
        server: SocketAddr,
        key: String,
        /// One value, or several to be set in turn
        #[arg(required = true)]
        values: Vec<String>,
        /// Number of times to set all values
        #[arg(long, default_value_t = 1)]
        repeat: u32,
    },
}

/// Size of a version in bytes.
///
/// A slot contains a version, the lengths of key and value, and their bytes.
///
/// The version works like a seqlock: even while the slot is consistent, odd while a client changes it, zero while it is
/// empty. It is in native byte order, as atomic operations require.
const VERSION: usize = 8;
/// Size of the two lengths in bytes.
const LENGTHS: usize = 8;

const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of attempts of a client.
const MAX_TRIES: usize = 10_000;

type Failure = Box<dyn Error>;

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Serve { listen, slots, slot } => serve(listen, slots, slot),
        Command::Get { server, key, repeat } => get(server, &key, repeat),
        Command::Put { server, key, values, repeat } => put(server, &key, &values, repeat),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kv: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves a table until interrupted.
fn serve(listen: SocketAddr, slots: u32, slot: u32) -> Result<(), Failure> {
    if !slot.is_multiple_of(8) {
        return Err("--slot must be a multiple of 8: atomic operations require aligned versions".into());
    }
    let adapter = Adapter::new()?;
    let (domain, cq) = (adapter.protection_domain(), adapter.completion_queue(16)?);
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let table = domain.register(Buffer::new(slots as usize * slot as usize)?, rights)?;
    let listener =
        adapter.listen(listen).map_err(|error| format!("failed to listen at {listen}: {error}"))?;
    println!("listening at {}", listener.local_addr()?);
    let welcome = [&table.remote_addr(0)?.to_bytes()[..], &slots.to_be_bytes(), &slot.to_be_bytes()].concat();
    // This thread only accepts clients. Their Reads and Writes never wake it.
    let mut clients = Vec::new();
    loop {
        let incoming = listener.accept(None)?;
        clients.retain(|qp: &QueuePair| qp.error().is_none());
        match admit(&domain, &cq, incoming, &welcome) {
            Ok(qp) => clients.push(qp),
            Err(error) => eprintln!("kv: {error}"),
        }
    }
}

/// Accepts a client, and sends it the address of the table.
fn admit(
    domain: &ProtectionDomain,
    cq: &CompletionQueue,
    incoming: Incoming,
    welcome: &[u8],
) -> Result<QueuePair, Failure> {
    let qp = domain.queue_pair(cq).create()?;
    incoming.accept(&qp, &AcceptOptions::new().private_data(welcome))?;
    Ok(qp)
}

/// Prints the value of a key, and again whenever it differs from the previous one.
fn get(server: SocketAddr, key: &str, repeat: u32) -> Result<(), Failure> {
    let table = Table::connect(server)?;
    let mut last = None;
    for _ in 0..repeat {
        let value = table.get(key)?.ok_or_else(|| format!("no value for `{key}`"))?;
        if last.as_ref() != Some(&value) {
            println!("{value}");
            last = Some(value);
        }
    }
    Ok(())
}

/// Sets a key to each of the values in turn.
fn put(server: SocketAddr, key: &str, values: &[String], repeat: u32) -> Result<(), Failure> {
    let table = Table::connect(server)?;
    for _ in 0..repeat {
        for value in values {
            table.put(key, value)?;
        }
    }
    Ok(())
}

/// A client's view of the server's table.
struct Table {
    qp: QueuePair,
    cq: CompletionQueue,
    addr: RemoteAddr,
    slots: usize,
    /// Size of a slot in bytes.
    slot: usize,
    /// Buffer for the version, the slot, and the version again.
    scratch: MemoryRegion,
}

/// The contents of a slot.
struct Slot {
    version: u64,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Table {
    /// Connects to a server.
    fn connect(server: SocketAddr) -> Result<Self, Failure> {
        let adapter = Adapter::new()?;
        let (domain, cq) = (adapter.protection_domain(), adapter.completion_queue(16)?);
        // An acknowledged Write is in the server's memory: a value can be read once `put` has returned.
        let qp = domain.queue_pair(&cq).completes(Completes::WhenAcknowledged).create()?;
        let established = qp
            .connect(server, &ConnectOptions::new())
            .map_err(|error| format!("failed to connect to {server}: {error}"))?;
        let welcome = parse_welcome(&established.private_data).ok_or("the server is not a `kv serve`")?;
        let (addr, slots, slot) = welcome;
        let scratch = domain.register(Buffer::new(VERSION + slot + VERSION)?, Access::LOCAL_WRITE)?;
        Ok(Self { qp, cq, addr, slots, slot, scratch })
    }

    /// Returns the value of a key.
    fn get(&self, key: &str) -> Result<Option<String>, Failure> {
        let Some((_, found)) = self.find(key)? else { return Ok(None) };
        Ok((found.version > 0).then(|| String::from_utf8_lossy(&found.value).into_owned()))
    }

    /// Sets the value of a key.
    fn put(&self, key: &str, value: &str) -> Result<(), Failure> {
        let room = self.slot.saturating_sub(VERSION + LENGTHS);
        if key.len() + value.len() > room {
            return Err(format!("key and value exceed {room} bytes").into());
        }
        for _ in 0..MAX_TRIES {
            let (slot, found) = self.find(key)?.ok_or("the table is full")?;
            if !self.claim(slot, found.version)? {
                continue;
            }
            let (key_len, value_len) = (u32::try_from(key.len())?, u32::try_from(value.len())?);
            let lengths = [key_len.to_be_bytes(), value_len.to_be_bytes()].concat();
            let contents = [&lengths, key.as_bytes(), value.as_bytes()].concat();
            let whole = (found.version + 2).to_ne_bytes();
            // Writes are placed in order: a client that reads the new version reads the new contents.
            self.qp.post_send_all(vec![
                WorkRequest::write_inline(0, &contents, slot.offset_by(VERSION as u64)).unsignaled(),
                WorkRequest::write_inline(0, &whole, slot),
            ])?;
            return self.wait_completion();
        }
        Err("gave up: other clients keep changing this key".into())
    }

    /// Locks a slot by making its version odd. Returns false if another client has changed the version. The compare and
    /// swap is atomic, so only one client succeeds.
    fn claim(&self, slot: RemoteAddr, version: u64) -> Result<bool, Failure> {
        let result = self.scratch.slice(..VERSION)?;
        self.qp.post_send(WorkRequest::compare_swap(0, result, slot, version, version + 1))?;
        self.wait_completion()?;
        let mut before = [0; VERSION];
        self.scratch.read(0, &mut before)?;
        Ok(u64::from_ne_bytes(before) == version)
    }

    /// Returns the slot that holds this key, or else the first free one for it, or `None` if the table is full.
    fn find(&self, key: &str) -> Result<Option<(RemoteAddr, Slot)>, Failure> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let first = usize::try_from(hasher.finish() % self.slots as u64)?;
        for probe in 0..self.slots {
            let index = (first + probe) % self.slots;
            let slot = self.addr.offset_by((index * self.slot) as u64);
            let found = self.read(slot)?;
            if found.version == 0 || found.key == key.as_bytes() {
                return Ok(Some((slot, found)));
            }
        }
        Ok(None)
    }

    /// Reads a consistent slot. Reads are executed in order, so if the version is the same before and after, the slot
    /// did not change in between. Otherwise the read is torn, and is repeated.
    fn read(&self, slot: RemoteAddr) -> Result<Slot, Failure> {
        for _ in 0..MAX_TRIES {
            let (before, whole, after) = (0, VERSION, VERSION + self.slot);
            self.qp.post_send_all(vec![
                WorkRequest::read(0, &[self.scratch.slice(before..before + VERSION)?], slot).unsignaled(),
                WorkRequest::read(0, &[self.scratch.slice(whole..whole + self.slot)?], slot).unsignaled(),
                WorkRequest::read(0, &[self.scratch.slice(after..after + VERSION)?], slot),
            ])?;
            self.wait_completion()?;
            let bytes = self.scratch.to_vec()?;
            if bytes[before..][..VERSION] == bytes[after..][..VERSION]
                && let Some(found) = parse(&bytes[whole..][..self.slot])
            {
                return Ok(found);
            }
        }
        Err("gave up: another client keeps changing this slot, or died while changing it".into())
    }

    /// Waits for the completion of the signaled request, which is the last one.
    fn wait_completion(&self) -> Result<(), Failure> {
        self.cq.wait(TIMEOUT)?.success()?;
        Ok(())
    }
}

/// Parses a slot. Returns `None` while it is being changed.
fn parse(slot: &[u8]) -> Option<Slot> {
    let (version, rest) = slot.split_first_chunk()?;
    let version = u64::from_ne_bytes(*version);
    let (key_len, rest) = take_number(rest)?;
    let (value_len, contents) = take_number(rest)?;
    let (key, rest) = contents.split_at_checked(key_len)?;
    let value = rest.get(..value_len)?;
    version.is_multiple_of(2).then(|| Slot { version, key: key.to_vec(), value: value.to_vec() })
}

/// Parses the server's private data: the address of the table, the number of slots, and the size of a slot.
fn parse_welcome(bytes: &[u8]) -> Option<(RemoteAddr, usize, usize)> {
    let (addr, rest) = bytes.split_at_checked(12)?;
    let (slots, rest) = take_number(rest)?;
    let (slot, _) = take_number(rest)?;
    Some((RemoteAddr::from_bytes(addr)?, slots, slot))
}

/// Parses a four-byte number, and returns the remaining bytes.
fn take_number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*number) as usize, rest))
}
