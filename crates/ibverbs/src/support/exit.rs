//! Closes connections when the process exits. Programs often exit without destroying their objects, so an exit
//! handler closes connections as destroying their queue pairs would: messages that arrived are acknowledged, and
//! messages that were sent arrive. Modules that have something to close register a hook. The handler ends by logging
//! a summary of the injected faults and of the choices of the adversary.
#![expect(unsafe_code, reason = "the C library calls back at exit")]

use crate::support::report;
use ironwarp_engine::Engine;
use ironwarp_rnic::adversary::{self, Adversary};
use ironwarp_rnic::fault::{Counts, Faults};
use ironwarp_rnic::sync::lock;
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

/// How long to wait until peers have closed their ends.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Starts to close objects of a module. Returns a function that waits until they are closed, or until a deadline.
pub(crate) type Hook = fn() -> Box<dyn FnOnce(Instant)>;

static HOOKS: Mutex<Vec<Hook>> = Mutex::new(Vec::new());

/// The injected faults of every adapter, each with the id of the process that opened the adapter. A forked child
/// inherits the list, and ignores the entries of its parent.
static FAULTS: Mutex<Vec<(u32, Arc<Faults>)>> = Mutex::new(Vec::new());

/// The adversaries of every adapter, as [`FAULTS`].
static ADVERSARIES: Mutex<Vec<(u32, Arc<Adversary>)>> = Mutex::new(Vec::new());

/// Registers the exit handler of this library, once, and the injected faults and the adversary of `engine` for its summary. Called when
/// an adapter is opened and not when the library is loaded: a program that opens no device must not be affected by
/// this library.
pub(crate) fn register(engine: &Engine) {
    static ONCE: Once = Once::new();
    if let Some(faults) = engine.device().faults() {
        let mut all = lock(&FAULTS);
        all.push((std::process::id(), Arc::clone(faults)));
    }
    if let Some(adversary) = engine.device().adversary() {
        lock(&ADVERSARIES).push((std::process::id(), Arc::clone(adversary)));
    }
    ONCE.call_once(|| {
        // SAFETY: `on_exit` exists until the process ends, because this library is linked so that it is never unloaded.
        unsafe { libc::atexit(on_exit) };
    });
}

/// Adds a hook that runs when the process exits. The caller must not add the same hook twice.
pub(crate) fn add_hook(hook: Hook) {
    lock(&HOOKS).push(hook);
}

/// Runs the hooks, waits for what they started, and logs the injected faults.
extern "C" fn on_exit() {
    let deadline = Instant::now() + TIMEOUT;
    let hooks = lock(&HOOKS).clone();
    // Start to close everything before waiting, so that connections of all modules close at the same time.
    let waits: Vec<_> = hooks.iter().map(|hook| hook()).collect();
    waits.into_iter().for_each(|wait| wait(deadline));
    report_faults();
    report_adversary();
}

/// Logs the sum of the injected faults of all adapters of this process, which have the same plan and seed.
fn report_faults() {
    let all = lock(&FAULTS);
    let mut ours = all.iter().filter(|(process, _)| *process == std::process::id()).map(|(_, faults)| faults);
    let Some(first) = ours.next() else { return };
    let (first, mut sum) = (first.report(), Counts::default());
    sum += first.counts;
    ours.for_each(|faults| sum += faults.report().counts);
    report::log_injected_faults(&first.plan, first.seed, &sum);
}

/// Logs the sum of the choices of the adversaries of this process, which have the same seed.
fn report_adversary() {
    let all = lock(&ADVERSARIES);
    let ours = all.iter().filter(|(process, _)| *process == std::process::id());
    let sum = ours.fold(None, |sum: Option<(u64, adversary::Counts)>, (_, adversary)| {
        let mut counts = adversary.counts();
        counts += sum.map_or_else(adversary::Counts::default, |(_, sum)| sum);
        Some((adversary.seed(), counts))
    });
    if let Some((seed, counts)) = sum {
        report::log_adversary(seed, &counts);
    }
}
