//! A server that moves to another host while a client uses it. The client keeps its connection, and notices a short pause.
//!
//!     move_host serve 192.0.2.7:7471 --after 1000 --command 'ssh root@next move_host resume eth0'
//!     move_host count 192.0.2.7:7471
//!
//! The address moves with the server, so use one that serves nothing else. Both hosts need the same cluster key
//! (IRONWARP_KEY_FILE), and the server the capabilities CAP_NET_ADMIN and CAP_NET_RAW at both.

use clap::{Parser, Subcommand};
use ironwarp::completion::CompletionQueue;
use ironwarp::connection::{AcceptOptions, ConnectOptions, Listener};
use ironwarp::hand_over::{HandOverOptions, TakeOverOptions};
use ironwarp::memory::{Access, Buffer, MemoryRegion};
use ironwarp::queue::{QueuePair, WorkRequest};
use ironwarp::{Adapter, Config, ProtectionDomain};
use std::collections::BTreeSet;
use std::error::Error;
use std::io::{stdin, stdout};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// A server that moves to another host while a client uses it
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Add up the numbers that clients send
    Serve {
        /// Where to listen
        address: SocketAddr,
        /// Number of messages after which to move
        #[arg(long, requires = "command")]
        after: Option<u64>,
        /// Shell command that runs `move_host resume` on the other host
        #[arg(long, requires = "after")]
        command: Option<String>,
    },
    /// Take over from the host whose command has started this process
    Resume {
        /// Interface that gets the address of the server
        interface: String,
    },
    /// Send numbers to a server, and check their sums
    Count {
        /// Address of the server
        server: SocketAddr,
        /// Number of messages
        #[arg(long, default_value_t = 10_000)]
        messages: u64,
    },
}

/// Length of a message: a number, or a sum and the process that has computed it.
const SLOT: usize = 16;
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time for which the server waits before it looks at something else.
const TURN: Duration = Duration::from_millis(1);

