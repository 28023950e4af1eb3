//! A child made by fork has none of the adapter's threads, and its sockets are the parent's. It is told so: otherwise its calls
//! would wait for ever, and its end would close the parent's connections.
#![expect(unsafe_code, reason = "the C library calls back after a fork")]

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static CHILD: AtomicBool = AtomicBool::new(false);

/// From now on children know what they are.
pub(super) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a function of ours, which does nothing but to store. The library is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(now_child)) };
    });
}

extern "C" fn now_child() {
    CHILD.store(true, Ordering::Relaxed);
}

/// Whether this process was forked by one that used sockets over RDMA.
pub(super) fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}
