//! The end of the process: connections are closed as they are when their queue pairs are destroyed, so that what arrived is
//! acknowledged and what was sent arrives. Programs often exit without destroying anything. Whoever asked for faults is told
//! what was made of them.
#![expect(unsafe_code, reason = "the C library calls back at exit")]

use crate::object::all;
use crate::qp::Qp;
use crate::report;
use crate::rsocket;
use crate::sync::lock;
use ironwarp_engine::Engine;
use ironwarp_rnic::fault::{Counts, Faults};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

/// Peers have so much time to close as well.
const PATIENCE: Duration = Duration::from_secs(2);

/// The faults of all adapters that there were, and the process that opened them: a child that was forked off has none.
static FAULTS: Mutex<Vec<(u32, Arc<Faults>)>> = Mutex::new(Vec::new());

/// Asks to be called at the end of the process. Once a device is open, not before.
pub(crate) fn prepare(engine: &Engine) {
    static ONCE: Once = Once::new();
    if let Some(faults) = engine.device().faults() {
        let mut all = lock(&FAULTS);
        all.push((std::process::id(), Arc::clone(faults)));
    }
    ONCE.call_once(|| {
        // SAFETY: a function of ours. The library is never unloaded before it is called: it is linked so.
        unsafe { libc::atexit(close_all) };
    });
}

extern "C" fn close_all() {
    let deadline = Instant::now() + PATIENCE;
    // Other threads may still destroy them: these stay in memory as long as they are held here.
    let mut closing = all::<Qp>();
    closing.retain(|qp| qp.close());
    rsocket::close_all(deadline);
    for qp in closing {
        qp.wait_closed(deadline.saturating_duration_since(Instant::now()));
    }
    tell_faults();
}

/// All adapters of the process have the same plan and seed.
fn tell_faults() {
    let all = lock(&FAULTS);
    let mut ours = all.iter().filter(|(process, _)| *process == std::process::id()).map(|(_, faults)| faults);
    let Some(first) = ours.next() else { return };
    let (first, mut sum) = (first.report(), Counts::default());
    sum += first.counts;
    ours.for_each(|faults| sum += faults.report().counts);
    report::faults(&first.plan, first.seed, &sum);
}
