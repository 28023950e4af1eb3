//! The adapter that all sockets over RDMA of the process share.

use super::forked;
use crate::support::errno::Errno;
use crate::support::exit;
use crate::support::persona::config;
use ironwarp_engine::Engine;
use ironwarp_engine::config::Devices;
use ironwarp_rnic::sync::lock;
use std::sync::{Arc, Mutex, OnceLock};

/// Returns the adapter, which the first call creates.
pub(super) fn engine() -> Result<&'static Arc<Engine>, Errno> {
    static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();
    /// Held while the adapter is created, because that may fail, which `OnceLock` does not support.
    static CREATING: Mutex<()> = Mutex::new(());
    let _creating = lock(&CREATING);
    if ENGINE.get().is_none() {
        // Sockets over RDMA have the addresses of all interfaces, whatever the logical devices are.
        let engine = Engine::new(config().clone().devices(Devices::default()))?;
        exit::register(&engine);
        forked::register_handler();
        ENGINE.get_or_init(|| engine);
    }
    ENGINE.get().ok_or(Errno::NO_MEMORY)
}
