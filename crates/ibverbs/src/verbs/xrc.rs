//! Entry points for XRC domains.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::objects::context::Context;
use crate::objects::xrc::{self, File, Xrcd};
use crate::support::errno::{Errno, destroy_code, object};
use crate::support::object::{CObject, find};
use std::ffi::c_int;
use std::os::fd::BorrowedFd;

pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: NULL, or valid by the caller's contract.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return object!(Err(Errno::null("attr"))) };
    let both = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    if attr.comp_mask != both {
        return object!(Err(
            Errno::INVALID.because("comp_mask must be IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS")
        ));
    }
    object!(
        find::<Context>(context)
            .and_then(|context| { Xrcd::open(&context, file(attr.fd)?, attr.oflags).map(|xrcd| xrcd.c()) })
    )
}

/// Returns the file of a descriptor, or `None` for -1, which means a domain that cannot be opened again.
fn file(fd: c_int) -> Result<Option<File>, Errno> {
    if fd == -1 {
        return Ok(None);
    }
    if fd < 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: `fd` is not -1. `fstat` only passes it to the kernel, which refuses a closed descriptor.
    let found = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) })?;
    Ok(Some(File { device: found.st_dev, inode: found.st_ino }))
}

pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    destroy_code!(xrc::close(xrcd))
}
