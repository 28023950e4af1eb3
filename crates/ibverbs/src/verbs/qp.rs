//! Entry points for queue pairs, except for the data path.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::qp_ex;
use crate::abi::*;
use crate::objects::qp::{self, EventRelay, ExtendedCalls, Qp, QpAttributes};
use crate::objects::xrc::Xrcd;
use crate::support::errno::{Errno, code, code_and_errno, destroy_code, object};
use crate::support::object::{CObject, find, put};
use std::ffi::c_int;
use std::sync::Arc;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    if init.is_null() {
        return object!(Err(Errno::null("qp_init_attr")));
    }
    // SAFETY: valid by the caller's contract.
    let init = unsafe { &mut *init };
    let attributes = QpAttributes { init: *init, xrcd: None, extended: None, relay: None };
    object!(Qp::new(pd, attributes).map(|qp| {
        init.cap = qp.init().cap;
        qp.c()
    }))
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    _: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    if attr.is_null() {
        return object!(Err(Errno::null("attr")));
    }
    // SAFETY: the fields up to `comp_mask` exist by the caller's contract, and those that `comp_mask` names.
    unsafe { object!(create_extended(attr, None).map(|qp| qp.c())) }
}

/// Creates a queue pair from extended attributes, and writes the granted capacities back to them. `relay` is the
/// connection manager that will connect the queue pair, if any.
///
/// # Safety
/// `attr` is valid up to `comp_mask`, with the fields that `comp_mask` names. The structure of older programs is
/// shorter.
pub(crate) unsafe fn create_extended(
    attr: *mut ibv_qp_init_attr_ex,
    relay: Option<Arc<EventRelay>>,
) -> Result<Arc<Qp>, Errno> {
    // SAFETY: the caller guarantees the fields of `ibv_qp_init_attr`, with which the structure begins, and the mask.
    let (mut init, mask) = unsafe { (attr.cast::<ibv_qp_init_attr>().read(), (*attr).comp_mask) };
    let known = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if mask & !known != 0 {
        return Err(
            Errno::UNSUPPORTED.because(format_args!("comp_mask {mask:#x} has bits that are not supported"))
        );
    }
    // SAFETY: each field is read only if the mask names it, so it exists by the caller's contract.
    let (pd, xrcd, create_flags, send_ops) = unsafe {
        (
            if mask & IBV_QP_INIT_ATTR_PD != 0 { (*attr).pd } else { std::ptr::null_mut() },
            if mask & IBV_QP_INIT_ATTR_XRCD != 0 { Some(find::<Xrcd>((*attr).xrcd)?) } else { None },
            if mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 { (*attr).create_flags } else { 0 },
            (mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0).then(|| (*attr).send_ops_flags),
        )
    };
    if create_flags != 0 || send_ops.is_some_and(|ops| !qp_ex::supports(init.qp_type, ops)) {
        return Err(
            Errno::UNSUPPORTED.because("create_flags, or an operation in send_ops_flags, is not supported")
        );
    }
    if xrcd.is_some() {
        init.qp_type = IBV_QPT_XRC_RECV;
    }
    let extended = send_ops.map(|operations| ExtendedCalls { operations, fill: qp_ex::fill });
    let qp = Qp::new(pd, QpAttributes { init, xrcd, extended, relay })?;
    // SAFETY: the field exists in every form of the structure, by the caller's contract.
    unsafe { (*attr).cap = qp.init().cap };
    Ok(qp)
}

pub(crate) unsafe extern "C" fn open_qp(_: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    // SAFETY: NULL, or valid by the caller's contract.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return object!(Err(Errno::null("attr"))) };
    object!(Qp::open(attr).map(|qp| qp.c()))
}

/// Changes attributes of a queue pair, most often its state. Returns 0 or an errno, and sets `errno`, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    if attr.is_null() {
        return code_and_errno!(Err(Errno::null("attr")));
    }
    // SAFETY: valid by the caller's contract.
    let attr = unsafe { &*attr };
    code_and_errno!(find::<Qp>(qp).and_then(|qp| qp.modify(attr, mask)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    code!(find::<Qp>(qp).map(|qp| {
        // SAFETY: NULL, or valid by the caller's contract.
        unsafe {
            put(attr, qp.query());
            put(init, *qp.init());
        }
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    destroy_code!(qp::destroy(qp))
}

/// Returns a pointer to the extended form of the same object, or NULL if there is no such queue pair.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    find::<Qp>(qp).map_or(std::ptr::null_mut(), |qp| qp.c().cast())
}
