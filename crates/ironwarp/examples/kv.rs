//! A one-sided key-value store: the server has a table in memory and sleeps; clients read and write it by RDMA.
//!
//!     cargo run --example kv -- serve
//!     cargo run --example kv -- put ADDRESS colour green
//!     cargo run --example kv -- get ADDRESS colour

use clap::Parser;
use ironwarp::{
    AcceptOptions, Access, Adapter, Buffer, Completes, CompletionQueue, ConnectOptions, Incoming,
    MemoryRegion, Place, ProtectionDomain, QueuePair, WorkRequest,
};
use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

/// A key-value store whose server does nothing: clients reach its memory by RDMA Read and Write
#[derive(Parser)]
enum Command {
    /// Hold a table, until Ctrl-C
    Serve {
        /// Where to listen; port 0 lets the kernel choose
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: SocketAddr,
        /// How many keys the table holds
        #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
        slots: u32,
        /// Bytes for each, a multiple of 8: a key, its value, and 16 more
        #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
        slot: u32,
    },
    /// Print the value of a key
    Get {
        server: SocketAddr,
        key: String,
        /// Read it so often, and print each value that is not the one before
        #[arg(long, default_value_t = 1)]
        repeat: u32,
    },
    /// Give a key a value
    Put {
        server: SocketAddr,
        key: String,
        /// One value, or several to be put in turns
        #[arg(required = true)]
        values: Vec<String>,
        /// Put all of them so often
        #[arg(long, default_value_t = 1)]
        repeat: u32,
    },
}

/// A slot: its version, the lengths of key and value, then their bytes.
///
/// The version is that of a seqlock: even while the slot is whole, odd while somebody changes it, zero while nobody
/// ever did. It is in the byte order of the machines, as atomic operations have it.
const VERSION: usize = 8;
const LENGTHS: usize = 8;

const PATIENCE: Duration = Duration::from_secs(10);
/// Whoever loses so often against others gives up.
const TRIES: usize = 10_000;

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

fn serve(listen: SocketAddr, slots: u32, slot: u32) -> Result<(), Failure> {
    if !slot.is_multiple_of(8) {
        return Err("--slot must be a multiple of 8: atomic operations want versions at such places".into());
    }
    let adapter = Adapter::new()?;
    let (domain, cq) = (adapter.protection_domain(), adapter.completion_queue(16)?);
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let table = domain.register(Buffer::new(slots as usize * slot as usize)?, rights)?;
    let listener = adapter.listen(listen).map_err(|error| format!("cannot listen at {listen}: {error}"))?;
    println!("listening at {}", listener.local_addr()?);
    let welcome = [&table.place(0)?.to_bytes()[..], &slots.to_be_bytes(), &slot.to_be_bytes()].concat();
    // All that is left to do is to let clients in. What they read and write never wakes this thread.
    let mut clients = Vec::new();
    loop {
        let Some(incoming) = listener.accept(None) else { continue };
        clients.retain(|qp: &QueuePair| qp.fault().is_none());
        match admit(&domain, &cq, incoming, &welcome) {
            Ok(qp) => clients.push(qp),
            Err(error) => eprintln!("kv: {error}"),
        }
    }
}

/// Lets a client in, and tells it where the table is.
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

fn get(server: SocketAddr, key: &str, repeat: u32) -> Result<(), Failure> {
    let table = Table::connect(server)?;
    let mut last = None;
    for _ in 0..repeat {
        let value = table.get(key)?.ok_or_else(|| format!("nobody put `{key}`"))?;
        if last.as_ref() != Some(&value) {
            println!("{value}");
            last = Some(value);
        }
    }
    Ok(())
}

fn put(server: SocketAddr, key: &str, values: &[String], repeat: u32) -> Result<(), Failure> {
    let table = Table::connect(server)?;
    for _ in 0..repeat {
        for value in values {
            table.put(key, value)?;
        }
    }
    Ok(())
}

/// The server's table, as a client has it.
struct Table {
    qp: QueuePair,
    cq: CompletionQueue,
    place: Place,
    slots: usize,
    /// Bytes of each.
    slot: usize,
    /// Where slots are read to: the version, the slot, the version again.
    scratch: MemoryRegion,
}

