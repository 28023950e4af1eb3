//! The two processes: the client starts the server as a child, each is pinned to a processor of its own, and they
//! exchange lines of text apart from the measurement.

use crate::result::Result;
use crate::turn::Turn;
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};
use rustix::thread::{
    CapabilitySet, CpuSet, capabilities, sched_getaffinity, sched_setaffinity, set_capabilities,
};
use std::fs;
use std::hint::black_box;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The first word on the command line of the server.
pub(crate) const SERVE: &str = "serve";

/// The first word on the command line of a process that only uses processor time, beside which others are measured.
pub(crate) const COMPUTE: &str = "compute";

/// Upper bound on the time of any step.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Pins this process to the `which`-th processor and raises its limit of open files. Must be called before any thread
/// is started, so that threads inherit the processor. Returns whether there is more than one processor.
pub(crate) fn prepare(which: usize) -> Result<bool> {
    let processors = processors()?;
    pin_to(processors[which % processors.len()])?;
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, maximum: files.maximum })?;
    Ok(processors.len() > 1)
}

/// Returns the processors that this thread may run on.
pub(crate) fn processors() -> Result<Vec<usize>> {
    let may = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|processor| may.is_set(*processor)).collect())
}

/// Pins this thread to a processor.
pub(crate) fn pin_to(processor: usize) -> Result {
    let mut own = CpuSet::new();
    own.set(processor);
    Ok(sched_setaffinity(None, &own)?)
}

/// Drops the permission to raise the priority of threads. Must be called before any thread is started.
pub(crate) fn drop_priority_permission() -> Result {
    setrlimit(Resource::Rtprio, Rlimit { current: Some(0), maximum: Some(0) })?;
    let mut may = capabilities(None)?;
    may.effective.remove(CapabilitySet::SYS_NICE);
    may.permitted.remove(CapabilitySet::SYS_NICE);
    may.inheritable.remove(CapabilitySet::SYS_NICE);
    Ok(set_capabilities(None, may)?)
}

/// Makes the kernel kill this process when the one that started it dies.
pub(crate) fn die_with_parent() -> Result {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Computes until this process is killed.
pub(crate) fn compute() -> Result {
    die_with_parent()?;
    let mut number = 1_u64;
    loop {
        number = black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

/// The server process, which the client kills on drop.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    /// Standard input of the server.
    to: ChildStdin,
    /// Standard output of the server.
    from: BufReader<ChildStdout>,
    /// Whether client and server must run on different processors.
    apart: bool,
}

impl Server {
    /// Starts the server, and then pins the client. In the other order the server would inherit the client's processor.
    pub(crate) fn start(turn: &Turn) -> Result<Self> {
        let me = std::env::current_exe()?;
        let mut command = match turn.network.as_str() {
            "" => Command::new(me),
            network => {
                let mut enter = Command::new("nsenter");
                enter.arg(format!("--net={network}")).arg("--").arg(me);
                enter
            }
        };
        command.arg(SERVE).args(turn.to_string().split(' '));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (to, from) = (child.stdin.take().ok_or("no input")?, child.stdout.take().ok_or("no output")?);
        Ok(Self { child, to, from: BufReader::new(from), apart: prepare(0)? })
    }

    /// Reads the next line from the server.
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.from.read_line(&mut line)? {
            0 => Err("the server has exited".into()),
            _ => Ok(line.trim().to_owned()),
        }
    }

    /// Returns the address of the server, which is its first line. The server prints it after it was pinned, so that
    /// this method can check the processors.
    pub(crate) fn address(&mut self) -> Result<SocketAddr> {
        let address = self.line()?.parse()?;
        if self.apart && sched_getaffinity(None)? == sched_getaffinity(Some(Pid::from_child(&self.child)))? {
            return Err("client and server run on the same processor".into());
        }
        Ok(address)
    }

    /// Tells the server that the measurement has ended. Returns the edges of the data that the server has received, and
    /// more words of some workloads.
    pub(crate) fn received_edges(&mut self) -> Result<String> {
        writeln!(self.to)?;
        self.line()
    }

    /// Returns the processor time of client and server in seconds.
    pub(crate) fn processor_time(&self) -> Result<[f64; 2]> {
        Ok([run_time_of_threads("self")?, run_time_of_threads(&self.child.id().to_string())?])
    }

    /// Returns how often the main threads of client and server have gone to sleep, both together. Other threads do not
    /// count: they may sleep while these poll.
    pub(crate) fn switches(&self) -> Result<u64> {
        Ok(switches_of("self")? + switches_of(&self.child.id().to_string())?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the processor time of all threads of a process in seconds. Threads that end meanwhile do not count: the one
/// that sets up shared memory, for example.
fn run_time_of_threads(process: &str) -> Result<f64> {
    let mut nanos = 0;
    for thread in fs::read_dir(Path::new("/proc").join(process).join("task"))? {
        let schedule = match fs::read_to_string(thread?.path().join("schedstat")) {
            Err(error) if has_ended(&error) => continue,
            schedule => schedule?,
        };
        nanos += schedule.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos).as_secs_f64())
}

/// Returns whether a read from /proc has failed because its thread has ended.
fn has_ended(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::SRCH))
}

/// Returns the voluntary context switches of the main thread of a process: its `ru_nvcsw`, which other processes can
/// read here.
fn switches_of(process: &str) -> Result<u64> {
    let status = fs::read_to_string(Path::new("/proc").join(process).join("status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Ok(line.ok_or("no voluntary_ctxt_switches")?.trim().parse()?)
}

/// Prints the address of the server, for the client.
pub(crate) fn print_address(at: SocketAddr) {
    println!("{at}");
}

/// Waits until the client calls [`Server::received_edges`], which it does at the end of a measurement.
pub(crate) fn wait_for_query() -> Result {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line)? {
        0 => Err("the client has exited".into()),
        _ => Ok(()),
    }
}

/// Prints the edges of the received data, for the client.
pub(crate) fn print_received(what: &str) {
    println!("{what}");
}
