//! XRC domains: sets of shared receive queues, which the messages of senders name by number.
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::*;
use crate::objects::context::Context;
use crate::objects::cq::{Cq, CqAttributes, destroy as destroy_cq};
use crate::support::errno::Errno;
use crate::support::object::{CCell, CObject, Uses, all, destroy_object, publish};
use ironwarp_rnic::queue::XrcDomain;
use std::ffi::c_int;
use std::sync::{Arc, OnceLock};

/// An open of an XRC domain. Opens of the same file in the same context share a domain. Processes cannot share a
/// domain, because an adapter lives in one process.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Xrcd {
    c: CCell<ibv_xrcd>,
    inner: Arc<XrcDomain>,
    /// The file that identifies the domain. `None` if the domain cannot be opened again.
    file: Option<File>,
    /// A completion queue for receive queue pairs, which stays empty. Created when the first queue pair needs it.
    unused_cq: OnceLock<Arc<Cq>>,
    context: Arc<Context>,
}

// SAFETY: `c` is the first field of a `repr(C)` structure.
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
    /// Creates an object for the XRC domain of a file, with flags of open(2): all objects for one file share a domain.
    /// Without a file, creates a domain that cannot be opened again. Fails with EINVAL if the domain exists and `flags`
    /// has O_EXCL, and with EAGAIN if it does not exist and `flags` lacks O_CREAT.
    pub(crate) fn open(context: &Arc<Context>, file: Option<File>, flags: c_int) -> Result<Arc<Self>, Errno> {
        // Locked from the search to the creation, so that threads that open the same file at once share a domain.
        let _guard = context.lock_xrcd_opening();
        let has_file =
            |xrcd: &Arc<Self>| file.is_some() && xrcd.file == file && Arc::ptr_eq(&xrcd.context, context);
        let inner = match all::<Self>().into_iter().find(has_file) {
            Some(_) if flags & libc::O_EXCL != 0 => {
                return Err(Errno::INVALID.because("O_EXCL is set, but the XRC domain of this file exists"));
            }
            Some(existing) => Arc::clone(&existing.inner),
            None if flags & libc::O_CREAT == 0 && file.is_some() => return Err(Errno(libc::EAGAIN)),
            None => XrcDomain::new(),
        };
        let c = CCell::new(ibv_xrcd { context: context.c() });
        let (unused_cq, context) = (OnceLock::new(), Arc::clone(context));
        Ok(publish(Self { c, inner, file, unused_cq, context }, Uses::default()))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the XRC domain of the adapter.
    pub(crate) fn inner(&self) -> &Arc<XrcDomain> {
        &self.inner
    }

    /// Returns the completion queue for receive queue pairs of this domain. The adapter requires one, but nothing
    /// completes there: messages complete in the completion queue of the shared receive queue that they name.
    pub(crate) fn unused_cq(&self) -> Result<Arc<Cq>, Errno> {
        if let Some(cq) = self.unused_cq.get() {
            return Ok(Arc::clone(cq));
        }
        let new = Cq::new(&self.context, &CqAttributes::new(16), Uses::default())?; // any size will do
        let cq = self.unused_cq.get_or_init(|| Arc::clone(&new));
        if !Arc::ptr_eq(cq, &new) {
            destroy_cq(new.c())?; // another thread has set its queue first
        }
        Ok(Arc::clone(cq))
    }
}

/// Closes an XRC domain. Fails with EBUSY if queue pairs or shared receive queues use it.
pub(crate) fn close(c: *mut ibv_xrcd) -> Result<(), Errno> {
    let xrcd = destroy_object::<Xrcd>(c)?;
    if let Some(cq) = xrcd.unused_cq.get() {
        destroy_cq(cq.c())?;
    }
    Ok(())
}
