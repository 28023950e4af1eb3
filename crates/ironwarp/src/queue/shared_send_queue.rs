//! Shared send queues (requirement X7): one send queue for many connections.

use crate::completion::CompletionQueue;
use crate::protection_domain::ProtectionDomain;
use ironwarp_rnic::memory::Domain;
use ironwarp_rnic::queue::SharedSendQueue as Inner;
use std::fmt;
use std::sync::Arc;

/// A shared send queue: holds the send requests of all queue pairs that are [created with
/// it](crate::queue::QueuePairBuilder::shared_send_queue), which have no send queue of their own. Clones are handles to
/// the same queue.
///
/// The depth of the queue limits the requests of all these connections together. Requests of one connection are sent in
/// the order of posting; a connection that cannot send does not block the others. Requests complete in the order of
/// transmission: the order in which their last bytes were sent. A request that waits for a response of its peer, such
/// as a Read, therefore delays the completions of requests that were transmitted after it. If a connection fails, its
/// requests are flushed, and the other connections continue.
///
/// Requests of different connections may be transmitted in another order than they were posted, even if no connection
/// is blocked: while a thread is sending on a connection, requests posted to that connection by other threads wait for
/// that thread.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ironwarp::queue::PostError;
/// use ironwarp::prelude::*;
/// use std::time::Duration;
///
/// let timeout = Duration::from_secs(5);
/// let adapter = Adapter::new()?;
/// let (sent, received) = (adapter.completion_queue(64)?, adapter.completion_queue(64)?);
/// let domain = adapter.protection_domain();
/// let ssq = domain.shared_send_queue(&sent, 64);
/// let listener = adapter.listen("127.0.0.1:0".parse()?)?;
/// let mut pairs = Vec::new();
/// for number in 0..3 {
///     let client = domain.queue_pair(&received).shared_send_queue(&ssq).create()?;
///     let server = domain.queue_pair(&received).create()?;
///     client.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
///     server.post_receive(number, &[])?;
///     listener.accept(timeout)?.accept(&server, &AcceptOptions::new())?;
///     client.wait_connected(timeout)?;
///     pairs.push((client, server));
/// }
/// for (number, (client, _)) in pairs.iter().enumerate() {
///     ssq.post(client, WorkRequest::send(number as u64, &[]))?;
/// }
/// for _ in &pairs {
///     let done = sent.wait(timeout)?.success()?;
///     assert_eq!(done.qp, pairs[done.wr_id as usize].0.id());
/// }
/// assert_eq!(pairs[0].0.post_send(WorkRequest::send(9, &[])), Err(PostError::NoSendQueue));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedSendQueue {
    pub(crate) inner: Arc<Inner>,
    /// The completion queue of all requests.
    pub(crate) cq: CompletionQueue,
    /// The protection domain of all queue pairs.
    pub(crate) domain: Domain,
}

impl SharedSendQueue {
    /// Returns the maximum number of outstanding requests of all connections together.
    pub fn depth(&self) -> usize {
        self.inner.depth()
    }

    /// Returns the number of outstanding requests of all connections together: posted and not completed.
    pub fn outstanding(&self) -> usize {
        self.inner.outstanding()
    }
}

// Not derived: omits the state of the adapter, which is long and internal.
impl fmt::Debug for SharedSendQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSendQueue").field("depth", &self.depth()).finish_non_exhaustive()
    }
}

impl ProtectionDomain {
    /// Creates a shared send queue for `depth` requests, which complete on `cq` (requirement X7).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let ssq = domain.shared_send_queue(&cq, 64);
    /// let qp = domain.queue_pair(&cq).shared_send_queue(&ssq).create()?;
    /// # let _ = qp;
    /// assert_eq!(ssq.depth(), 64);
    /// # Ok(())
    /// # }
    /// ```
    pub fn shared_send_queue(&self, cq: &CompletionQueue, depth: usize) -> SharedSendQueue {
        SharedSendQueue { inner: Inner::new(depth, cq.inner.cq()), cq: cq.clone(), domain: self.domain() }
    }
}
