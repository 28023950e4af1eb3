//! Regions: memory with a tag, and how that ends. Before this: `memory.rs`, the bytes; after: work requests and messages to
//! the peer, which name parts of it.

use crate::adapter::Shared;
use crate::attic::Retired;
use crate::error::AccessError;
use crate::memory::{Buffer, Contents};
use crate::name::Name;
use crate::protection_domain::ProtectionDomain;
use ironwarp_rnic::memory::{DeregisterError, Domain, Memory, RegisterError, Rights};
use ironwarp_rnic::queue::Sge;
use ironwarp_wire::{Place, Tag};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Registered memory. Dropped, it is deregistered: when that returns, no peer touches the memory any more, and it is freed.
///
/// It reads and writes like its [`Contents`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, server) = ironwarp::example::pair()?;
/// # use ironwarp::{WorkRequest};
/// # use std::time::Duration;
/// client.region.write(0, b"hello")?;
/// let (here, there) = (client.region.slice(0, 5)?, server.region.place(100)?);
/// client.qp.post_send(WorkRequest::write(1, &[here], there))?;
/// # client.qp.post_send(WorkRequest::read(2, &[client.region.slice(8, 5)?], there))?;
/// # client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
/// # client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
/// # let mut five = [0; 5];
/// # server.region.read(100, &mut five)?;
/// # assert_eq!(&five, b"hello");
/// # Ok(())
/// # }
/// ```
///
/// While windows are bound to it, it cannot go: then it goes with the last of them.
#[must_use = "dropped, it is deregistered"]
pub struct MemoryRegion {
    pub(crate) contents: Arc<Contents>,
    pub(crate) registration: Registration,
    pub(crate) domain: Domain,
    pub(crate) tag: Tag,
    /// What names its first byte: zero, or the address if the program keeps the memory.
    pub(crate) start: u64,
    pub(crate) access: Rights,
}

impl MemoryRegion {
    pub(crate) fn owned(
        domain: &ProtectionDomain,
        buffers: Vec<Buffer>,
        access: Rights,
    ) -> Result<Self, RegisterError> {
        let contents = Contents::owned(domain.shared.device(), buffers)?;
        Self::register(domain, contents, 0, access)
    }

    pub(crate) fn once(
        domain: &ProtectionDomain,
        buffer: Buffer,
        access: Rights,
    ) -> Result<Self, RegisterError> {
        let contents = Contents::owned(domain.shared.device(), vec![buffer])?;
        let memory = Memory { one_touch: true, ..contents.memory(0, access) };
        let tag = domain.shared.device().register(domain.domain(), memory)?;
        Ok(Self::with_tag(&domain.shared, domain.domain(), contents, tag, (0, access)))
    }

    pub(crate) fn register(
        domain: &ProtectionDomain,
        contents: Arc<Contents>,
        start: u64,
        access: Rights,
    ) -> Result<Self, RegisterError> {
        let tag = domain.shared.device().register(domain.domain(), contents.memory(start, access))?;
        Ok(Self::with_tag(&domain.shared, domain.domain(), contents, tag, (start, access)))
    }

    /// A region whose registration a control queue will do.
    pub(crate) fn begin(
        domain: &ProtectionDomain,
        contents: Arc<Contents>,
        access: Rights,
    ) -> Result<Self, RegisterError> {
        let tag = domain.shared.device().table().begin(domain.domain())?;
        Ok(Self::with_tag(&domain.shared, domain.domain(), contents, tag, (0, access)))
    }

    pub(crate) fn prefaulted(
        domain: &ProtectionDomain,
        buffer: Buffer,
        access: Rights,
    ) -> Result<Self, RegisterError> {
        let contents = Contents::owned(domain.shared.device(), vec![buffer])?;
        let memory = contents.memory(0, access);
        let tag = domain.shared.device().register_prefaulted(domain.domain(), memory)?;
        Ok(Self::with_tag(&domain.shared, domain.domain(), contents, tag, (0, access)))
    }

    fn with_tag(
        shared: &Arc<Shared>,
        domain: Domain,
        contents: Arc<Contents>,
        tag: Tag,
        (start, access): (u64, Rights),
    ) -> Self {
        let registration = Registration::new(shared, tag);
        Self { contents, registration, domain, tag, start, access }
    }

