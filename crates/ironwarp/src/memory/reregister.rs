//! Changes to registered regions.

use super::buffer::Buffer;
use super::contents::Contents;
use super::region::MemoryRegion;
use super::registration::Registration;
use crate::error::ChangeError;
use crate::protection_domain::ProtectionDomain;
use ironwarp_rnic::memory::{Bytes, RegisterError, ReregisterError, Reregistration, Rights};
use std::sync::Arc;

/// Changes for [`MemoryRegion::reregister`]. Attributes that are not set stay as they are.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let adapter = ironwarp::Adapter::new()?;
/// # let (one, other) = (adapter.protection_domain(), adapter.protection_domain());
/// # use ironwarp::{Access, Buffer, RegionChange};
/// let mut region = one.register(Buffer::new(64)?, Access::LOCAL_READ)?;
/// let change = RegionChange::new()
///     .domain(&other)
///     .access(Access::LOCAL_READ | Access::REMOTE_READ)
///     .buffers(vec![Buffer::copy_of(b"hello")?]);
/// region.reregister(change)?;
/// assert_eq!(region.to_vec()?, b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[must_use = "a change does nothing until it is passed to `reregister`"]
pub struct RegionChange {
    access: Option<Rights>,
    domain: Option<ProtectionDomain>,
    buffers: Option<Vec<Buffer>>,
}

impl RegionChange {
    /// Creates an empty change: the region only gets a new tag.
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes the access rights.
    pub fn access(mut self, access: Rights) -> Self {
        self.access = Some(access);
        self
    }

    /// Changes the protection domain.
    pub fn domain(mut self, domain: &ProtectionDomain) -> Self {
        self.domain = Some(domain.clone());
        self
    }

    /// Replaces the memory with these buffers, one after the other.
    pub fn buffers(mut self, buffers: Vec<Buffer>) -> Self {
        self.buffers = Some(buffers);
        self
    }
}

impl MemoryRegion {
    /// Changes the access rights, protection domain or memory, in one step (verbs: `ibv_rereg_mr`).
    ///
    /// The region always gets a new tag: [slices](Self::slice) and remote addresses from before are invalid. When this
    /// returns, nothing uses the old registration, and replaced memory is freed. On failure the region is unchanged.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{Access, Buffer, WorkRequest};
    /// # use std::time::Duration;
    /// # let (client, server) = ironwarp::example::pair()?;
    /// use ironwarp::RegionChange;
    ///
    /// let mut region = server.domain.register(Buffer::new(64)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// let old = region.tag();
    /// let read_only = Access::LOCAL_READ | Access::REMOTE_READ;
    /// region.reregister(RegionChange::new().access(read_only).buffers(vec![Buffer::copy_of(b"hello")?]))?;
    /// assert_ne!(region.tag(), old);
    ///
    /// let sink = client.region.slice(0, 5)?;
    /// client.qp.post_send(WorkRequest::read(1, &[sink], region.place(0)?))?;
    /// client.cq.wait(Duration::from_secs(5))?.expect("in time").success()?;
    /// assert_eq!(&client.region.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn reregister(&mut self, change: RegionChange) -> Result<(), ChangeError> {
        let RegionChange { access, domain, buffers } = change;
        let shared = Arc::clone(&self.registration.shared);
        if domain.as_ref().is_some_and(|domain| !Arc::ptr_eq(&domain.shared, &shared)) {
            return Err(ChangeError::OtherAdapter);
        }
        let contents = buffers.map(|buffers| Contents::owned(shared.device(), buffers)).transpose();
        let contents = contents.map_err(|error| ReregisterError::from(RegisterError::from(error)))?;
        let domain = domain.map(|domain| domain.domain());
        let bytes = contents.as_ref().map(|contents| {
            let memory = contents.memory(0, Rights::empty());
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
        let registration = Registration::new(&shared, self.tag);
        std::mem::replace(&mut self.registration, registration).forget();
        Ok(())
    }
}
