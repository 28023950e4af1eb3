//! Messages there and back: how long a round trip takes.
//!
//!     cargo run --release --example ping -- serve
//!     cargo run --release --example ping -- run ADDRESS

use clap::Parser;
use ironwarp::{
    AcceptOptions, Access, Adapter, Buffer, Completion, CompletionQueue, ConnectOptions, Fault, Incoming,
    MemoryRegion, QueuePair, WorkRequest,
};
use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Measure round trips of messages between two processes
#[derive(Parser)]
enum Command {
    /// Answer clients, one after another
    Serve {
        /// Where to listen; port 0 lets the kernel choose
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: SocketAddr,
        /// End after the first client
        #[arg(long)]
        once: bool,
    },
    /// Send messages to a server, and say how long they took
    Run {
        /// What the server printed
        server: SocketAddr,
        /// How many round trips
        #[arg(short, long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
        count: u32,
        /// Bytes in each message
        #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=LONGEST))]
        size: u32,
    },
}

const LONGEST: i64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

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

/// One end: what both the client and the server need.
struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    /// The message to send, and behind it room for the one to receive.
    region: MemoryRegion,
    size: usize,
}

impl End {
    fn new(adapter: &Adapter, size: usize) -> Result<Self, Failure> {
        let (cq, domain) = (adapter.completion_queue(16)?, adapter.protection_domain());
        let region = domain.register(Buffer::new(2 * size)?, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
        let end = Self { qp: domain.queue_pair(&cq).create()?, cq, region, size };
        // The first receive is posted before the connection is there: then no message ever has to wait for one.
        end.post_receive()?;
        Ok(end)
    }

    fn post_receive(&self) -> Result<(), Failure> {
        Ok(self.qp.post_receive(0, &[self.region.slice(self.size, self.size)?])?)
    }

    /// Sends so many bytes from `at` on. That they are sent needs no telling: the answer says more.
    fn send(&self, at: usize, len: usize) -> Result<(), Failure> {
        Ok(self.qp.post_send(WorkRequest::send(0, &[self.region.slice(at, len)?]).unsignaled())?)
    }

    /// Waits for the next message. `wait` polls for a moment before it sleeps, so a fast answer costs no wake.
    fn receive(&self, patience: Option<Duration>) -> Result<Completion, Failure> {
        Ok(self.cq.wait(patience)?.ok_or("no answer in time")?)
    }
}

fn serve(listen: SocketAddr, once: bool) -> Result<(), Failure> {
    let adapter = Adapter::new()?;
    let listener = adapter.listen(listen).map_err(|error| format!("cannot listen at {listen}: {error}"))?;
    println!("listening at {}", listener.local_addr()?);
    loop {
        let Some(incoming) = listener.accept(None) else { continue };
        let peer = incoming.peer_addr();
        match echo(&adapter, incoming) {
            Ok(count) => println!("{peer}: {count} messages"),
            // A client that fails is no reason to end: there may be others.
            Err(error) => eprintln!("ping: {peer}: {error}"),
        }
        if once {
            return Ok(());
        }
    }
}

/// Sends back what one client sends, until it closes.
fn echo(adapter: &Adapter, incoming: Incoming) -> Result<u64, Failure> {
    let size = match incoming.private_data().try_into().map(u32::from_be_bytes) {
        Ok(size) if i64::from(size) <= LONGEST && size > 0 => size as usize,
        _ => {
            incoming.reject(b"say in 4 bytes how long the messages are, 1 MiB at most")?;
            return Err("connected in a way that is not understood".into());
        }
    };
    let end = End::new(adapter, size)?;
    incoming.accept(&end.qp, &AcceptOptions::new())?;
    for count in 0.. {
        let completion = end.receive(None)?;
        if matches!(completion.cause.as_deref(), Some(Fault::Closed)) {
            return Ok(count);
        }
        let received = completion.success()?.byte_len as usize;
        end.send(size, received)?;
        // The client sends its next message only when it has this answer. So the same bytes can receive it.
        end.post_receive()?;
    }
    Ok(u64::MAX)
}

fn run(server: SocketAddr, count: u32, size: usize) -> Result<(), Failure> {
    let end = End::new(&Adapter::new()?, size)?;
    let options = ConnectOptions::new().private_data(&u32::try_from(size)?.to_be_bytes());
    end.qp.connect(server, &options).map_err(|error| format!("cannot connect to {server}: {error}"))?;
    let mut times = Vec::new();
    for round in 0..count {
        let message: Vec<u8> = (0..size).map(|at| (at + round as usize).to_le_bytes()[at % 2]).collect();
        end.region.write(0, &message)?;
        let start = Instant::now();
        end.send(0, size)?;
        let received = end.receive(Some(PATIENCE))?.success()?.byte_len as usize;
        times.push(start.elapsed());
        let mut answer = vec![0; received];
        end.region.read(size, &mut answer)?;
        if answer != message {
            return Err(format!("answer {round} is not what was sent").into());
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
