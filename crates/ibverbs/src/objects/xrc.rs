//! XRC domains: sets of shared receive queues that senders address by number.
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::*;
use crate::objects::context::Context;
use crate::objects::cq::{Cq, CqAttributes, destroy as destroy_cq};
use crate::support::errno::Errno;
use crate::support::object::{CCell, CObject, Uses, all, destroy_object, publish};
use ironwarp_rnic::queue::XrcDomain;
use std::ffi::c_int;
use std::sync::{Arc, OnceLock};

/// An XRC domain. Opening the same file in the same context gives the same domain. Processes cannot share
/// one, because an adapter lives in one process.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Xrcd {
    c: CCell<ibv_xrcd>,
    inner: Arc<XrcDomain>,
    /// The file that it was opened by.
    file: Option<File>,
    /// The completion queue of receive queue pairs, whose messages complete elsewhere.
    spare: OnceLock<Arc<Cq>>,
    context: Arc<Context>,
}

// SAFETY: the C structure comes first, and is not written after it was published.
unsafe impl CObject for Xrcd {
    type C = ibv_xrcd;
}

/// A file, by its device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl Xrcd {
    /// Opens the domain of a file, with flags of open(2). Without a file, the domain cannot be opened again.
    pub(crate) fn open(context: &Arc<Context>, file: Option<File>, flags: c_int) -> Result<Arc<Self>, Errno> {
        // Looked up and created under one lock, so that threads that open it at once get the same domain.
        let _one = context.open_domains();
        let by_it =
            |xrcd: &Arc<Self>| file.is_some() && xrcd.file == file && Arc::ptr_eq(&xrcd.context, context);
        let inner = match (all::<Self>().into_iter().find(by_it), flags) {
            (Some(_), flags) if flags & libc::O_EXCL != 0 => {
                return Err(Errno::INVALID.because("O_EXCL is set, but the XRC domain of this file exists"));
            }
            (Some(known), _) => Arc::clone(&known.inner),
            (None, flags) if flags & libc::O_CREAT == 0 && file.is_some() => return Err(Errno(libc::EAGAIN)),
            (None, _) => XrcDomain::new(),
        };
        let c = CCell::new(ibv_xrcd { context: context.c() });
        let (spare, context) = (OnceLock::new(), Arc::clone(context));
        Ok(publish(Self { c, inner, file, spare, context }, Uses::default()))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn inner(&self) -> &Arc<XrcDomain> {
        &self.inner
    }

    /// A completion queue for queue pairs that complete nothing themselves.
    pub(crate) fn spare_cq(&self) -> Result<Arc<Cq>, Errno> {
        if let Some(cq) = self.spare.get() {
            return Ok(Arc::clone(cq));
        }
        let made = Cq::new(&self.context, &CqAttributes::new(16), Uses::default())?;
        let cq = self.spare.get_or_init(|| Arc::clone(&made));
        if !Arc::ptr_eq(cq, &made) {
            destroy_cq(made.c())?; // another thread was faster
        }
        Ok(Arc::clone(cq))
    }
}

/// Closes an XRC domain.
pub(crate) fn close(c: *mut ibv_xrcd) -> Result<(), Errno> {
    let xrcd = destroy_object::<Xrcd>(c)?;
    if let Some(cq) = xrcd.spare.get() {
        destroy_cq(cq.c())?;
    }
    Ok(())
}
