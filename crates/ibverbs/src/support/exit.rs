//! The end of the process. Programs often exit without destroying anything, so connections are closed here as they are when
//! their queue pairs are destroyed: what arrived is acknowledged, and what was sent arrives. Modules that have something to
//! close register a hook. Injected faults are summarised last.
#![expect(unsafe_code, reason = "the C library calls back at exit")]

use crate::support::report;
use ironwarp_engine::Engine;
use ironwarp_rnic::fault::{Counts, Faults};
use ironwarp_rnic::sync::lock;
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

/// How long to wait for peers to close as well.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Starts to close something. The returned function waits until that is done, at most until a deadline.
pub(crate) type Hook = fn() -> Box<dyn FnOnce(Instant)>;

static HOOKS: Mutex<Vec<Hook>> = Mutex::new(Vec::new());

/// The injected faults of every adapter, and the process that opened it: a forked child inherits none.
static FAULTS: Mutex<Vec<(u32, Arc<Faults>)>> = Mutex::new(Vec::new());

/// Has the hooks run at the end of the process. Called for every adapter: a program that opens none must not
/// be affected by this library.
pub(crate) fn prepare(engine: &Engine) {
    static ONCE: Once = Once::new();
    if let Some(faults) = engine.device().faults() {
        let mut all = lock(&FAULTS);
        all.push((std::process::id(), Arc::clone(faults)));
    }
    ONCE.call_once(|| {
        // SAFETY: a function of this library, which is linked so that it is never unloaded.
        unsafe { libc::atexit(run) };
    });
}

/// Adds a hook. The caller makes sure to add it once.
pub(crate) fn add_hook(hook: Hook) {
    lock(&HOOKS).push(hook);
}

extern "C" fn run() {
    let deadline = Instant::now() + TIMEOUT;
    let hooks = lock(&HOOKS).clone();
    // Everything starts to close before anything is waited for.
    let waits: Vec<_> = hooks.iter().map(|hook| hook()).collect();
    waits.into_iter().for_each(|wait| wait(deadline));
    report_faults();
}

/// Logs the sum over all adapters of this process, which have the same plan and seed.
fn report_faults() {
    let all = lock(&FAULTS);
    let mut ours = all.iter().filter(|(process, _)| *process == std::process::id()).map(|(_, faults)| faults);
    let Some(first) = ours.next() else { return };
    let (first, mut sum) = (first.report(), Counts::default());
    sum += first.counts;
    ours.for_each(|faults| sum += faults.report().counts);
    report::log_injected_faults(&first.plan, first.seed, &sum);
}
