//! Detects forked children. A child has none of the adapter's threads, and its sockets belong to the parent. Without
//! this check the calls of a child would wait forever, and its exit would close the connections of the parent.

use ironwarp_engine::sys::fork;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this process was forked after [`register_handler`] was called.
static CHILD: AtomicBool = AtomicBool::new(false);

/// Registers the fork handler, once.
pub(super) fn register_handler() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| fork::register_handlers(None, None, Some(set_child)));
}

/// Runs in the child after a fork.
extern "C" fn set_child() {
    CHILD.store(true, Ordering::Relaxed);
}

/// Whether this process was forked by one that used sockets over RDMA.
pub(super) fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}
