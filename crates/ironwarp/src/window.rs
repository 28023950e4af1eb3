//! Windows: part of a region, opened to peers and closed again by work requests (requirement M3).

use crate::adapter::Shared;
use crate::error::AccessError;
use crate::region::{MemoryRegion, Registration};
use ironwarp_rnic::memory::{Binding, Domain, RegisterError, Rights, Scope};
use ironwarp_wire::{Place, Tag};
use std::fmt;
use std::sync::Arc;

/// A window. Bound to a part of a region by [`WorkRequest::bind`](crate::WorkRequest::bind), it lets the peer of that
/// queue pair reach this part; the peer names its bytes from 0 on.
///
/// Each binding gives it another tag, so the peer cannot use an earlier one any more.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ironwarp::{Access, Buffer, WorkRequest};
/// # use std::time::Duration;
/// # let (client, server) = ironwarp::example::pair()?;
/// let access = Access::LOCAL_READ | Access::BIND;
/// let region = server.domain.register(Buffer::copy_of(b"secret, public")?, access)?;
/// let window = server.domain.window()?;
/// server.qp.post_send(WorkRequest::bind(1, &window, &region, 8, 6, Access::REMOTE_READ)?)?;
/// server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
///
/// // The peer gets `window.place(0)` in a message, and reads.
/// let sink = client.region.slice(0, 6)?;
/// client.qp.post_send(WorkRequest::read(2, &[sink], window.place(0)))?;
/// client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
/// assert_eq!(&client.region.to_vec()?[..6], b"public");
///
/// server.qp.post_send(WorkRequest::invalidate_window(3, &window))?;
/// # server.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "dropped, it is closed"]
pub struct Window {
    pub(crate) registration: Registration,
}

impl Window {
    pub(crate) fn new(shared: &Arc<Shared>, domain: Domain) -> Result<Self, RegisterError> {
        let tag = shared.device().table().allocate_window(domain)?;
        Ok(Self { registration: Registration::new(shared, tag) })
    }

    /// Its tag, as of the last binding that was posted.
    pub fn tag(&self) -> Tag {
        self.registration.name.tag()
    }

    /// The tag that the next binding to be posted will give it: for a request in the same list that tells the peer.
    pub fn next_tag(&self) -> Tag {
        self.registration.name.next_binding()
    }

    /// A place in it, as the peer names it, as of the last binding that was posted.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::{Access, Buffer, WorkRequest};
    /// # let region = server.domain.register(Buffer::new(64)?, Access::LOCAL_READ | Access::BIND)?;
    /// let window = server.domain.window()?;
    /// server.qp.post_send(WorkRequest::bind(1, &window, &region, 8, 6, Access::REMOTE_READ)?)?;
    /// // The first byte of the window, which is the ninth of the region.
    /// assert_eq!(window.place(0).offset, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn place(&self, at: usize) -> Place {
        Place { tag: self.tag(), offset: at as u64 }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window").field("tag", &self.tag()).finish_non_exhaustive()
    }
}

/// The binding of a window to a part of a region, for one peer.
pub(crate) fn binding(
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
