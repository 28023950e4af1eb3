//! Default sizes of the queues of a queue pair.

/// Default depth of a send or receive queue, in requests.
pub(crate) const DEFAULT_DEPTH: usize = 128;
/// Default maximum number of scatter/gather elements per request.
pub(crate) const DEFAULT_MAX_SGES: usize = 16;
