//! A queue pair of an XRC domain, opened once more by its number: it stays until the last of its objects is destroyed.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::Qp;
use super::create::plain;
use crate::abi::*;
use crate::errno::{Errno, object};
use crate::object::{CObject, Uses, all, find, publish};
use crate::xrc::Xrcd;
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) unsafe extern "C" fn open_qp(_: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    // SAFETY: NULL or the caller's.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return object!(Err(Errno::null("attr"))) };
    object!(open(attr).map(|qp| qp.c()))
}

fn open(attr: &ibv_qp_open_attr) -> Result<Arc<Qp>, Errno> {
    let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    let mask = attr.comp_mask;
    if mask & !(needed | IBV_QP_OPEN_ATTR_CONTEXT) != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    if mask & needed != needed || attr.qp_type != IBV_QPT_XRC_RECV {
        return Err(Errno::INVALID);
    }
    let xrcd = find::<Xrcd>(attr.xrcd)?;
    let uses = Uses::of(&*xrcd)?;
    let of_domain = |qp: &Qp| {
        qp.number() == attr.qp_num && qp.xrc.as_ref().is_some_and(|xrc| Arc::ptr_eq(xrc, xrcd.inner()))
    };
    // One more before another thread takes the last one away.
    let counted = |qp: &Arc<Qp>| {
        let more = |handles: usize| (handles > 0).then(|| handles + 1);
        of_domain(qp) && qp.handles.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    };
    let qp = all::<Qp>().into_iter().find(counted).ok_or_else(|| {
        Errno::INVALID.because("there is no XRC receive queue pair with this number in the domain")
    })?;
    let mut init = qp.init;
    if mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 {
        init.qp_context = attr.qp_context;
    }
    let opened = Qp {
        c: UnsafeCell::new(plain(&qp.context, None, &qp.kind, &init)),
        kind: qp.kind.clone(),
        init,
        xrc: qp.xrc.clone(),
        attr: Arc::clone(&qp.attr),
        builder: UnsafeCell::default(),
        building: crate::qp_ex::Building::default(),
        handles: Arc::clone(&qp.handles),
        watch: None,
        _pd: None,
        context: Arc::clone(&qp.context),
    };
    let opened = publish(opened, uses);
    opened.note_state();
    Ok(opened)
}
