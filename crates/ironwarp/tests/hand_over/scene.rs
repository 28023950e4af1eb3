//! The end that stays, and the processes that have the end that moves, as the test sees them.

use super::load::HOST;
use super::station::{Ended, Station};
use super::{TIMEOUT, get};
use ironwarp::memory::Tag;
use ironwarp::prelude::*;
use ironwarp_testkit::child;
use ironwarp_testkit::control::{Random, is_readable, pair, put};
use ironwarp_testkit::native::SOON;
use ironwarp_testkit::wait::until;
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A process that can have the end that moves. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    /// The process, unless another one has started it.
    child: Option<Child>,
    pid: Pid,
    pub(crate) control: OwnedFd,
}

impl Process {
    pub(crate) fn start() -> Self {
        Self::start_in(HOST)
    }

    /// Starts a process that runs this test in a role.
    pub(crate) fn start_in(test: &str) -> Self {
        Self::run(child::command(test, "mover"))
    }

    /// Runs a command of a role.
    pub(crate) fn run(mut command: Command) -> Self {
        let (control, its) = pair();
        command.arg("--include-ignored");
        let child = command.stdin(Stdio::from(its)).stdout(Stdio::null()).spawn().unwrap();
        Self { pid: Pid::from_child(&child), child: Some(child), control }
    }

    /// Waits for a process that another one starts, and that has the other end of this socket.
    pub(crate) fn arriving(control: OwnedFd) -> Self {
        let said = String::from_utf8(get(&control).0).unwrap();
        let pid = said.strip_prefix("here ").and_then(|pid| Pid::from_raw(pid.parse().unwrap()));
        Self { child: None, pid: pid.unwrap_or_else(|| panic!("{said}")), control }
    }

    /// Tells the process something. Does nothing if it is dead.
    pub(crate) fn tell(&self, text: &str, descriptor: Option<OwnedFd>) {
        let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
        put(&self.control, text.as_bytes(), &descriptors);
    }

    /// Waits for what the process says. Empty if it is dead.
    pub(crate) fn says(&self) -> String {
        String::from_utf8(get(&self.control).0).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    /// Waits until the process has stopped or killed itself. Returns whether it is stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        if self.child.is_some() {
            let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            return waitid(WaitId::Pid(self.pid), options).unwrap().unwrap().stopped();
        }
        let mut state = None;
        until(|| {
            state = state_of(self.pid);
            matches!(state, None | Some('T' | 'Z'))
        });
        state == Some('T')
    }

    /// Lets the process go on after a stop of its own.
    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
        self.tell("go", None);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        match &mut self.child {
            Some(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            None => drop(kill_process(self.pid, Signal::KILL)), // it may have ended
        }
    }
}

