//! Entry points for shared receive queues, except for the data path.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::objects::cq::Cq;
use crate::objects::limits::MAX_SRQ_REQUESTS;
use crate::objects::pd::Pd;
use crate::objects::srq::{self, Srq, XrcParts};
use crate::objects::xrc::Xrcd;
use crate::support::errno::{Errno, code, destroy_code, object};
use crate::support::object::{CObject, find, put};
use std::ffi::c_int;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    if init.is_null() {
        return object!(Err(Errno::null("srq_init_attr")));
    }
    // SAFETY: not NULL, and valid by the caller's contract.
    let init = unsafe { &mut *init };
    // `None`: not an XRC shared receive queue.
    object!(find::<Pd>(pd).and_then(|pd| Srq::new(pd, init, None)).map(|srq| srq.c()))
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    _: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    if attr.is_null() {
        return object!(Err(Errno::null("attr")));
    }
    // SAFETY: not NULL, and valid by the caller's contract. Fields behind the mask exist if the mask names them.
    unsafe { object!(create_extended(attr)) }
}

/// Creates a basic or XRC shared receive queue from extended attributes, and writes the granted capacities to them.
///
/// # Safety
/// `attr` is valid up to `comp_mask`, with the fields that `comp_mask` names.
unsafe fn create_extended(attr: *mut ibv_srq_init_attr_ex) -> Result<*mut ibv_srq, Errno> {
    // SAFETY: the caller guarantees the fields of `ibv_srq_init_attr`, with which the structure begins, and the mask.
    let (mut init, mask) = unsafe { (attr.cast::<ibv_srq_init_attr>().read(), (*attr).comp_mask) };
    let known = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    if mask & !known != 0 {
        return Err(
            Errno::UNSUPPORTED.because(format_args!("comp_mask {mask:#x} has bits that are not supported"))
        );
    }
    // SAFETY: each field is read only if the mask names it, so it exists by the caller's contract.
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
                return Err(Errno::INVALID.because(
                    "an XRC shared receive queue requires IBV_SRQ_INIT_ATTR_XRCD and IBV_SRQ_INIT_ATTR_CQ",
                ));
            }
            // SAFETY: the mask names both fields, so they exist by the caller's contract.
            unsafe {
                Some(XrcParts { xrcd: find::<Xrcd>((*attr).xrcd)?, cq: find::<Cq>((*attr).cq.cast())? })
            }
        }
        _ => {
            return Err(Errno::UNSUPPORTED.because(format_args!(
                "srq_type {kind} is not supported, use IBV_SRQT_BASIC or IBV_SRQT_XRC"
            )));
        }
    };
    let srq = Srq::new(pd, &mut init, xrc)?;
    // SAFETY: the field exists in every form of the structure, by the caller's contract.
    unsafe { (*attr).attr = init.attr };
    Ok(srq.c())
}

pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    code!(find::<Srq>(srq).map(|srq| {
        // SAFETY: NULL, or valid by the caller's contract.
        unsafe { put(number, srq.inner().id()) };
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    // SAFETY: NULL, or valid by the caller's contract.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return code!(Err(Errno::null("srq_attr"))) };
    let mask = mask.cast_unsigned();
    code!(find::<Srq>(srq).and_then(|srq| {
        if mask & IBV_SRQ_MAX_WR != 0 {
            if attr.max_wr == 0 || attr.max_wr > MAX_SRQ_REQUESTS {
                return Err(Errno::INVALID.because(format_args!(
                    "max_wr {} must be between 1 and {MAX_SRQ_REQUESTS}",
                    attr.max_wr
                )));
            }
            srq.inner().resize(attr.max_wr as usize)?;
        }
        if mask & IBV_SRQ_LIMIT != 0 {
            if attr.srq_limit as usize > srq.inner().query().depth {
                return Err(Errno::INVALID
                    .because(format_args!("srq_limit {} exceeds the depth of the queue", attr.srq_limit)));
            }
            srq.inner().set_limit(attr.srq_limit as usize);
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    code!(find::<Srq>(srq).map(|srq| {
        let found = srq.inner().query();
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let found = ibv_srq_attr {
            max_wr: number(found.depth),
            max_sge: number(found.max_sges),
            srq_limit: number(found.limit),
        };
        // SAFETY: NULL, or valid by the caller's contract.
        unsafe { put(attr, found) };
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    destroy_code!(srq::destroy(srq))
}
