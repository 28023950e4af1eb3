//! A key-value server that is replaced by its next version, twice, while clients connect, write and read. No client notices.
//!
//!     cargo run --example hand_over
//!
//! Each version is a process. It starts the next one with a socket as its standard input, and hands its adapter over: the
//! listener, all connections, and the table.

use clap::Parser;
use ironwarp::completion::CompletionQueue;
use ironwarp::connection::{AcceptOptions, ConnectOptions, Incoming, Listener};
use ironwarp::hand_over::{HandOverOptions, TakeOverOptions};
use ironwarp::memory::{Access, Buffer, MemoryRegion, RemoteAddr};
use ironwarp::queue::{QueuePair, WorkRequest};
use ironwarp::{Adapter, ProtectionDomain};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader, stdin};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A key-value server that is replaced by its next version while clients use it
#[derive(Parser)]
struct Arguments {
    /// Number of clients
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16))]
    clients: u8,
    /// Number of connections that each client makes, one after the other
    #[arg(long, default_value_t = 10)]
    connections: u32,
    /// Number of values that a client writes with each connection
    #[arg(long, default_value_t = 30)]
    values: u32,
    /// Be a version of the server
    #[arg(long, hide = true)]
    version: Option<u8>,
}

/// The last version of the server.
const LAST: u8 = 3;
/// Number of keys of each client.
const KEYS: u8 = 8;
/// Size of a message, and of an entry of the table: the length of a value, and the value.
const SLOT: usize = 64;
/// A message that writes a value begins with this, the key and the length of the value.
const PUT: u8 = b'p';
/// The last message of a client.
const QUIT: u8 = b'q';
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for which a loop waits before it looks at something else.
const TURN: Duration = Duration::from_millis(1);

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.version {
        Some(version) => be_version(version, &arguments),
        None => run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hand_over: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts version 1 and the clients, and waits until all clients are done.
fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut server = version_command(1, arguments)?.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut output = BufReader::new(server.stdout.take().ok_or("the output of the server is not piped")?);
    let mut first = String::new();
    output.read_line(&mut first)?;
    let addr: SocketAddr = first.trim().parse().map_err(|_| "the server does not listen")?;
    println!("listening at {addr}");
    // All versions have the same output, which ends with the last of them.
    let printing =
        thread::spawn(move || output.lines().map_while(Result::ok).for_each(|line| println!("{line}")));
    let answers = thread::scope(|scope| {
        let clients: Vec<_> = (0..arguments.clients)
            .map(|index| scope.spawn(move || be_client(addr, index, arguments)))
            .collect();
        let joined = clients.into_iter().map(|client| client.join().map_err(|_| "a client panicked")?);
        joined.collect::<Result<Vec<_>, Failure>>()
    })?;
    server.wait()?;
    printing.join().map_err(|_| "the output of the server cannot be printed")?;
    let mut by_version = BTreeMap::<u8, u32>::new();
    for (version, count) in answers.iter().flatten() {
        *by_version.entry(*version).or_default() += count;
    }
    let connections = u32::from(arguments.clients) * arguments.connections;
    let total: u32 = by_version.values().sum();
    println!("{total} values written, read and verified with {connections} connections, no error");
    for (version, count) in by_version {
        println!("version {version} has answered {count} times");
    }
    Ok(())
}

/// Returns a command that runs a version of the server.
fn version_command(version: u8, arguments: &Arguments) -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    let numbers = [u32::from(arguments.clients), arguments.connections, arguments.values, version.into()];
    for (name, number) in ["--clients", "--connections", "--values", "--version"].into_iter().zip(numbers) {
        command.arg(name).arg(number.to_string());
    }
    Ok(command)
}

// --- The server ---

/// What a version has. All of it moves to the next version, except `version` and `pairs`.
struct Server {
    version: u8,
    adapter: Adapter,
    listener: Listener,
    cq: CompletionQueue,
    domain: ProtectionDomain,
    /// The table, and behind it a message of each client.
    table: MemoryRegion,
    pairs: Mutex<Vec<QueuePair>>,
    /// Number of clients that have left for good.
    left: u8,
}

