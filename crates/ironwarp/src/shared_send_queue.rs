//! Shared send queues (requirement X7): one send queue for many connections. Before this: a protection domain and a completion
//! queue; after: queue pairs that are fed by it, and their completions.

use crate::completion_queue::CompletionQueue;
use crate::protection_domain::ProtectionDomain;
use crate::queue_pair::QueuePair;
use crate::work_request::WorkRequest;
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::memory::Domain;
use ironwarp_rnic::queue::SharedSendQueue as Inner;
use std::fmt;
use std::sync::Arc;

/// A shared send queue: it feeds all queue pairs that were created [with it](crate::QueuePairBuilder::shared_send_queue), which have
/// no send queue of their own. Clones are handles to the same queue.
///
/// It holds so many requests, for whichever connection they are. Those of one connection leave in the order of posting; a
/// connection that cannot send now does not hold up the others. Completions come in the order of transmission: that in which
/// the connections have taken the requests' last bytes. So one that waits for its peer's answer makes those wait that were
/// transmitted after it. If a connection fails, its requests are flushed, and the others go on.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ironwarp::{AcceptOptions, Adapter, ConnectOptions, PostError, WorkRequest};
/// use std::time::Duration;
///
/// let soon = Duration::from_secs(5);
/// let adapter = Adapter::new()?;
/// let (sent, received) = (adapter.completion_queue(64)?, adapter.completion_queue(64)?);
/// let domain = adapter.protection_domain();
/// let ssq = domain.shared_send_queue(&sent, 64);
/// let listener = adapter.listen("127.0.0.1:0".parse()?)?;
/// let mut pairs = Vec::new();
/// for number in 0..3 {
///     let near = domain.queue_pair(&received).shared_send_queue(&ssq).create()?;
///     let far = domain.queue_pair(&received).create()?;
///     near.connect_start(listener.local_addr()?, &ConnectOptions::new())?;
///     far.post_receive(number, &[])?;
///     listener.accept(soon).expect("it connects").accept(&far, &AcceptOptions::new())?;
///     near.wait_connected(soon)?;
///     pairs.push((near, far));
/// }
/// for (number, (near, _)) in pairs.iter().enumerate() {
///     ssq.post(near, WorkRequest::send(number as u64, &[]))?;
/// }
/// for (number, (near, _)) in pairs.iter().enumerate() {
///     let done = sent.wait(soon)?.expect("in time").success()?;
///     assert_eq!((done.wr_id, done.qp), (number as u64, near.id()));
/// }
/// assert_eq!(pairs[0].0.post_send(WorkRequest::send(9, &[])), Err(PostError::NoSendQueue));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedSendQueue {
    pub(crate) inner: Arc<Inner>,
    pub(crate) cq: CompletionQueue,
    pub(crate) domain: Domain,
}

impl SharedSendQueue {
    pub(crate) fn new(domain: &ProtectionDomain, cq: &CompletionQueue, depth: usize) -> Self {
        Self { inner: Inner::new(depth, cq.inner.cq()), cq: cq.clone(), domain: domain.domain() }
    }

    /// How many requests it holds, for all connections together.
    pub fn depth(&self) -> usize {
        self.inner.depth()
    }

    /// How many requests are posted, and have not completed.
    pub fn outstanding(&self) -> usize {
        self.inner.outstanding()
    }

    /// Posts a request for a queue pair that it feeds, and sends what can be sent at once. [`PostError::Full`] if it holds as many
    /// as it may: poll its completion queue first.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, _server) = ironwarp::example::pair()?;
    /// use ironwarp::{PostError, WorkRequest};
    ///
    /// let ssq = client.domain.shared_send_queue(&client.cq, 16);
    /// assert_eq!(ssq.post(&client.qp, WorkRequest::send(1, &[])), Err(PostError::OtherSendQueue));
    /// # Ok(())
    /// # }
    /// ```
    pub fn post(&self, qp: &QueuePair, request: impl Into<WorkRequest>) -> Result<(), PostError> {
        self.post_all(qp, vec![request.into()])
    }

    /// Posts requests for one queue pair, all or none, in this order.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, _server) = ironwarp::example::pair()?;
    /// use ironwarp::{PostError, WorkRequest};
    ///
    /// let ssq = client.domain.shared_send_queue(&client.cq, 1);
    /// let qp = client.domain.queue_pair(&client.cq).shared_send_queue(&ssq).create()?;
    /// let two = vec![WorkRequest::send(1, &[]).into(), WorkRequest::send(2, &[]).into()];
    /// assert_eq!(ssq.post_all(&qp, two), Err(PostError::NotConnected));
    /// # Ok(())
    /// # }
    /// ```
    pub fn post_all(&self, qp: &QueuePair, requests: Vec<WorkRequest>) -> Result<(), PostError> {
        qp.post_named(requests, |inner, requests| self.inner.post(inner, requests))
    }
}

impl fmt::Debug for SharedSendQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSendQueue").field("depth", &self.depth()).finish_non_exhaustive()
    }
}
