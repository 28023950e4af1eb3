//! A hand-over between two processes, as the test sees it.

use super::echo::{Peer, connection};
use super::faults;
use super::log::{Log, What, Who};
use super::role::{Act, Plan};
use super::{TIMEOUT, get};
use ironwarp_testkit::child;
use ironwarp_testkit::control::pair;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::fmt::Debug;
use std::process::{Child, Stdio};
use std::time::Duration;

/// A timeout that passes soon, for a wait that is expected to fail.
pub(crate) const SHORT: Duration = Duration::from_millis(150);
/// Length of a snapshot that fits into the offer.
pub(crate) const SMALL: usize = 16;
/// Length of a snapshot that travels in a memfd.
pub(crate) const LARGE: usize = 200_000;

/// A plan without faults and with long timeouts.
pub(crate) fn plan() -> Plan {
    Plan { acts: Vec::new(), timeout: TIMEOUT, pause: TIMEOUT, len: SMALL }
}

impl Plan {
    /// Adds what the process does at a step.
    pub(crate) fn at(mut self, step: impl Debug, act: Act) -> Self {
        self.acts.push((format!("{step:?}"), act));
        self
    }

    pub(crate) fn kills(self, step: impl Debug) -> Self {
        self.at(step, Act::Kill)
    }

    pub(crate) fn stops(self, step: impl Debug) -> Self {
        self.at(step, Act::Stop)
    }

    /// Makes the source give up soon.
    pub(crate) fn hasty(self) -> Self {
        Self { timeout: SHORT, pause: SHORT, ..self }
    }
}

/// Who has the function in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Source,
    Target,
    Lost,
}

/// What the test hears from a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// It has stopped or killed itself.
    At,
    /// Its hand-over has ended.
    Result(String),
    /// It is dead.
    End,
}

/// One of the two processes. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    control: OwnedFd,
}

impl Process {
    fn start(role: &str, plan: &Plan, descriptors: &[&dyn AsFd]) -> Self {
        let (control, its) = pair();
        let mut command = child::command(faults::HOST, role);
        let child = command.stdin(Stdio::from(its)).stdout(Stdio::null()).spawn().unwrap();
        drop(command); // and with it the process's end of the socket
        plan.tell(&control, descriptors);
        Self { child, control }
    }

    fn started(&self) {
        assert_eq!(get(&self.control).0, b"started");
    }

    fn go(&self) {
        ironwarp_testkit::control::put(&self.control, b"go", &[]); // fails if it was killed
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for news of the process.
    pub(crate) fn news(&self) -> News {
        match &get(&self.control).0[..] {
            [] => News::End,
            b"at" => News::At,
            text => News::Result(String::from_utf8(text.to_vec()).unwrap()),
        }
    }

    /// Waits until the process has stopped itself.
    pub(crate) fn stopped(&self) {
        assert_eq!(self.news(), News::At);
        assert!(self.is_stopped());
    }

    /// Waits until the process is stopped or dead. Returns whether it is stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.pid()), options).unwrap().unwrap().stopped()
    }

    /// Waits until the process has killed itself.
    pub(crate) fn killed(&self) {
        assert_eq!(self.news(), News::At);
        assert!(!self.is_stopped());
    }

    /// Waits for the result of the hand-over in this process.
    pub(crate) fn result(&self) -> String {
        match self.news() {
            News::Result(text) => text,
            other => panic!("{other:?} instead of a result"),
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Lets the process go on after a stop of its own.
    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
        self.go();
    }

    /// Kills the process, and waits for its end.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.pid()), options).unwrap();
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both processes, and the peer of the connection.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) source: Process,
    pub(crate) target: Process,
    pub(crate) peer: Peer,
    pub(crate) log: Log,
    pub(crate) context: String,
}

impl Scene {
    /// Starts a hand-over.
    pub(crate) fn start(source: &Plan, target: &Plan) -> Self {
        let scene = Self::prepare(source, target);
        scene.go();
        scene
    }

    /// Starts the processes. The source runs the function.
    pub(crate) fn prepare(source: &Plan, target: &Plan) -> Self {
        let context = format!("source {source:?}, target {target:?}");
        let (own, its) = connection();
        let (one, other) = pair();
        let log = Log::new();
        let source = Process::start("source", source, &[&one, &log, &its]);
        let target = Process::start("target", target, &[&other, &log]);
        drop((one, other, its)); // the processes have them
        source.started();
        target.started();
        let scene = Self { source, target, peer: Peer::start(own), log, context };
        assert!(scene.peer.goes_on(&scene.context));
        scene
    }

    /// Lets the processes begin with the hand-over.
    pub(crate) fn go(&self) {
        self.source.go();
        self.target.go();
    }

    /// Checks that the function runs at its only owner, or that its connection has ended.
    pub(crate) fn ends_at(self, fate: Fate) {
        let context = &self.context;
        assert_eq!(self.peer.goes_on(context), fate != Fate::Lost, "{context}");
        let owner = match fate {
            Fate::Source => Some(Who::Source),
            Fate::Target => Some(Who::Target),
            Fate::Lost => None,
        };
        if let Some(owner) = owner {
            let records = self.log.records();
            let last = records.iter().rev().find(|(_, what)| *what == What::Begin).unwrap();
            assert_eq!(last.0, owner, "{context}");
        }
        self.log.assert_one_owner(context);
        self.peer.finish(context);
    }
}

/// Panics unless the result is a success.
#[track_caller]
pub(crate) fn assert_ok(result: &str) {
    assert!(result.starts_with("ok"), "{result}");
}

/// Panics unless the result is an error that names this owner.
#[track_caller]
pub(crate) fn assert_err(result: &str, owner: &str) {
    assert!(result.starts_with(&format!("err {owner}: ")), "{result}");
}
