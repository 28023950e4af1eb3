//! Queue pairs and shared receive queues of ids. If the program gives no completion queues, an id creates its
//! own, each with a channel.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::id::Id;
use super::watch::Watch;
use crate::abi::*;
use crate::objects::channel::destroy as destroy_channel;
use crate::objects::cq::destroy as destroy_cq;
use crate::objects::pd::Pd;
use crate::objects::qp::{self, EventRelay, Qp};
use crate::support::cancel::without_cancellation;
use crate::support::errno::{Errno, minus_one};
use crate::support::object::{CObject, find};
use crate::verbs::channel::ibv_create_comp_channel;
use crate::verbs::cq::ibv_create_cq;
use crate::verbs::{qp as qp_verbs, srq};
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

/// Converts the result of an entry point that returns NULL and sets errno.
fn made<T>(object: *mut T) -> Result<*mut T, Errno> {
    if object.is_null() { Err(std::io::Error::last_os_error().into()) } else { Ok(object) }
}

/// Creates a completion queue for one direction of a queue pair.
///
/// # Safety
/// The pointers are fields of the C structure of `id`.
unsafe fn own_cq(
    id: &Id,
    size: u32,
    channel: *mut *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
) -> Result<(), Errno> {
    if size == 0 {
        return Ok(());
    }
    let size = c_int::try_from(size).map_err(|_| Errno::INVALID)?;
    // SAFETY: fields of the program's structure, which no other call uses meanwhile.
    unsafe {
        let context = (*id.c()).verbs;
        *channel = made(ibv_create_comp_channel(context))?;
        // Inline code of the headers expects the id in `cq_context`.
        *cq = made(ibv_create_cq(context, size, id.c().cast(), *channel, 0))?;
    }
    Ok(())
}

fn make_cqs(id: &Id, send: u32, receive: u32) -> Result<(), Errno> {
    let c = id.c();
    // SAFETY: the program's structure, which no other call uses meanwhile.
    let both = unsafe {
        own_cq(id, send, &raw mut (*c).send_cq_channel, &raw mut (*c).send_cq)
            .and_then(|()| own_cq(id, receive, &raw mut (*c).recv_cq_channel, &raw mut (*c).recv_cq))
    };
    both.inspect_err(|_| destroy_cqs(id))
}

fn destroy_cqs(id: &Id) {
    let c = id.c();
    // SAFETY: the program's structure, which no other call uses meanwhile.
    unsafe {
        let (send, receive) = ((*c).send_cq, (*c).recv_cq);
        for cq in [receive, if send == receive { ptr::null_mut() } else { send }] {
            if !cq.is_null() {
                let _ = destroy_cq(cq.cast());
            }
        }
        let (send, receive) = ((*c).send_cq_channel, (*c).recv_cq_channel);
        for channel in [receive, if send == receive { ptr::null_mut() } else { send }] {
            if !channel.is_null() {
                let _ = destroy_channel(channel);
            }
        }
        (*c).send_cq = ptr::null_mut();
        (*c).recv_cq = ptr::null_mut();
        (*c).send_cq_channel = ptr::null_mut();
        (*c).recv_cq_channel = ptr::null_mut();
    }
}

/// # Safety
/// `attr` is valid, with the fields that its `comp_mask` names, and room for `pd` and `xrcd`.
unsafe fn create(id: &Id, attr: *mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    let device = id.device()?;
    let c = id.c();
    // SAFETY: the program's structures, which no other call uses meanwhile. Fields behind the mask as it
    // names them.
    unsafe {
        if !(*c).qp.is_null() {
            return Err(Errno::INVALID);
        }
        if (*attr).comp_mask & IBV_QP_INIT_ATTR_PD == 0 || (*attr).pd.is_null() {
            (*attr).pd = (*c).pd;
            (*attr).comp_mask |= IBV_QP_INIT_ATTR_PD;
        }
        if !Arc::ptr_eq(find::<Pd>((*attr).pd)?.context(), &device.context) {
            return Err(Errno::INVALID);
        }
        if (*attr).qp_type == IBV_QPT_XRC_RECV {
            if (*attr).comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || (*attr).xrcd.is_null() {
                (*attr).xrcd = device.xrcd()?;
                (*attr).comp_mask |= IBV_QP_INIT_ATTR_XRCD;
            }
        } else {
            let own = |cq: *mut ibv_cq, size: u32| if cq.is_null() { size } else { 0 };
            let cap = (*attr).cap;
            make_cqs(id, own((*attr).send_cq, cap.max_send_wr), own((*attr).recv_cq, cap.max_recv_wr))?;
            if (*attr).send_cq.is_null() {
                (*attr).send_cq = (*c).send_cq;
            }
            if (*attr).recv_cq.is_null() {
                (*attr).recv_cq = (*c).recv_cq;
            }
            if (*attr).srq.is_null() {
                (*attr).srq = (*c).srq;
            }
        }
        let relay = EventRelay::new(Watch::new(id.shared()));
        let qp = qp_verbs::create_extended(attr, Some(relay)).and_then(|qp| begin(id, qp));
        let qp = qp.inspect_err(|_| destroy_cqs(id))?;
        (*c).qp = qp.c();
        (*c).pd = (*attr).pd;
    }
    Ok(())
}

