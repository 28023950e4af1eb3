//! Work requests that bind windows, register regions, and invalidate either.

use super::request::{WorkRequest, memory};
use crate::memory::{AccessError, FastRegion, MemoryRegion, PageList, TagSequence, Window};
use ironwarp_rnic::memory::{Binding, Rights, Scope};
use ironwarp_rnic::queue::Operation;
use ironwarp_wire::Tag;
use std::ops::RangeBounds;
use std::sync::Arc;

impl WorkRequest {
    /// Creates a request that binds a window to a range of a region. The peer of the queue pair that the request is
    /// posted to can then access these bytes. The previous binding of the window becomes invalid. With an empty range
    /// the window has no new binding.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// let region = server.domain.register(Buffer::new(64)?, Access::LOCAL_READ | Access::BIND)?;
    /// let window = server.domain.window()?;
    /// server.qp.post_send(WorkRequest::bind(1, &window, &region, ..16, Access::REMOTE_READ)?)?;
    /// server.cq.wait(Duration::from_secs(5))?.success()?;
    /// client.qp.post_send(WorkRequest::read(2, &[client.region.slice(..16)?], window.remote_addr(0)))?;
    /// client.cq.wait(Duration::from_secs(5))?.success()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the range is not completely inside the region.
    pub fn bind(
        id: u64,
        window: &Window,
        region: &MemoryRegion,
        range: impl RangeBounds<usize>,
        access: Rights,
    ) -> Result<Self, AccessError> {
        let one_touch = false;
        Self::new_bind(id, window, region, range, access, one_touch)
    }

    /// Creates a request that binds a window like [`bind`](Self::bind), but for a single message of the peer: the
    /// window is invalidated when the message ends (requirement M10). The peer is not notified; its next access is
    /// refused.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let (client, server) = ironwarp::example::pair()?;
    /// let window = server.domain.window()?;
    /// server.qp.post_send(WorkRequest::bind_once(1, &window, &server.region, ..8, Access::REMOTE_WRITE)?)?;
    /// # server.cq.wait(Duration::from_secs(5))?.success()?;
    /// client.qp.post_send(WorkRequest::write_inline(2, b"once", window.remote_addr(0)))?;
    /// # client.cq.wait(Duration::from_secs(5))?.success()?;
    /// client.qp.post_send(WorkRequest::write_inline(3, b"again", window.remote_addr(0)))?;
    /// # assert!(client.qp.wait_closed(Duration::from_secs(5)));
    /// # assert_eq!(&server.region.to_vec()?[..8], b"once\0\0\0\0");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the range is not completely inside the region.
    pub fn bind_once(
        id: u64,
        window: &Window,
        region: &MemoryRegion,
        range: impl RangeBounds<usize>,
        access: Rights,
    ) -> Result<Self, AccessError> {
        let one_touch = true;
        Self::new_bind(id, window, region, range, access, one_touch)
    }

    /// Creates a request that binds a window, for one message or for many.
    fn new_bind(
        id: u64,
        window: &Window,
        region: &MemoryRegion,
        range: impl RangeBounds<usize>,
        rights: Rights,
        one_touch: bool,
    ) -> Result<Self, AccessError> {
        let (at, len) = region.resolve(range)?;
        let addr = region.remote_addr(at)?;
        let binding = Binding {
            region: addr.tag,
            at: addr.offset,
            len: len as u64,
            rights,
            one_touch,
            zero_based: true,
            scope: Scope::Stream,
        };
        let tags = &window.registration.tags;
        Ok(Self::with_tags(id, Operation::Bind { window: tags.tag(), binding }, tags))
    }

