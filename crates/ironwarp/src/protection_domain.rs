//! Protection domains: what is registered in one can be reached by its queue pairs alone.

use crate::adapter::Shared;
use crate::completion_queue::CompletionQueue;
use crate::datagram::DatagramQueuePairBuilder;
use crate::fast_region::FastRegion;
use crate::memory::Buffer;
use crate::queue_pair::{QueuePairBuilder, SGES};
use crate::region::MemoryRegion;
use crate::shared_receive_queue::{SharedReceiveQueue, XrcDomain};
use crate::shared_send_queue::SharedSendQueue;
use crate::window::Window;
use ironwarp_rnic::memory::{Domain, RegisterError, Rights};
use std::fmt;
use std::sync::Arc;

/// A protection domain. Clones are handles to the same domain.
#[derive(Clone)]
pub struct ProtectionDomain {
    pub(crate) shared: Arc<Shared>,
    domain: Domain,
}

impl ProtectionDomain {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self { domain: shared.device().allocate_domain(), shared: Arc::clone(shared) }
    }

    /// Its number, as errors name it.
    pub fn id(&self) -> u32 {
        self.domain.0
    }

    /// Registers memory. Peers name its bytes from 0 on.
    ///
    /// ```
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// use ironwarp::{Access, Buffer};
    ///
    /// let region = domain.register(Buffer::new(4096)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// assert_eq!(region.place(100)?.offset, 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn register(&self, buffer: Buffer, access: Rights) -> Result<MemoryRegion, RegisterError> {
        self.register_list(vec![buffer], access)
    }

    /// Registers memory, and has all of its pages made: no message, and no peer, waits for one later. That takes as long as the
    /// kernel needs to clear them, and a [control queue](crate::ControlQueue) does it in the background.
    ///
    /// ```
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::{Access, Buffer};
    /// let region = domain.register_prefaulted(Buffer::new(1 << 20)?, Access::LOCAL_WRITE)?;
    /// assert_eq!(region.len(), 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn register_prefaulted(&self, buffer: Buffer, access: Rights) -> Result<MemoryRegion, RegisterError> {
        MemoryRegion::prefaulted(self, buffer, access)
    }

    /// Registers memory that serves one message of a peer's: when that has ended, its tag names nothing any more. The peer is
    /// not told; what it sends next is refused (requirement M10). The program reads what came, and then
    /// [deregisters](MemoryRegion::deregister) the region or drops it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{Access, Buffer, WorkRequest};
    /// # use std::time::Duration;
    /// # let (client, server) = ironwarp::example::pair()?;
    /// let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    /// let ballot = server.domain.register_once(Buffer::new(3)?, access)?;
    /// # server.qp.post_receive(9, &[])?;
    /// client.qp.post_send(WorkRequest::write_inline(1, b"yes", ballot.place(0)?))?;
    /// # client.qp.post_send(WorkRequest::send(2, &[]))?;
    /// # server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// client.qp.post_send(WorkRequest::write_inline(3, b"no ", ballot.place(0)?))?;
    /// # server.qp.wait_closed(Duration::from_secs(5));
    /// assert_eq!(ballot.to_vec()?, b"yes");
    /// # assert!(matches!(&*server.qp.fault().unwrap(), ironwarp::Fault::Remote(_)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn register_once(&self, buffer: Buffer, access: Rights) -> Result<MemoryRegion, RegisterError> {
        MemoryRegion::once(self, buffer, access)
    }

    /// Registers several buffers as one region, one behind another under one tag (requirement M3).
    ///
    /// ```
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::{Access, Buffer};
    /// let buffers = vec![Buffer::copy_of(b"one, ")?, Buffer::copy_of(b"two")?];
    /// let region = domain.register_list(buffers, Access::LOCAL_READ)?;
    /// assert_eq!(region.to_vec()?, b"one, two");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn register_list(&self, buffers: Vec<Buffer>, access: Rights) -> Result<MemoryRegion, RegisterError> {
        MemoryRegion::owned(self, buffers, access)
    }

    /// Memory to be registered by work requests (requirement M6), when it is wanted and for as long as it is wanted.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::Buffer;
    /// let region = domain.allocate_region(vec![Buffer::new(4096)?, Buffer::new(4096)?])?;
    /// assert_eq!(region.len(), 8192);
    /// # Ok(())
    /// # }
    /// ```
    pub fn allocate_region(&self, buffers: Vec<Buffer>) -> Result<FastRegion, RegisterError> {
        FastRegion::new(&self.shared, self.domain, buffers)
    }

    /// A window, not bound to anything yet.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// let window = domain.window()?;
    /// assert_ne!(window.tag(), window.next_tag());
    /// # Ok(())
    /// # }
    /// ```
    pub fn window(&self) -> Result<Window, RegisterError> {
        Window::new(&self.shared, self.domain)
    }

    /// Builds a queue pair whose completions go to `cq`; [`QueuePairBuilder`] has the rest.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let adapter = ironwarp::Adapter::new()?;
    /// let cq = adapter.completion_queue(64)?;
    /// let qp = adapter.protection_domain().queue_pair(&cq).send_depth(16).create()?;
    /// # let _ = qp;
    /// # Ok(())
    /// # }
    /// ```
    pub fn queue_pair(&self, cq: &CompletionQueue) -> QueuePairBuilder {
        QueuePairBuilder::new(self, cq)
    }

    /// A queue of receives that queue pairs share, for `depth` of them.
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
        SharedReceiveQueue::new(&self.shared, self.domain, (depth, SGES))
    }

    /// A send queue that feeds many queue pairs, for `depth` requests, which complete on `cq` (requirement X7).
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
        SharedSendQueue::new(self, cq, depth)
    }

    /// A queue of receives that peers name by its number (XRC). Its receives complete on `cq`.
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
        SharedReceiveQueue::named(&self.shared, self.domain, (depth, SGES), xrc, cq)
    }

    /// Builds a connectionless queue pair whose completions go to `cq`; [`DatagramQueuePairBuilder`] has the rest.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let adapter = ironwarp::Adapter::new()?;
    /// let cq = adapter.completion_queue(64)?;
    /// let qp = adapter.protection_domain().datagram_queue_pair(&cq).qkey(7).create()?;
    /// assert_eq!(qp.qkey(), 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn datagram_queue_pair(&self, cq: &CompletionQueue) -> DatagramQueuePairBuilder {
        DatagramQueuePairBuilder::new(self, cq)
    }

    pub(crate) fn domain(&self) -> Domain {
        self.domain
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain").field("id", &self.id()).finish_non_exhaustive()
    }
}