/// Makes a UD queue pair ready at once. Others become ready when they are connected.
fn begin(id: &Id, qp: Arc<Qp>) -> Result<Arc<Qp>, Errno> {
    if !id.is_datagram() {
        return Ok(qp);
    }
    let mut attr = ibv_qp_attr::zeroed();
    attr.port_num = 1;
    attr.qkey = RDMA_UDP_QKEY;
    let steps = [
        (IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
        (IBV_QPS_RTR, 0),
        (IBV_QPS_RTS, IBV_QP_SQ_PSN),
    ];
    for (state, mask) in steps {
        attr.qp_state = state;
        let moved = qp.modify(&attr, (IBV_QP_STATE | mask).cast_signed());
        if let Err(errno) = moved {
            let _ = qp::destroy(qp.c());
            return Err(errno);
        }
    }
    Ok(qp)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: NULL, or valid by the caller's contract.
    minus_one!(unsafe { create_simple(id, pd, init) })
}

/// # Safety
/// `init` is NULL or valid.
pub(super) unsafe fn create_simple(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    let id = find::<Id>(id)?;
    // SAFETY: guaranteed by the caller.
    let init = unsafe { init.as_mut() }.ok_or_else(|| Errno::null("qp_init_attr"))?;
    let mut attr = ibv_qp_init_attr_ex::zeroed();
    let whole = &raw mut attr;
    // SAFETY: both forms begin with the same fields.
    unsafe { whole.cast::<ibv_qp_init_attr>().write(*init) };
    attr.pd = pd;
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    // SAFETY: a complete structure of this function.
    unsafe { create(&id, &raw mut attr)? };
    // Tell the program what was granted and created.
    init.cap = attr.cap;
    init.send_cq = attr.send_cq;
    init.recv_cq = attr.recv_cq;
    init.srq = attr.srq;
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int {
    if attr.is_null() {
        return minus_one!(Err(Errno::null("attr")));
    }
    // SAFETY: valid by the caller's contract.
    minus_one!(find::<Id>(id).and_then(|id| unsafe { create(&id, attr) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    if let Ok(id) = find::<Id>(id) {
        without_cancellation(|| destroy_qp(&id));
    }
}

pub(super) fn destroy_qp(id: &Id) {
    // SAFETY: the program's structure, which no other call uses meanwhile.
    let qp = unsafe { std::mem::replace(&mut (*id.c()).qp, ptr::null_mut()) };
    if !qp.is_null() {
        if let Err(errno) = qp::destroy(qp) {
            errno.set();
        }
        destroy_cqs(id);
    }
}

/// # Safety
/// `attr` is valid, with the fields that its `comp_mask` names, and room for the rest.
unsafe fn create_srq(id: &Id, attr: *mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
    let device = id.device()?;
    let c = id.c();
    // SAFETY: the program's structures, which no other call uses meanwhile. Fields behind the mask as it
    // names them.
    unsafe {
        if !(*c).srq.is_null() {
            return Err(Errno::INVALID);
        }
        let mask = (*attr).comp_mask;
        if mask & IBV_SRQ_INIT_ATTR_PD == 0 || (*attr).pd.is_null() {
            (*attr).pd = (*c).pd;
            (*attr).comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        }
        if mask & IBV_SRQ_INIT_ATTR_TYPE != 0 && (*attr).srq_type == IBV_SRQT_XRC {
            if mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || (*attr).xrcd.is_null() {
                (*attr).xrcd = device.xrcd()?;
                (*attr).comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
            }
            if mask & IBV_SRQ_INIT_ATTR_CQ == 0 || (*attr).cq.is_null() {
                make_cqs(id, 0, (*attr).attr.max_wr)?;
                (*attr).cq = (*c).recv_cq;
                (*attr).comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
            }
        }
        let srq = made(srq::create_srq_ex(device.context.c(), attr));
        (*c).srq = srq.inspect_err(|_| destroy_cqs(id))?;
        (*c).pd = (*attr).pd;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: NULL, or valid by the caller's contract.
    let Some(init) = (unsafe { init.as_mut() }) else { return minus_one!(Err(Errno::null("init"))) };
    let mut attr = ibv_srq_init_attr_ex::zeroed();
    attr.srq_context = init.srq_context;
    attr.attr = init.attr;
    attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    // SAFETY: the program's structure, alive during the call.
    let qp_type = find::<Id>(id).map(|id| id.qp_type());
    attr.srq_type = if qp_type == Ok(IBV_QPT_XRC_RECV) { IBV_SRQT_XRC } else { IBV_SRQT_BASIC };
    attr.pd = pd;
    // SAFETY: a complete structure of this function.
    minus_one!(find::<Id>(id).and_then(|id| unsafe { create_srq(&id, &raw mut attr) }).map(|()| {
        init.attr = attr.attr;
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int {
    if attr.is_null() {
        return minus_one!(Err(Errno::null("attr")));
    }
    // SAFETY: valid by the caller's contract.
    minus_one!(find::<Id>(id).and_then(|id| unsafe { create_srq(&id, attr) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    if let Ok(id) = find::<Id>(id) {
        without_cancellation(|| destroy_srq(&id));
    }
}

pub(super) fn destroy_srq(id: &Id) {
    // SAFETY: the program's structure, which no other call uses meanwhile.
    let srq = unsafe { std::mem::replace(&mut (*id.c()).srq, ptr::null_mut()) };
    if !srq.is_null() {
        let failed = srq::ibv_destroy_srq(srq);
        if failed != 0 {
            Errno(failed).set();
        }
        destroy_cqs(id);
    }
}
