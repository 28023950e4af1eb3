//! A ping-pong of messages, which measures round-trip times.
//!
//!     cargo run --release --example ping -- serve
//!     cargo run --release --example ping -- run ADDRESS

use clap::Parser;
use ironwarp::Adapter;
use ironwarp::completion::{Completion, CompletionQueue};
use ironwarp::connection::{AcceptOptions, ConnectOptions, Incoming};
use ironwarp::memory::{Access, Buffer, MemoryRegion};
use ironwarp::queue::{QpError, QueuePair, WorkRequest};
use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Measure round-trip times of messages between two processes
#[derive(Parser)]
enum Command {
    /// Serve clients, one after another
    Serve {
        /// Address to listen at; with port 0 the kernel chooses the port
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: SocketAddr,
        /// Exit after the first client
        #[arg(long)]
        once: bool,
    },
    /// Send messages to a server, and print round-trip times
    Run {
        /// Address that the server printed
        server: SocketAddr,
        /// Number of round trips
        #[arg(short, long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
        count: u32,
        /// Size of a message in bytes
        #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=MAX_SIZE))]
        size: u32,
    },
}

/// Maximum size of a message in bytes.
const MAX_SIZE: i64 = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(10);

type Failure = Box<dyn Error>;

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Serve { listen, once } => serve(listen, once),
        Command::Run { server, count, size } => run(server, count, size as usize),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ping: {error}");
            ExitCode::FAILURE
        }
    }
}

/// One end of the connection, client or server.
struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    /// A send buffer, followed by a receive buffer.
    region: MemoryRegion,
    size: usize,
}

impl End {
    /// Creates a queue pair with a posted receive, for messages of this size.
    fn new(adapter: &Adapter, size: usize) -> Result<Self, Failure> {
        let (cq, domain) = (adapter.completion_queue(16)?, adapter.protection_domain());
        let region = domain.register(Buffer::new(2 * size)?, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
        let end = Self { qp: domain.queue_pair(&cq).create()?, cq, region, size };
        // The receive is posted before connecting, so that every message finds one.
        end.post_receive()?;
        Ok(end)
    }

    /// Posts a receive into the receive buffer.
    fn post_receive(&self) -> Result<(), Failure> {
        Ok(self.qp.post_receive(0, &[self.region.slice(self.size..2 * self.size)?])?)
    }

    /// Sends `len` bytes at offset `at`. The request is unsignaled, because the reply implies its completion.
    fn send(&self, at: usize, len: usize) -> Result<(), Failure> {
        Ok(self.qp.post_send(WorkRequest::send(0, &[self.region.slice(at..at + len)?]).unsignaled())?)
    }

    /// Waits for the next message. `wait` polls briefly before it sleeps, so a fast reply costs no wakeup.
    fn receive(&self, timeout: Option<Duration>) -> Result<Completion, Failure> {
        Ok(self.cq.wait(timeout)?)
    }
}

/// Serves clients, one after another.
fn serve(listen: SocketAddr, once: bool) -> Result<(), Failure> {
    let adapter = Adapter::new()?;
    let listener =
        adapter.listen(listen).map_err(|error| format!("failed to listen at {listen}: {error}"))?;
    println!("listening at {}", listener.local_addr()?);
    loop {
        let incoming = listener.accept(None)?;
        let peer = incoming.peer_addr();
        match echo(&adapter, incoming) {
            Ok(count) => println!("{peer}: {count} messages"),
            // One failed client must not stop the server.
            Err(error) => eprintln!("ping: {peer}: {error}"),
        }
        if once {
            return Ok(());
        }
    }
}

/// Echoes the messages of a client until it disconnects. Returns their number.
fn echo(adapter: &Adapter, incoming: Incoming) -> Result<u64, Failure> {
    let size = match incoming.private_data().try_into().map(u32::from_be_bytes) {
        Ok(size) if i64::from(size) <= MAX_SIZE && size > 0 => size as usize,
        _ => {
            incoming.reject(b"expected a 4-byte message size of at most 1 MiB as private data")?;
            return Err("invalid private data".into());
        }
    };
    let end = End::new(adapter, size)?;
    incoming.accept(&end.qp, &AcceptOptions::new())?;
    for count in 0.. {
        let completion = end.receive(None)?;
        if matches!(completion.cause.as_deref(), Some(QpError::Closed)) {
            return Ok(count);
        }
        let received = completion.success()?.byte_len as usize;
        end.send(size, received)?;
        // The client sends its next message after this reply, so the receive buffer can be reused.
        end.post_receive()?;
    }
    Ok(u64::MAX)
}

/// Sends messages to a server, and prints the round-trip times.
fn run(server: SocketAddr, count: u32, size: usize) -> Result<(), Failure> {
    let end = End::new(&Adapter::new()?, size)?;
    let options = ConnectOptions::new().private_data(&u32::try_from(size)?.to_be_bytes());
    end.qp.connect(server, &options).map_err(|error| format!("failed to connect to {server}: {error}"))?;
    let mut times = Vec::new();
    for round in 0..count {
        let message: Vec<u8> = (0..size).map(|at| (at + round as usize).to_le_bytes()[at % 2]).collect();
        end.region.write(0, &message)?;
        let start = Instant::now();
        end.send(0, size)?;
        let received = end.receive(Some(TIMEOUT))?.success()?.byte_len as usize;
        times.push(start.elapsed());
        let mut reply = vec![0; received];
        end.region.read(size, &mut reply)?;
        if reply != message {
            return Err(format!("reply {round} differs from the message").into());
        }
        end.post_receive()?;
    }
    times.sort();
    let micros = |time: &Duration| time.as_secs_f64() * 1e6;
    let (min, median, max) =
        (micros(&times[0]), micros(&times[times.len() / 2]), micros(&times[times.len() - 1]));
    println!("{count} round trips of {size} bytes: min {min:.1} µs, median {median:.1} µs, max {max:.1} µs");
    Ok(())
}
