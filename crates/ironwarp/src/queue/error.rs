//! Errors of creating queues.

/// Reasons why a queue pair or a control queue cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// A completion queue, the shared receive queue or the XRC domain belongs to another adapter, or another
    /// [function](crate::function), than the new object.
    #[error("a queue and the protection domain belong to different adapters or functions")]
    OtherAdapter,
    /// The shared send queue belongs to another protection domain than the queue pair.
    #[error("the shared send queue and the queue pair belong to different protection domains")]
    OtherDomain,
    /// The queue pair would use another completion queue than that of its [driver](crate::tokio::Driver).
    #[cfg(feature = "tokio")]
    #[error("the queue pair must use the completion queue of its driver")]
    OtherCompletionQueue,
    /// No queue pair number or port is available ([`Config::ports`](crate::Config::ports)), the kernel refused a resource,
    /// or the function has reached a [quota](crate::function::QuotaExceeded).
    #[error("{0}")]
    NoNumber(#[from] std::io::Error),
}
