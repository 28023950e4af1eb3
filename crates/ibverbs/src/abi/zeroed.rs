//! [`Zeroed`]: creates C structures of zero bytes, as C programs do before they set fields.
#![expect(unsafe_code, reason = "declares the types for which zero bytes are valid")]

use super::*;

/// A type for which zero bytes are a valid value.
///
/// # Safety
/// Zero bytes must be valid: integers, pointers, optional functions, and arrays, structures or unions of
/// these, without references and Rust enumerations.
pub unsafe trait Zeroed: Sized {
    /// Returns a value of zero bytes.
    #[must_use]
    fn zeroed() -> Self {
        // SAFETY: zero bytes are valid by the contract of the trait.
        unsafe { std::mem::zeroed() }
    }
}

/// Implements [`Zeroed`] for structures of this module.
macro_rules! zeroed {
    ($($name:ident),* $(,)?) => {
        $(
            // SAFETY: integers, raw pointers, optional functions, and C structures and unions of these.
            unsafe impl Zeroed for $name {}
        )*
    };
}

zeroed! {
    ibv_ah, ibv_ah_attr, ibv_alloc_dm_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_context_ops, ibv_cq,
    ibv_cq_ex, ibv_cq_init_attr_ex, ibv_data_buf, ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_dm, ibv_ece,
    ibv_gid, ibv_gid_entry, ibv_global_route, ibv_grh, ibv_modify_cq_attr, ibv_mr, ibv_mw, ibv_mw_bind,
    ibv_mw_bind_info, ibv_odp_caps, ibv_parent_domain_init_attr, ibv_pd, ibv_poll_cq_attr, ibv_port_attr, ibv_qp,
    ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_recv_wr,
    ibv_sa_mcmember_rec, ibv_sa_path_rec, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, ibv_td, ibv_values_ex, ibv_wc, ibv_wc_tm_info, ibv_xrcd, ibv_xrcd_init_attr, rdma_addr,
    rdma_addrinfo, rdma_cm_event, rdma_cm_id, rdma_cm_join_mc_attr_ex, rdma_conn_param, rdma_event_channel,
    rdma_ib_addr, rdma_route, rdma_ud_param, verbs_context,
}
