//! Imports a context, domain, region or device memory that another part of the program created, by its descriptor or
//! handle. Importing from another process is not supported, because an adapter lives in the process that opened it.
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

/// Returns whether both descriptors refer to the same regular file. Descriptors of other kinds never match: all
/// eventfds, for example, share one inode.
fn is_same_file(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
    let (Ok(a), Ok(b)) = (fstat(a), fstat(b)) else { return false };
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino) && a.st_mode & libc::S_IFMT == libc::S_IFREG
}

/// Imports a context by a duplicate of its `cmd_fd`, and takes ownership of the descriptor on success.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_device(fd: c_int) -> *mut ibv_context {
    if fd < 0 {
        return object!(Err(Errno(libc::EBADF)));
    }
    // SAFETY: `fd` is not negative, and open during the call, by the caller's contract.
    let descriptor = unsafe { BorrowedFd::borrow_raw(fd) };
    let found = all::<Context>().into_iter().find(|context| is_same_file(context.command(), descriptor));
    object!(
        found
            .ok_or_else(|| Errno::UNSUPPORTED.because(
                "the descriptor does not belong to a context of this process: processes cannot share contexts"
            ))
            .map(|context| {
                // SAFETY: this call takes ownership on success, so the program does not close the descriptor
                // (ibv_import_device(3)).
                context.import(tables(), unsafe { OwnedFd::from_raw_fd(fd) }).c()
            })
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    object!(find::<Context>(context).and_then(|context| {
        let matches = |pd: &Arc<Pd>| pd.context().shares_adapter_with(&context) && pd.domain().0 == handle;
        let pd = all::<Pd>().into_iter().find(matches);
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
        let matches =
            |mr: &Arc<Mr>| mr.pd().context().shares_adapter_with(pd.context()) && mr.tag().0 == handle;
        let mr = all::<Mr>().into_iter().find(matches);
        let mr = mr.ok_or_else(|| Errno::INVALID.because("no memory region with this handle"))?;
        Mr::import(pd, &mr).map(|mr| mr.c())
    }))
}

/// Destroys the imported object. The region stays registered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    without_cancellation(|| drop(remove_object::<Mr>(mr)));
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    object!(find::<Context>(context).and_then(|context| {
        let matches = |dm: &Arc<Dm>| dm.context().shares_adapter_with(&context) && dm.handle() == handle;
        let dm = all::<Dm>().into_iter().find(matches);
        let dm = dm.ok_or_else(|| Errno::INVALID.because("no device memory with this handle"))?;
        Ok(Dm::new(context, Arc::clone(dm.bytes()), handle).c())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    without_cancellation(|| drop(remove_object::<Dm>(dm)));
}
