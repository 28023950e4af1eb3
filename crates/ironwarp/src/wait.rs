//! The error of methods that wait.

use ironwarp_engine::Engine;
use ironwarp_rnic::queue::Overrun;

/// Why a wait for a completion, an event or a connection request ended without one.
///
/// ```
/// # let adapter = ironwarp::Adapter::new()?;
/// use ironwarp::WaitError;
///
/// let cq = adapter.completion_queue(16)?;
/// assert_eq!(cq.wait(std::time::Duration::ZERO).unwrap_err(), WaitError::TimedOut);
/// # Ok::<(), ironwarp::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The timeout expired. Waiting again may succeed.
    #[error("timed out while waiting")]
    TimedOut,
    /// The completion queue overran: it takes no more completions.
    #[error(transparent)]
    Overrun(#[from] Overrun),
    /// The adapter has stopped, or was [shut down](crate::Adapter::shutdown): nothing will come any more.
    #[error("the adapter was shut down, or has stopped for a reason in its log: open another one")]
    Stopped,
}

impl WaitError {
    /// Returns the error of a wait that ended without an event: its timeout has expired, unless the adapter is at its end.
    pub(crate) fn no_event(engine: &Engine) -> Self {
        if engine.is_shut_down() { Self::Stopped } else { Self::TimedOut }
    }

    /// Converts the error of a wait of the engine, whose timeouts are not errors.
    pub(crate) fn from_engine(error: ironwarp_engine::WaitError) -> Self {
        match error {
            ironwarp_engine::WaitError::Overrun(overrun) => Self::Overrun(overrun),
            _ => Self::Stopped,
        }
    }
}
