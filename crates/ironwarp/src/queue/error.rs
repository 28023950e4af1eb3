//! Errors of creating queues.

/// Reasons why a queue pair or a control queue cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// A completion queue or the shared receive queue belongs to another adapter than the new object.
    #[error("a queue and the protection domain belong to different adapters")]
    OtherAdapter,
    /// The shared send queue belongs to another protection domain than the queue pair.
    #[error("the shared send queue and the queue pair belong to different protection domains")]
    OtherDomain,
    /// The queue pair would use another completion queue than that of its [driver](crate::tokio::Driver).
    #[cfg(feature = "tokio")]
    #[error("the queue pair must use the completion queue of its driver")]
    OtherCompletionQueue,
    /// No queue pair number or port is available ([`Config::ports`](crate::Config::ports)), or the kernel refused a
    /// resource.
    #[error("{0}")]
    NoNumber(#[from] std::io::Error),
}
