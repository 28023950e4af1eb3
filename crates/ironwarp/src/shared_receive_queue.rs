//! Shared receive queues and XRC domains: one supply of receives for many connections.

use crate::adapter::Shared;
use crate::completion_queue::CompletionQueue;
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::memory::Domain;
use ironwarp_rnic::queue::{ReceiveRequest, Sge, SharedReceiveQueue as Inner, SrqStatus, XrcDomain as Named};
use std::fmt;
use std::sync::Arc;

/// A shared receive queue: queue pairs that were created with it take their receives from here. Clones are handles to the
/// same queue.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ironwarp::{Adapter, Access, Buffer};
/// let adapter = Adapter::new()?;
/// let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
/// let region = domain.register(Buffer::new(8192)?, Access::LOCAL_WRITE)?;
/// let srq = domain.shared_receive_queue(16);
/// srq.post_receive(1, &[region.slice(0, 4096)?])?;
/// srq.post_receive(2, &[region.slice(4096, 4096)?])?;
/// let (one, other) = (domain.queue_pair(&cq).srq(&srq).create()?, domain.queue_pair(&cq).srq(&srq).create()?);
/// # let _ = (one, other);
/// assert_eq!(srq.query().posted, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedReceiveQueue {
    pub(crate) shared: Arc<Shared>,
    pub(crate) inner: Arc<Inner>,
}

/// An XRC domain: shared receive queues that a peer names in its messages, all of them through one connection. Clones are
/// handles to the same domain.
///
/// The queue pair at this end is created with [`QueuePairBuilder::xrc_target`](crate::QueuePairBuilder::xrc_target), the
/// peer's is any other. Only between Ironwarp ends.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ironwarp::{Adapter, Access, Buffer};
/// let adapter = Adapter::new()?;
/// let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
/// let xrc = adapter.xrc_domain();
/// let (orders, parcels) = (domain.xrc_receive_queue(&xrc, &cq, 16), domain.xrc_receive_queue(&xrc, &cq, 16));
/// assert_ne!(orders.id(), parcels.id());
/// let target = domain.queue_pair(&cq).xrc_target(&xrc).create()?;
/// # let _ = target;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct XrcDomain {
    pub(crate) inner: Arc<Named>,
}

impl SharedReceiveQueue {
    pub(crate) fn new(shared: &Arc<Shared>, domain: Domain, size: (usize, usize)) -> Self {
        let inner = shared.engine.create_srq(domain, size);
        Self { shared: Arc::clone(shared), inner }
    }

    pub(crate) fn named(
        shared: &Arc<Shared>,
        domain: Domain,
        size: (usize, usize),
        xrc: &XrcDomain,
        cq: &CompletionQueue,
    ) -> Self {
        let inner = shared.engine.create_xrc_srq(domain, size, &xrc.inner, &cq.inner);
        Self { shared: Arc::clone(shared), inner }
    }

    /// Its number, as events name it, and XRC senders.
    pub fn id(&self) -> u32 {
        self.inner.id()
    }

    /// Posts a receive for the next message that finds no earlier one, on any of its queue pairs.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// let srq = domain.shared_receive_queue(1);
    /// srq.post_receive(1, &[])?;
    /// assert!(srq.post_receive(2, &[]).is_err(), "it holds one");
    /// # Ok(())
    /// # }
    /// ```
    pub fn post_receive(&self, id: u64, list: &[Sge]) -> Result<(), PostError> {
        self.inner.post(ReceiveRequest { id, buffers: list.into() })
    }

    /// Asks for one event, SRQ limit reached, when fewer than `limit` receives are left: time to post more. Zero asks for
    /// none.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// let srq = domain.shared_receive_queue(64);
    /// (0..32).try_for_each(|id| srq.post_receive(id, &[]))?;
    /// srq.set_limit(16);
    /// assert_eq!(srq.query().limit, 16);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_limit(&self, limit: usize) {
        self.inner.set_limit(limit);
    }

    /// From now on it holds so many receives. Refused if more are posted.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let srq = adapter.protection_domain().shared_receive_queue(1);
    /// srq.post_receive(1, &[])?;
    /// assert!(srq.post_receive(2, &[]).is_err());
    /// srq.resize(2)?;
    /// srq.post_receive(2, &[])?;
    /// assert!(srq.resize(1).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resize(&self, depth: usize) -> Result<(), PostError> {
        self.inner.resize(depth)
    }

    /// What it is like now.
    pub fn query(&self) -> SrqStatus {
        self.inner.query()
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl fmt::Debug for XrcDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcDomain").finish_non_exhaustive()
    }
}
