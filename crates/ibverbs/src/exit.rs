//! The end of the process: connections are closed as they are when their queue pairs are destroyed, so that what arrived is
//! acknowledged and what was sent arrives. Programs often exit without destroying anything.
#![expect(unsafe_code, reason = "the C library calls back at exit")]

use crate::object::each;
use crate::qp::Qp;
use crate::rsocket;
use std::sync::Once;
use std::time::{Duration, Instant};

/// Peers have so much time to close as well.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks to be called at the end of the process. Once a device is open, not before.
pub(crate) fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a function of ours. The library is never unloaded before it is called: it is linked so.
        unsafe { libc::atexit(close_all) };
    });
}

extern "C" fn close_all() {
    let deadline = Instant::now() + PATIENCE;
    let mut closing = Vec::new();
    each::<Qp>(|qp| {
        if qp.close() {
            closing.push(qp);
        }
    });
    rsocket::close_all(deadline);
    for qp in closing {
        qp.wait_closed(deadline.saturating_duration_since(Instant::now()));
    }
}
