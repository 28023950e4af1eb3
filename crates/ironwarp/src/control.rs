//! Control queues (requirement X6): a thread in the background executes registrations and other control operations that
//! the program posts.

use crate::adapter::Adapter;
use crate::completion::CompletionQueue;
use crate::memory::{Buffer, Contents, MemoryRegion};
use crate::protection_domain::ProtectionDomain;
use crate::queue::{CreateError, QueuePair, QueuePairBuilder};
use crate::shared::Shared;
use ironwarp_engine::{ControlAction, ControlQueue as Inner, FailureCause, Prepared};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::error::{PostError, QpError};
use ironwarp_rnic::memory::{RegisterError, Rights};
use ironwarp_rnic::queue::Opcode;
use ironwarp_rnic::sync::lock;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

/// Reasons why an operation was not posted to a control queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The protection domain belongs to another adapter than the control queue.
    #[error("the protection domain and the control queue belong to different adapters")]
    OtherAdapter,
    /// The operation cannot be posted: the control queue is full.
    #[error(transparent)]
    Post(#[from] PostError),
    /// No tag is available, or the memory cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// A control queue executes operations that take long, such as registrations, in the background: on a thread of its
/// own, in the order of posting. Each operation ends with a completion, whose [`qp`](crate::completion::Completion::qp)
/// is the number of the control queue. A failed operation does not stop later ones.
///
/// A region that is registered in this way has its tag at once, and requests may use the tag before the region is
/// registered. Such a request waits until the registration completes, and so do later requests of its queue pair; other
/// queue pairs are not affected. If the registration fails, the request fails. Requests of a peer do not wait: send a
/// peer the address of the region after the completion.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, server) = ironwarp::example::pair()?;
/// # use ironwarp::prelude::*;
/// # use std::time::Duration;
/// let control = client.adapter.control_queue(&client.cq, 16)?;
/// let region = control.register_prefaulted(1, &client.domain, Buffer::new(64 << 20)?, Access::LOCAL_READ)?;
/// // The request may be posted before its memory is registered. It waits for the registration.
/// client.qp.post_send(WorkRequest::write(2, &[region.slice(..4096)?], server.region.remote_addr(0)?))?;
///
/// // Both complete, in either order.
/// for _ in 0..2 {
///     let done = client.cq.wait(Duration::from_secs(5))?.success()?;
///     assert_eq!(done.qp, if done.wr_id == 1 { control.id() } else { client.qp.id() });
/// }
/// # Ok(())
/// # }
/// ```
///
/// Dropping a control queue waits until all posted operations have completed.
pub struct ControlQueue {
    inner: Inner,
    shared: Arc<Shared>,
}

/// The object that a posted operation of a control queue creates, available when the operation has completed.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let adapter = ironwarp::Adapter::new()?;
/// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
/// let control = adapter.control_queue(&cq, 16)?;
/// let pending = control.create_queue_pair(1, domain.queue_pair(&cq))?;
/// cq.wait(std::time::Duration::from_secs(5))?.success()?;
/// let qp = pending.take().expect("completed")?;
/// # let _ = qp;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Pending<T>(Arc<Mutex<Option<T>>>);

impl<T> Pending<T> {
    /// Takes the result. Returns `None` if the operation has not completed, or if the result was taken before.
    pub fn take(&self) -> Option<T> {
        lock(&self.0).take()
    }
}

impl ControlQueue {
    /// Returns the number of the queue, as it appears in completions.
    pub fn id(&self) -> u32 {
        self.inner.id()
    }

    /// Returns the maximum number of operations that are posted and not completed.
    pub fn depth(&self) -> usize {
        self.inner.depth()
    }

    /// Posts the registration of a buffer, like [`ProtectionDomain::register`], and returns the region. The completion
    /// carries `id`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # use ironwarp::prelude::*;
    /// let control = adapter.control_queue(&cq, 16)?;
    /// let region = control.register(1, &domain, Buffer::new(4096)?, Access::LOCAL_READ)?;
    /// cq.wait(std::time::Duration::from_secs(5))?.success()?;
    /// assert!(!region.is_pending());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the control queue is full, if the protection domain belongs to another adapter, or if the buffer is
    /// empty or no tag is available. Other failures are reported by the completion.
    pub fn register(
        &self,
        id: u64,
        domain: &ProtectionDomain,
        buffer: Buffer,
        access: Rights,
    ) -> Result<MemoryRegion, ControlError> {
        let prefaulted = false;
        self.post_registration(id, domain, buffer, access, prefaulted)
    }

    /// Posts a registration that allocates all pages of the buffer, like [`ProtectionDomain::register_prefaulted`], and
    /// returns the region. The completion carries `id`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # use ironwarp::prelude::*;
    /// let control = adapter.control_queue(&cq, 16)?;
    /// let region = control.register_prefaulted(1, &domain, Buffer::new(1 << 20)?, Access::LOCAL_READ)?;
    /// assert_eq!(region.slice(..64)?.tag, region.tag());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails like [`register`](Self::register).
    pub fn register_prefaulted(
        &self,
        id: u64,
        domain: &ProtectionDomain,
        buffer: Buffer,
        access: Rights,
    ) -> Result<MemoryRegion, ControlError> {
        let prefaulted = true;
        self.post_registration(id, domain, buffer, access, prefaulted)
    }

    /// Posts a registration. The returned region has a tag, which becomes valid when the operation is executed.
    fn post_registration(
        &self,
        id: u64,
        domain: &ProtectionDomain,
        buffer: Buffer,
        access: Rights,
        prefaulted: bool,
    ) -> Result<MemoryRegion, ControlError> {
        if !Arc::ptr_eq(&domain.shared, &self.shared) {
            return Err(ControlError::OtherAdapter);
        }
        let device = Arc::clone(self.shared.device());
        self.inner.post(id, Opcode::Register, || {
            let contents = Contents::owned(&self.shared, vec![buffer]).map_err(RegisterError::from)?;
            let memory = contents.memory(0, access);
            let reserve_tag = |device: &Device, domain, _| device.table().begin_registration(domain);
            let region = MemoryRegion::create(domain, contents, 0, access, reserve_tag)?;
            let (tag, domain) = (region.tag(), domain.domain());
            let action = move || {
                let registered = device.finish_registration(domain, tag, memory, prefaulted);
                registered.map_err(|error| Some(Arc::new(QpError::Register { tag, error })))
            };
            Ok(Prepared { returned: region, action: ControlAction::new(action) })
        })
    }

    /// Posts the deregistration of a region. The completion carries `id`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # use ironwarp::completion::Opcode;
    /// # use ironwarp::prelude::*;
    /// let control = adapter.control_queue(&cq, 16)?;
    /// let region = domain.register(Buffer::new(4096)?, Access::LOCAL_READ)?;
    /// control.deregister(1, region)?;
    /// let deregistered = cq.wait(std::time::Duration::from_secs(5))?.success()?;
    /// assert_eq!(deregistered.opcode, Opcode::Deregister);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the control queue is full. The region is then dropped, and thereby deregistered, by this call.
    pub fn deregister(&self, id: u64, region: MemoryRegion) -> Result<(), ControlError> {
        self.post_drop(id, Opcode::Deregister, region)
    }

    /// Posts the creation of a queue pair, like [`QueuePairBuilder::create`]. The completion carries `id`; after it,
    /// the returned value has the queue pair.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let control = adapter.control_queue(&cq, 16)?;
    /// let pending = control.create_queue_pair(1, domain.queue_pair(&cq).send_depth(16))?;
    /// cq.wait(std::time::Duration::from_secs(5))?.success()?;
    /// assert_eq!(pending.take().expect("completed")?.query().send_depth, 16);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the control queue is full.
    pub fn create_queue_pair(
        &self,
        id: u64,
        builder: QueuePairBuilder,
    ) -> Result<Pending<Result<QueuePair, CreateError>>, ControlError> {
        self.post_create(id, Opcode::CreateQueuePair, move || builder.create())
    }

    /// Posts the destruction of a queue pair. The completion carries `id`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// let cq = client.adapter.completion_queue(16)?;
    /// let control = client.adapter.control_queue(&cq, 16)?;
    /// control.destroy_queue_pair(1, client.qp)?;
    /// cq.wait(std::time::Duration::from_secs(5))?.success()?;
    /// assert!(server.qp.wait_closed(std::time::Duration::from_secs(5)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the control queue is full. The queue pair is then dropped by this call.
    pub fn destroy_queue_pair(&self, id: u64, qp: QueuePair) -> Result<(), ControlError> {
        self.post_drop(id, Opcode::DestroyQueuePair, qp)
    }

    /// Posts the creation of a completion queue, like [`Adapter::completion_queue`]. The completion carries `id`; after
    /// it, the returned value has the completion queue.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let cq = adapter.completion_queue(64)?;
    /// let control = adapter.control_queue(&cq, 16)?;
    /// let pending = control.create_completion_queue(1, 256)?;
    /// cq.wait(std::time::Duration::from_secs(5))?.success()?;
    /// assert_eq!(pending.take().expect("completed")?.capacity(), 256);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the control queue is full.
    pub fn create_completion_queue(
        &self,
        id: u64,
        capacity: usize,
    ) -> Result<Pending<io::Result<CompletionQueue>>, ControlError> {
        let shared = Arc::clone(&self.shared);
        let create = move || CompletionQueue::new(&shared, capacity, None);
        self.post_create(id, Opcode::CreateCompletionQueue, create)
    }

    /// Posts the destruction of a completion queue. The completion carries `id`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let cq = adapter.completion_queue(64)?;
    /// let control = adapter.control_queue(&cq, 16)?;
    /// control.destroy_completion_queue(1, adapter.completion_queue(16)?)?;
    /// cq.wait(std::time::Duration::from_secs(5))?.success()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the control queue is full. The handle `cq` is then dropped by this call.
    pub fn destroy_completion_queue(&self, id: u64, cq: CompletionQueue) -> Result<(), ControlError> {
        self.post_drop(id, Opcode::DestroyCompletionQueue, cq)
    }

    /// Posts an operation that creates an object. The returned value has the object, or the error, after the
    /// completion.
    fn post_create<T: Send + 'static, E: Send + 'static>(
        &self,
        id: u64,
        opcode: Opcode,
        create: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<Pending<Result<T, E>>, ControlError> {
        let slot = Arc::new(Mutex::new(None));
        let pending = Pending(Arc::clone(&slot));
        self.post(id, opcode, move || {
            let created = create();
            // The completion reports a failure without a cause: the error itself is in the slot.
            let result = if created.is_ok() { Ok(()) } else { Err(None) };
            *lock(&slot) = Some(created);
            result
        })?;
        Ok(pending)
    }

    /// Posts an operation that drops an object.
    fn post_drop<T: Send + 'static>(&self, id: u64, opcode: Opcode, object: T) -> Result<(), ControlError> {
        self.post(id, opcode, move || {
            drop(object);
            Ok(())
        })
    }

    /// Posts an operation. If the control queue is full, `action` is dropped and not executed.
    fn post(
        &self,
        id: u64,
        opcode: Opcode,
        action: impl FnOnce() -> Result<(), FailureCause> + Send + 'static,
    ) -> Result<(), ControlError> {
        let prepared = Prepared { returned: (), action: ControlAction::new(action) };
        Ok(self.inner.post(id, opcode, || Ok::<_, PostError>(prepared))?)
    }
}

// Not derived: omits the state of the adapter, which is long and internal.
impl fmt::Debug for ControlQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlQueue").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl Adapter {
    /// Creates a control queue for `depth` outstanding operations, which complete on `cq` (requirement X6).
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let cq = adapter.completion_queue(64)?;
    /// let control = adapter.control_queue(&cq, 16)?;
    /// assert_eq!(control.depth(), 16);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails if `cq` belongs to another adapter, or if the thread of the control queue cannot be started.
    pub fn control_queue(&self, cq: &CompletionQueue, depth: usize) -> Result<ControlQueue, CreateError> {
        if !Arc::ptr_eq(&cq.shared, &self.shared) {
            return Err(CreateError::OtherAdapter);
        }
        let inner = self.shared.engine.create_control_queue(depth, &cq.inner)?;
        Ok(ControlQueue { inner, shared: Arc::clone(&self.shared) })
    }
}
