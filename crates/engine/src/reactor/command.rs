//! Commands that other threads send to a lane.

use super::source::{Callback, Drive, EventSource, Service};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A command for a lane's thread, sent with [`LaneHandle::submit`](super::handle::LaneHandle::submit).
#[derive(Debug)]
pub(crate) enum Command {
    /// Drive a connection with pending work, when its turn comes.
    Drive(Arc<dyn Drive>),
    /// Check from now on whether the program still polls the poll set with this token.
    Watch(u64),
    /// Serve the poll set with this token, unless the program does.
    Serve(u64),
    /// Run a function now.
    Call(Callback),
    /// Run a function at this time, or soon after.
    CallAt(Instant, Callback),
    /// Wait for a descriptor from now on.
    AddSource(Arc<dyn EventSource>),
    /// Call a service from now on.
    AddService(Arc<dyn Service>),
    /// Abort all connections, because the adapter has failed.
    Abort,
    /// Disconnect all connections, and end the thread once they are closed or this much time has passed.
    Stop(Duration),
}
