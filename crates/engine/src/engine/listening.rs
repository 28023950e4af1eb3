//! The listeners of an adapter that moves to another process (requirement X2, `docs/functions.md`).

use super::Engine;
use crate::verbs::function::MovableListener;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two looks at the handshakes that have not ended.
const POLL: Duration = Duration::from_millis(1);
/// How long the lane of a listener is waited for. It answers at once, unless the machine is overloaded.
const LANE: Duration = Duration::from_secs(5);

/// Why listeners cannot move now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListenersBusy {
    /// Connections wait for the program.
    #[error(
        "{0} incoming connections have not been accepted or rejected: decide on them while the adapter is handed over"
    )]
    Handshakes(usize),
    /// The thread of a listener does not answer.
    #[error("a listener cannot be stopped in time: its thread does not answer")]
    NoAnswer,
}

/// Listeners that do not accept connections: their peers wait in the kernel's backlog. They accept again when this is dropped.
#[derive(Debug, Default)]
pub struct PausedListeners(Vec<Arc<dyn MovableListener>>);

impl Engine {
    /// Returns the numbers and sockets of all listeners.
    pub fn listening_sockets(&self) -> Vec<(u32, Arc<dyn AsFd + Send + Sync>)> {
        let listeners = self.function.movable_listeners();
        listeners.iter().map(|listener| (listener.number(), listener.socket())).collect()
    }

    /// Has all listeners stop accepting, and waits until their handshakes have ended, at most until the deadline. Fails if
    /// the program has not decided on a connection until then. A peer that has not sent its Request stays with this
    /// process, which rejects it: otherwise any peer could prevent a hand-over.
    pub fn pause_listening(&self, deadline: Instant) -> Result<PausedListeners, ListenersBusy> {
        let paused = PausedListeners(self.function.movable_listeners());
        paused.0.iter().for_each(|listener| listener.pause());
        for listener in &paused.0 {
            loop {
                let is_over = Instant::now() >= deadline; // before the count, which is the last one then
                let pending = listener.pending(Instant::now() + LANE).ok_or(ListenersBusy::NoAnswer)?;
                match (pending.with_request, pending.without_request) {
                    (0, 0) => break,
                    (0, _) if is_over => break,
                    (count, _) if is_over => return Err(ListenersBusy::Handshakes(count)),
                    _ => std::thread::sleep(POLL),
                }
            }
        }
        Ok(paused)
    }
}

impl PausedListeners {
    /// Returns the numbers of the listeners.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.0.iter().map(|listener| listener.number()).collect()
    }

    /// Closes the sockets of this process, because another one listens at them.
    pub(super) fn surrender(mut self) {
        std::mem::take(&mut self.0).iter().for_each(|listener| listener.surrender());
    }
}

impl Drop for PausedListeners {
    fn drop(&mut self) {
        self.0.iter().for_each(|listener| listener.resume());
    }
}
