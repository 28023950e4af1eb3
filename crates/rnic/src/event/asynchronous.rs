//! Asynchronous events: what happens to objects of the adapter outside of any request.

/// What happened, and the number of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// A queue pair failed by its own doing.
    QpFatal(u32),
    /// The peer of a queue pair sent what it must not.
    QpRequestError(u32),
    /// The peer of a queue pair reached for memory that it may not use.
    QpAccessError(u32),
    /// The first message came for a queue pair that was ready to receive.
    Established(u32),
    /// All that was begun on a send queue that is being drained is complete.
    SqDrained(u32),
    /// A queue pair with a shared receive queue has failed, and takes no receive of it any more.
    LastWqeReached(u32),
    /// A completion queue overran.
    CqError(u32),
    /// A shared receive queue has fewer receives left than its limit.
    SrqLimitReached(u32),
}
