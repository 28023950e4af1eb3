//! What the processes do: the source and the target of a hand-over, which stop or kill themselves at steps that the test
//! chooses.

use super::echo::{Echo, wait};
use super::get;
use super::log::{Log, What, Who};
use ironwarp_engine::hand_over::{
    Named, Refusal, Source, SourceOptions, SourceStep, Target, TargetOptions, TargetStep, hand_over,
    take_over,
};
use ironwarp_testkit::control::{is_readable, put};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Signal, getpid, kill_process, set_parent_process_death_signal};
use std::cell::RefCell;
use std::io::stdin;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// The name of the descriptor of the connection.
const CONNECTION: &[u8] = b"tcp";
/// Bytes of the program that travel along.
pub(crate) const PROGRAM: &[u8] = b"bytes of the program";

/// What a process does to itself after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Kill,
    Stop,
}

/// What a process is told.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// What it does at its first visit to a step.
    pub(crate) acts: Vec<(String, Act)>,
    /// Timeout while the function runs.
    pub(crate) timeout: Duration,
    /// Timeout while the function is frozen.
    pub(crate) pause: Duration,
    /// Length of the snapshot.
    pub(crate) len: usize,
}

impl Plan {
    fn write(&self) -> String {
        let acts = self.acts.iter().map(|(step, act)| format!(" {step}={act:?}")).collect::<String>();
        format!("{} {} {}{acts}", self.timeout.as_millis(), self.pause.as_millis(), self.len)
    }

    fn read(text: &str) -> Self {
        let mut words = text.split(' ');
        let mut number = || words.next().unwrap().parse().unwrap();
        let (timeout, pause, len) = (number(), number(), number());
        let act = |word: &str| {
            let (step, act) = word.split_once('=').unwrap();
            (step.to_owned(), if act == "Kill" { Act::Kill } else { Act::Stop })
        };
        Self {
            acts: words.map(act).collect(),
            timeout: Duration::from_millis(timeout),
            pause: Duration::from_millis(pause),
            len: usize::try_from(len).unwrap(),
        }
    }

    /// Tells a process its plan.
    pub(crate) fn tell(&self, control: impl AsFd, descriptors: &[&dyn AsFd]) {
        let descriptors: Vec<_> = descriptors.iter().map(|it| it.as_fd()).collect();
        assert!(put(control, self.write().as_bytes(), &descriptors));
    }
}

/// Plays the role of this process, to the end.
pub(crate) fn play(role: &str) {
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let (text, descriptors) = get(stdin());
    let plan = Plan::read(str::from_utf8(&text).unwrap());
    let mut descriptors = descriptors.into_iter();
    let (socket, log) = (descriptors.next().unwrap(), Log::of(descriptors.next().unwrap()));
    let steps = Steps { acts: RefCell::new(plan.acts.clone()) };
    let start = || {
        assert!(put(stdin(), b"started", &[]));
        wait_for_message();
    };
    match role {
        "source" => {
            let function = Running::start(descriptors.next().unwrap(), Arc::new(log));
            start();
            give_away(socket, function, steps, &plan);
        }
        _ => {
            start();
            take(socket, log, steps, &plan);
        }
    }
}

/// Waits for the next message of the test, or its end.
fn wait_for_message() -> Vec<u8> {
    while !is_readable(stdin(), Duration::from_secs(600)) {}
    get(stdin()).0
}

/// Where the process stops or kills itself.
struct Steps {
    acts: RefCell<Vec<(String, Act)>>,
}

impl Steps {
    fn reach(&self, step: &str) {
        let mut acts = self.acts.borrow_mut();
        let Some(at) = acts.iter().position(|(its, _)| its == step) else { return };
        let signal = match acts.remove(at).1 {
            Act::Kill => Signal::KILL,
            Act::Stop => Signal::STOP,
        };
        assert!(put(stdin(), b"at", &[]));
        kill_process(getpid(), signal).unwrap();
        // Another thread may take the signal, so this one might go on for a while.
        wait_for_message();
    }
}

/// An echo that runs in a thread of its own, unless it is frozen.
struct Running {
    state: Mutex<(Option<Echo>, bool)>,
    changed: Condvar,
    log: Arc<Log>,
}

impl Running {
    fn start(socket: OwnedFd, log: Arc<Log>) -> Arc<Self> {
        let state = Mutex::new((Some(Echo::new(socket)), true));
        let running = Arc::new(Self { state, changed: Condvar::new(), log });
        let function = Arc::clone(&running);
        std::thread::spawn(move || function.run());
        running
    }

