//! Shared receive queues, and XRC domains, whose shared receive queues a peer addresses by number.

use super::defaults::DEFAULT_MAX_SGES;
use super::error::CreateError;
use crate::adapter::Adapter;
use crate::completion::CompletionQueue;
use crate::protection_domain::ProtectionDomain;
use crate::shared::Shared;
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::queue::{
    ReceiveRequest, Sge, SharedReceiveQueue as Inner, SrqSize, SrqStatus, XrcDomain as InnerXrc,
};
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock, Weak};

/// A shared receive queue: messages of all queue pairs that are [created with it](crate::queue::QueuePairBuilder::srq)
/// consume its receives. Clones are handles to the same queue.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ironwarp::prelude::*;
/// let adapter = Adapter::new()?;
/// let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
/// let region = domain.register(Buffer::new(8192)?, Access::LOCAL_WRITE)?;
/// let srq = domain.shared_receive_queue(16);
/// srq.post_receive(1, &[region.slice(..4096)?])?;
/// srq.post_receive(2, &[region.slice(4096..8192)?])?;
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

/// An XRC domain: a set of shared receive queues. A peer reaches all of them over one connection, and addresses one of
/// them by number in each message. Clones are handles to the same domain.
///
/// Create the receiving queue pair with [`QueuePairBuilder::xrc_target`](crate::queue::QueuePairBuilder::xrc_target),
/// and the sending one as usual. Both ends must be Ironwarp adapters.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ironwarp::prelude::*;
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
    pub(crate) inner: Arc<InnerXrc>,
    /// The adapter or function whose queues it holds: the first that uses it.
    owner: Arc<OnceLock<Weak<Shared>>>,
}

impl XrcDomain {
    /// Returns whether queues of this adapter or function may be in the domain.
    pub(crate) fn belongs_to(&self, shared: &Arc<Shared>) -> bool {
        std::ptr::eq(self.owner.get_or_init(|| Arc::downgrade(shared)).as_ptr(), Arc::as_ptr(shared))
    }
}

impl SharedReceiveQueue {
    /// Creates a handle to a queue that moved here from another process.
    pub(crate) fn restored(shared: &Arc<Shared>, inner: &Arc<Inner>) -> Self {
        Self { shared: Arc::clone(shared), inner: Arc::clone(inner) }
    }

    /// Returns the number of the queue, as it appears in events. XRC senders address the queue by this number.
    pub fn id(&self) -> u32 {
        self.inner.id()
    }

    /// Posts a receive into the buffers of `list`. Receives are consumed in the order of posting, each by the next
    /// message that arrives at any of the queue pairs.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// let srq = domain.shared_receive_queue(1);
    /// srq.post_receive(1, &[])?;
    /// assert!(srq.post_receive(2, &[]).is_err(), "the depth is one");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the queue is full, or if the list has too many elements.
    pub fn post_receive(&self, id: u64, list: &[Sge]) -> Result<(), PostError> {
        self.inner.post(ReceiveRequest { id, buffers: list.into() })
    }

    /// Requests one [`AsyncEvent::SrqLimitReached`](crate::event::AsyncEvent::SrqLimitReached), which is raised when
    /// fewer than `limit` receives are left. A limit of zero cancels the request.
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

    /// Changes the depth.
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
    ///
    /// # Errors
    /// Fails if more than `depth` receives are posted.
    pub fn resize(&self, depth: usize) -> Result<(), PostError> {
        self.inner.resize(depth)
    }

    /// Returns the current state of the queue.
    pub fn query(&self) -> SrqStatus {
        self.inner.query()
    }
}

// Not derived: omits the state of the adapter, which is long and internal.
impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue").field("id", &self.id()).finish_non_exhaustive()
    }
}

// Not derived: omits the state of the adapter, which is long and internal.
impl fmt::Debug for XrcDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcDomain").finish_non_exhaustive()
    }
}

impl ProtectionDomain {
    /// Creates a shared receive queue for `depth` receives, for queue pairs of this protection domain.
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
    ///
    /// # Panics
    /// Panics if this is a domain of a function that has reached its quota of shared receive queues:
    /// [`try_shared_receive_queue`](Self::try_shared_receive_queue) returns an error instead.
    pub fn shared_receive_queue(&self, depth: usize) -> SharedReceiveQueue {
        self.try_shared_receive_queue(depth).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Creates a shared receive queue, like [`shared_receive_queue`](Self::shared_receive_queue).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # use ironwarp::function::Quotas;
    /// let function = adapter.function(Quotas::default().shared_receive_queues(1))?;
    /// let domain = function.protection_domain();
    /// let only = domain.try_shared_receive_queue(16)?;
    /// assert!(domain.try_shared_receive_queue(16).is_err());
    /// # drop(only);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if this is a domain of a function that has reached its quota of shared receive queues.
    pub fn try_shared_receive_queue(&self, depth: usize) -> Result<SharedReceiveQueue, CreateError> {
        let size = SrqSize { depth, max_sges: DEFAULT_MAX_SGES };
        let inner = self.shared.engine.create_srq(self.domain(), size).map_err(io::Error::from)?;
        Ok(SharedReceiveQueue { shared: Arc::clone(&self.shared), inner })
    }

    /// Creates a shared receive queue for `depth` receives in an XRC domain: peers address it by its number. Its
    /// receives complete on `cq`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let adapter = ironwarp::Adapter::new()?;
    /// let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let srq = domain.xrc_receive_queue(&adapter.xrc_domain(), &cq, 16);
    /// println!("send to the peer: shared receive queue {}", srq.id());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// Panics if the XRC domain or the completion queue belongs to another adapter or function, and if the quota of shared
    /// receive queues is reached: [`try_xrc_receive_queue`](Self::try_xrc_receive_queue) returns an error instead.
    pub fn xrc_receive_queue(
        &self,
        xrc: &XrcDomain,
        cq: &CompletionQueue,
        depth: usize,
    ) -> SharedReceiveQueue {
        self.try_xrc_receive_queue(xrc, cq, depth).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Creates a shared receive queue in an XRC domain, like [`xrc_receive_queue`](Self::xrc_receive_queue).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::function::Quotas;
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let other = adapter.function(Quotas::default())?;
    /// assert!(domain.try_xrc_receive_queue(&adapter.xrc_domain(), &cq, 16).is_ok());
    /// assert!(domain.try_xrc_receive_queue(&other.xrc_domain(), &cq, 16).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the XRC domain or the completion queue belongs to another adapter or function, or if this is a domain of a
    /// function that has reached its quota of shared receive queues.
    pub fn try_xrc_receive_queue(
        &self,
        xrc: &XrcDomain,
        cq: &CompletionQueue,
        depth: usize,
    ) -> Result<SharedReceiveQueue, CreateError> {
        if !xrc.belongs_to(&self.shared) || !Arc::ptr_eq(&cq.shared, &self.shared) {
            return Err(CreateError::OtherAdapter);
        }
        let size = SrqSize { depth, max_sges: DEFAULT_MAX_SGES };
        let inner = self.shared.engine.create_xrc_srq(self.domain(), size, &xrc.inner, &cq.inner);
        Ok(SharedReceiveQueue { shared: Arc::clone(&self.shared), inner: inner.map_err(io::Error::from)? })
    }
}

impl Adapter {
    /// Creates an XRC domain without shared receive queues.
    pub fn xrc_domain(&self) -> XrcDomain {
        let xrc = XrcDomain::default();
        xrc.belongs_to(&self.shared);
        xrc
    }
}
