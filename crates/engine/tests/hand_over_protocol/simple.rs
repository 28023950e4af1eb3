//! A source and a target that only record what is asked of them, for tests within one process.

use super::TIMEOUT;
use ironwarp_engine::hand_over::{
    HandOverError, HandedOver, Named, Refusal, Source, SourceOptions, TakenOver, Target, TargetOptions,
    hand_over, take_over,
};
use ironwarp_testkit::control::pair;
use rustix::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread;

/// What was asked of both ends, in order.
pub(crate) type Calls = Arc<Mutex<Vec<String>>>;

pub(crate) struct Giving {
    pub(crate) calls: Calls,
    pub(crate) descriptors: Vec<(Vec<u8>, OwnedFd)>,
    /// Those that are there after the function was frozen.
    pub(crate) late: Vec<(Vec<u8>, OwnedFd)>,
    /// `None` if it fails to freeze.
    pub(crate) snapshot: Option<Vec<u8>>,
}

pub(crate) struct Taking {
    pub(crate) calls: Calls,
    pub(crate) descriptors: Vec<(Vec<u8>, OwnedFd)>,
    /// The name of the method that refuses.
    pub(crate) refuses: &'static str,
}

impl Giving {
    pub(crate) fn new(calls: &Calls) -> Self {
        Self {
            calls: Arc::clone(calls),
            descriptors: Vec::new(),
            late: Vec::new(),
            snapshot: Some(b"snapshot".to_vec()),
        }
    }

    fn note(&self, call: &str) {
        self.calls.lock().unwrap().push(call.to_owned());
    }
}

impl Taking {
    pub(crate) fn new(calls: &Calls) -> Self {
        Self { calls: Arc::clone(calls), descriptors: Vec::new(), refuses: "" }
    }

    fn note(&self, call: &str) -> Result<(), Refusal> {
        self.calls.lock().unwrap().push(call.to_owned());
        if self.refuses == call { Err(Refusal(format!("no {call} today"))) } else { Ok(()) }
    }
}

impl Source for Giving {
    fn descriptors(&self) -> Vec<Named<'_>> {
        let has_late = self.calls.lock().unwrap().iter().any(|call| call.starts_with("freeze"));
        let late = self.late.iter().filter(|_| has_late);
        self.descriptors.iter().chain(late).map(|(name, fd)| (name.clone(), fd.as_fd())).collect()
    }

    fn freeze(&mut self, version: u16) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
        self.note(&format!("freeze {version}"));
        self.snapshot.clone().ok_or_else(|| "a region is not in a memfd".into())
    }

    fn thaw(&mut self) {
        self.note("thaw");
    }

    fn release(&mut self) {
        self.note("release");
    }
}

impl Target for Taking {
    type Active = (Vec<u8>, Vec<(Vec<u8>, OwnedFd)>);

    fn copy(&mut self, name: &[u8], descriptor: OwnedFd) -> Result<(), Refusal> {
        self.descriptors.push((name.to_vec(), descriptor));
        if self.refuses == "copy" { self.note("copy") } else { Ok(()) }
    }

    fn prepare(&mut self) -> Result<(), Refusal> {
        self.note("prepare")
    }

    fn load(&mut self, version: u16, snapshot: &[u8]) -> Result<(), Refusal> {
        self.note("load")?;
        self.note(&format!("{version} {}", String::from_utf8_lossy(&snapshot[..snapshot.len().min(8)])))
    }

    fn activate(self) -> Self::Active {
        self.note("activate").unwrap();
        (Vec::new(), self.descriptors)
    }

    fn discard(self) {
        self.note("discard").unwrap();
    }
}

pub(crate) fn source_options() -> SourceOptions {
    SourceOptions { timeout: TIMEOUT, pause: TIMEOUT, versions: 2..=5, epoch: 1, program: b"bytes".to_vec() }
}

pub(crate) fn target_options() -> TargetOptions {
    TargetOptions { timeout: TIMEOUT, versions: 4..=9, ..TargetOptions::default() }
}

/// The results of both ends.
pub(crate) type Results =
    (Result<HandedOver, HandOverError>, Result<TakenOver<<Taking as Target>::Active>, HandOverError>);

/// Hands over between two threads.
pub(crate) fn run(
    mut source: Giving,
    target: Taking,
    source_options: &SourceOptions,
    target_options: &TargetOptions,
) -> Results {
    let (one, other) = pair();
    thread::scope(|scope| {
        let taking = scope.spawn(move || take_over(other, target, target_options));
        let given = hand_over(one, &mut source, source_options);
        (given, taking.join().unwrap())
    })
}

pub(crate) fn calls(calls: &Calls) -> Vec<String> {
    calls.lock().unwrap().clone()
}
