//! What other threads ask of a lane.

use super::source::{Callback, Drive, EventSource, Service};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A command to a lane's thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// Drive a connection that was left with work, when its turn comes.
    Drive(Arc<dyn Drive>),
    /// A program polls the poll set with this token: check that it goes on doing so.
    Watch(u64),
    Call(Callback),
    CallAt(Instant, Callback),
    AddSource(Arc<dyn EventSource>),
    AddService(Arc<dyn Service>),
    /// The adapter failed: cut all connections.
    Abort,
    /// Disconnect, and end when all connections are closed or this much time has passed.
    Stop(Duration),
}
