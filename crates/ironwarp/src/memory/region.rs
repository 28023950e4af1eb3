//! Memory regions: registered memory.

use super::buffer::Buffer;
use super::contents::{Contents, remote_addr, slice};
use super::error::AccessError;
use super::registration::Registration;
use crate::protection_domain::ProtectionDomain;
use crate::shared::Shared;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::memory::{DeregisterError, Domain, EntryInfo, Memory, RegisterError, Rights};
use ironwarp_rnic::queue::Sge;
use ironwarp_wire::{RemoteAddr, Tag};
use std::fmt;
use std::ops::{Deref, RangeBounds};
use std::sync::Arc;

/// A memory region: registered memory. Dropping a region deregisters its memory: no peer can access the memory any
/// more, and it is freed, unless the program owns it.
///
/// A `MemoryRegion` dereferences to its [`Contents`], which programs read and write.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, server) = ironwarp::example::pair()?;
/// # use ironwarp::prelude::*;
/// # use std::time::Duration;
/// client.region.write(0, b"hello")?;
/// let (ours, theirs) = (client.region.slice(..5)?, server.region.remote_addr(100)?);
/// client.qp.post_send(WorkRequest::write(1, &[ours], theirs))?;
/// # client.qp.post_send(WorkRequest::read(2, &[client.region.slice(8..13)?], theirs))?;
/// # client.cq.wait(Duration::from_secs(5))?.success()?;
/// # client.cq.wait(Duration::from_secs(5))?.success()?;
/// # let mut five = [0; 5];
/// # server.region.read(100, &mut five)?;
/// # assert_eq!(&five, b"hello");
/// # Ok(())
/// # }
/// ```
///
/// If windows are bound to a region when it is dropped, the region is deregistered together with the last of them.
#[must_use = "dropping a region deregisters it"]
pub struct MemoryRegion {
    pub(crate) contents: Arc<Contents>,
    pub(crate) registration: Registration,
    /// The protection domain.
    pub(crate) domain: Domain,
    pub(crate) tag: Tag,
    /// Remote address of the first byte: zero, or the virtual address if the program owns the memory.
    pub(crate) start: u64,
    /// The access rights.
    pub(crate) access: Rights,
}

impl MemoryRegion {
    /// Creates a region. `register` must allocate a table entry for its memory, and return the tag.
    pub(crate) fn create(
        domain: &ProtectionDomain,
        contents: Arc<Contents>,
        start: u64,
        access: Rights,
        register: impl FnOnce(&Device, Domain, Memory) -> Result<Tag, RegisterError>,
    ) -> Result<Self, RegisterError> {
        let tag = register(domain.shared.device(), domain.domain(), contents.memory(start, access))?;
        Ok(Self::with_tag(&domain.shared, domain.domain(), contents, tag, start, access))
    }

    /// Creates a region that owns the table entry with this tag.
    fn with_tag(
        shared: &Arc<Shared>,
        domain: Domain,
        contents: Arc<Contents>,
        tag: Tag,
        start: u64,
        access: Rights,
    ) -> Self {
        let registration = Registration::new(shared, tag);
        Self { contents, registration, domain, tag, start, access }
    }

    /// Returns a handle to the region after it has moved to a domain of another function.
    pub(crate) fn moved_to(self, domain: &ProtectionDomain) -> Self {
        let Self { contents, registration, tag, start, access, .. } = self;
        registration.forget();
        contents.list_in(&domain.shared);
        Self::with_tag(&domain.shared, domain.domain(), contents, tag, start, access)
    }

    /// Creates a handle to a region that moved here from another process.
    pub(crate) fn restored(shared: &Arc<Shared>, contents: Arc<Contents>, info: &EntryInfo) -> Self {
        Self::with_tag(shared, info.domain, contents, info.tag, info.start, info.rights)
    }

    /// Registers the same memory again, as another region with its own tag and access rights (requirement M5). The two
    /// regions are independent; the memory is freed when both are dropped.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::prelude::*;
    /// let region = domain.register(Buffer::new(64)?, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
    /// let for_peers = region.share(Access::REMOTE_READ)?;
    /// region.write(0, b"hello")?;
    /// assert_eq!(&for_peers.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if `access` allows remote writes or atomics without local writes, if this region is not valid any more, or
    /// if the maximum number of regions and windows is reached ([`Limits::tags`](crate::Limits::tags)).
    pub fn share(&self, access: Rights) -> Result<Self, RegisterError> {
        let shared = &self.registration.shared;
        let tag = shared.device().table().share(self.tag, self.domain, self.start, access)?;
        Ok(Self::with_tag(shared, self.domain, Arc::clone(&self.contents), tag, self.start, access))
    }

    /// Returns the tag that identifies the region, locally and at peers.
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// Returns the access rights.
    pub fn access(&self) -> Rights {
        self.access
    }

    /// Returns whether the region was posted to a [control queue](crate::control::ControlQueue), and is not registered
    /// yet. Requests that use the region wait until it is.
    pub fn is_pending(&self) -> bool {
        self.registration.shared.device().table().is_pending(self.tag)
    }