fn main() -> ExitCode {
    let done = match Arguments::parse().role {
        Role::Serve { address, after, command } => serve(address, after.zip(command)),
        Role::Resume { interface } => resume(&interface),
        Role::Count { server, messages } => count(server, messages),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("move_host: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What the server has. All of it moves.
struct Server {
    adapter: Adapter,
    listener: Listener,
    cq: CompletionQueue,
    domain: ProtectionDomain,
    /// A slot for the message of the client, and the sum.
    memory: MemoryRegion,
    client: Option<QueuePair>,
}

fn serve(address: SocketAddr, move_after: Option<(u64, String)>) -> Result<(), Box<dyn Error>> {
    let adapter = Adapter::open(Config::from_env()?)?;
    let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    // Memory that moves must be shareable.
    let buffer = Buffer::builder().shareable().allocate(2 * SLOT)?;
    let memory = domain.register(buffer, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
    let listener = adapter.listen(address)?;
    println!("listening at {}", listener.local_addr()?);
    let mut server = Server { adapter, listener, cq, domain, memory, client: None };
    server.run(move_after.as_ref().map(|(after, _)| *after))?;
    let Some((_, command)) = move_after else { return Ok(()) };
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command);
    let start = Instant::now();
    server.adapter.hand_over_to_host(shell, &HandOverOptions::new())?;
    println!("moved after {} messages, in {:?}", server.messages()?, start.elapsed());
    Ok(())
}

fn resume(interface: &str) -> Result<(), Box<dyn Error>> {
    let (input, output) = (stdin().as_fd().try_clone_to_owned()?, stdout().as_fd().try_clone_to_owned()?);
    let options = TakeOverOptions::new().config(Config::from_env()?);
    let taken = Adapter::take_over_from_host(input, output, interface, options)?;
    let missing = || "the adapter that was taken over lacks an object";
    let mut server = Server {
        adapter: taken.adapter,
        listener: taken.listeners.into_iter().next().ok_or_else(missing)?,
        cq: taken.completion_queues.into_iter().next().ok_or_else(missing)?,
        domain: taken.protection_domains.into_iter().next().ok_or_else(missing)?,
        memory: taken.regions.into_iter().next().ok_or_else(missing)?,
        client: taken.queue_pairs.into_iter().next(),
    };
    server.run(None)?;
    eprintln!("{} messages, and the last client has left", server.messages()?);
    Ok(())
}

impl Server {
    /// Returns the number of messages so far, which is at the end of the memory.
    fn messages(&self) -> Result<u64, Box<dyn Error>> {
        Ok(self.memory.view::<u64>(SLOT + 8)?.load())
    }

    /// Serves clients, one after the other: this number of messages, or until a client has sent a zero.
    fn run(&mut self, end: Option<u64>) -> Result<(), Box<dyn Error>> {
        let (sum, messages) = (self.memory.view::<u64>(SLOT)?, self.memory.view::<u64>(SLOT + 8)?);
        while end.is_none_or(|end| messages.load() < end) {
            if let Ok(incoming) = self.listener.accept(Duration::ZERO) {
                let qp = self.domain.queue_pair(&self.cq).create()?;
                qp.post_receive(0, &[self.memory.slice(..SLOT)?])?;
                incoming.accept(&qp, &AcceptOptions::new())?;
                self.client = Some(qp);
            }
            let Ok(completion) = self.cq.wait(TURN) else { continue };
            let is_of_client = self.client.as_ref().is_some_and(|qp| qp.id() == completion.qp);
            if completion.success().is_err() {
                self.client.take_if(|_| is_of_client); // it has closed its connection
                continue;
            }
            let number = self.memory.view::<u64>(0)?.load();
            if number == 0 {
                return Ok(());
            }
            sum.store(&(sum.load() + number));
            messages.store(&(messages.load() + 1));
            let qp = self.client.as_ref().ok_or("a message of no client")?;
            qp.post_receive(0, &[self.memory.slice(..SLOT)?])?;
            let answer = [sum.load(), u64::from(std::process::id())].map(u64::to_ne_bytes);
            qp.post_send(WorkRequest::send_inline(0, answer.as_flattened()).unsignaled())?;
        }
        Ok(())
    }
}

fn count(server: SocketAddr, messages: u64) -> Result<(), Box<dyn Error>> {
    let adapter = Adapter::open(Config::from_env()?)?;
    let (cq, domain) = (adapter.completion_queue(16)?, adapter.protection_domain());
    let answer = domain.register(Buffer::new(SLOT)?, Access::LOCAL_WRITE)?;
    let (mut processes, mut longest, mut before) = (BTreeSet::new(), Duration::ZERO, None);
    // With two connections: the second is made to the server wherever it is then.
    for (part, is_last) in [(1..=messages / 2, false), (messages / 2 + 1..=messages, true)] {
        let qp = domain.queue_pair(&cq).create()?;
        qp.connect(server, &ConnectOptions::new().timeout(TIMEOUT))?;
        for number in part {
            let start = Instant::now();
            qp.post_receive(1, &[answer.slice(..)?])?;
            qp.post_send(
                WorkRequest::send_inline(2, &[number, 0].map(u64::to_ne_bytes).concat()).unsignaled(),
            )?;
            cq.wait(TIMEOUT)?.success()?;
            longest = longest.max(start.elapsed());
            let [sum, process] = [0, 8].map(|at| answer.view::<u64>(at).map(|word| word.load()));
            let sum = sum?;
            if before.is_some_and(|before| sum != before + number) {
                return Err(format!("the sum after {number} is {sum}, and was {before:?} before").into());
            }
            before = Some(sum);
            processes.insert(process?);
        }
        if is_last {
            qp.post_send(WorkRequest::send_inline(3, &[0; SLOT]))?;
            cq.wait(TIMEOUT)?.success()?;
        }
        qp.disconnect();
        if !qp.wait_closed(TIMEOUT) {
            return Err("the server does not close a connection".into());
        }
    }
    println!("{messages} sums verified, by {} processes; the longest wait was {longest:?}", processes.len());
    Ok(())
}
