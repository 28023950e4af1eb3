//! The work request, with the options that all requests have.

use crate::memory::TagSequence;
use ironwarp_rnic::queue::{Data, Operation, Sge, Sges, WorkRequest as Inner};
use std::fmt;
use std::sync::Arc;

/// A request for a send queue. Its completion carries the same `id`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, server) = ironwarp::example::pair()?;
/// # use ironwarp::queue::WorkRequest;
/// let (ours, theirs) = (client.region.slice(..64)?, server.region.remote_addr(0)?);
/// client.qp.post_send_all(vec![
///     WorkRequest::write(1, &[ours], theirs).unsignaled(),
///     WorkRequest::read(2, &[ours], theirs),
///     WorkRequest::send_inline(3, b"Read completed").fenced().solicited().into(),
/// ])?;
/// # server.qp.post_receive(4, &[server.region.slice(..64)?])?;
/// # let completion = client.cq.wait(std::time::Duration::from_secs(5))?;
/// # assert_eq!(completion.wr_id, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a request does nothing until it is posted"]
pub struct WorkRequest {
    pub(in crate::queue) inner: Inner,
    /// The tag sequence of the window or region to which the request assigns a new tag when it is posted. `None` if the
    /// request assigns no tag.
    pub(in crate::queue) tags: Option<Arc<TagSequence>>,
}

impl WorkRequest {
    /// Suppresses the completion of the request, unless the request fails.
    pub fn unsignaled(mut self) -> Self {
        self.inner.signaled = false;
        self
    }

    /// Delays the request until all earlier Reads and atomic operations of the queue pair have completed.
    pub fn fenced(mut self) -> Self {
        self.inner.fence = true;
        self
    }

    /// Returns the identifier of the request, which its completion carries.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Returns the request with another identifier. It has a completion, whether it succeeds or not.
    #[cfg(feature = "tokio")]
    pub(crate) fn with_id(mut self, id: u64) -> Self {
        self.inner.id = id;
        self.inner.signaled = true;
        self
    }

    /// Creates a request that assigns no tag.
    pub(super) fn new(id: u64, operation: Operation, data: Data) -> Self {
        Self { inner: Inner::new(id, operation, data), tags: None }
    }
}

// Not derived: omits the data, which belongs to the program.
impl fmt::Debug for WorkRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { id, operation, data, signaled, fence, .. } = &self.inner;
        f.debug_struct("WorkRequest")
            .field("id", id)
            .field("operation", operation)
            .field("len", &data.len())
            .field("signaled", signaled)
            .field("fence", fence)
            .finish()
    }
}

/// Returns the data of a request that sends or fills registered memory.
pub(super) fn memory(list: &[Sge]) -> Data {
    Data::Memory(Sges::from(list))
}
