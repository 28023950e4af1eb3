//! Protection domains. A queue pair can access only the memory of its own protection domain.

use crate::adapter::Adapter;
use crate::shared::Shared;
use ironwarp_rnic::memory::Domain;
use ironwarp_rnic::quota::{Place, QuotaExceeded, Resource};
use std::fmt;
use std::sync::Arc;

/// A protection domain: a group of queue pairs and memory regions. A queue pair can access only the regions of its own
/// domain. Clones are handles to the same domain.
#[derive(Clone)]
pub struct ProtectionDomain {
    pub(crate) shared: Arc<Shared>,
    domain: Domain,
    /// Its place in the quota of its function.
    _place: Arc<Place>,
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

impl ProtectionDomain {
    /// Creates a handle to a domain that moved here from another process.
    pub(crate) fn restored(shared: &Arc<Shared>, domain: Domain) -> Result<Self, QuotaExceeded> {
        let place = Arc::new(shared.device().account().take(Resource::ProtectionDomains)?);
        Ok(Self { domain, shared: Arc::clone(shared), _place: place })
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
    ///
    /// # Panics
    /// Panics if this is a function that has reached its quota of protection domains:
    /// [`try_protection_domain`](Self::try_protection_domain) returns an error instead.
    pub fn protection_domain(&self) -> ProtectionDomain {
        self.try_protection_domain().unwrap_or_else(|exceeded| panic!("{exceeded}"))
    }

    /// Creates a protection domain, like [`protection_domain`](Self::protection_domain).
    ///
    /// ```
    /// # use ironwarp::function::Quotas;
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let function = adapter.function(Quotas::default().protection_domains(1))?;
    /// let only = function.try_protection_domain()?;
    /// assert!(function.try_protection_domain().is_err());
    /// drop(only);
    /// assert!(function.try_protection_domain().is_ok());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if this is a function that has reached its quota of protection domains.
    pub fn try_protection_domain(&self) -> Result<ProtectionDomain, QuotaExceeded> {
        let device = self.shared.device();
        let place = Arc::new(device.account().take(Resource::ProtectionDomains)?);
        let domain = device.allocate_domain();
        Ok(ProtectionDomain { domain, shared: Arc::clone(&self.shared), _place: place })
    }
}

// Not derived: omits the state of the adapter, which is long and internal.
impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain").field("id", &self.id()).finish_non_exhaustive()
    }
}
