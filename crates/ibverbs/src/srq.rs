//! Shared receive queues.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::async_event::Subject;
use crate::context::Context;
use crate::cq::Cq;
use crate::errno::{Errno, code, destroyed, object};
use crate::object::{CObject, Uses, begin_destroy, find, publish, put, trusted};
use crate::pd::Pd;
use crate::post::post_receives;
use crate::qp::MOST_SGES;
use crate::xrc::Xrcd;
use ironwarp_rnic::queue::SharedReceiveQueue;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

/// How many receives one holds at most.
pub(crate) const MOST_REQUESTS: u32 = 1 << 16;

/// A shared receive queue.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Srq {
    c: UnsafeCell<ibv_srq>,
    inner: Arc<SharedReceiveQueue>,
    /// Its C structure leads there.
    _pd: Arc<Pd>,
    context: Arc<Context>,
}

// SAFETY: the C structure comes first; it is not written after it was published.
unsafe impl CObject for Srq {
    type C = ibv_srq;
}
// SAFETY: as above.
unsafe impl Sync for Srq {}
// SAFETY: as above.
unsafe impl Send for Srq {}

impl Srq {
    fn new(
        pd: Arc<Pd>,
        init: &mut ibv_srq_init_attr,
        xrc: Option<(Arc<Xrcd>, Arc<Cq>)>,
    ) -> Result<Arc<Self>, Errno> {
        let attr = &mut init.attr;
        if attr.max_wr == 0 || attr.max_wr > MOST_REQUESTS || attr.max_sge > MOST_SGES {
            return Err(Errno::INVALID.because(format_args!(
                "max_wr {} must be from 1 to {MOST_REQUESTS}, max_sge {} at most {MOST_SGES}",
                attr.max_wr, attr.max_sge
            )));
        }
        attr.max_sge = attr.max_sge.max(1);
        let (context, size) = (Arc::clone(pd.context()), (attr.max_wr as usize, attr.max_sge as usize));
        let mut uses = Uses::of(&*pd)?;
        let inner = match xrc {
            None => context.engine().create_srq(pd.domain(), size),
            Some((xrcd, cq)) => {
                uses = uses.and(&*xrcd)?.and(&*cq)?;
                context.engine().create_xrc_srq(pd.domain(), size, xrcd.inner(), cq.inner())
            }
        };
        let mut c = ibv_srq::zeroed();
        c.context = context.c();
        c.srq_context = init.srq_context;
        c.pd = pd.c();
        c.handle = inner.id();
        c.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        c.cond = libc::PTHREAD_COND_INITIALIZER;
        let srq = publish(Self { c: UnsafeCell::new(c), inner, _pd: pd, context }, uses);
        srq.context.events().add(Subject::Srq(srq.inner.id()), srq.c());
        Ok(srq)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn inner(&self) -> &Arc<SharedReceiveQueue> {
        &self.inner
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    if init.is_null() {
        return object!(Err(Errno::null("init")));
    }
    // SAFETY: the caller's.
    let init = unsafe { &mut *init };
    object!(find::<Pd>(pd).and_then(|pd| Srq::new(pd, init, None)).map(|srq| srq.c()))
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    _: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    if attr.is_null() {
        return object!(Err(Errno::null("attr")));
    }
    // SAFETY: the caller's. Fields behind the mask are there if it names them.
    unsafe { object!(create_extended(attr)) }
}

/// # Safety
/// `attr` is the caller's, with the fields that its `comp_mask` names.
unsafe fn create_extended(attr: *mut ibv_srq_init_attr_ex) -> Result<*mut ibv_srq, Errno> {
    // SAFETY: the caller's word; both forms begin alike.
    let (mut init, mask) = unsafe { (attr.cast::<ibv_srq_init_attr>().read(), (*attr).comp_mask) };
    let known = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    if mask & !known != 0 {
        return Err(
            Errno::UNSUPPORTED.because(format_args!("comp_mask {mask:#x} asks for what is not there"))
        );
    }
    // SAFETY: named by the mask, or not read.
    let (kind, pd) = unsafe {
        let kind = if mask & IBV_SRQ_INIT_ATTR_TYPE != 0 { (*attr).srq_type } else { IBV_SRQT_BASIC };
        let pd = if mask & IBV_SRQ_INIT_ATTR_PD != 0 { (*attr).pd } else { std::ptr::null_mut() };
        (kind, find::<Pd>(pd)?)
    };
    let xrc = match kind {
        IBV_SRQT_BASIC => None,
        IBV_SRQT_XRC => {
            let both = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
            if mask & both != both {
                return Err(Errno::INVALID
                    .because("an XRC queue needs IBV_SRQ_INIT_ATTR_XRCD and IBV_SRQ_INIT_ATTR_CQ"));
            }
            // SAFETY: named by the mask.
            unsafe { Some((find::<Xrcd>((*attr).xrcd)?, find::<Cq>((*attr).cq.cast())?)) }
        }
        _ => {
            return Err(
                Errno::UNSUPPORTED.because(format_args!("srq_type {kind} is not there: basic and XRC are"))
            );
        }
    };
    let srq = Srq::new(pd, &mut init, xrc)?;
    // SAFETY: the caller's; what was granted is told there.
    unsafe { (*attr).attr = init.attr };
    Ok(srq.c())
}

pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    code!(find::<Srq>(srq).map(|srq| {
        // SAFETY: NULL or the caller's.
        unsafe { put(number, srq.inner.id()) };
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    if attr.is_null() {
        return Errno::INVALID.0;
    }
    // SAFETY: the caller's.
    let attr = unsafe { &*attr };
    let mask = mask.cast_unsigned();
    code!(find::<Srq>(srq).and_then(|srq| {
        if mask & IBV_SRQ_MAX_WR != 0 {
            if attr.max_wr == 0 || attr.max_wr > MOST_REQUESTS {
                return Err(Errno::INVALID
                    .because(format_args!("max_wr {} must be from 1 to {MOST_REQUESTS}", attr.max_wr)));
            }
            srq.inner.resize(attr.max_wr as usize)?;
        }
        if mask & IBV_SRQ_LIMIT != 0 {
            if attr.srq_limit as usize > srq.inner.query().depth {
                return Err(Errno::INVALID
                    .because(format_args!("srq_limit {} is more than the queue holds", attr.srq_limit)));
            }
            srq.inner.set_limit(attr.srq_limit as usize);
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    code!(find::<Srq>(srq).map(|srq| {
        let found = srq.inner.query();
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let found = ibv_srq_attr {
            max_wr: number(found.depth),
            max_sge: number(found.max_sges),
            srq_limit: number(found.limit),
        };
        // SAFETY: NULL or the caller's.
        unsafe { put(attr, found) };
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    destroyed!(destroy(srq))
}

fn destroy(c: *mut ibv_srq) -> Result<(), Errno> {
    let srq = begin_destroy::<Srq>(c)?;
    srq.context.events().remove(Subject::Srq(srq.inner.id()), c);
    srq.finish();
    Ok(())
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: inline code of the headers has read the context of this queue to get here.
    let srq: &Srq = unsafe { trusted(srq) };
    if srq.context.is_inherited() {
        // SAFETY: NULL or the caller's.
        unsafe { put(bad, wr) };
        return Errno::INHERITED.0;
    }
    // SAFETY: the program's chain.
    unsafe {
        let name = ("ibv_post_srq_recv::", srq.inner.id(), srq.inner.query().depth);
        post_receives(wr, bad, name, |request| srq.inner.post(request))
    }
}
