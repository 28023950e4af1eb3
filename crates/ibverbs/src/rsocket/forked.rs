//! Children of fork. A child has none of the adapter's threads, and its sockets belong to the parent. Without
//! this check its calls would wait forever, and its exit would close the parent's connections.

use ironwarp_engine::sys::fork;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static CHILD: AtomicBool = AtomicBool::new(false);

/// Registers a fork handler, once.
pub(super) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| fork::register_handlers(None, None, Some(now_child)));
}

extern "C" fn now_child() {
    CHILD.store(true, Ordering::Relaxed);
}

/// Whether this process is a child of one that used sockets over RDMA.
pub(super) fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}
