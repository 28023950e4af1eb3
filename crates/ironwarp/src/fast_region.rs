//! Regions that are registered by work request (requirement M6), in line with the messages that use them.

use crate::adapter::Shared;
use crate::error::AccessError;
use crate::memory::{Buffer, Contents};
use crate::region::{Registration, place, slice};
use ironwarp_rnic::memory::{Domain, Memory, RegisterError, Rights};
use ironwarp_rnic::queue::Sge;
use ironwarp_wire::{Place, Tag};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Memory with a tag that becomes valid by [`WorkRequest::register`](crate::WorkRequest::register), and invalid again by
/// [`WorkRequest::invalidate_region`](crate::WorkRequest::invalidate_region) or by the peer's Send with Invalidate.
/// Requests behind the registration may use the tag, also in the same list (requirement M12).
///
/// It reads and writes like its [`Contents`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ironwarp::{Access, Buffer, WorkRequest};
/// # use std::time::Duration;
/// # let (client, server) = ironwarp::example::pair()?;
/// # client.qp.post_receive(7, &[client.region.slice(0, 64)?])?;
/// let region = server.domain.allocate_region(vec![Buffer::copy_of(b"hello")?])?;
/// let tag = region.next_tag();
/// server.qp.post_send_all(vec![
///     WorkRequest::register(1, &region, Access::LOCAL_READ | Access::REMOTE_READ).unsignaled(),
///     WorkRequest::send_inline(2, &tag.0.to_be_bytes()).into(),
/// ])?;
/// # client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
///
/// // The peer reads, and invalidates what it needs no more.
/// let place = region.place(0)?;
/// client.qp.post_send(WorkRequest::read(3, &[client.region.slice(0, 5)?], place))?;
/// # client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
/// # server.qp.post_receive(8, &[])?;
/// client.qp.post_send(WorkRequest::send(4, &[]).invalidate(place.tag))?;
/// # assert_eq!(&client.region.to_vec()?[..5], b"hello");
/// # let sent = server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
/// # let received = server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
/// # assert_eq!((sent.wr_id, received.wr_id, received.invalidated), (2, 8, Some(tag)));
/// # Ok(())
/// # }
/// ```
#[must_use = "dropped, its memory goes with it"]
pub struct FastRegion {
    /// Before `registration`, which is dropped after it and then has the only one.
    contents: Arc<Contents>,
    pub(crate) registration: Registration,
}

impl FastRegion {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        domain: Domain,
        buffers: Vec<Buffer>,
    ) -> Result<Self, RegisterError> {
        let contents = Contents::owned(shared.device(), buffers)?;
        let tag = shared.device().table().allocate(domain)?;
        let registration = Registration::new(shared, tag);
        Ok(Self { contents, registration })
    }

    /// Its tag, as of the last registration that was posted.
    pub fn tag(&self) -> Tag {
        self.registration.name.tag()
    }

    /// The tag that the next registration to be posted will give it: for requests in the same list that use it.
    pub fn next_tag(&self) -> Tag {
        self.registration.name.next_registration()
    }

    /// A part of it, for the lists of work requests, as of the last registration that was posted.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{Access, Buffer, WorkRequest};
    /// # use std::time::Duration;
    /// # client.qp.post_receive(1, &[client.region.slice(0, 5)?])?;
    /// let region = server.domain.allocate_region(vec![Buffer::copy_of(b"hello")?])?;
    /// server.qp.post_send(WorkRequest::register(1, &region, Access::LOCAL_READ).unsignaled())?;
    /// // Now it has the tag of that registration.
    /// server.qp.post_send(WorkRequest::send(2, &[region.slice(0, 5)?]))?;
    /// # client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// # assert_eq!(&client.region.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn slice(&self, at: usize, len: usize) -> Result<Sge, AccessError> {
        slice(self, self.tag(), 0, at, len)
    }

    /// A place in it, as the peer names it, as of the last registration that was posted.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{Access, Buffer, WorkRequest};
    /// # use std::time::Duration;
    /// let region = server.domain.allocate_region(vec![Buffer::copy_of(b"hello")?])?;
    /// server.qp.post_send(WorkRequest::register(1, &region, Access::REMOTE_READ))?;
    /// # server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// client.qp.post_send(WorkRequest::read(2, &[client.region.slice(0, 5)?], region.place(0)?))?;
    /// # client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// # assert_eq!(&client.region.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn place(&self, at: usize) -> Result<Place, AccessError> {
        place(self, self.tag(), 0, at)
    }

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

impl fmt::Debug for FastRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FastRegion")
            .field("tag", &self.tag())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