    /// Creates a request that registers a region. Of all peers, only that of the queue pair that the request is posted
    /// to can invalidate the region.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// let region = server.domain.allocate_region(vec![Buffer::new(64)?])?;
    /// server.qp.post_send(WorkRequest::register(1, &region, Access::REMOTE_READ))?;
    /// server.cq.wait(Duration::from_secs(5))?.success()?;
    /// client.qp.post_send(WorkRequest::read(2, &[client.region.slice(..64)?], region.remote_addr(0)?))?;
    /// client.cq.wait(Duration::from_secs(5))?.success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn register(id: u64, region: &FastRegion, access: Rights) -> Self {
        let one_touch = false;
        Self::new_register(id, region, access, one_touch)
    }

    /// Creates a request that registers a region for a single message of a peer. The region is invalidated when the
    /// message ends, and can then be registered again (requirement M10).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let (client, server) = ironwarp::example::pair()?;
    /// let region = server.domain.allocate_region(vec![Buffer::new(8)?])?;
    /// for word in [*b"first   ", *b"second  "] {
    ///     let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    ///     server.qp.post_send(WorkRequest::register_once(1, &region, access))?;
    ///     # server.cq.wait(Duration::from_secs(5))?.success()?;
    ///     # server.qp.post_receive(2, &[])?;
    ///     client.qp.post_send(WorkRequest::write_inline(3, &word, region.remote_addr(0)?))?;
    ///     # client.qp.post_send(WorkRequest::send(4, &[]))?;
    ///     # server.cq.wait(Duration::from_secs(5))?.success()?;
    ///     # assert_eq!(region.to_vec()?, word);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn register_once(id: u64, region: &FastRegion, access: Rights) -> Self {
        let one_touch = true;
        Self::new_register(id, region, access, one_touch)
    }

    /// Creates a request that registers a [list of pages](PageList) with the tag of their region, like
    /// [`register`](Self::register) (requirement M3). To the peer the pages are contiguous, in the order of the list.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::memory::PageSize;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// let region = server.domain.allocate_region([Buffer::new(64 << 10)?])?;
    /// let pages = region.pages(PageSize::KIB_4, [0x8000, 0x3000])?;
    /// let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    /// server.qp.post_send(WorkRequest::register_pages(1, &pages, access))?;
    /// server.cq.wait(Duration::from_secs(5))?.success()?;
    /// client.qp.post_send(WorkRequest::write_inline(2, b"two pages", pages.remote_addr(0xffc)?))?;
    /// # server.qp.post_receive(3, &[])?;
    /// # client.qp.post_send(WorkRequest::send(4, &[]))?;
    /// # server.cq.wait(Duration::from_secs(5))?.success()?;
    /// # let mut found = [0; 9];
    /// # region.read(0x8ffc, &mut found[..4])?;
    /// # region.read(0x3000, &mut found[4..])?;
    /// # assert_eq!(&found, b"two pages");
    /// # Ok(())
    /// # }
    /// ```
    pub fn register_pages(id: u64, pages: &PageList, access: Rights) -> Self {
        let one_touch = false;
        Self::new_register_pages(id, pages, access, one_touch)
    }

    /// Creates a request that registers a list of pages for a single message of a peer, like
    /// [`register_once`](Self::register_once).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::memory::PageSize;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// let region = server.domain.allocate_region([Buffer::new(8192)?])?;
    /// let pages = region.pages(PageSize::KIB_4, [0x1000, 0])?;
    /// let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    /// server.qp.post_send(WorkRequest::register_pages_once(1, &pages, access))?;
    /// # server.cq.wait(Duration::from_secs(5))?.success()?;
    /// client.qp.post_send(WorkRequest::write_inline(2, b"once", pages.remote_addr(0)?))?;
    /// # client.cq.wait(Duration::from_secs(5))?.success()?;
    /// client.qp.post_send(WorkRequest::write_inline(3, b"again", pages.remote_addr(0)?))?;
    /// # assert!(client.qp.wait_closed(Duration::from_secs(5)));
    /// # assert_eq!(&region.to_vec()?[4096..4101], b"once\0");
    /// # Ok(())
    /// # }
    /// ```
    pub fn register_pages_once(id: u64, pages: &PageList, access: Rights) -> Self {
        let one_touch = true;
        Self::new_register_pages(id, pages, access, one_touch)
    }

    /// Creates a request that registers a list of pages, for one message or for many.
    fn new_register_pages(id: u64, pages: &PageList, access: Rights, one_touch: bool) -> Self {
        let (tag, memory) = (pages.tag(), pages.memory(access, one_touch));
        Self::with_tags(id, Operation::Register { tag, memory }, pages.tags())
    }

    /// Creates a request that registers a region, for one message or for many.
    fn new_register(id: u64, region: &FastRegion, access: Rights, one_touch: bool) -> Self {
        let tags = &region.registration.tags;
        let memory = region.memory(access, one_touch);
        Self::with_tags(id, Operation::Register { tag: tags.tag(), memory }, tags)
    }

    /// Creates a request that assigns a new tag. The tag in `operation` is provisional: posting replaces it, because
    /// other requests may be posted first.
    fn with_tags(id: u64, operation: Operation, tags: &Arc<TagSequence>) -> Self {
        Self { tags: Some(Arc::clone(tags)), ..Self::new(id, operation, memory(&[])) }
    }

    /// Creates a request that invalidates a region that was registered by a work request. No request of a peer or of
    /// this program can access the region until it is registered again.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// let region = server.domain.allocate_region(vec![Buffer::new(64)?])?;
    /// server.qp.post_send(WorkRequest::register(1, &region, Access::REMOTE_READ))?;
    /// server.cq.wait(Duration::from_secs(5))?.success()?;
    /// server.qp.post_send(WorkRequest::invalidate_region(2, &region))?;
    /// server.cq.wait(Duration::from_secs(5))?.success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn invalidate_region(id: u64, region: &FastRegion) -> Self {
        Self::local_invalidate(id, region.tag())
    }

    /// Creates a request that invalidates a window: the peer cannot access it until it is bound again.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let region = server.domain.register(Buffer::new(64)?, Access::LOCAL_READ | Access::BIND)?;
    /// # let window = server.domain.window()?;
    /// server.qp.post_send(WorkRequest::bind(1, &window, &region, ..16, Access::REMOTE_READ)?)?;
    /// server.cq.wait(Duration::from_secs(5))?.success()?;
    /// server.qp.post_send(WorkRequest::invalidate_window(2, &window))?;
    /// server.cq.wait(Duration::from_secs(5))?.success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn invalidate_window(id: u64, window: &Window) -> Self {
        Self::local_invalidate(id, window.tag())
    }

    /// Creates a request that invalidates a local tag, which must belong to a [`Window`] or a [`FastRegion`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let region = server.domain.register(Buffer::new(64)?, Access::LOCAL_READ | Access::BIND)?;
    /// # let window = server.domain.window()?;
    /// server.qp.post_send(WorkRequest::bind(1, &window, &region, ..16, Access::REMOTE_READ)?)?;
    /// server.cq.wait(Duration::from_secs(5))?.success()?;
    /// server.qp.post_send(WorkRequest::local_invalidate(2, window.tag()))?;
    /// server.cq.wait(Duration::from_secs(5))?.success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_invalidate(id: u64, tag: Tag) -> Self {
        Self::new(id, Operation::Invalidate(tag), memory(&[]))
    }
}
