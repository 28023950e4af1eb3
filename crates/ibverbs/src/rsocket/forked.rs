//! A child made by fork has none of the adapter's threads, and its sockets are the parent's. It is told so: otherwise its calls
//! would wait for ever, and its end would close the parent's connections.

use ironwarp_engine::sys::fork;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static CHILD: AtomicBool = AtomicBool::new(false);

/// From now on children know what they are.
pub(super) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| fork::handle(None, None, Some(now_child)));
}

extern "C" fn now_child() {
    CHILD.store(true, Ordering::Relaxed);
}

/// Whether this process was forked by one that used sockets over RDMA.
pub(super) fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}