/// Runs a version of the server until its next version has replaced it, or all clients have left.
fn be_version(version: u8, arguments: &Arguments) -> Result<(), Failure> {
    let mut server = if version == 1 { Server::start(arguments)? } else { Server::take_over(version)? };
    let total = u32::from(arguments.clients) * arguments.connections * arguments.values;
    // Each version serves the same number of requests.
    let end = if version == LAST { u32::MAX } else { total / u32::from(LAST) };
    let served = server.serve(end, arguments.clients)?;
    if version == LAST {
        println!("version {version} has served {served} requests, and all clients have left");
        return Ok(());
    }
    println!("version {version} has served {served} requests, and starts version {}", version + 1);
    server.hand_over(arguments)
}

impl Server {
    fn start(arguments: &Arguments) -> Result<Self, Failure> {
        let adapter = Adapter::new()?;
        let (cq, domain) = (adapter.completion_queue(1024)?, adapter.protection_domain());
        let slots = usize::from(arguments.clients) * usize::from(KEYS + 1);
        // Memory that moves must be shareable.
        let buffer = Buffer::builder().shareable().allocate(slots * SLOT)?;
        let table =
            domain.register(buffer, Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_READ)?;
        let listener = adapter.listen("127.0.0.1:0".parse()?)?;
        println!("{}", listener.local_addr()?);
        println!("version 1 is process {}", std::process::id());
        Ok(Self { version: 1, adapter, listener, cq, domain, table, pairs: Mutex::default(), left: 0 })
    }

    /// Takes over from the version before, whose socket is the standard input.
    fn take_over(version: u8) -> Result<Self, Failure> {
        let taken = Adapter::take_over(stdin().as_fd().try_clone_to_owned()?, TakeOverOptions::new())?;
        let connections = taken.queue_pairs.len();
        println!("version {version} is process {}, and has {connections} connections", std::process::id());
        let missing = || "the adapter that was taken over lacks an object";
        Ok(Self {
            version,
            adapter: taken.adapter,
            listener: taken.listeners.into_iter().next().ok_or_else(missing)?,
            cq: taken.completion_queues.into_iter().next().ok_or_else(missing)?,
            domain: taken.protection_domains.into_iter().next().ok_or_else(missing)?,
            table: taken.regions.into_iter().next().ok_or_else(missing)?,
            pairs: Mutex::new(taken.queue_pairs),
            left: taken.data.first().copied().ok_or_else(missing)?,
        })
    }

    /// Starts the next version, and hands everything over to it.
    fn hand_over(self, arguments: &Arguments) -> Result<(), Failure> {
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        version_command(self.version + 1, arguments)?.stdin(there).spawn()?;
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            // Clients that have sent their request before the listener moves are accepted here.
            scope.spawn(|| {
                while !is_done.load(Ordering::Acquire) {
                    if let Ok(incoming) = self.listener.accept(TURN) {
                        self.admit(incoming);
                    }
                }
            });
            let handed_over = self.adapter.hand_over(here, &HandOverOptions::new().data(&[self.left]));
            is_done.store(true, Ordering::Release);
            Ok(handed_over?)
        })
    }

    /// Serves this number of requests, or until this number of clients has left. Returns the number of requests.
    fn serve(&mut self, end: u32, clients: u8) -> Result<u32, Failure> {
        let (mut served, mut last) = (0, Instant::now());
        while served < end && self.left < clients {
            if let Ok(incoming) = self.listener.accept(Duration::ZERO) {
                self.admit(incoming);
            }
            let Ok(completion) = self.cq.wait(TURN) else {
                if last.elapsed() > TIMEOUT {
                    return Err("no requests".into());
                }
                continue;
            };
            last = Instant::now();
            let mut pairs = self.pairs.lock().map_err(|_| "a thread panicked")?;
            let Ok(received) = completion.clone().success() else {
                pairs.retain(|qp| qp.id() != completion.qp); // the client has closed the connection
                continue;
            };
            let qp = pairs.iter().find(|qp| qp.id() == received.qp).ok_or("unknown connection")?;
            let at = usize::try_from(received.wr_id)?;
            let mut message = [0; SLOT];
            self.table.read(at, &mut message)?;
            match message {
                [QUIT, ..] => self.left += 1,
                [PUT, key, ref value @ ..] => {
                    self.table.write(usize::from(key) * SLOT, value)?;
                    qp.post_receive(received.wr_id, &[self.table.slice(at..at + SLOT)?])?;
                    qp.post_send(WorkRequest::send_inline(0, &[self.version]).unsignaled())?;
                    served += 1;
                }
                _ => return Err(format!("a message begins with {}", message[0]).into()),
            }
        }
        Ok(served)
    }

    /// Accepts a client, and sends it the address of the table.
    fn admit(&self, incoming: Incoming) {
        if let Err(error) = self.try_admit(incoming) {
            eprintln!("hand_over: failed to accept a client: {error}");
        }
    }

    fn try_admit(&self, incoming: Incoming) -> Result<(), Failure> {
        let place = usize::from(*incoming.private_data().first().ok_or("no number of a client")?);
        let at = self.table.len() - (place + 1) * SLOT;
        let qp = self.domain.queue_pair(&self.cq).create()?;
        qp.post_receive(at as u64, &[self.table.slice(at..at + SLOT)?])?;
        let welcome = self.table.remote_addr(0)?.to_bytes();
        incoming.accept(&qp, &AcceptOptions::new().private_data(&welcome))?;
        self.pairs.lock().map_err(|_| "a thread panicked")?.push(qp);
        Ok(())
    }
}