    /// Returns a scatter/gather element for a range of bytes.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::memory::AccessError;
    /// # use ironwarp::prelude::*;
    /// let region = domain.register(Buffer::new(64)?, Access::LOCAL_READ)?;
    /// assert_eq!(region.slice(8..)?.len, 56);
    /// assert_eq!(region.slice(8..65), Err(AccessError::OutOfBounds { at: 8, len: 57, size: 64 }));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the range is not completely inside the region, or longer than 4 GiB.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Sge, AccessError> {
        slice(self, self.tag, self.start, range)
    }

    /// Returns the remote address of offset `at`, to be sent to a peer that writes or reads there.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::prelude::*;
    /// let region = domain.register(Buffer::new(64)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// let addr = region.remote_addr(8)?;
    /// let for_the_peer = addr.to_bytes();
    /// assert_eq!(ironwarp::memory::RemoteAddr::from_bytes(&for_the_peer), Some(addr));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the offset is outside of the region.
    pub fn remote_addr(&self, at: usize) -> Result<RemoteAddr, AccessError> {
        remote_addr(self, self.tag, self.start, at)
    }

    /// Deregisters the region, as dropping it does, and reports whether that succeeded.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # let region = domain.register(ironwarp::memory::Buffer::new(64)?, ironwarp::memory::Access::LOCAL_READ)?;
    /// region.deregister()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if windows are bound to the region. The region is then deregistered together with the last of them.
    pub fn deregister(self) -> Result<(), DeregisterError> {
        self.registration.deregister(self.tag)
    }
}

// Not derived: omits the state of the adapter, which is long and internal.
impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("tag", &self.tag)
            .field("len", &self.len())
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

impl Deref for MemoryRegion {
    type Target = Contents;

    fn deref(&self) -> &Contents {
        &self.contents
    }
}

impl ProtectionDomain {
    /// Registers a buffer with these access rights. Remote addresses in the region start at 0.
    ///
    /// ```
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// use ironwarp::prelude::*;
    ///
    /// let region = domain.register(Buffer::new(4096)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// assert_eq!(region.remote_addr(100)?.offset, 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the buffer is empty, if `access` allows remote writes or atomics without local writes, or if the
    /// maximum number of regions and windows is reached ([`Limits::tags`](crate::Limits::tags)).
    pub fn register(&self, buffer: Buffer, access: Rights) -> Result<MemoryRegion, RegisterError> {
        self.register_list([buffer], access)
    }

    /// Registers several buffers, one after the other, as one contiguous region with one tag (requirement M3).
    ///
    /// ```
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::prelude::*;
    /// let buffers = [Buffer::copy_of(b"one, ")?, Buffer::copy_of(b"two")?];
    /// let region = domain.register_list(buffers, Access::LOCAL_READ)?;
    /// assert_eq!(region.to_vec()?, b"one, two");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails like [`register`](Self::register).
    pub fn register_list(
        &self,
        buffers: impl IntoIterator<Item = Buffer>,
        access: Rights,
    ) -> Result<MemoryRegion, RegisterError> {
        let contents = Contents::owned(&self.shared, buffers)?;
        MemoryRegion::create(self, contents, 0, access, Device::register)
    }

    /// Registers a buffer and allocates all of its pages, so that no message waits for a page fault later. The call
    /// takes as long as the kernel needs to clear the pages; a [control
    /// queue](crate::control::ControlQueue::register_prefaulted) does the same in the background.
    ///
    /// ```
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::prelude::*;
    /// let region = domain.register_prefaulted(Buffer::new(1 << 20)?, Access::LOCAL_WRITE)?;
    /// assert_eq!(region.len(), 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails like [`register`](Self::register).
    pub fn register_prefaulted(&self, buffer: Buffer, access: Rights) -> Result<MemoryRegion, RegisterError> {
        let contents = Contents::owned(&self.shared, [buffer])?;
        MemoryRegion::create(self, contents, 0, access, Device::register_prefaulted)
    }

    /// Registers a buffer for a single message of a peer: the tag becomes invalid when the message ends (requirement
    /// M10). The peer is not notified; its next access is refused. After the message, the program reads the data, and
    /// [deregisters](MemoryRegion::deregister) or drops the region.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let (client, server) = ironwarp::example::pair()?;
    /// let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    /// let ballot = server.domain.register_once(Buffer::new(3)?, access)?;
    /// # server.qp.post_receive(9, &[])?;
    /// client.qp.post_send(WorkRequest::write_inline(1, b"yes", ballot.remote_addr(0)?))?;
    /// # client.qp.post_send(WorkRequest::send(2, &[]))?;
    /// # server.cq.wait(Duration::from_secs(5))?.success()?;
    /// client.qp.post_send(WorkRequest::write_inline(3, b"no ", ballot.remote_addr(0)?))?;
    /// # server.qp.wait_closed(Duration::from_secs(5));
    /// assert_eq!(ballot.to_vec()?, b"yes");
    /// # assert!(matches!(server.qp.error().unwrap(), ironwarp::queue::QpError::Remote(_)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails like [`register`](Self::register), and if `access` allows to bind windows.
    pub fn register_once(&self, buffer: Buffer, access: Rights) -> Result<MemoryRegion, RegisterError> {
        let contents = Contents::owned(&self.shared, [buffer])?;
        MemoryRegion::create(self, contents, 0, access, |device, domain, memory| {
            device.register(domain, Memory { one_touch: true, ..memory })
        })
    }
}
