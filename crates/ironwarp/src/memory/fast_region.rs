//! Regions that work requests register and invalidate (requirement M6), in order with the messages that use them.

use super::buffer::Buffer;
use super::contents::{Contents, remote_addr, slice};
use super::error::AccessError;
use super::registration::Registration;
use crate::protection_domain::ProtectionDomain;
use ironwarp_rnic::memory::{Memory, RegisterError, Rights};
use ironwarp_rnic::queue::Sge;
use ironwarp_wire::{RemoteAddr, Tag};
use std::fmt;
use std::ops::{Deref, RangeBounds};
use std::sync::Arc;

/// A fast-register memory region: a region that work requests register and invalidate. Its tag becomes valid with
/// [`WorkRequest::register`](crate::queue::WorkRequest::register), or with
/// [`SendRequest::register`](crate::queue::SendRequest::register), which also sends a message, and invalid again with
/// [`WorkRequest::invalidate_region`](crate::queue::WorkRequest::invalidate_region) or a Send with Invalidate from the
/// peer. Requests posted after the registration may use the tag, even in the same list (requirement M12).
///
/// A `FastRegion` dereferences to its [`Contents`], which programs read and write.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ironwarp::prelude::*;
/// # use std::time::Duration;
/// # let (client, server) = ironwarp::example::pair()?;
/// # client.qp.post_receive(7, &[client.region.slice(..64)?])?;
/// let region = server.domain.allocate_region([Buffer::copy_of(b"hello")?])?;
/// let tag = region.next_tag();
/// server.qp.post_send_all(vec![
///     WorkRequest::register(1, &region, Access::LOCAL_READ | Access::REMOTE_READ).unsignaled(),
///     WorkRequest::send_inline(2, &tag.0.to_be_bytes()).into(),
/// ])?;
/// # client.cq.wait(Duration::from_secs(5))?.success()?;
///
/// // The peer reads, and then invalidates the region.
/// let addr = region.remote_addr(0)?;
/// client.qp.post_send(WorkRequest::read(3, &[client.region.slice(..5)?], addr))?;
/// # client.cq.wait(Duration::from_secs(5))?.success()?;
/// # server.qp.post_receive(8, &[])?;
/// client.qp.post_send(WorkRequest::send(4, &[]).invalidate(addr.tag))?;
/// # assert_eq!(&client.region.to_vec()?[..5], b"hello");
/// # let sent = server.cq.wait(Duration::from_secs(5))?.success()?;
/// # let received = server.cq.wait(Duration::from_secs(5))?.success()?;
/// # assert_eq!((sent.wr_id, received.wr_id, received.invalidated), (2, 8, Some(tag)));
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a region frees its memory"]
pub struct FastRegion {
    /// Dropped before `registration`, because fields are dropped in this order. The table entry then holds the last
    /// reference to the memory, which is freed when the entry is deregistered.
    pub(super) contents: Arc<Contents>,
    pub(crate) registration: Registration,
}

impl FastRegion {
    /// Returns the tag, as of the last posted registration.
    pub fn tag(&self) -> Tag {
        self.registration.tags.tag()
    }

    /// Returns the tag that the next posted registration will assign. The message of the same request, and requests in
    /// the same list, can use that tag, for example to send it to the peer.
    pub fn next_tag(&self) -> Tag {
        self.registration.tags.next_registration(self.registration.table())
    }

    /// Returns a scatter/gather element for a range of bytes, with the tag of the last posted registration.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # client.qp.post_receive(1, &[client.region.slice(..5)?])?;
    /// let region = server.domain.allocate_region([Buffer::copy_of(b"hello")?])?;
    /// server.qp.post_send(WorkRequest::register(1, &region, Access::LOCAL_READ).unsignaled())?;
    /// // The region now has the tag of that registration.
    /// server.qp.post_send(WorkRequest::send(2, &[region.slice(..5)?]))?;
    /// # client.cq.wait(Duration::from_secs(5))?.success()?;
    /// # assert_eq!(&client.region.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the range is not completely inside the region, or longer than 4 GiB.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Sge, AccessError> {
        slice(self, self.tag(), 0, range)
    }

    /// Returns the remote address of offset `at`, to be sent to a peer, with the tag of the last posted registration.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// let region = server.domain.allocate_region([Buffer::copy_of(b"hello")?])?;
    /// server.qp.post_send(WorkRequest::register(1, &region, Access::REMOTE_READ))?;
    /// # server.cq.wait(Duration::from_secs(5))?.success()?;
    /// client.qp.post_send(WorkRequest::read(2, &[client.region.slice(..5)?], region.remote_addr(0)?))?;
    /// # client.cq.wait(Duration::from_secs(5))?.success()?;
    /// # assert_eq!(&client.region.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the offset is outside of the region.
    pub fn remote_addr(&self, at: usize) -> Result<RemoteAddr, AccessError> {
        remote_addr(self, self.tag(), 0, at)
    }

    /// Returns the parameters with which the device registers the region, for one message or for many.
    pub(crate) fn memory(&self, access: Rights, one_touch: bool) -> Memory {
        Memory { one_touch, ..self.contents.memory(0, access) }
    }
}

impl Deref for FastRegion {
    type Target = Contents;

    fn deref(&self) -> &Contents {
        &self.contents
    }
}

// Not derived: omits the state of the adapter, which is long and internal.
impl fmt::Debug for FastRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FastRegion")
            .field("tag", &self.tag())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl ProtectionDomain {
    /// Creates a [`FastRegion`], which consists of these buffers, one after the other (requirement M6). Its tag is not
    /// valid until a [`WorkRequest::register`](crate::queue::WorkRequest::register) is executed.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// # use ironwarp::memory::Buffer;
    /// let region = domain.allocate_region([Buffer::new(4096)?, Buffer::new(4096)?])?;
    /// assert_eq!(region.len(), 8192);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if there are no buffers, if one is empty, or if the maximum number of regions and windows is reached
    /// ([`Limits::tags`](crate::Limits::tags)).
    pub fn allocate_region(
        &self,
        buffers: impl IntoIterator<Item = Buffer>,
    ) -> Result<FastRegion, RegisterError> {
        let contents = Contents::owned(&self.shared, buffers)?;
        let tag = self.shared.device().table().allocate(self.domain())?;
        Ok(FastRegion { contents, registration: Registration::new(&self.shared, tag) })
    }
}
