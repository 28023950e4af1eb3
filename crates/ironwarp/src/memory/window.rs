//! Memory windows (requirement M3): work requests bind them to a part of a region, which a peer can then access.

use super::registration::Registration;
use crate::protection_domain::ProtectionDomain;
use ironwarp_rnic::memory::RegisterError;
use ironwarp_wire::{RemoteAddr, Tag};
use std::fmt;

/// A memory window. [`WorkRequest::bind`](crate::queue::WorkRequest::bind) binds a window to a part of a region. The
/// peer of the queue pair that the request is posted to can then access that part. Remote addresses in a window start
/// at 0.
///
/// Each binding assigns a new tag, and invalidates the earlier tags of the window.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ironwarp::prelude::*;
/// # use std::time::Duration;
/// # let (client, server) = ironwarp::example::pair()?;
/// let access = Access::LOCAL_READ | Access::BIND;
/// let region = server.domain.register(Buffer::copy_of(b"secret, public")?, access)?;
/// let window = server.domain.window()?;
/// server.qp.post_send(WorkRequest::bind(1, &window, &region, 8..14, Access::REMOTE_READ)?)?;
/// server.cq.wait(Duration::from_secs(5))?.success()?;
///
/// // The peer receives `window.remote_addr(0)` in a message, and reads.
/// let sink = client.region.slice(..6)?;
/// client.qp.post_send(WorkRequest::read(2, &[sink], window.remote_addr(0)))?;
/// client.cq.wait(Duration::from_secs(5))?.success()?;
/// assert_eq!(&client.region.to_vec()?[..6], b"public");
///
/// server.qp.post_send(WorkRequest::invalidate_window(3, &window))?;
/// # server.cq.wait(Duration::from_secs(5))?.success()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a window closes it"]
pub struct Window {
    pub(crate) registration: Registration,
}

impl Window {
    /// Returns the tag that the last posted binding assigns.
    pub fn tag(&self) -> Tag {
        self.registration.tags.tag()
    }

    /// Returns the tag that the next posted binding will assign. A request in the same list as the binding can send
    /// that tag to the peer.
    pub fn next_tag(&self) -> Tag {
        self.registration.tags.next_binding(self.registration.table())
    }

    /// Returns the remote address of offset `at` of the window, to be sent to the peer, with the tag of the last posted
    /// binding.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::prelude::*;
    /// # let region = server.domain.register(Buffer::new(64)?, Access::LOCAL_READ | Access::BIND)?;
    /// let window = server.domain.window()?;
    /// server.qp.post_send(WorkRequest::bind(1, &window, &region, 8..14, Access::REMOTE_READ)?)?;
    /// // The first byte of the window, which is the ninth byte of the region.
    /// assert_eq!(window.remote_addr(0).offset, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remote_addr(&self, at: usize) -> RemoteAddr {
        RemoteAddr { tag: self.tag(), offset: at as u64 }
    }
}

// Not derived: omits the state of the adapter, which is long and internal.
impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window").field("tag", &self.tag()).finish_non_exhaustive()
    }
}

impl ProtectionDomain {
    /// Creates a window that is not bound yet.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// let window = domain.window()?;
    /// assert_ne!(window.tag(), window.next_tag());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the maximum number of regions and windows is reached ([`Limits::tags`](crate::Limits::tags)).
    pub fn window(&self) -> Result<Window, RegisterError> {
        let tag = self.shared.device().table().allocate_window(self.domain())?;
        Ok(Window { registration: Registration::new(&self.shared, tag) })
    }
}
