//! Protection domains. A queue pair can access only the memory of its own protection domain.

use crate::adapter::Adapter;
use crate::shared::Shared;
use ironwarp_rnic::memory::Domain;
use std::fmt;
use std::sync::Arc;

/// A protection domain: a group of queue pairs and memory regions. A queue pair can access only the regions of its own
/// domain. Clones are handles to the same domain.
#[derive(Clone)]
pub struct ProtectionDomain {
    pub(crate) shared: Arc<Shared>,
    domain: Domain,
}

impl ProtectionDomain {
    /// Returns the number of the domain, as it appears in errors and in
    /// [`QueuePairInfo::domain`](crate::queue::QueuePairInfo).
    pub fn id(&self) -> u32 {
        self.domain.0
    }

    /// Returns the domain as the device identifies it.
    pub(crate) fn domain(&self) -> Domain {
        self.domain
    }
}

impl Adapter {
    /// Creates a protection domain. A queue pair can access only memory that is registered in its own domain.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let (one, other) = (adapter.protection_domain(), adapter.protection_domain());
    /// assert_ne!(one.id(), other.id());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn protection_domain(&self) -> ProtectionDomain {
        ProtectionDomain { domain: self.shared.device().allocate_domain(), shared: Arc::clone(&self.shared) }
    }
}

// Not derived: omits the state of the adapter, which is long and internal.
impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain").field("id", &self.id()).finish_non_exhaustive()
    }
}