/// What a Read of a slot found.
struct Found {
    version: u64,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Table {
    fn connect(server: SocketAddr) -> Result<Self, Failure> {
        let adapter = Adapter::new()?;
        let (domain, cq) = (adapter.protection_domain(), adapter.completion_queue(16)?);
        // A Write that is acknowledged is in the server's memory: who is told that a value was put, can get it.
        let qp = domain.queue_pair(&cq).completes(Completes::WhenAcknowledged).create()?;
        let established = qp
            .connect(server, &ConnectOptions::new())
            .map_err(|error| format!("cannot connect to {server}: {error}"))?;
        let welcome = welcome(&established.private_data).ok_or("the server is no `kv serve`")?;
        let (place, slots, slot) = welcome;
        let scratch = domain.register(Buffer::new(VERSION + slot + VERSION)?, Access::LOCAL_WRITE)?;
        Ok(Self { qp, cq, place, slots, slot, scratch })
    }

    fn get(&self, key: &str) -> Result<Option<String>, Failure> {
        let Some((_, found)) = self.find(key)? else { return Ok(None) };
        Ok((found.version > 0).then(|| String::from_utf8_lossy(&found.value).into_owned()))
    }

    fn put(&self, key: &str, value: &str) -> Result<(), Failure> {
        let room = self.slot.saturating_sub(VERSION + LENGTHS);
        if key.len() + value.len() > room {
            return Err(format!("key and value have more than {room} bytes together").into());
        }
        for _ in 0..TRIES {
            let (slot, found) = self.find(key)?.ok_or("the table is full")?;
            if !self.claim(slot, found.version)? {
                continue;
            }
            let (key_len, value_len) = (u32::try_from(key.len())?, u32::try_from(value.len())?);
            let lengths = [key_len.to_be_bytes(), value_len.to_be_bytes()].concat();
            let contents = [&lengths, key.as_bytes(), value.as_bytes()].concat();
            let whole = (found.version + 2).to_ne_bytes();
            // In this order on the wire, and so in memory: whoever sees the new version sees the new contents.
            self.qp.post_send_all(vec![
                WorkRequest::write_inline(0, &contents, at(slot, VERSION)).unsignaled(),
                WorkRequest::write_inline(0, &whole, slot),
            ])?;
            return self.done();
        }
        Err("others change this key all the time".into())
    }

    /// Makes the version of a slot odd, so that readers and other writers keep away. False if somebody else was faster: the
    /// server's adapter compares and swaps in one step, so only one of many succeeds.
    fn claim(&self, slot: Place, version: u64) -> Result<bool, Failure> {
        let result = self.scratch.slice(0, VERSION)?;
        self.qp.post_send(WorkRequest::compare_swap(0, result, slot, version, version + 1))?;
        self.done()?;
        let mut before = [0; VERSION];
        self.scratch.read(0, &mut before)?;
        Ok(u64::from_ne_bytes(before) == version)
    }

    /// The slot that has this key, or else the first free one for it; `None` if all are taken.
    fn find(&self, key: &str) -> Result<Option<(Place, Found)>, Failure> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let first = usize::try_from(hasher.finish() % self.slots as u64)?;
        for probe in 0..self.slots {
            let index = (first + probe) % self.slots;
            let slot = at(self.place, index * self.slot);
            let found = self.read(slot)?;
            if found.version == 0 || found.key == key.as_bytes() {
                return Ok(Some((slot, found)));
            }
        }
        Ok(None)
    }

    /// Reads a slot, whole. The server answers Reads in order. So if the version is the same before and after, nobody
    /// changed the slot in between; otherwise what was read is torn, and is read again.
    fn read(&self, slot: Place) -> Result<Found, Failure> {
        for _ in 0..TRIES {
            let (before, whole, after) = (0, VERSION, VERSION + self.slot);
            self.qp.post_send_all(vec![
                WorkRequest::read(0, &[self.scratch.slice(before, VERSION)?], slot).unsignaled(),
                WorkRequest::read(0, &[self.scratch.slice(whole, self.slot)?], slot).unsignaled(),
                WorkRequest::read(0, &[self.scratch.slice(after, VERSION)?], slot),
            ])?;
            self.done()?;
            let bytes = self.scratch.to_vec()?;
            if bytes[before..][..VERSION] == bytes[after..][..VERSION]
                && let Some(found) = parse(&bytes[whole..][..self.slot])
            {
                return Ok(found);
            }
        }
        Err("somebody changes this slot all the time, or began to and went away".into())
    }

    /// Waits for the request that tells when it is done.
    fn done(&self) -> Result<(), Failure> {
        self.cq.wait(PATIENCE)?.ok_or("the server does not answer")?.success()?;
        Ok(())
    }
}

/// What is in a slot; `None` if it is being changed.
fn parse(slot: &[u8]) -> Option<Found> {
    let (version, rest) = slot.split_first_chunk()?;
    let version = u64::from_ne_bytes(*version);
    let (key_len, rest) = number(rest)?;
    let (value_len, contents) = number(rest)?;
    let (key, rest) = contents.split_at_checked(key_len)?;
    let value = rest.get(..value_len)?;
    version.is_multiple_of(2).then(|| Found { version, key: key.to_vec(), value: value.to_vec() })
}

/// Where the table is, how many slots it has, and how many bytes each of them.
fn welcome(bytes: &[u8]) -> Option<(Place, usize, usize)> {
    let (place, rest) = bytes.split_at_checked(12)?;
    let (slots, rest) = number(rest)?;
    let (slot, _) = number(rest)?;
    Some((Place::from_bytes(place)?, slots, slot))
}

/// A number of four bytes, and what is behind it.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*number) as usize, rest))
}

/// So many bytes behind a place.
fn at(place: Place, bytes: usize) -> Place {
    Place { offset: place.offset + bytes as u64, ..place }
}
