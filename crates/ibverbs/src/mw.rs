//! Memory windows.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::errno::{Errno, code, destroyed, object};
use crate::mr::{Mr, remote_rights};
use crate::object::{CObject, Uses, begin_destroy, find, publish};
use crate::pd::Pd;
use crate::qp::Qp;
use ironwarp_rnic::memory::{Binding, Scope, following};
use ironwarp_rnic::queue::{Data, Operation, Sges, WorkRequest};
use ironwarp_wire::Tag;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

/// A memory window. Those of type 1 belong to a domain, those of type 2 to the queue pair that they are bound on.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Mw {
    c: UnsafeCell<ibv_mw>,
    kind: ibv_mw_type,
    pd: Arc<Pd>,
}

// SAFETY: the C structure comes first. The tag in it is written by bind, whose callers take turns.
unsafe impl CObject for Mw {
    type C = ibv_mw;
}
// SAFETY: as above.
unsafe impl Sync for Mw {}
// SAFETY: as above.
unsafe impl Send for Mw {}

impl Mw {
    fn tag(&self) -> Tag {
        // SAFETY: a word of the C structure.
        Tag(unsafe { (*self.c.get()).rkey })
    }
}

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    object!(find::<Pd>(pd).and_then(|pd| {
        if !matches!(kind, IBV_MW_TYPE_1 | IBV_MW_TYPE_2) {
            return Err(Errno::INVALID
                .because(format_args!("type {kind} is neither IBV_MW_TYPE_1 nor IBV_MW_TYPE_2")));
        }
        let uses = Uses::of(&*pd)?;
        let tag = pd.context().engine().device().table().allocate_window(pd.domain())?;
        let c = ibv_mw { context: pd.context().c(), pd: pd.c(), rkey: tag.0, handle: tag.0, type_: kind };
        Ok(publish(Mw { c: UnsafeCell::new(c), kind, pd }, uses).c())
    }))
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    destroyed!(begin_destroy::<Mw>(mw).and_then(|found| {
        // A window of type 2 may have another instance by now; the entry is the same.
        let table = found.pd.context().engine().device().table();
        let now = table.current(found.tag()).ok_or_else(|| Errno::INVALID.because("the window is gone"))?;
        table.deregister(now)?;
        found.finish();
        Ok(())
    }))
}

/// What binding a window of type 2 asks of the adapter. The program chooses the last byte of its tag, with `rkey`; the rest
/// is the window's.
pub(crate) fn bind_operation(
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<Operation, Errno> {
    let window = find::<Mw>(mw)?;
    if window.kind != IBV_MW_TYPE_2 {
        return Err(Errno::INVALID.because("a window of type 1 is bound by ibv_bind_mw"));
    }
    let tag = Tag(window.tag().0 & !0xff | rkey & 0xff);
    Ok(Operation::BindAs { tag, binding: binding(&window, info)? })
}

fn binding(window: &Mw, info: &ibv_mw_bind_info) -> Result<Binding, Errno> {
    let region = match info.length {
        0 => Tag(0), // bound to nothing
        _ => find::<Mr>(info.mr)?.tag(),
    };
    let scope = if window.kind == IBV_MW_TYPE_1 { Scope::Domain } else { Scope::Stream };
    Ok(Binding {
        region,
        at: info.addr,
        len: info.length,
        rights: remote_rights(info.mw_access_flags),
        scope,
        zero_based: info.mw_access_flags & IBV_ACCESS_ZERO_BASED != 0,
        one_touch: false,
    })
}

/// Binds a window of type 1. Its tag changes with each binding; the program finds the new one in the window.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: NULL or the caller's.
    let Some(bind) = (unsafe { bind.as_ref() }) else { return Errno::INVALID.0 };
    code!(find::<Qp>(qp).and_then(|qp| {
        let window = find::<Mw>(mw)?;
        if window.kind != IBV_MW_TYPE_1 {
            return Err(
                Errno::INVALID.because("a window of type 2 is bound by a work request, IBV_WR_BIND_MW")
            );
        }
        let pair =
            qp.stream().ok_or_else(|| Errno::INVALID.because("a UD queue pair cannot bind windows"))?;
        let operation = Operation::Bind { window: window.tag(), binding: binding(&window, &bind.bind_info)? };
        let signaled = qp.init().sq_sig_all != 0 || bind.send_flags & IBV_SEND_SIGNALED != 0;
        let request = WorkRequest {
            signaled,
            fence: bind.send_flags & IBV_SEND_FENCE != 0,
            ..WorkRequest::new(bind.wr_id, operation, Data::Memory(Sges::default()))
        };
        let next = following(window.tag());
        pair.post_send(vec![request])?;
        // SAFETY: a word of the C structure, which the callers of bind take turns for.
        unsafe { (*window.c.get()).rkey = next.0 };
        Ok(())
    }))
}
