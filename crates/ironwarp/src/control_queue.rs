//! Control queues (requirement X6): registrations and other control operations that are posted, and done in the background.
//! Before this: a protection domain, buffers, builders; after: completions, and requests that may be posted at once.

use crate::adapter::{Shared, lock};
use crate::completion_queue::CompletionQueue;
use crate::error::{ControlError, CreateError};
use crate::memory::{Buffer, Contents};
use crate::protection_domain::ProtectionDomain;
use crate::queue_pair::{QueuePair, QueuePairBuilder};
use crate::region::MemoryRegion;
use ironwarp_engine::control::{ControlQueue as Inner, Failed};
use ironwarp_rnic::error::{Fault, PostError};
use ironwarp_rnic::memory::{RegisterError, Rights};
use ironwarp_rnic::queue::Opcode;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

/// A control queue: what is posted to it is done in order, one after another, by a thread of its own. Each operation ends with a
/// completion; one that fails does not hold up those behind it.
///
/// Registered memory has its tag at once, and requests may name it at once. One that comes too early waits until its
/// registration is done, and so do those behind it on its queue pair; no other queue pair notices. If the registration fails,
/// so does the request. A peer does not wait: tell it of the memory when the completion has come.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, server) = ironwarp::example::pair()?;
/// # use ironwarp::{Access, Buffer, WorkRequest};
/// # use std::time::Duration;
/// let control = client.adapter.control_queue(&client.cq, 16)?;
/// let region = control.register_prefaulted(1, &client.domain, Buffer::new(64 << 20)?, Access::LOCAL_READ)?;
/// // Posted before its memory is registered: nobody waits for that but the request itself.
/// client.qp.post_send(WorkRequest::write(2, &[region.slice(0, 4096)?], server.region.place(0)?))?;
///
/// // Both complete; which of the two completions comes first is not said.
/// for _ in 0..2 {
///     let done = client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
///     assert_eq!(done.qp, if done.wr_id == 1 { control.id() } else { client.qp.id() });
/// }
/// # Ok(())
/// # }
/// ```
///
/// Dropped, it does what was posted, and waits for that.
pub struct ControlQueue {
    inner: Inner,
    shared: Arc<Shared>,
}

/// What an operation of a control queue makes; it is there when the operation has completed.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let adapter = ironwarp::Adapter::new()?;
/// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
/// let control = adapter.control_queue(&cq, 16)?;
/// let pending = control.create_queue_pair(1, domain.queue_pair(&cq))?;
/// cq.wait(std::time::Duration::from_secs(5))?.expect("in time").success()?;
/// let qp = pending.take().expect("it has completed")?;
/// # let _ = qp;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Pending<T>(Arc<Mutex<Option<T>>>);

impl<T> Pending<T> {
    /// What was made, once.
    pub fn take(&self) -> Option<T> {
        lock(&self.0).take()
    }
}

type Act = Box<dyn FnOnce() -> Result<(), Failed> + Send>;

impl ControlQueue {
    pub(crate) fn new(shared: &Arc<Shared>, cq: &CompletionQueue, depth: usize) -> Result<Self, CreateError> {
        if !Arc::ptr_eq(&cq.shared, shared) {
            return Err(CreateError::OtherAdapter);
        }
        let inner = shared.engine.create_control_queue(depth, &cq.inner)?;
        Ok(Self { inner, shared: Arc::clone(shared) })
    }

    /// Its number, as completions name it.
    pub fn id(&self) -> u32 {
        self.inner.id()
    }

    /// How many operations it holds.
    pub fn depth(&self) -> usize {
        self.inner.depth()
    }

    /// Registers memory, as [`ProtectionDomain::register`] does.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # use ironwarp::{Access, Buffer};
    /// let control = adapter.control_queue(&cq, 16)?;
    /// let region = control.register(1, &domain, Buffer::new(4096)?, Access::LOCAL_READ)?;
    /// cq.wait(std::time::Duration::from_secs(5))?.expect("in time").success()?;
    /// assert!(!region.is_pending());
    /// # Ok(())
    /// # }
    /// ```
    pub fn register(
        &self,
        id: u64,
        domain: &ProtectionDomain,
        buffer: Buffer,
        access: Rights,
    ) -> Result<MemoryRegion, ControlError> {
        self.post_registration(id, domain, buffer, access, false)
    }