    /// Registers the same memory once more, with a tag and rights of its own (requirement M5). Each is deregistered by
    /// itself; the memory is freed with the last.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::{Access, Buffer};
    /// let region = domain.register(Buffer::new(64)?, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
    /// let for_peers = region.share(Access::REMOTE_READ)?;
    /// region.write(0, b"hello")?;
    /// assert_eq!(&for_peers.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn share(&self, access: Rights) -> Result<Self, RegisterError> {
        let shared = &self.registration.shared;
        let tag = shared.device().table().share(self.tag, self.domain, self.start, access)?;
        Ok(Self::with_tag(shared, self.domain, Arc::clone(&self.contents), tag, (self.start, access)))
    }

    /// What names it, here and at the peer.
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// What may be done with it.
    pub fn access(&self) -> Rights {
        self.access
    }

    /// Whether its registration, which was posted to a [control queue](crate::ControlQueue), is not done yet. Requests that name
    /// it wait until then.
    pub fn is_pending(&self) -> bool {
        self.registration.shared.device().table().is_pending(self.tag)
    }

    /// A part of it, for the lists of work requests.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::{Access, AccessError, Buffer};
    /// let region = domain.register(Buffer::new(64)?, Access::LOCAL_READ)?;
    /// assert_eq!(region.slice(8, 56)?.len, 56);
    /// assert_eq!(region.slice(8, 57), Err(AccessError::OutOfBounds { at: 8, len: 57, size: 64 }));
    /// # Ok(())
    /// # }
    /// ```
    pub fn slice(&self, at: usize, len: usize) -> Result<Sge, AccessError> {
        slice(self, self.tag, self.start, at, len)
    }

    /// A place in it, as a peer names it: send it to the peer, who then writes to it or reads from it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::{Access, Buffer};
    /// let region = domain.register(Buffer::new(64)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// let place = region.place(8)?;
    /// let for_the_peer = place.to_bytes();
    /// assert_eq!(ironwarp::Place::from_bytes(&for_the_peer), Some(place));
    /// # Ok(())
    /// # }
    /// ```
    pub fn place(&self, at: usize) -> Result<Place, AccessError> {
        place(self, self.tag, self.start, at)
    }

    /// Deregisters it, like dropping it does, and tells if that has to wait for windows.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # let region = domain.register(ironwarp::Buffer::new(64)?, ironwarp::Access::LOCAL_READ)?;
    /// region.deregister()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn deregister(self) -> Result<(), DeregisterError> {
        self.registration.deregister(self.tag)
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("tag", &self.tag)
            .field("len", &self.len())
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

/// An entry of the table, be it a region's or a window's. Dropped, it is given back.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) shared: Arc<Shared>,
    pub(crate) name: Arc<Name>,
    /// The entry is given back already, and may be another's by now.
    deregistered: bool,
}

impl Registration {
    pub(crate) fn new(shared: &Arc<Shared>, tag: Tag) -> Self {
        let name = Arc::new(Name::new(tag));
        Self { shared: Arc::clone(shared), name, deregistered: false }
    }

    /// The entry was given back with its last tag.
    pub(crate) fn forget(mut self) {
        self.deregistered = true;
    }

    fn deregister(mut self, tag: Tag) -> Result<(), DeregisterError> {
        let deregistered = self.shared.device().table().deregister(tag);
        self.deregistered = deregistered.is_ok();
        deregistered
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let tags = if self.deregistered { Vec::new() } else { self.name.candidates() };
        self.shared.attic.retire(self.shared.device(), Retired(tags));
    }
}

impl Deref for MemoryRegion {
    type Target = Contents;

    fn deref(&self) -> &Contents {
        &self.contents
    }
}

pub(crate) fn slice(
    contents: &Contents,
    tag: Tag,
    start: u64,
    at: usize,
    len: usize,
) -> Result<Sge, AccessError> {
    contents.check(at, len)?;
    let size = u32::try_from(len).map_err(|_| AccessError::TooLong { len })?;
    Ok(Sge { tag, addr: start + at as u64, len: size })
}

pub(crate) fn place(contents: &Contents, tag: Tag, start: u64, at: usize) -> Result<Place, AccessError> {
    contents.check(at, 0)?;
    Ok(Place { tag, offset: start + at as u64 })
}
