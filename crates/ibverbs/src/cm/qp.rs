//! Creates and destroys the queue pair and the shared receive queue of an id (`rdma_create_qp`,
//! `rdma_create_srq`). If the program gives no completion queues, they are created as well, each with a
//! completion channel.
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

/// Converts the result of an entry point that returns NULL and sets errno on failure.
fn check<T>(object: *mut T) -> Result<*mut T, Errno> {
    if object.is_null() { Err(std::io::Error::last_os_error().into()) } else { Ok(object) }
}

/// Creates a completion channel and a completion queue of `size` entries, and stores them in the C structure of
/// the id. Does nothing if `size` is zero.
///
/// # Safety
/// `channel` and `cq` point to fields of the C structure of `id`.
unsafe fn create_cq(
    id: &Id,
    size: u32,
    channel: *mut *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
) -> Result<(), Errno> {
    if size == 0 {
        return Ok(());
    }
    let size = c_int::try_from(size).map_err(|_| Errno::INVALID)?;
    // SAFETY: fields of the structure of `id`, which is alive. Calls on one id take turns (see `Id`).
    unsafe {
        let context = (*id.c()).verbs;
        *channel = check(ibv_create_comp_channel(context))?;
        // `rdma_get_send_comp` and `rdma_get_recv_comp` of the headers expect the id in `cq_context`.
        *cq = check(ibv_create_cq(context, size, id.c().cast(), *channel, 0))?;
    }
    Ok(())
}

/// Creates completion queues of the id with these numbers of entries, or none where the number is zero.
fn create_cqs(id: &Id, send: u32, receive: u32) -> Result<(), Errno> {
    let c = id.c();
    // SAFETY: `id` keeps its structure alive, and calls on one id take turns (see `Id`).
    let both = unsafe {
        create_cq(id, send, &raw mut (*c).send_cq_channel, &raw mut (*c).send_cq)
            .and_then(|()| create_cq(id, receive, &raw mut (*c).recv_cq_channel, &raw mut (*c).recv_cq))
    };
    both.inspect_err(|_| destroy_cqs(id))
}