    fn run(&self) {
        loop {
            let state = self.state.lock().unwrap();
            let mut state = self.changed.wait_while(state, |(_, runs)| !*runs).unwrap();
            let Some(echo) = &mut state.0 else { return };
            if !echo.act(Who::Source, &self.log) {
                return;
            }
            let socket = Arc::clone(&echo.socket);
            drop(state);
            wait(socket);
        }
    }
}

struct Giving {
    function: Arc<Running>,
    socket: Option<Arc<OwnedFd>>,
    steps: Steps,
    len: usize,
}

impl Source for Giving {
    fn descriptors(&self) -> Vec<Named<'_>> {
        self.socket.iter().map(|socket| (CONNECTION.to_vec(), socket.as_fd())).collect()
    }

    fn freeze(&mut self, version: u16) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
        assert_eq!(version, 1);
        let mut state = self.function.state.lock().unwrap();
        state.1 = false;
        let mut snapshot = state.0.as_ref().unwrap().snapshot();
        snapshot.resize(self.len, 0x5a);
        Ok(snapshot)
    }

    fn thaw(&mut self) {
        self.function.log.add(Who::Source, What::Thawed);
        self.function.state.lock().unwrap().1 = true;
        self.function.changed.notify_all();
    }

    fn release(&mut self) {
        self.socket = None;
        self.function.state.lock().unwrap().0 = None;
    }

    fn at(&self, step: SourceStep) {
        match step {
            SourceStep::Offered => self.function.log.add(Who::Source, What::Offered),
            SourceStep::Refused => self.function.log.add(Who::Source, What::Refused),
            _ => {}
        }
        self.steps.reach(&format!("{step:?}"));
    }
}

fn give_away(socket: OwnedFd, function: Arc<Running>, steps: Steps, plan: &Plan) {
    let connection = Arc::clone(&function.state.lock().unwrap().0.as_ref().unwrap().socket);
    let mut source = Giving { function, socket: Some(connection), steps, len: plan.len };
    let options = SourceOptions {
        timeout: plan.timeout,
        pause: plan.pause,
        epoch: 6,
        program: PROGRAM.to_vec(),
        ..SourceOptions::default()
    };
    let result = match hand_over(socket, &mut source, &options) {
        Ok(given) => format!("ok epoch {}", given.epoch),
        Err(error) => format!("err {:?}: {error}", error.owner),
    };
    assert!(put(stdin(), result.as_bytes(), &[]));
    while !wait_for_message().is_empty() {}
}

struct Taking {
    echo: Option<Echo>,
    prepared: bool,
    loaded: bool,
    steps: Steps,
    log: Log,
    len: usize,
}

impl Target for Taking {
    type Active = (Echo, Log);

    fn copy(&mut self, name: &[u8], descriptor: OwnedFd) -> Result<(), Refusal> {
        assert_eq!(name, CONNECTION);
        self.echo = Some(Echo::new(descriptor));
        Ok(())
    }

    fn prepare(&mut self) -> Result<(), Refusal> {
        assert!(!self.prepared && self.echo.is_some());
        self.prepared = true;
        Ok(())
    }

    fn load(&mut self, version: u16, snapshot: &[u8]) -> Result<(), Refusal> {
        assert!(self.prepared && !self.loaded);
        assert_eq!((version, snapshot.len()), (1, self.len));
        assert!(snapshot[16..].iter().all(|byte| *byte == 0x5a));
        self.loaded = true;
        self.echo.as_mut().unwrap().load(snapshot);
        Ok(())
    }

    fn activate(self) -> (Echo, Log) {
        assert!(self.loaded);
        (self.echo.unwrap(), self.log)
    }

    fn discard(self) {}

    fn at(&self, step: TargetStep) {
        if step == TargetStep::TakenSent {
            self.log.add(Who::Target, What::Taken);
        }
        self.steps.reach(&format!("{step:?}"));
    }
}

fn take(socket: OwnedFd, log: Log, steps: Steps, plan: &Plan) {
    let target = Taking { echo: None, prepared: false, loaded: false, steps, log, len: plan.len };
    let options = TargetOptions { timeout: plan.timeout, ..TargetOptions::default() };
    match take_over(socket, target, &options) {
        Ok(taken) => {
            assert_eq!((taken.epoch, &taken.program[..]), (7, PROGRAM));
            let how = if taken.adopted { "adopted" } else { "taken" };
            assert!(put(stdin(), format!("ok {how}").as_bytes(), &[]));
            let (mut echo, log) = taken.active;
            while echo.act(Who::Target, &log) {
                wait(&*echo.socket);
            }
        }
        Err(error) => {
            assert!(put(stdin(), format!("err {:?}: {error}", error.owner).as_bytes(), &[]));
        }
    }
    while !wait_for_message().is_empty() {}
}
