//! Memory that the library allocates for a program's regions (`ibv_alloc_buf`, since rdma-core 64). Because
//! the adapter is software, it is ordinary memory, in pages of its own.
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::*;
use crate::objects::pd::Pd;
use crate::support::errno::Errno;
use crate::support::object::{CCell, CObject, Uses, find_any, publish};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// Allocated memory. Regions refer to its addresses and do not keep it alive.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Buf {
    /// C does not look inside this structure. It gives the object an address.
    c: CCell<u64>,
    start: *mut c_void,
    len: usize,
    /// Address of the domain that it was allocated for, which is only compared.
    pd: usize,
}

// SAFETY: C holds only the address of a structure that it does not look into.
unsafe impl CObject for Buf {
    type C = ibv_buf;
    /// A child gets a copy of the memory.
    const SURVIVES_FORK: bool = true;
}
// SAFETY: its fields are never written, and access to the memory is the program's responsibility.
unsafe impl Sync for Buf {}
// SAFETY: as above.
unsafe impl Send for Buf {}

impl Buf {
    pub(crate) fn new(pd: *mut ibv_pd, len: usize) -> Result<Arc<Self>, Errno> {
        find_any::<Pd>(pd)?;
        if len == 0 {
            return Err(Errno::INVALID.because("size is 0"));
        }
        let (rights, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: new memory, at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, rights, private) };
        let start =
            start.map_err(|_| Errno::NO_MEMORY.because(format_args!("failed to allocate {len} bytes")))?;
        Ok(publish(Self { c: CCell::new(0), start, len, pd: pd.addr() }, Uses::default()))
    }

    pub(crate) fn start(&self) -> *mut c_void {
        self.start
    }

    /// Checks that a range of it may be registered in a domain.
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
        // SAFETY: mapped by `new`, and freed by the program.
        let _ = unsafe { munmap(self.start, self.len) };
    }
}