// --- The clients ---

/// Writes values and reads them back, with several connections. Returns how often each version has answered.
fn be_client(server: SocketAddr, index: u8, arguments: &Arguments) -> Result<BTreeMap<u8, u32>, Failure> {
    let adapter = Adapter::new()?;
    let (mut expected, mut answers) = (BTreeMap::new(), BTreeMap::new());
    for connection in 0..arguments.connections {
        let (domain, cq) = (adapter.protection_domain(), adapter.completion_queue(16)?);
        let region = domain.register(Buffer::new(2 * SLOT)?, Access::LOCAL_WRITE)?;
        let qp = domain.queue_pair(&cq).create()?;
        let established = qp.connect(server, &ConnectOptions::new().private_data(&[index]))?;
        let table = RemoteAddr::from_bytes(&established.private_data).ok_or("no address of the table")?;
        for number in 0..arguments.values {
            let key = index * KEYS + u8::try_from(number % u32::from(KEYS))?;
            let value = format!("value {number} of connection {connection} of client {index}");
            let message = [&[PUT, key, u8::try_from(value.len())?], value.as_bytes()].concat();
            qp.post_receive(1, &[region.slice(..SLOT)?])?;
            qp.post_send(WorkRequest::send_inline(2, &message).unsignaled())?;
            cq.wait(TIMEOUT)?.success()?;
            let version = region.to_vec()?[0];
            *answers.entry(version).or_default() += 1;
            expected.insert(key, value);
            // Reads this value, or an older one of another key, from the memory of the server.
            let older = index * KEYS + u8::try_from(number * 5 % u32::from(KEYS))?;
            for (key, value) in [key, older].iter().filter_map(|key| expected.get_key_value(key)) {
                let from = table.offset_by(u64::from(*key) * SLOT as u64);
                qp.post_send(WorkRequest::read(3, &[region.slice(SLOT..)?], from))?;
                cq.wait(TIMEOUT)?.success()?;
                let bytes = &region.to_vec()?[SLOT..];
                if bytes[1..].get(..usize::from(bytes[0])) != Some(value.as_bytes()) {
                    return Err(format!("key {key} has {bytes:?}, not `{value}`").into());
                }
            }
        }
        if connection + 1 == arguments.connections {
            qp.post_send(WorkRequest::send_inline(4, &[QUIT]))?;
            cq.wait(TIMEOUT)?.success()?;
        }
        qp.disconnect();
        if !qp.wait_closed(TIMEOUT) {
            return Err("the server does not close a connection".into());
        }
    }
    Ok(answers)
}
