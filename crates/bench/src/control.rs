//! The two processes: the client starts the server as a child, each is pinned to a processor of its own, and they exchange lines of
//! text apart from the measurement.

use crate::result::Result;
use crate::turn::Turn;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};
use rustix::thread::{
    CapabilitySet, CpuSet, capabilities, sched_getaffinity, sched_setaffinity, set_capabilities,
};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The first word on the command line of the server.
pub(crate) const SERVE: &str = "serve";

/// Upper bound on the time of any step.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Pins the process to a processor and raises the limit of open files, before any thread is started, so that threads inherit the
/// processor. Returns whether there is more than one processor.
pub(crate) fn prepare(which: usize) -> Result<bool> {
    let processors = processors()?;
    keep_to(processors[which % processors.len()])?;
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
pub(crate) fn keep_to(processor: usize) -> Result {
    let mut own = CpuSet::new();
    own.set(processor);
    Ok(sched_setaffinity(None, &own)?)
}

/// Drops the permission to raise the priority of threads, before any thread is started.
pub(crate) fn give_up_priority() -> Result {
    setrlimit(Resource::Rtprio, Rlimit { current: Some(0), maximum: Some(0) })?;
    let mut may = capabilities(None)?;
    may.effective.remove(CapabilitySet::SYS_NICE);
    may.permitted.remove(CapabilitySet::SYS_NICE);
    may.inheritable.remove(CapabilitySet::SYS_NICE);
    Ok(set_capabilities(None, may)?)
}

/// Makes the kernel kill the server when its client dies.
pub(crate) fn end_with_client() -> Result {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// The client's handle of the server, which is killed on drop.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// The server must have a processor of its own.
    apart: bool,
}

impl Server {
    /// Starts the server, and pins the client only after that, because the server would inherit its processor.
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

    /// Returns the address of the server: its first line, which it prints after it was pinned.
    pub(crate) fn address(&mut self) -> Result<SocketAddr> {
        let address = self.line()?.parse()?;
        if self.apart && sched_getaffinity(None)? == sched_getaffinity(Some(Pid::from_child(&self.child)))? {
            return Err("client and server run on the same processor".into());
        }
        Ok(address)
    }

    /// Returns the final contents of its memory.
    pub(crate) fn holds(&mut self) -> Result<String> {
        writeln!(self.to)?;
        self.line()
    }

    /// Returns the processor time of client and server in seconds.
    pub(crate) fn processor_time(&self) -> Result<[f64; 2]> {
        Ok([threads_have_run("self")?, threads_have_run(&self.child.id().to_string())?])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn threads_have_run(process: &str) -> Result<f64> {
    let mut nanos = 0;
    for thread in fs::read_dir(Path::new("/proc").join(process).join("task"))? {
        let schedule = fs::read_to_string(thread?.path().join("schedstat"))?;
        nanos += schedule.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos).as_secs_f64())
}

/// Prints the address of the server.
pub(crate) fn say_address(at: SocketAddr) {
    println!("{at}");
}

/// Waits until the client asks for the contents of memory, which it does at the end of a measurement.
pub(crate) fn wait_until_asked() -> Result {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line)? {
        0 => Err("the client has exited".into()),
        _ => Ok(()),
    }
}

pub(crate) fn say_holds(what: &str) {
    println!("{what}");
}