/// Destroys the completion queues that the id has created, and their channels.
fn destroy_cqs(id: &Id) {
    let c = id.c();
    // SAFETY: `id` keeps its structure alive, and calls on one id take turns (see `Id`).
    unsafe {
        // The completion queue is that of the shared receive queue, which is destroyed later.
        if id.qp_type() == IBV_QPT_XRC_RECV && !(*c).srq.is_null() {
            return;
        }
        // The program may have set both fields to one object, which is destroyed once.
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

/// Creates the queue pair of an id. Sets the protection domain, completion queues, shared receive queue and XRC
/// domain in `attr` to those of the id where the program gave none.
///
/// # Safety
/// `attr` is valid, with the fields that its `comp_mask` names, and room for `pd` and `xrcd`.
unsafe fn create_qp(id: &Id, attr: *mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    let device = id.device()?;
    let c = id.c();
    // SAFETY: `id` keeps its structure alive, and calls on one id take turns (see `Id`). `attr` is valid by the
    // caller's contract; `pd` and `xrcd` are read only if the mask names them.
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
            let size_of_new = |given: *mut ibv_cq, size: u32| if given.is_null() { size } else { 0 };
            let cap = (*attr).cap;
            let send_size = size_of_new((*attr).send_cq, cap.max_send_wr);
            let receive_size = size_of_new((*attr).recv_cq, cap.max_recv_wr);
            create_cqs(id, send_size, receive_size)?;
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
        let qp = qp_verbs::create_extended(attr, Some(relay)).and_then(|qp| make_ready_if_datagram(id, qp));
        let qp = qp.inspect_err(|_| destroy_cqs(id))?;
        (*c).qp = qp.c();
        (*c).pd = (*attr).pd;
    }
    Ok(())
}

/// Moves a UD queue pair to the state ready to send, and returns it. Destroys it if that fails. Other types of
/// queue pairs are returned unchanged: they become ready when they are connected.
fn make_ready_if_datagram(id: &Id, qp: Arc<Qp>) -> Result<Arc<Qp>, Errno> {
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
        if let Err(errno) = qp.modify(&attr, (IBV_QP_STATE | mask).cast_signed()) {
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
    minus_one!(unsafe { create_qp_from_init_attr(id, pd, init) })
}

/// Implements `rdma_create_qp`: creates the queue pair of an id from an `ibv_qp_init_attr`, the attributes without
/// extensions. Stores the granted capacities, and the queues that the queue pair uses, in `init`. If `pd` is NULL, the
/// queue pair is in the default protection domain of the id. Also called by `rdma_create_ep`, and by `rdma_get_request`
/// for a listener with such attributes.
///
/// # Safety
/// `init` is NULL or valid.
pub(super) unsafe fn create_qp_from_init_attr(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    let id = find::<Id>(id)?;
    // SAFETY: NULL or valid, by the caller's contract.
    let init = unsafe { init.as_mut() }.ok_or_else(|| Errno::null("qp_init_attr"))?;
    let mut attr = ibv_qp_init_attr_ex::zeroed();
    let extended = &raw mut attr;
    // SAFETY: the extended structure begins with all fields of the basic one, at the same offsets.
    unsafe { extended.cast::<ibv_qp_init_attr>().write(*init) };
    attr.pd = pd;
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    // SAFETY: a complete local structure, so it has all fields.
    unsafe { create_qp(&id, &raw mut attr)? };
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
    // SAFETY: not NULL, and valid by the caller's contract.
    minus_one!(find::<Id>(id).and_then(|id| unsafe { create_qp(&id, attr) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    if let Ok(id) = find::<Id>(id) {
        without_cancellation(|| destroy_qp(&id));
    }
}

/// Destroys the queue pair of an id, if it has one, and the completion queues that the id has created. Sets
/// errno if the queue pair cannot be destroyed, because `rdma_destroy_qp` returns nothing.
pub(super) fn destroy_qp(id: &Id) {
    // SAFETY: `id` keeps its structure alive, and calls on one id take turns (see `Id`).
    let qp = unsafe { std::mem::replace(&mut (*id.c()).qp, ptr::null_mut()) };
    if !qp.is_null() {
        if let Err(errno) = qp::destroy(qp) {
            errno.set();
        }
        destroy_cqs(id);
    }
}

/// Creates the shared receive queue of an id. Sets the protection domain and, for XRC, the XRC domain and the
/// completion queue in `attr` to those of the id where the program gave none.
///
/// # Safety
/// `attr` is valid, with the fields that its `comp_mask` names, and room for the rest.
unsafe fn create_srq(id: &Id, attr: *mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
    let device = id.device()?;
    let c = id.c();
    // SAFETY: `id` keeps its structure alive, and calls on one id take turns (see `Id`). `attr` is valid by the
    // caller's contract; its optional fields are read only if the mask names them.
    unsafe {
        if !(*c).srq.is_null() {
            return Err(Errno::INVALID);
        }
        let mask = (*attr).comp_mask;
        if mask & IBV_SRQ_INIT_ATTR_PD == 0 || (*attr).pd.is_null() {
            (*attr).pd = (*c).pd;
            (*attr).comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        }
        device.context.check_same_adapter(find::<Pd>((*attr).pd)?.context(), "protection domain")?;
        if mask & IBV_SRQ_INIT_ATTR_TYPE != 0 && (*attr).srq_type == IBV_SRQT_XRC {
            if mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || (*attr).xrcd.is_null() {
                (*attr).xrcd = device.xrcd()?;
                (*attr).comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
            }
            if mask & IBV_SRQ_INIT_ATTR_CQ == 0 || (*attr).cq.is_null() {
                create_cqs(id, 0, (*attr).attr.max_wr)?;
                (*attr).cq = (*c).recv_cq;
                (*attr).comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
            }
        }
        let srq = check(srq::create_srq_ex(device.context.c(), attr));
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
    let qp_type = find::<Id>(id).map(|id| id.qp_type());
    attr.srq_type = if qp_type == Ok(IBV_QPT_XRC_RECV) { IBV_SRQT_XRC } else { IBV_SRQT_BASIC };
    attr.pd = pd;
    // SAFETY: a complete local structure, so it has all fields.
    minus_one!(find::<Id>(id).and_then(|id| unsafe { create_srq(&id, &raw mut attr) }).map(|()| {
        init.attr = attr.attr;
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int {
    if attr.is_null() {
        return minus_one!(Err(Errno::null("attr")));
    }
    // SAFETY: not NULL, and valid by the caller's contract.
    minus_one!(find::<Id>(id).and_then(|id| unsafe { create_srq(&id, attr) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    if let Ok(id) = find::<Id>(id) {
        without_cancellation(|| destroy_srq(&id));
    }
}

/// Destroys the shared receive queue of an id, if it has one, and the completion queues that the id has
/// created. Sets errno if the queue cannot be destroyed, because `rdma_destroy_srq` returns nothing.
pub(super) fn destroy_srq(id: &Id) {
    // SAFETY: `id` keeps its structure alive, and calls on one id take turns (see `Id`).
    let srq = unsafe { std::mem::replace(&mut (*id.c()).srq, ptr::null_mut()) };
    if !srq.is_null() {
        let errno = srq::ibv_destroy_srq(srq);
        if errno != 0 {
            Errno(errno).set();
        }
        destroy_cqs(id);
    }
}
