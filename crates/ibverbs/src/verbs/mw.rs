//! Entry points for memory windows.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::checked;
use crate::abi::*;
use crate::check;
use crate::objects::mw::{self, Mw};
use crate::objects::pd::Pd;
use crate::objects::qp::Qp;
use crate::support::errno::{Errno, code, destroy_code, object};
use crate::support::object::{CObject, find};
use ironwarp_rnic::queue::{Data, Operation, Sges, WorkRequest};
use std::ffi::c_int;

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    object!(find::<Pd>(pd).and_then(|pd| {
        if !matches!(kind, IBV_MW_TYPE_1 | IBV_MW_TYPE_2) {
            return Err(Errno::INVALID
                .because(format_args!("type {kind} is neither IBV_MW_TYPE_1 nor IBV_MW_TYPE_2")));
        }
        if let Some(checker) = check::active() {
            checker.allocating_window();
        }
        Mw::new(pd, kind).map(|mw| mw.c())
    }))
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    destroy_code!(mw::destroy(mw))
}

/// Posts a request that binds a window of type 1. The binding gives the window a new tag, which the program reads from
/// the C structure after this call.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: NULL, or valid by the caller's contract.
    let Some(bind) = (unsafe { bind.as_ref() }) else { return code!(Err(Errno::null("mw_bind"))) };
    code!(find::<Qp>(qp).and_then(|qp| {
        let window = find::<Mw>(mw)?;
        if window.kind() != IBV_MW_TYPE_1 {
            return Err(Errno::INVALID
                .because("the window is of type 2: bind it with a work request, IBV_WR_BIND_MW"));
        }
        let pair =
            qp.stream().ok_or_else(|| Errno::INVALID.because("a UD queue pair cannot bind windows"))?;
        let operation =
            Operation::Bind { window: window.tag(), binding: window.binding(qp.context(), &bind.bind_info)? };
        let signaled = qp.init().sq_sig_all != 0 || bind.send_flags & IBV_SEND_SIGNALED != 0;
        let request = WorkRequest {
            signaled,
            fence: bind.send_flags & IBV_SEND_FENCE != 0,
            ..WorkRequest::new(bind.wr_id, operation, Data::Memory(Sges::default()))
        };
        let next = window.next_tag()?;
        match check::active() {
            None => pair.post_send([request])?,
            Some(checker) => {
                let post = || Ok(pair.post_send([request.clone()])?);
                checked::post_built(&qp, std::slice::from_ref(&request), post, checker)?;
            }
        }
        window.set_tag(next);
        Ok(())
    }))
}
