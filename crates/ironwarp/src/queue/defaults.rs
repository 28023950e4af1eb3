//! Default sizes of queues.

/// Default depth of a queue, in requests.
pub(super) const DEPTH: usize = 128;
/// Default maximum number of scatter/gather elements of a request.
pub(super) const SGES: usize = 16;
