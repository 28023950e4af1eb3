//! Moves a listener to another process (requirement X2, `docs/functions.md`): it stops accepting, and accepts again, here or there.

use super::listen::Opened;
use crate::verbs::function::{MovableListener, PendingHandshakes};
use ironwarp_rnic::sync::lock;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

impl MovableListener for Opened {
    fn number(&self) -> u32 {
        self.number.unwrap_or_default()
    }

    fn socket(&self) -> Arc<dyn AsFd + Send + Sync> {
        Arc::clone(&*lock(&self.socket)) as _
    }

    fn pause(&self) {
        self.handshakes.remove_listener(&lock(&self.socket));
    }

    fn pending(&self, deadline: Instant) -> Option<PendingHandshakes> {
        let socket = Arc::clone(&*lock(&self.socket));
        self.handshakes.pending(&socket, deadline)
    }

    fn resume(&self) {
        let socket = lock(&self.socket);
        if socket.acquire() {
            self.handshakes.add_listener(&socket);
        }
    }

    fn surrender(&self) {
        let socket = lock(&self.socket);
        if let Err(error) = socket.surrender() {
            tracing::debug!(%error, "failed to close a listener that was handed over"); // it is closed when it is dropped
        }
    }
}
