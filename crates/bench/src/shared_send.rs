//! Compares many connections with private send queues and with one shared send queue (requirement X7): their memory
//! after each was used, and the rate of posting. `ironwarp-bench shared_send [CONNECTIONS]` prints a table.
//!
//! The server is a separate process. Each of the two methods has an adapter and connections of its own; they alternate.

use crate::control::{self, TIMEOUT};
use crate::measure::resident;
use crate::result::Result;
use ironwarp::completion::CompletionQueue;
use ironwarp::connection::{AcceptOptions, ConnectOptions, Listener};
use ironwarp::memory::{Access, Buffer, MemoryRegion, RemoteAddr};
use ironwarp::queue::{QueuePair, SharedSendQueue, WorkRequest};
use ironwarp::{Adapter, ProtectionDomain};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// The argument that starts the server.
const SERVE: &str = "serve";
/// Depth of each send queue, or of the shared one.
const DEPTH: usize = 64;
/// Number of turns of each method.
const ROUNDS: usize = 9;
/// Number of requests per turn.
const POSTS: usize = 100_000;
/// Payload of a request in bytes.
const SIZE: usize = 8;

/// Runs the measurement, or the server.
pub(crate) fn run(words: &[String]) -> Result {
    match words {
        [first, connections] if first == SERVE => serve(connections.parse()?),
        [] => measure(5000),
        [connections] => measure(connections.parse()?),
        _ => Err("usage: ironwarp-bench shared_send [CONNECTIONS]".into()),
    }
}

/// One method with its connections.
struct Method {
    name: &'static str,
    cq: CompletionQueue,
    shared: Option<SharedSendQueue>,
    pairs: Vec<QueuePair>,
    /// Address of the peer's memory.
    to: RemoteAddr,
    region: MemoryRegion,
    /// Resident memory per connection in bytes, after connecting.
    idle: f64,
    /// Resident memory per connection in bytes, after each queue was full once.
    used: f64,
    /// Posts per second of each turn.
    rates: Vec<f64>,
}

/// Measures both methods in turn, and prints a table.
fn measure(connections: usize) -> Result {
    control::prepare(0)?;
    let mut server = Server::start(2 * connections)?;
    let mut methods = [
        Method::open("private", &server, connections, false)?,
        Method::open("one shared", &server, connections, true)?,
    ];
    for _ in 0..ROUNDS {
        for method in &mut methods {
            method.turn()?;
        }
    }
    println!("| {connections} send queues | connected | after each was full once | posts |");
    println!("|---|---|---|---|");
    for method in &mut methods {
        method.rates.sort_by(f64::total_cmp);
        let Method { name, idle, used, rates, .. } = method;
        println!("| {name} | {idle:.0} B | {used:.0} B | {:.3} M/s |", rates[ROUNDS / 2] / 1e6);
    }
    println!(
        "\nMemory per connection, from the growth of the resident set. Posts: median of {ROUNDS} turns."
    );
    server.child.kill()?;
    Ok(())
}

impl Method {
    /// Connects, fills each send queue once, and measures the memory.
    fn open(name: &'static str, server: &Server, connections: usize, shared: bool) -> Result<Self> {
        let adapter = Adapter::new()?;
        let domain = adapter.protection_domain();
        let cq = adapter.completion_queue(2 * DEPTH)?;
        let region = domain.register(Buffer::new(4096)?, Access::LOCAL_READ)?;
        let shared = shared.then(|| domain.shared_send_queue(&cq, DEPTH));
        let before = resident()?;
        let (mut pairs, mut to) = (Vec::with_capacity(connections), None);
        for _ in 0..connections {
            let (pair, addr) = connect(&domain, &cq, shared.as_ref(), server.address)?;
            to = Some(addr);
            pairs.push(pair);
        }
        let each = |bytes: f64| (bytes - before) / connections as f64;
        let (idle, to) = (each(resident()?), to.ok_or("no connections")?);
        let rates = Vec::new();
        let mut method = Self { name, cq, shared, pairs, to, region, idle, used: 0.0, rates };
        for index in 0..connections {
            let requests = (0..DEPTH).map(|_| method.request()).collect::<Result<Vec<_>>>()?;
            method.post(index, requests)?;
            method.complete(DEPTH)?;
        }
        method.used = each(resident()?);
        Ok(method)
    }

    /// Returns a Write to the peer's memory.
    fn request(&self) -> Result<WorkRequest> {
        Ok(WorkRequest::write(1, &[self.region.slice(..SIZE)?], self.to))
    }

    /// Posts requests to a connection.
    fn post(&self, index: usize, requests: Vec<WorkRequest>) -> Result {
        let pair = &self.pairs[index];
        let posted = match &self.shared {
            Some(shared) => shared.post_all(pair, requests),
            None => pair.post_send_all(requests),
        };
        Ok(posted?)
    }

    /// Waits for this many completions.
    fn complete(&self, count: usize) -> Result {
        for _ in 0..count {
            self.cq.wait(TIMEOUT)?.success()?;
        }
        Ok(())
    }

    /// Measures one turn: posts requests to the connections in turn, and waits for completions when the queue is full.
    fn turn(&mut self) -> Result {
        let (start, mut outstanding) = (Instant::now(), 0);
        for number in 0..POSTS {
            if outstanding == DEPTH {
                self.complete(DEPTH)?;
                outstanding = 0;
            }
            self.post(number % self.pairs.len(), vec![self.request()?])?;
            outstanding += 1;
        }
        self.complete(outstanding)?;
        self.rates.push(POSTS as f64 / start.elapsed().as_secs_f64());
        Ok(())
    }
}

/// Connects a queue pair to the server. Returns it with the address of the server's memory.
fn connect(
    domain: &ProtectionDomain,
    cq: &CompletionQueue,
    shared: Option<&SharedSendQueue>,
    to: SocketAddr,
) -> Result<(QueuePair, RemoteAddr)> {
    let builder = domain.queue_pair(cq).send_depth(DEPTH).receive_depth(1).max_sges(1);
    let pair = match shared {
        Some(shared) => builder.shared_send_queue(shared),
        None => builder,
    };
    let pair = pair.create()?;
    let established = pair.connect(to, &ConnectOptions::new()).map_err(|error| error.to_string())?;
    let addr = RemoteAddr::from_bytes(&established.private_data).ok_or("the server sent no address")?;
    Ok((pair, addr))
}

/// The server process.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts the server, and waits for its address.
    fn start(connections: usize) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["shared_send", SERVE, &connections.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        Ok(Self { child, address: line.trim().parse()? })
    }
}

/// Runs the server: accepts connections, and waits until it is killed.
fn serve(connections: usize) -> Result {
    control::die_with_parent()?;
    control::prepare(1)?;
    let adapter = Adapter::new()?;
    let (domain, cq) = (adapter.protection_domain(), adapter.completion_queue(64)?);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = domain.register(Buffer::new(4096)?, access)?;
    let listener: Listener = adapter.listen("127.0.0.1:0".parse()?)?;
    println!("{}", listener.local_addr()?);
    let mut pairs = Vec::with_capacity(connections);
    while pairs.len() < connections {
        let incoming = listener.accept(TIMEOUT)?;
        let pair = domain.queue_pair(&cq).receive_depth(1).create()?;
        let options = AcceptOptions::new().private_data(&region.remote_addr(0)?.to_bytes());
        incoming.accept(&pair, &options).map_err(|error| error.to_string())?;
        pairs.push(pair);
    }
    loop {
        std::thread::park();
    }
}
