//! Shared receive queues and XRC domains.

use super::completion_queue::CompletionQueue;
use super::defaults::SGES;
use crate::adapter::Adapter;
use crate::protection_domain::ProtectionDomain;
use crate::shared::Shared;
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::queue::{
    ReceiveRequest, Sge, SharedReceiveQueue as Inner, SrqSize, SrqStatus, XrcDomain as Named,
};
use std::fmt;
use std::sync::Arc;

/// A shared receive queue, which supplies receives to all queue pairs that are created with it. Clones are handles to
/// the same queue.
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

/// An XRC domain: shared receive queues that a peer addresses by number, all of them over one connection. Clones are
/// handles to the same domain.
///
/// The local queue pair is created with [`QueuePairBuilder::xrc_target`](crate::QueuePairBuilder::xrc_target), the
/// remote one without. Both ends must be Ironwarp adapters.
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
    /// Returns the number of the queue, as it appears in events and as XRC senders use it.
    pub fn id(&self) -> u32 {
        self.inner.id()
    }

    /// Posts a receive, which takes the next message on any of the queue pairs that finds no earlier receive.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// let srq = domain.shared_receive_queue(1);
    /// srq.post_receive(1, &[])?;
    /// assert!(srq.post_receive(2, &[]).is_err(), "its depth is one");
    /// # Ok(())
    /// # }
    /// ```
    pub fn post_receive(&self, id: u64, list: &[Sge]) -> Result<(), PostError> {
        self.inner.post(ReceiveRequest { id, buffers: list.into() })
    }

    /// Requests one *SRQ limit reached* event, raised when fewer than `limit` receives are left. Zero cancels the
    /// request.
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

    /// Changes the depth. Fails if more receives are posted.
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

    /// Returns the current state of the queue.
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

impl ProtectionDomain {
    /// Creates a shared receive queue for `depth` receives.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// let srq = domain.shared_receive_queue(16);
    /// srq.post_receive(1, &[])?;
    /// assert_eq!(srq.query().posted, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn shared_receive_queue(&self, depth: usize) -> SharedReceiveQueue {
        let size = SrqSize { depth, max_sges: SGES };
        let inner = self.shared.engine.create_srq(self.domain(), size);
        SharedReceiveQueue { shared: Arc::clone(&self.shared), inner }
    }

    /// Creates a shared receive queue that peers address by its number (XRC). Its receives complete on `cq`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let adapter = ironwarp::Adapter::new()?;
    /// let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let srq = domain.xrc_receive_queue(&adapter.xrc_domain(), &cq, 16);
    /// println!("peers name it {}", srq.id());
    /// # Ok(())
    /// # }
    /// ```
    pub fn xrc_receive_queue(
        &self,
        xrc: &XrcDomain,
        cq: &CompletionQueue,
        depth: usize,
    ) -> SharedReceiveQueue {
        let size = SrqSize { depth, max_sges: SGES };
        let inner = self.shared.engine.create_xrc_srq(self.domain(), size, &xrc.inner, &cq.inner);
        SharedReceiveQueue { shared: Arc::clone(&self.shared), inner }
    }
}

impl Adapter {
    /// Creates an XRC domain.
    pub fn xrc_domain(&self) -> XrcDomain {
        XrcDomain::default()
    }
}