    /// The same, and all pages of the memory are made, as [`ProtectionDomain::register_prefaulted`] does.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # use ironwarp::{Access, Buffer};
    /// let control = adapter.control_queue(&cq, 16)?;
    /// let region = control.register_prefaulted(1, &domain, Buffer::new(1 << 20)?, Access::LOCAL_READ)?;
    /// assert_eq!(region.slice(0, 64)?.tag, region.tag());
    /// # Ok(())
    /// # }
    /// ```
    pub fn register_prefaulted(
        &self,
        id: u64,
        domain: &ProtectionDomain,
        buffer: Buffer,
        access: Rights,
    ) -> Result<MemoryRegion, ControlError> {
        self.post_registration(id, domain, buffer, access, true)
    }

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
        self.inner.post((id, Opcode::Register), || {
            let contents = Contents::owned(&device, vec![buffer]).map_err(RegisterError::from)?;
            let memory = contents.memory(0, access);
            let region = MemoryRegion::begin(domain, contents, access)?;
            let (tag, domain) = (region.tag(), domain.domain());
            let act = move || {
                let done = device.finish_registration(domain, tag, memory, prefaulted);
                done.map_err(|error| Some(Arc::new(Fault::Register { tag, error })))
            };
            Ok((region, Box::new(act) as Act))
        })
    }

    /// Deregisters memory, as dropping it does. If the queue is full, that is done at once.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # use ironwarp::{Access, Buffer, Opcode};
    /// let control = adapter.control_queue(&cq, 16)?;
    /// let region = domain.register(Buffer::new(4096)?, Access::LOCAL_READ)?;
    /// control.deregister(1, region)?;
    /// let gone = cq.wait(std::time::Duration::from_secs(5))?.expect("in time").success()?;
    /// assert_eq!(gone.opcode, Opcode::Deregister);
    /// # Ok(())
    /// # }
    /// ```
    pub fn deregister(&self, id: u64, region: MemoryRegion) -> Result<(), ControlError> {
        self.post_drop((id, Opcode::Deregister), region)
    }

    /// Creates a queue pair, as [`QueuePairBuilder::create`] does.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let control = adapter.control_queue(&cq, 16)?;
    /// let pending = control.create_queue_pair(1, domain.queue_pair(&cq).send_depth(16))?;
    /// cq.wait(std::time::Duration::from_secs(5))?.expect("in time").success()?;
    /// assert_eq!(pending.take().expect("it has completed")?.query().send_depth, 16);
    /// # Ok(())
    /// # }
    /// ```
    pub fn create_queue_pair(
        &self,
        id: u64,
        builder: QueuePairBuilder,
    ) -> Result<Pending<Result<QueuePair, CreateError>>, ControlError> {
        self.post_make((id, Opcode::CreateQueuePair), move || builder.create())
    }

    /// Destroys a queue pair, as dropping it does. If the queue is full, that is done at once.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// let cq = client.adapter.completion_queue(16)?;
    /// let control = client.adapter.control_queue(&cq, 16)?;
    /// control.destroy_queue_pair(1, client.qp)?;
    /// cq.wait(std::time::Duration::from_secs(5))?.expect("in time").success()?;
    /// assert!(server.qp.wait_closed(std::time::Duration::from_secs(5)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn destroy_queue_pair(&self, id: u64, qp: QueuePair) -> Result<(), ControlError> {
        self.post_drop((id, Opcode::DestroyQueuePair), qp)
    }

    /// Creates a completion queue, as [`Adapter::completion_queue`](crate::Adapter::completion_queue) does.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let cq = adapter.completion_queue(64)?;
    /// let control = adapter.control_queue(&cq, 16)?;
    /// let pending = control.create_completion_queue(1, 256)?;
    /// cq.wait(std::time::Duration::from_secs(5))?.expect("in time").success()?;
    /// assert_eq!(pending.take().expect("it has completed")?.capacity(), 256);
    /// # Ok(())
    /// # }
    /// ```
    pub fn create_completion_queue(
        &self,
        id: u64,
        capacity: usize,
    ) -> Result<Pending<io::Result<CompletionQueue>>, ControlError> {
        let shared = Arc::clone(&self.shared);
        let make = move || CompletionQueue::new(&shared, capacity, None);
        self.post_make((id, Opcode::CreateCompletionQueue), make)
    }

    /// Destroys a completion queue, as dropping it does. If the queue is full, that is done at once.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let cq = adapter.completion_queue(64)?;
    /// let control = adapter.control_queue(&cq, 16)?;
    /// control.destroy_completion_queue(1, adapter.completion_queue(16)?)?;
    /// cq.wait(std::time::Duration::from_secs(5))?.expect("in time").success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn destroy_completion_queue(&self, id: u64, cq: CompletionQueue) -> Result<(), ControlError> {
        self.post_drop((id, Opcode::DestroyCompletionQueue), cq)
    }

    fn post_make<T: Send + 'static, E: Send + 'static>(
        &self,
        named: (u64, Opcode),
        make: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<Pending<Result<T, E>>, ControlError> {
        let made = Arc::new(Mutex::new(None));
        let there = Arc::clone(&made);
        let act = move || {
            let made = make();
            let failed = made.is_err();
            *lock(&there) = Some(made);
            if failed { Err(None) } else { Ok(()) }
        };
        Ok(self.inner.post(named, || Ok::<_, PostError>((Pending(made), Box::new(act) as Act)))?)
    }

    fn post_drop<T: Send + 'static>(&self, named: (u64, Opcode), object: T) -> Result<(), ControlError> {
        let act = move || {
            drop(object);
            Ok(())
        };
        Ok(self.inner.post(named, || Ok::<_, PostError>(((), Box::new(act) as Act)))?)
    }
}

impl fmt::Debug for ControlQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlQueue").field("id", &self.id()).finish_non_exhaustive()
    }
}
