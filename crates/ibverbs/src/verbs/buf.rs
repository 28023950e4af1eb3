//! Entry points for buffers that the library allocates for a program's regions (`ibv_alloc_buf`, since rdma-core 64).
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::objects::buf::Buf;
use crate::support::errno::{Errno, minus_one, object};
use crate::support::object::{CObject, find_any, put, remove_object};
use std::ffi::{c_int, c_void};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void {
    if buf.is_null() {
        return object!(Err(Errno::null("buf")));
    }
    object!(Buf::new(pd, size).map(|new| {
        // SAFETY: not NULL, and valid by the caller's contract.
        unsafe { put(buf, new.c()) };
        new.start()
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    // The call returns nothing. The macro logs an error and sets errno.
    let _ = minus_one!(remove_object::<Buf>(buf).map(drop));
}

/// Fails with ENODATA, because a buffer is ordinary memory that is not backed by a DMA-buf.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    let no_dmabuf = || Errno(libc::ENODATA).because("the buffer is ordinary memory, without a DMA-buf");
    minus_one!(find_any::<Buf>(buf).and_then(|_| Err(no_dmabuf())))
}
