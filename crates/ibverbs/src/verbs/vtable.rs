//! Fills the tables of functions that inline code of the headers calls through a context.

use super::{buf, checked, cq, cq_ex, dm, mr, mw, post, qp, query, srq, td, unsupported, xrc};
use crate::abi::*;
use crate::check;

/// Returns the tables for a new context. All other fields are zero.
pub(crate) fn tables() -> verbs_context {
    let mut verbs = verbs_context::zeroed();
    verbs.sz = size_of::<verbs_context>();
    verbs.query_port = Some(query::query_port);
    verbs.query_device_ex = Some(query::query_device_ex);
    verbs.query_rt_values = Some(query::query_rt_values);
    verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
    verbs.modify_cq = Some(cq::modify_cq);
    verbs.create_qp_ex = Some(qp::create_qp_ex);
    verbs.open_qp = Some(qp::open_qp);
    verbs.create_srq_ex = Some(srq::create_srq_ex);
    verbs.get_srq_num = Some(srq::get_srq_num);
    verbs.open_xrcd = Some(xrc::open_xrcd);
    verbs.close_xrcd = Some(xrc::close_xrcd);
    verbs.alloc_td = Some(td::alloc_td);
    verbs.dealloc_td = Some(td::dealloc_td);
    verbs.alloc_parent_domain = Some(td::alloc_parent_domain);
    verbs.advise_mr = Some(mr::advise_mr);
    verbs.alloc_dm = Some(dm::alloc_dm);
    verbs.free_dm = Some(dm::free_dm);
    verbs.reg_dm_mr = Some(dm::reg_dm_mr);
    verbs.reg_mr_ex = Some(mr::ibv_reg_mr_ex);
    verbs.alloc_buf = Some(buf::ibv_alloc_buf);
    verbs.free_buf = Some(buf::ibv_free_buf);
    unsupported::fill(&mut verbs);
    let ops = &mut verbs.context.ops;
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.bind_mw = Some(mw::bind_mw);
    ops.dealloc_mw = Some(mw::dealloc_mw);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_srq_recv = Some(post::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    if check::active().is_some() {
        ops.poll_cq = Some(checked::poll_cq);
        ops.req_notify_cq = Some(cq::req_notify_cq_checked);
        ops.post_srq_recv = Some(checked::post_srq_recv);
        ops.post_send = Some(checked::post_send);
        ops.post_recv = Some(checked::post_recv);
    }
    verbs
}
