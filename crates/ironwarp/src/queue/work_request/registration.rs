//! Memory windows and registrations by work request.

use super::request::{WorkRequest, memory};
use crate::error::AccessError;
use crate::memory::{FastRegion, MemoryRegion, Window};
use ironwarp_rnic::memory::{Binding, Memory, Rights, Scope};
use ironwarp_rnic::queue::Operation;
use ironwarp_wire::Tag;
use std::sync::Arc;

impl WorkRequest {
    /// Binds a window to `len` bytes of a region at offset `at`, for the peer of the queue pair that the request is
    /// posted to. This invalidates the previous binding. A length of zero only invalidates it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{Access, Buffer, WorkRequest};
    /// # use std::time::Duration;
    /// let region = server.domain.register(Buffer::new(64)?, Access::LOCAL_READ | Access::BIND)?;
    /// let window = server.domain.window()?;
    /// server.qp.post_send(WorkRequest::bind(1, &window, &region, 0, 16, Access::REMOTE_READ)?)?;
    /// server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// client.qp.post_send(WorkRequest::read(2, &[client.region.slice(0, 16)?], window.place(0)))?;
    /// client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn bind(
        id: u64,
        window: &Window,
        region: &MemoryRegion,
        at: usize,
        len: usize,
        access: Rights,
    ) -> Result<Self, AccessError> {
        Ok(Self::binding(id, window, binding(region, at, len, access, false)?))
    }

    /// Binds a window for a single message of the peer: the window closes when the message ends. The peer is not
    /// notified, and its next access is refused (requirement M10).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{Access, WorkRequest};
    /// # use std::time::Duration;
    /// # let (client, server) = ironwarp::example::pair()?;
    /// let window = server.domain.window()?;
    /// server.qp.post_send(WorkRequest::bind_once(1, &window, &server.region, 0, 8, Access::REMOTE_WRITE)?)?;
    /// # server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// client.qp.post_send(WorkRequest::write_inline(2, b"once", window.place(0)))?;
    /// # client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// client.qp.post_send(WorkRequest::write_inline(3, b"again", window.place(0)))?;
    /// # while client.qp.error().is_none() { client.cq.wait(Duration::from_secs(5))?; }
    /// # assert_eq!(&server.region.to_vec()?[..8], b"once\0\0\0\0");
    /// # Ok(())
    /// # }
    /// ```
    pub fn bind_once(
        id: u64,
        window: &Window,
        region: &MemoryRegion,
        at: usize,
        len: usize,
        access: Rights,
    ) -> Result<Self, AccessError> {
        Ok(Self::binding(id, window, binding(region, at, len, access, true)?))
    }

    fn binding(id: u64, window: &Window, binding: Binding) -> Self {
        let tags = &window.registration.tags;
        // The tag is assigned when the request is posted.
        let operation = Operation::Bind { window: tags.tag(), binding };
        Self { tags: Some(Arc::clone(tags)), ..Self::new(id, operation, memory(&[])) }
    }

    /// Registers a region. Only the peer of the queue pair that the request is posted to can invalidate it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{Access, Buffer, WorkRequest};
    /// # use std::time::Duration;
    /// let region = server.domain.allocate_region(vec![Buffer::new(64)?])?;
    /// server.qp.post_send(WorkRequest::register(1, &region, Access::REMOTE_READ))?;
    /// server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// client.qp.post_send(WorkRequest::read(2, &[client.region.slice(0, 64)?], region.place(0)?))?;
    /// client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn register(id: u64, region: &FastRegion, access: Rights) -> Self {
        Self::registering(id, region, region.memory(access, false))
    }

    /// Registers a region for a single message of a peer. When the message ends, the region has to be registered again,
    /// as after an invalidation (requirement M10).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{Access, Buffer, WorkRequest};
    /// # use std::time::Duration;
    /// # let (client, server) = ironwarp::example::pair()?;
    /// let region = server.domain.allocate_region(vec![Buffer::new(8)?])?;
    /// for word in [*b"first   ", *b"second  "] {
    ///     let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    ///     server.qp.post_send(WorkRequest::register_once(1, &region, access))?;
    ///     # server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    ///     # server.qp.post_receive(2, &[])?;
    ///     client.qp.post_send(WorkRequest::write_inline(3, &word, region.place(0)?))?;
    ///     # client.qp.post_send(WorkRequest::send(4, &[]))?;
    ///     # server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    ///     # assert_eq!(region.to_vec()?, word);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn register_once(id: u64, region: &FastRegion, access: Rights) -> Self {
        Self::registering(id, region, region.memory(access, true))
    }

    fn registering(id: u64, region: &FastRegion, memory: Memory) -> Self {
        let tags = &region.registration.tags;
        // The tag is assigned when the request is posted.
        let operation = Operation::Register { tag: tags.next_registration(), memory };
        Self { tags: Some(Arc::clone(tags)), ..Self::new(id, operation, self::memory(&[])) }
    }

    /// Invalidates a region that was registered by a work request. Its tag is invalid until it is registered again.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{Access, Buffer, WorkRequest};
    /// # use std::time::Duration;
    /// let region = server.domain.allocate_region(vec![Buffer::new(64)?])?;
    /// server.qp.post_send(WorkRequest::register(1, &region, Access::REMOTE_READ))?;
    /// server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// server.qp.post_send(WorkRequest::invalidate_region(2, &region))?;
    /// server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn invalidate_region(id: u64, region: &FastRegion) -> Self {
        Self::local_invalidate(id, region.tag())
    }

    /// Closes a window until it is bound again.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{Access, Buffer, WorkRequest};
    /// # use std::time::Duration;
    /// # let region = server.domain.register(Buffer::new(64)?, Access::LOCAL_READ | Access::BIND)?;
    /// # let window = server.domain.window()?;
    /// server.qp.post_send(WorkRequest::bind(1, &window, &region, 0, 16, Access::REMOTE_READ)?)?;
    /// server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// server.qp.post_send(WorkRequest::invalidate_window(2, &window))?;
    /// server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn invalidate_window(id: u64, window: &Window) -> Self {
        Self::local_invalidate(id, window.tag())
    }

    /// Invalidates a local tag, which must belong to a [`Window`] or a [`FastRegion`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{Access, Buffer, WorkRequest};
    /// # use std::time::Duration;
    /// # let region = server.domain.register(Buffer::new(64)?, Access::LOCAL_READ | Access::BIND)?;
    /// # let window = server.domain.window()?;
    /// server.qp.post_send(WorkRequest::bind(1, &window, &region, 0, 16, Access::REMOTE_READ)?)?;
    /// server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// server.qp.post_send(WorkRequest::local_invalidate(2, window.tag()))?;
    /// server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_invalidate(id: u64, tag: Tag) -> Self {
        Self::new(id, Operation::Invalidate(tag), memory(&[]))
    }
}

/// Returns the binding of a window to a part of a region, for one peer.
fn binding(
    region: &MemoryRegion,
    at: usize,
    len: usize,
    rights: Rights,
    one_touch: bool,
) -> Result<Binding, AccessError> {
    region.check(at, len)?;
    let place = region.place(at)?;
    Ok(Binding {
        region: place.tag,
        at: place.offset,
        len: len as u64,
        rights,
        one_touch,
        zero_based: true,
        scope: Scope::Stream,
    })
}
