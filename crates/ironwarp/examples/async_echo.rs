//! An echo server for many connections, and its clients. One task of one thread serves all connections.
//!
//!     cargo run --release --features tokio --example async_echo -- --connections 1000

use clap::Parser;
use ironwarp::connection::{AcceptOptions, ConnectOptions};
use ironwarp::memory::{Access, Buffer, Chunk, Pool};
use ironwarp::tokio::{Driver, Incoming, Listener, QueuePair};
use ironwarp::{Adapter, ProtectionDomain};
use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Echo messages on many connections, and verify every byte
#[derive(Clone, Copy, Parser)]
struct Options {
    /// Number of connections
    #[arg(short, long, default_value_t = 1000)]
    connections: usize,
    /// Number of messages on each of them
    #[arg(short, long, default_value_t = 10)]
    messages: usize,
    /// Size of a message in bytes
    #[arg(short, long, default_value_t = 1024)]
    size: usize,
}

/// Receives that all connections of the server share.
const RECEIVES: usize = 256;
/// Number of clients that connect at the same time.
const CONNECTING: usize = 64;

type Failure = Box<dyn Error + Send + Sync>;

/// An adapter, with what the connections of one end share.
struct End {
    adapter: Adapter,
    domain: ProtectionDomain,
    driver: Driver,
    pool: Pool,
}

impl End {
    fn new(chunks: usize, size: usize) -> Result<Self, Failure> {
        let adapter = Adapter::new()?;
        let domain = adapter.protection_domain();
        let region =
            domain.register(Buffer::new(chunks * size)?, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
        let driver = Driver::new(adapter.completion_queue(chunks)?)?;
        Ok(Self { adapter, domain, driver, pool: Pool::new(region, size) })
    }

    fn chunk(&self) -> Result<Chunk, Failure> {
        Ok(self.pool.take().ok_or("all chunks are in use")?)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let options = Options::parse();
    raise_descriptor_limit()?;
    let (start, server) = (Instant::now(), End::new(RECEIVES, options.size)?);
    let listener = Listener::new(server.adapter.listen("127.0.0.1:0".parse()?)?)?;
    let to = listener.local_addr()?;
    let serving = tokio::spawn(serve(server, listener, options.connections));

    let client = Arc::new(End::new(2 * options.connections, options.size)?);
    let (mut clients, turns) = (JoinSet::new(), Arc::new(Semaphore::new(CONNECTING)));
    for number in 0..options.connections {
        clients.spawn(run_client(Arc::clone(&client), Arc::clone(&turns), to, number, options));
    }
    while let Some(done) = clients.join_next().await {
        done??;
    }
    let echoed = serving.await??;
    let (connections, size, time) = (options.connections, options.size, start.elapsed().as_secs_f64());
    println!(
        "{connections} connections: {echoed} messages of {size} bytes echoed and verified in {time:.1} s"
    );
    Ok(())
}

/// Serves connections until this many have closed. Returns the number of messages.
async fn serve(end: End, listener: Listener, connections: usize) -> Result<usize, Failure> {
    let srq = end.domain.shared_receive_queue(RECEIVES);
    let chunks = (0..RECEIVES).map_while(|_| end.pool.take());
    let messages = end.driver.receive_queue(&srq, chunks)?;
    let (mut open, mut connected, mut closed, mut echoed) = (HashMap::new(), JoinSet::new(), 0, 0);
    while closed < connections {
        tokio::select! {
            message = messages.recv() => {
                let message = message?.ok_or("the driver has ended")?;
                if let Some(qp) = open.get(&message.qp()) {
                    // Dropping the future does not cancel the request. When the message is sent, its chunk is posted
                    // for another one.
                    drop(QueuePair::send(qp, message)?);
                    echoed += 1;
                }
            }
            incoming = listener.accept() => {
                let qp = end.driver.create(end.domain.queue_pair(end.driver.cq()).srq(&srq))?;
                open.insert(qp.id(), qp.clone());
                connected.spawn(accept(incoming?, qp));
            }
            Some(id) = connected.join_next() => {
                open.remove(&id??);
                closed += 1;
            }
        }
    }
    Ok(echoed)
}

/// Accepts a connection, and waits until it is closed. Returns the number of its queue pair.
async fn accept(incoming: Incoming, qp: QueuePair) -> Result<u32, Failure> {
    incoming.accept(&qp, &AcceptOptions::new()).await?;
    qp.closed().await;
    Ok(qp.id())
}

/// Sends messages, one at a time, and verifies the answers.
async fn run_client(
    end: Arc<End>,
    turns: Arc<Semaphore>,
    to: SocketAddr,
    number: usize,
    options: Options,
) -> Result<(), Failure> {
    let qp = end.driver.create(end.domain.queue_pair(end.driver.cq()))?;
    let answers = qp.receive_queue([end.chunk()?])?;
    let turn = turns.acquire().await?;
    qp.connect(to, &ConnectOptions::new()).await?;
    drop(turn);
    for message in 0..options.messages {
        let bytes: Vec<u8> = (0..options.size).map(|at| (at + number + message).to_le_bytes()[0]).collect();
        let mut chunk = end.chunk()?;
        chunk.write(0, &bytes)?;
        let _sent = qp.send(chunk)?.await?;
        let answer = answers.recv().await?.ok_or("the server closed the connection")?;
        if answer.chunk().to_vec()? != bytes {
            return Err(format!("client {number}: wrong answer to message {message}").into());
        }
    }
    qp.disconnect().await;
    Ok(())
}

/// Lets the process open as many files as it may: each connection needs one at each end.
fn raise_descriptor_limit() -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}
