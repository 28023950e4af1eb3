//! The adapter that all sockets of the process share.

use super::forked;
use crate::support::errno::Errno;
use crate::support::exit;
use crate::support::persona::config;
use ironwarp_engine::Engine;
use ironwarp_rnic::sync::lock;
use std::sync::{Arc, Mutex, OnceLock};

/// The adapter, created with the first socket.
pub(super) fn engine() -> Result<&'static Arc<Engine>, Errno> {
    static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();
    static MAKING: Mutex<()> = Mutex::new(());
    let _alone = lock(&MAKING);
    if ENGINE.get().is_none() {
        let engine = Engine::new(config().clone())?;
        exit::register(&engine);
        forked::watch();
        ENGINE.get_or_init(|| engine);
    }
    ENGINE.get().ok_or(Errno::NO_MEMORY)
}
