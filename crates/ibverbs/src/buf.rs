//! Memory that programs let the library allocate for their regions (`ibv_alloc_buf`, since rdma-core 64). Of an adapter that
//! is made of software it is ordinary memory, in pages of its own.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::errno::{Errno, minus_one, object};
use crate::object::{CObject, Uses, find_any, publish, put, withdraw};
use crate::pd::Pd;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr;

/// Allocated memory, which the program uses as it likes. Regions of it name its addresses, and hold nothing.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Buf {
    /// C has no name for what is in it; it gives the object an address.
    c: UnsafeCell<u64>,
    start: *mut c_void,
    len: usize,
    /// The domain that it was allocated for, by its address: no more than that is asked of it.
    pd: usize,
}

// SAFETY: C holds the address alone, of a structure that it does not know.
unsafe impl CObject for Buf {
    type C = ibv_buf;
    /// A child has a copy of the memory.
    const SURVIVES_FORK: bool = true;
}
// SAFETY: nobody writes into it; the memory is the program's to share.
unsafe impl Sync for Buf {}
// SAFETY: as above.
unsafe impl Send for Buf {}

impl Buf {
    fn new(pd: *mut ibv_pd, len: usize) -> Result<Self, Errno> {
        find_any::<Pd>(pd)?;
        if len == 0 {
            return Err(Errno::INVALID.because("size is 0"));
        }
        let (rights, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: new memory, wherever there is room.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, rights, private) };
        let start =
            start.map_err(|_| Errno::NO_MEMORY.because(format_args!("failed to allocate {len} bytes")))?;
        Ok(Self { c: UnsafeCell::new(0), start, len, pd: pd.addr() })
    }

    /// Whether a part of it may become a region of a domain.
    pub(crate) fn check(&self, pd: *mut ibv_pd, addr: u64, len: usize) -> Result<(), Errno> {
        if pd.addr() != self.pd {
            return Err(Errno::INVALID.because("the buffer was allocated for another protection domain"));
        }
        let offset = usize::try_from(addr).ok().and_then(|addr| addr.checked_sub(self.start.addr()));
        if offset.and_then(|offset| offset.checked_add(len)).is_some_and(|end| end <= self.len) {
            return Ok(());
        }
        let (start, size) = (self.start, self.len);
        Err(Errno::INVALID.because(format_args!(
            "{len} bytes at {addr:#x} are not within the buffer of {size} bytes at {start:p}"
        )))
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and given back by the program.
        let _ = unsafe { munmap(self.start, self.len) };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void {
    if buf.is_null() {
        return object!(Err(Errno::null("buf")));
    }
    object!(Buf::new(pd, size).map(|made| {
        let made = publish(made, Uses::default());
        // SAFETY: not NULL, and the caller's.
        unsafe { put(buf, made.c()) };
        made.start
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    let _ = minus_one!(withdraw::<Buf>(buf).map(drop));
}

/// There is no DMA-buf behind ordinary memory.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    let none = || Errno(libc::ENODATA).because("the buffer is ordinary memory: no DMA-buf is behind it");
    minus_one!(find_any::<Buf>(buf).and_then(|_| Err(none())))
}
