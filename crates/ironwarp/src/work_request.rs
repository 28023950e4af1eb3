//! Work requests: what a program posts to a send queue. After this: `queue_pair.rs` posts them.

use crate::error::AccessError;
use crate::fast_region::FastRegion;
use crate::name::Name;
use crate::region::MemoryRegion;
use crate::window::{Window, binding};
use ironwarp_rnic::memory::Rights;
use ironwarp_rnic::queue::{Data, Operation, Sge, Sges, WorkRequest as Inner};
use ironwarp_wire::{Place, Tag};
use std::sync::Arc;

/// A request for a send queue. `id` comes back in its completion.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, server) = ironwarp::example::pair()?;
/// # use ironwarp::WorkRequest;
/// let (ours, theirs) = (client.region.slice(0, 64)?, server.region.place(0)?);
/// client.qp.post_send_all(vec![
///     WorkRequest::write(1, &[ours], theirs).unsignaled(),
///     WorkRequest::read(2, &[ours], theirs),
///     WorkRequest::send_inline(3, b"the Read is done").fenced().solicited().into(),
/// ])?;
/// # server.qp.post_receive(4, &[server.region.slice(0, 64)?])?;
/// # let completion = client.cq.wait(std::time::Duration::from_secs(5))?.expect("in time");
/// # assert_eq!(completion.wr_id, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct WorkRequest {
    pub(crate) inner: Inner,
    /// Whose tag it changes.
    pub(crate) names: Option<Arc<Name>>,
}

/// A Send, before it is posted: a work request with more to choose.
#[derive(Clone, Debug)]
pub struct SendRequest {
    request: WorkRequest,
}

impl WorkRequest {
    /// A message for the peer's next receive, from registered memory. An empty list sends an empty message.
    pub fn send(id: u64, list: &[Sge]) -> SendRequest {
        SendRequest::new(id, memory(list))
    }

    /// A message for the peer's next receive, of bytes that are copied now (requirement X5).
    pub fn send_inline(id: u64, bytes: &[u8]) -> SendRequest {
        SendRequest::new(id, Data::Inline(bytes.into()))
    }

    /// Writes registered memory to a place of the peer's (RDMA Write).
    pub fn write(id: u64, list: &[Sge], to: Place) -> Self {
        Self::new(id, Operation::Write(to), memory(list))
    }

    /// Writes bytes that are copied now to a place of the peer's.
    pub fn write_inline(id: u64, bytes: &[u8], to: Place) -> Self {
        Self::new(id, Operation::Write(to), Data::Inline(bytes.into()))
    }

    /// Reads from a place of the peer's into registered memory (RDMA Read).
    pub fn read(id: u64, list: &[Sge], from: Place) -> Self {
        Self::new(id, Operation::Read(from), memory(list))
    }

    /// Binds a window to `len` bytes of a region from `at` on, for the peer of the queue pair it is posted to. What it was
    /// bound to before is closed. `len` 0 only closes it.
    pub fn bind(
        id: u64,
        window: &Window,
        region: &MemoryRegion,
        at: usize,
        len: usize,
        access: Rights,
    ) -> Result<Self, AccessError> {
        let name = &window.registration.name;
        let binding = binding(region, at, len, access)?;
        // The tag is filled in when it is posted.
        let operation = Operation::Bind { window: name.tag(), binding };
        Ok(Self { names: Some(Arc::clone(name)), ..Self::new(id, operation, memory(&[])) })
    }

    /// Registers a region's memory. Only the peer of the queue pair it is posted to can invalidate it.
    pub fn register(id: u64, region: &FastRegion, access: Rights) -> Self {
        let name = &region.registration.name;
        // The tag is filled in when it is posted.
        let operation = Operation::Register { tag: name.next_registration(), memory: region.memory(access) };
        Self { names: Some(Arc::clone(name)), ..Self::new(id, operation, memory(&[])) }
    }

    /// Ends a registration by work request: the tag names nothing until the memory is registered again.
    pub fn invalidate_region(id: u64, region: &FastRegion) -> Self {
        Self::local_invalidate(id, region.tag())
    }

    /// Closes a window until it is bound again.
    pub fn invalidate_window(id: u64, window: &Window) -> Self {
        Self::local_invalidate(id, window.tag())
    }

    /// Ends what a tag of ours names, which must be a [`Window`]'s or a [`FastRegion`]'s.
    pub fn local_invalidate(id: u64, tag: Tag) -> Self {
        Self::new(id, Operation::Invalidate(tag), memory(&[]))
    }

    /// Success is not reported, only failure.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.inner.signaled = false;
        self
    }

    /// Waits until all earlier Reads are done.
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.inner.fence = true;
        self
    }

    /// The identifier that its completion will have.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    fn new(id: u64, operation: Operation, data: Data) -> Self {
        Self { inner: Inner::new(id, operation, data), names: None }
    }
}

impl SendRequest {
    fn new(id: u64, data: Data) -> Self {
        let operation = Operation::Send { invalidate: None };
        Self { request: WorkRequest::new(id, operation, data) }
    }

    /// Wakes the peer's program, if it waits for solicited messages (requirement N8).
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.request.inner.solicited = true;
        self
    }

    /// Ends what this tag of the peer's names, when the message is delivered (requirement M12).
    #[must_use]
    pub fn invalidate(mut self, tag: Tag) -> Self {
        self.request.inner.operation = Operation::Send { invalidate: Some(tag) };
        self
    }

    /// Success is not reported, only failure.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.request = self.request.unsignaled();
        self
    }

    /// Waits until all earlier Reads are done.
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.request = self.request.fenced();
        self
    }
}

impl From<SendRequest> for WorkRequest {
    fn from(send: SendRequest) -> Self {
        send.request
    }
}

fn memory(list: &[Sge]) -> Data {
    Data::Memory(Sges::from(list))
}
