//! The error of methods that wait.

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
    /// The adapter has stopped, and nothing will complete any more.
    #[error("the adapter has stopped, for a reason in its log: open another one")]
    Stopped,
}

impl WaitError {
    /// Converts the error of a wait of the engine, whose timeouts are not errors.
    pub(crate) fn from_engine(error: ironwarp_engine::WaitError) -> Self {
        match error {
            ironwarp_engine::WaitError::Overrun(overrun) => Self::Overrun(overrun),
            _ => Self::Stopped,
        }
    }
}
