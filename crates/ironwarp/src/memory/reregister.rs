//! Changing the rights, protection domain or memory of a registered region.

use super::buffer::Buffer;
use super::contents::Contents;
use super::error::ChangeError;
use super::region::MemoryRegion;
use super::registration::Registration;
use crate::protection_domain::ProtectionDomain;
use ironwarp_rnic::memory::{Bytes, RegisterError, ReregisterError, Reregistration, Rights};
use std::sync::Arc;

/// Changes for [`MemoryRegion::reregister`]. Attributes that are not set stay as they are.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let adapter = ironwarp::Adapter::new()?;
/// # let (one, other) = (adapter.protection_domain(), adapter.protection_domain());
/// # use ironwarp::memory::RegionChange;
/// # use ironwarp::prelude::*;
/// let mut region = one.register(Buffer::new(64)?, Access::LOCAL_READ)?;
/// let change = RegionChange::new()
///     .domain(&other)
///     .access(Access::LOCAL_READ | Access::REMOTE_READ)
///     .buffers([Buffer::copy_of(b"hello")?]);
/// region.reregister(change)?;
/// assert_eq!(region.to_vec()?, b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[must_use = "a change does nothing until it is passed to `reregister`"]
pub struct RegionChange {
    /// The new access rights; `None` keeps the old ones.
    access: Option<Rights>,
    /// The new protection domain; `None` keeps the old one.
    domain: Option<ProtectionDomain>,
    /// The new memory; `None` keeps the old one.
    buffers: Option<Vec<Buffer>>,
}

impl RegionChange {
    /// Creates an empty change, with which the region only gets a new tag.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the new access rights.
    pub fn access(mut self, access: Rights) -> Self {
        self.access = Some(access);
        self
    }

    /// Sets the new protection domain.
    pub fn domain(mut self, domain: &ProtectionDomain) -> Self {
        self.domain = Some(domain.clone());
        self
    }

    /// Sets the new memory: these buffers, one after the other.
    pub fn buffers(mut self, buffers: impl IntoIterator<Item = Buffer>) -> Self {
        self.buffers = Some(buffers.into_iter().collect());
        self
    }
}

impl MemoryRegion {
    /// Changes the access rights, protection domain or memory of the region, in one step (verbs: `ibv_rereg_mr`).
    ///
    /// The region always gets a new tag: earlier [slices](Self::slice) and [remote addresses](Self::remote_addr) become
    /// invalid. When this method returns, nothing uses the old registration, and replaced memory is freed.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let (client, server) = ironwarp::example::pair()?;
    /// use ironwarp::memory::RegionChange;
    ///
    /// let mut region = server.domain.register(Buffer::new(64)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// let old = region.tag();
    /// let read_only = Access::LOCAL_READ | Access::REMOTE_READ;
    /// region.reregister(RegionChange::new().access(read_only).buffers([Buffer::copy_of(b"hello")?]))?;
    /// assert_ne!(region.tag(), old);
    ///
    /// let sink = client.region.slice(..5)?;
    /// client.qp.post_send(WorkRequest::read(1, &[sink], region.remote_addr(0)?))?;
    /// client.cq.wait(Duration::from_secs(5))?.success()?;
    /// assert_eq!(&client.region.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if windows are bound to the region, if the new domain belongs to another adapter, or if the new memory or
    /// rights cannot be registered. The region is then unchanged.
    pub fn reregister(&mut self, change: RegionChange) -> Result<(), ChangeError> {
        let RegionChange { access, domain, buffers } = change;
        let shared = Arc::clone(&self.registration.shared);
        if domain.as_ref().is_some_and(|domain| !Arc::ptr_eq(&domain.shared, &shared)) {
            return Err(ChangeError::OtherAdapter);
        }
        let contents = buffers.map(|buffers| Contents::owned(&shared, buffers)).transpose();
        let contents = contents.map_err(|error| ReregisterError::from(RegisterError::from(error)))?;
        let domain = domain.map(|domain| domain.domain());
        let bytes = contents.as_ref().map(|contents| {
            let memory = contents.memory(0, Rights::empty()); // its rights are not used: `to` below has them
            Bytes { start: memory.start, len: memory.len, translation: memory.translation }
        });
        let to = Reregistration { domain, rights: access, bytes, keep_tag: false };
        self.tag = shared.device().reregister(self.tag, to)?;
        self.domain = domain.unwrap_or(self.domain);
        self.access = access.unwrap_or(self.access);
        if let Some(contents) = contents {
            self.start = 0;
            self.contents = contents;
        }
        // The old `Registration` would deregister its tag when dropped, but the device has replaced that tag already.
        let registration = Registration::new(&shared, self.tag);
        std::mem::replace(&mut self.registration, registration).forget();
        Ok(())
    }
}
