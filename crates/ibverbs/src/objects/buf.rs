//! Buffers that the library allocates for a program's regions (`ibv_alloc_buf`, since rdma-core 64). Because the
//! adapter is software, a buffer is ordinary memory, in pages that it does not share.
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::*;
use crate::objects::pd::Pd;
use crate::support::errno::Errno;
use crate::support::object::{CCell, CObject, Uses, find_any, publish};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// An allocated buffer. Regions refer to its addresses and do not keep it alive.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Buf {
    /// In place of `ibv_buf`, which is opaque to C. C only holds the address.
    c: CCell<u64>,
    /// Address of the memory.
    start: *mut c_void,
    /// Length of the memory in bytes.
    len: usize,
    /// Address of the protection domain that the buffer was allocated for. Only compared, never dereferenced.
    pd: usize,
}

// SAFETY: `ibv_buf` is an empty structure, so a pointer to the first field of a `repr(C)` structure is one to it.
unsafe impl CObject for Buf {
    type C = ibv_buf;
    /// A child has a copy of the memory, which it may free.
    const SURVIVES_FORK: bool = true;
}
// SAFETY: the fields are never written, and only the program accesses the memory.
unsafe impl Sync for Buf {}
// SAFETY: any thread may unmap the memory.
unsafe impl Send for Buf {}

impl Buf {
    /// Allocates `len` zeroed bytes for regions of `pd`.
    pub(crate) fn new(pd: *mut ibv_pd, len: usize) -> Result<Arc<Self>, Errno> {
        find_any::<Pd>(pd)?;
        if len == 0 {
            return Err(Errno::INVALID.because("size is 0"));
        }
        let (rights, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: without an address and MAP_FIXED, the mapping replaces no other.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, rights, private) };
        let start =
            start.map_err(|_| Errno::NO_MEMORY.because(format_args!("failed to allocate {len} bytes")))?;
        Ok(publish(Self { c: CCell::new(0), start, len, pd: pd.addr() }, Uses::default()))
    }

    /// Returns the address of the memory.
    pub(crate) fn start(&self) -> *mut c_void {
        self.start
    }

    /// Checks that a range may be registered in `pd`. Fails with EINVAL if the buffer was allocated for another domain,
    /// or does not contain the range.
    pub(crate) fn check(&self, pd: *mut ibv_pd, addr: u64, len: usize) -> Result<(), Errno> {
        if pd.addr() != self.pd {
            return Err(Errno::INVALID.because("the buffer was allocated for another protection domain"));
        }
        let offset = usize::try_from(addr).ok().and_then(|addr| addr.checked_sub(self.start.addr()));
        if offset.and_then(|offset| offset.checked_add(len)).is_some_and(|end| end <= self.len) {
            return Ok(());
        }
        let (start, size) = (self.start, self.len);
        Err(Errno::INVALID
            .because(format_args!("{len} bytes at {addr:#x} exceed the buffer of {size} bytes at {start:p}")))
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        // SAFETY: `new` mapped this range, and the program, which freed the buffer, must not use it any more.
        let _ = unsafe { munmap(self.start, self.len) };
    }
}
