//! Registration of memory that the program owns, by address.
#![expect(unsafe_code, reason = "the caller guarantees that the memory may change")]

use super::contents::Contents;
use super::region::MemoryRegion;
use crate::protection_domain::ProtectionDomain;
use ironwarp_rnic::device::Device;
use ironwarp_rnic::memory::{RegisterError, Rights};

impl ProtectionDomain {
    /// Registers memory that the program owns, such as memory that it mapped itself, shares with another process, or
    /// got from C code. Remote addresses in the region are virtual addresses.
    ///
    /// ```
    /// # let domain = ironwarp::Adapter::new()?.protection_domain();
    /// use ironwarp::memory::Access;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// static COUNTER: AtomicU64 = AtomicU64::new(0);
    /// // SAFETY: the counter is never freed, and accessed through atomics only.
    /// let region = unsafe { domain.register_raw(COUNTER.as_ptr().cast(), 8, Access::LOCAL_WRITE)? };
    /// region.view::<u64>(0)?.store(&7);
    /// assert_eq!(COUNTER.load(Ordering::Relaxed), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the length is zero, if some of the memory is not mapped, if `access` allows remote writes or atomics
    /// without local writes, or if the maximum number of regions and windows is reached
    /// ([`Limits::tags`](crate::Limits::tags)).
    ///
    /// # Safety
    /// Until this region and all regions [shared](MemoryRegion::share) from it are dropped, peers and requests may read
    /// and write the memory at any time, as far as `access` permits. Until then there must be no Rust reference to the
    /// memory, except to atomics or cells, and the memory must not be reused for anything else. If the program unmaps
    /// the memory, and maps nothing else at the same address, accesses fail safely.
    pub unsafe fn register_raw(
        &self,
        start: *mut u8,
        len: usize,
        access: Rights,
    ) -> Result<MemoryRegion, RegisterError> {
        let addr = start.expose_provenance() as u64;
        let contents = Contents::raw(self.shared.device(), addr, len)?;
        MemoryRegion::create(self, contents, addr, access, Device::register)
    }
}