/// Returns the state of a process (proc_pid_stat(5)), `None` if there is none.
fn state_of(pid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// A process that was killed, or stopped for a while, at a random instant, and how the hand-over ended.
#[derive(Debug)]
pub(crate) struct Disturbed {
    /// Whether it was the source.
    pub(crate) is_source: bool,
    pub(crate) is_kill: bool,
    /// What source and target have said in the end.
    pub(crate) given: String,
    pub(crate) taken: String,
    /// All of it, for messages.
    pub(crate) how: String,
}

/// Kills or stops one of source and target, and waits until both have said how the hand-over ended. The limits are those of the
/// instant, and of the time for which a process is stopped, in microseconds.
pub(crate) fn disturb(random: &mut Random, ends: [&Process; 2], [instant, stopped]: [u64; 2]) -> Disturbed {
    let (is_source, is_kill) = (random.below(2) == 0, random.below(2) == 0);
    let delay = Duration::from_micros(random.below(instant));
    thread::sleep(delay); // a random instant
    let victim = ends[usize::from(!is_source)];
    victim.signal(if is_kill { Signal::KILL } else { Signal::STOP });
    if !is_kill {
        thread::sleep(Duration::from_micros(random.below(stopped)));
        victim.signal(Signal::CONT);
    }
    let [given, taken] = ends.map(Process::says);
    let how =
        format!("source {is_source}, kill {is_kill}, after {delay:?}: source {given:?}, target {taken:?}");
    Disturbed { is_source, is_kill, given, taken, how }
}

/// What the test and the end that stays tell each other.
#[derive(Debug, Default)]
struct Signs {
    stop: AtomicBool,
    /// Number of operations of the other end that were seen.
    seen: AtomicU64,
}

/// The end that stays, in a thread.
#[derive(Debug)]
pub(crate) struct Peer {
    signs: Arc<Signs>,
    thread: Option<JoinHandle<(Station, Result<(), Ended>)>>,
}

impl Peer {
    /// Creates the end that stays, connected to a process with the end that moves.
    pub(crate) fn start() -> (Self, Process) {
        let process = Process::start();
        (Self::connected_to(&process, Adapter::new().unwrap(), "127.0.0.1:0", ""), process)
    }

    /// Creates the end that stays, connected to a process with the end that moves, from an address of that process.
    pub(crate) fn connected_to(process: &Process, adapter: Adapter, at: &str, from: &str) -> Self {
        let listener = adapter.listen(at.parse().unwrap()).unwrap();
        let at = listener.local_addr().unwrap();
        let mut is_told = false;
        let mut station = Station::new(0, adapter, |qp| {
            if !is_told {
                process.tell(format!("first {at} {from}").trim_end(), None);
                is_told = true;
            }
            listener.accept(SOON).unwrap().accept(qp, &AcceptOptions::new()).unwrap();
        });
        let up = process.says();
        station.theirs = Tag(up.strip_prefix("up ").unwrap().parse().unwrap());
        process.tell(&format!("go {}", station.region.tag().0), None);
        let signs = Arc::new(Signs::default());
        let its = Arc::clone(&signs);
        let thread = thread::spawn(move || {
            let result = station.run(|station| {
                let seen = station.streams.iter().map(|stream| stream.seen).sum();
                its.seen.store(seen, Ordering::Relaxed);
                its.stop.load(Ordering::Relaxed)
            });
            if let Err(ended) = &result {
                println!("the connections have ended: {}", ended.0);
            }
            (station, result)
        });
        Self { signs, thread: Some(thread) }
    }

    /// Waits until many operations of the other end were seen. Panics if the connections end.
    pub(crate) fn goes_on(&self, context: &str) {
        let goal = self.signs.seen.load(Ordering::Relaxed) + 100;
        self.wait(context, || self.signs.seen.load(Ordering::Relaxed) >= goal);
        assert!(!self.has_ended(), "{context}: the connections have ended");
    }

    /// Waits until the connections have ended.
    pub(crate) fn ends(&self, context: &str) {
        self.wait(context, || false);
    }

    fn wait(&self, context: &str, is_done: impl Fn() -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !is_done() && !self.has_ended() {
            assert!(Instant::now() < deadline, "{context}: took too long");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops the thread, and returns the end.
    pub(crate) fn stop(mut self) -> (Station, Result<(), Ended>) {
        self.signs.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }

    /// Ends the traffic of both ends, and checks that all of it has arrived exactly once.
    pub(crate) fn finish(self, process: &Process) -> u64 {
        process.tell("finish", None);
        let (mut station, result) = self.stop();
        result.unwrap();
        station.is_finishing = true;
        let deadline = Instant::now() + TIMEOUT;
        let both = |station: &Station| {
            assert!(Instant::now() < deadline, "took too long to finish: {:?}", station.streams);
            station.is_finished() && is_readable(&process.control, Duration::ZERO)
        };
        station.run(both).unwrap();
        assert_eq!(process.says(), "finished");
        process.tell("count", None);
        let own = station.counts();
        let theirs: Vec<[u64; 4]> =
            own.iter().map(|[posted, seen, added, swapped]| [*seen, *posted, *added, *swapped]).collect();
        let said = process.says();
        let (flooded, counts) =
            said.strip_prefix("counts ").unwrap_or_else(|| panic!("{said}")).split_once(' ').unwrap();
        match flooded.strip_suffix('+') {
            None => assert_eq!(station.flood(), flooded.parse().unwrap(), "executed, and completed"),
            Some(completed) => assert!(station.flood() >= completed.parse().unwrap(), "{flooded} completed"),
        }
        let counts: Vec<u64> =
            counts.split(['[', ']', ',', ' ']).filter_map(|word| word.parse().ok()).collect();
        for (theirs, found) in theirs.iter().zip(counts.as_chunks::<4>().0) {
            let [posted, seen, ..] = *theirs;
            let rounds = |operations: u64| operations / super::stream::KINDS;
            // What this end has seen is what the other has posted, and each round has one of each atomic operation.
            assert_eq!(found, &[posted, seen, rounds(seen), rounds(seen)]);
            assert_eq!(theirs[2..], [rounds(posted), rounds(posted)]);
        }
        process.tell("end", None);
        counts.as_chunks::<4>().0.iter().map(|[posted, seen, ..]| posted + seen).sum()
    }
}

/// Hands the end that moves over from one process to another.
pub(crate) fn hand_over(from: &Process, to: &Process) {
    let (here, there) = pair();
    to.tell("take 60000", Some(there));
    from.tell("give 60000 60000", Some(here));
    let (given, taken) = (from.says(), to.says());
    assert_eq!(taken, "ok taken", "{given}");
    let flooded = given.strip_prefix("ok ").unwrap_or_else(|| panic!("{given}"));
    to.tell(&format!("flood {flooded}"), None);
}
