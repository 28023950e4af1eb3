//! XRC domains: where shared receive queues are that senders name themselves.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::context::Context;
use crate::cq::{Cq, Wanted, destroy as destroy_cq};
use crate::errno::{Errno, destroyed, object};
use crate::object::{CObject, Uses, all, find, publish, take_back};
use ironwarp_rnic::queue::XrcDomain;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::{Arc, OnceLock};

/// An XRC domain. Those that were opened by the same file in the same context are one. Processes cannot share one: an adapter
/// lives in one process.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Xrcd {
    c: UnsafeCell<ibv_xrcd>,
    inner: Arc<XrcDomain>,
    /// The file that it was opened by: its device and inode.
    file: Option<(u64, u64)>,
    /// What queue pairs have whose messages complete elsewhere.
    spare: OnceLock<Arc<Cq>>,
    context: Arc<Context>,
}

// SAFETY: the C structure comes first; it is not written after it was published.
unsafe impl CObject for Xrcd {
    type C = ibv_xrcd;
}
// SAFETY: as above.
unsafe impl Sync for Xrcd {}
// SAFETY: as above.
unsafe impl Send for Xrcd {}

impl Xrcd {
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn inner(&self) -> &Arc<XrcDomain> {
        &self.inner
    }

    /// A completion queue for queue pairs that complete nothing on their own.
    pub(crate) fn spare_cq(&self) -> Result<Arc<Cq>, Errno> {
        if let Some(cq) = self.spare.get() {
            return Ok(Arc::clone(cq));
        }
        let (cq_context, channel) = (ptr::null_mut(), ptr::null_mut());
        let wanted = Wanted { cqe: 16, cq_context, channel, vector: 0 };
        let made = Cq::new(&self.context, &wanted, Uses::default(), |_, _| ())?;
        let cq = self.spare.get_or_init(|| Arc::clone(&made));
        if !Arc::ptr_eq(cq, &made) {
            destroy_cq(made.c())?; // another thread was faster
        }
        Ok(Arc::clone(cq))
    }
}

pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: NULL or the caller's.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return object!(Err(Errno::null("attr"))) };
    let both = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    if attr.comp_mask != both {
        return object!(Err(
            Errno::INVALID.because("comp_mask must be IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS")
        ));
    }
    object!(find::<Context>(context).and_then(|context| {
        let file = file(attr.fd)?;
        // Looked for and made in one step: threads that open it at once get one domain.
        let _one = context.open_domains();
        let by_it =
            |xrcd: &Arc<Xrcd>| file.is_some() && xrcd.file == file && Arc::ptr_eq(&xrcd.context, &context);
        let inner = match (all::<Xrcd>().into_iter().find(by_it), attr.oflags) {
            (Some(_), flags) if flags & libc::O_EXCL != 0 => {
                return Err(Errno::INVALID.because("O_EXCL, and the domain of this file is there"));
            }
            (Some(known), _) => Arc::clone(&known.inner),
            (None, flags) if flags & libc::O_CREAT == 0 && file.is_some() => return Err(Errno(libc::EAGAIN)),
            (None, _) => XrcDomain::new(),
        };
        let c = UnsafeCell::new(ibv_xrcd { context: context.c() });
        let (spare, context) = (OnceLock::new(), Arc::clone(&context));
        Ok(publish(Xrcd { c, inner, file, spare, context }, Uses::default()).c())
    }))
}

/// Which file a descriptor is of; -1 stands for none: a domain that nobody else finds.
fn file(fd: c_int) -> Result<Option<(u64, u64)>, Errno> {
    if fd == -1 {
        return Ok(None);
    }
    if fd < 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: the caller's descriptor, which is open during the call; if it is not, the kernel says so.
    let found = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) })?;
    Ok(Some((found.st_dev, found.st_ino)))
}

pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    destroyed!(close(xrcd))
}

fn close(c: *mut ibv_xrcd) -> Result<(), Errno> {
    let xrcd = take_back::<Xrcd>(c)?;
    if let Some(cq) = xrcd.spare.get() {
        destroy_cq(cq.c())?;
    }
    Ok(())
}
