//! Shared receive queues of C programs.
#![expect(unsafe_code, reason = "holds a C structure")]

use crate::abi::*;
use crate::check;
use crate::objects::async_event::Subject;
use crate::objects::context::Context;
use crate::objects::cq::Cq;
use crate::objects::limits::{MAX_SGES, MAX_SRQ_REQUESTS};
use crate::objects::pd::Pd;
use crate::objects::xrc::Xrcd;
use crate::support::errno::Errno;
use crate::support::object::{CCell, CObject, Uses, begin_destroy, publish};
use ironwarp_rnic::queue::{SharedReceiveQueue, SrqSize};
use std::io;
use std::sync::Arc;

/// A shared receive queue.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Srq {
    c: CCell<ibv_srq>,
    inner: Arc<SharedReceiveQueue>,
    /// Kept alive because the C structure points to it.
    _pd: Arc<Pd>,
    context: Arc<Context>,
}

// SAFETY: `c` is the first field of a `repr(C)` structure.
unsafe impl CObject for Srq {
    type C = ibv_srq;
}

/// The objects that an XRC shared receive queue uses in addition to those of a basic one.
#[derive(Debug)]
pub(crate) struct XrcParts {
    pub(crate) xrcd: Arc<Xrcd>,
    /// The completion queue for messages that are received into the shared receive queue.
    pub(crate) cq: Arc<Cq>,
}

impl Srq {
    /// Creates a shared receive queue, and writes the granted capacities to `init`.
    pub(crate) fn new(
        pd: Arc<Pd>,
        init: &mut ibv_srq_init_attr,
        xrc: Option<XrcParts>,
    ) -> Result<Arc<Self>, Errno> {
        let attr = &mut init.attr;
        if attr.max_wr == 0 || attr.max_wr > MAX_SRQ_REQUESTS || attr.max_sge > MAX_SGES {
            return Err(Errno::INVALID.because(format_args!(
                "max_wr {} must be between 1 and {MAX_SRQ_REQUESTS}, and max_sge {} at most {MAX_SGES}",
                attr.max_wr, attr.max_sge
            )));
        }
        if let Some(checker) = check::active() {
            checker.creating_srq();
        }
        attr.max_sge = attr.max_sge.max(1);
        let context = Arc::clone(pd.context());
        let size = SrqSize { depth: attr.max_wr as usize, max_sges: attr.max_sge as usize };
        let mut uses = Uses::of(&*pd)?;
        let completion_queue = xrc.as_ref().map_or(0, |xrc| xrc.cq.c() as usize);
        let inner = match xrc {
            None => context.engine().create_srq(pd.domain(), size).map_err(io::Error::from)?,
            Some(XrcParts { xrcd, cq }) => {
                context.check_same_adapter(xrcd.context(), "XRC domain")?;
                context.check_same_adapter(cq.context(), "completion queue")?;
                uses = uses.and(&*xrcd)?.and(&*cq)?;
                context
                    .engine()
                    .create_xrc_srq(pd.domain(), size, xrcd.inner(), cq.inner())
                    .map_err(io::Error::from)?
            }
        };
        let mut c = ibv_srq::zeroed();
        c.context = context.c();
        c.srq_context = init.srq_context;
        c.pd = pd.c();
        c.handle = inner.id();
        c.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        c.cond = libc::PTHREAD_COND_INITIALIZER;
        let srq = publish(Self { c: CCell::new(c), inner, _pd: pd, context }, uses);
        if let Some(checker) = check::active() {
            checker.srq_created(
                srq.context.adapter_key(),
                srq.c() as usize,
                srq.inner.id(),
                completion_queue,
            );
        }
        srq.context.events().add(Subject::Srq(srq.inner.id()), srq.c());
        Ok(srq)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the shared receive queue of the adapter.
    pub(crate) fn inner(&self) -> &Arc<SharedReceiveQueue> {
        &self.inner
    }
}

/// Destroys a shared receive queue, after waiting until its events are acknowledged.
pub(crate) fn destroy(c: *mut ibv_srq) -> Result<(), Errno> {
    let srq = begin_destroy::<Srq>(c)?;
    srq.context.events().remove(Subject::Srq(srq.inner.id()), c);
    if let Some(checker) = check::active() {
        checker.srq_destroyed(srq.context.adapter_key(), c as usize);
    }
    srq.finish();
    Ok(())
}
