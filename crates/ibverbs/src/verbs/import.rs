//! Importing a device, domain or memory that another part of the program created, by numbers. This works
//! within one process, because an adapter lives in the process that opened it. Importing from another process
//! is not supported.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::vtable::tables;
use crate::abi::*;
use crate::objects::context::Context;
use crate::objects::dm::Dm;
use crate::objects::mr::Mr;
use crate::objects::pd::{Alias, Pd};
use crate::support::cancel::without_cancellation;
use crate::support::errno::{Errno, object};
use crate::support::object::{CObject, all, find, remove_object};
use rustix::fs::fstat;
use std::ffi::c_int;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// Whether both descriptors are of one regular file. All eventfds share an inode, so they never match.
fn same(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
    let (Ok(a), Ok(b)) = (fstat(a), fstat(b)) else { return false };
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino) && a.st_mode & libc::S_IFMT == libc::S_IFREG
}

/// Takes ownership of the descriptor on success.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_device(fd: c_int) -> *mut ibv_context {
    if fd < 0 {
        return object!(Err(Errno(libc::EBADF)));
    }
    // SAFETY: open during the call, by the caller's contract.
    let theirs = unsafe { BorrowedFd::borrow_raw(fd) };
    let found = all::<Context>().into_iter().find(|context| same(context.command(), theirs));
    object!(
        found
            .ok_or_else(|| Errno::UNSUPPORTED.because(
                "the descriptor does not belong to a context of this process: processes cannot share contexts"
            ))
            .map(|context| {
                // SAFETY: on success the call takes ownership, by the contract of the manual.
                context.import(tables(), unsafe { OwnedFd::from_raw_fd(fd) }).c()
            })
    )
}

/// Whether two contexts share an adapter.
fn same_device(a: &Context, b: &Context) -> bool {
    Arc::ptr_eq(a.engine(), b.engine())
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    object!(find::<Context>(context).and_then(|context| {
        let its = |pd: &Arc<Pd>| same_device(pd.context(), &context) && pd.domain().0 == handle;
        let pd = all::<Pd>().into_iter().find(its);
        let pd = pd.ok_or_else(|| Errno::INVALID.because("no protection domain with this handle"))?;
        Ok(Pd::new(&context, pd.domain(), Alias::default()).c())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    without_cancellation(|| drop(remove_object::<Pd>(pd)));
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    object!(find::<Pd>(pd).and_then(|pd| {
        let its = |mr: &Arc<Mr>| same_device(mr.pd().context(), pd.context()) && mr.tag().0 == handle;
        let mr = all::<Mr>().into_iter().find(its);
        let mr = mr.ok_or_else(|| Errno::INVALID.because("no memory region with this handle"))?;
        Mr::import(pd, &mr).map(|mr| mr.c())
    }))
}

/// Destroys the object. The region stays registered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    without_cancellation(|| drop(remove_object::<Mr>(mr)));
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    object!(find::<Context>(context).and_then(|context| {
        let its = |dm: &Arc<Dm>| same_device(dm.context(), &context) && dm.handle() == handle;
        let dm = all::<Dm>().into_iter().find(its);
        let dm = dm.ok_or_else(|| Errno::INVALID.because("no device memory with this handle"))?;
        Ok(Dm::new(context, Arc::clone(dm.bytes()), handle).c())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    without_cancellation(|| drop(remove_object::<Dm>(dm)));
}
