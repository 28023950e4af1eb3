//! Errors of asynchronous requests, which return the buffers of the request if they can.

use ironwarp_rnic::error::PostError;
use ironwarp_rnic::queue::{Overrun, RequestError};
use std::fmt;

/// Reasons why an asynchronous request failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request was not posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The request was posted and failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The completion queue overflowed, because other requests than the driver's complete on it.
    #[error(transparent)]
    Overrun(#[from] Overrun),
    /// Nothing will complete any more.
    #[error("the adapter has stopped, for a reason in its log: open another one")]
    AdapterStopped,
    /// The runtime that ran the driver has shut down.
    #[error("the runtime of the completion driver has shut down")]
    RuntimeShutDown,
}

/// A request that was not posted, with its buffers.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Refused<B> {
    /// Why the request was not posted.
    #[source]
    pub error: Error,
    /// The buffers of the request.
    pub buffers: B,
}

/// A request that was posted and failed, with its buffers.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Failed<B> {
    /// Why the request failed.
    #[source]
    pub error: Error,
    /// The buffers of the request. `None` if the driver has ended, and the adapter may still use them: then they return
    /// to their pool when the connection is closed.
    pub buffers: Option<B>,
}

// Not derived, so that buffers need not be `Debug`: they say nothing about the error.
impl<B> fmt::Debug for Refused<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<B> fmt::Debug for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failed").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<B> From<Refused<B>> for Error {
    fn from(refused: Refused<B>) -> Self {
        refused.error
    }
}

impl<B> From<Failed<B>> for Error {
    fn from(failed: Failed<B>) -> Self {
        failed.error
    }
}
