//! Importing: the same device, domain or memory once more, for a part of a program that was handed numbers by another part.
//! Within one process: an adapter lives in the process that opened it, so what others ask for is not supported.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::cancel::uncancelled;
use crate::context::Context;
use crate::dm::Dm;
use crate::errno::{Errno, object};
use crate::mr::Mr;
use crate::object::{CObject, all, find, withdraw};
use crate::pd::{Alias, Pd};
use rustix::fs::fstat;
use std::ffi::c_int;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// Whether both are the device and inode of one file. The kernel's descriptors for events all have the same, so those are
/// nobody's.
fn same(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
    let (Ok(a), Ok(b)) = (fstat(a), fstat(b)) else { return false };
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino) && a.st_mode & libc::S_IFMT == libc::S_IFREG
}

/// Takes over the descriptor if it succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_device(fd: c_int) -> *mut ibv_context {
    if fd < 0 {
        return object!(Err(Errno(libc::EBADF)));
    }
    // SAFETY: the caller's descriptor, which is open during the call.
    let theirs = unsafe { BorrowedFd::borrow_raw(fd) };
    let found = all::<Context>().into_iter().find(|context| same(context.command(), theirs));
    object!(
        found
            .ok_or_else(|| Errno::UNSUPPORTED.because(
                "the descriptor is of no context of this process: contexts cannot be shared with others"
            ))
            .map(|context| {
                // SAFETY: from here on it is ours, as the manual says.
                context.again(unsafe { OwnedFd::from_raw_fd(fd) }).c()
            })
    )
}

/// Whether two contexts are of one adapter.
fn same_device(a: &Context, b: &Context) -> bool {
    Arc::ptr_eq(a.engine(), b.engine())
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    object!(find::<Context>(context).and_then(|context| {
        let its = |pd: &Arc<Pd>| same_device(pd.context(), &context) && pd.domain().0 == handle;
        let pd = all::<Pd>().into_iter().find(its);
        let pd = pd.ok_or_else(|| Errno::INVALID.because("there is no domain with this handle"))?;
        Ok(Pd::new(&context, pd.domain(), Alias::default()).c())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    uncancelled(|| drop(withdraw::<Pd>(pd)));
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    object!(find::<Pd>(pd).and_then(|pd| {
        let its = |mr: &Arc<Mr>| same_device(mr.pd().context(), pd.context()) && mr.tag().0 == handle;
        let mr = all::<Mr>().into_iter().find(its);
        let mr = mr.ok_or_else(|| Errno::INVALID.because("there is no region with this handle"))?;
        Mr::again(pd, &mr).map(|mr| mr.c())
    }))
}

/// The region itself stays.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    uncancelled(|| drop(withdraw::<Mr>(mr)));
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    object!(find::<Context>(context).and_then(|context| {
        let its = |dm: &Arc<Dm>| same_device(dm.context(), &context) && dm.handle() == handle;
        let dm = all::<Dm>().into_iter().find(its);
        let dm = dm.ok_or_else(|| Errno::INVALID.because("there is no device memory with this handle"))?;
        Ok(Dm::new(context, Arc::clone(dm.bytes()), handle).c())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    uncancelled(|| drop(withdraw::<Dm>(dm)));
}
