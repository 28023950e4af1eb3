//! Functions of both libraries that are not supported. They are exported because programs that refer to them would not
//! load otherwise.
//!
//! Each fails in the way that its manual page describes, with EOPNOTSUPP: programs and rdma-core's tests take
//! EOPNOTSUPP for a missing feature, and any other errno for a failure. The functions ignore their arguments, so they
//! declare none. In C calling conventions only the caller needs to know how many arguments there are.
#![expect(unsafe_code, reason = "exports symbols")]

use crate::abi::*;
use crate::support::errno::Errno;
use crate::support::report;
use std::ffi::{c_int, c_void};
use std::ptr;

/// Defines exported functions, in groups by the helper that sets errno and returns the value for an error. A text in
/// parentheses is logged as the reason. Only functions that programs call have one, not those of drivers.
macro_rules! unsupported {
    ($($fail:ident: $type:ty { $($name:ident $(($why:literal))?,)* })*) => {
        $($(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> $type {
                $(report::log_unsupported_call(stringify!($name), $why);)?
                $fail()
            }
        )*)*
    };
}

unsupported! {
    // Verbs.
    null: *mut c_void {
        ibv_alloc_dmah("DMA hints are not supported: register the memory without them"),
        ibv_create_comp_cntr("completion counters are not supported: use a completion queue"),
        ibv_reg_dmabuf_mr("memory of other devices cannot be registered: copy it and use ibv_reg_mr"),
    }
    errno: c_int {
        _ibv_query_comp_cntr_caps,
        ibv_attach_mcast("multicast is not supported: send to each receiver"),
        ibv_dealloc_dmah,
        ibv_destroy_comp_cntr,
        ibv_detach_mcast("multicast is not supported"),
        ibv_inc_comp_cntr,
        ibv_inc_err_comp_cntr,
        ibv_qp_attach_comp_cntr("completion counters are not supported: use a completion queue"),
        ibv_query_ece("vendor options are not supported"),
        ibv_read_comp_cntr,
        ibv_read_err_comp_cntr,
        ibv_resolve_eth_l2_from_gid("Ethernet addresses are not available: the GID is enough"),
        ibv_set_comp_cntr,
        ibv_set_ece("vendor options are not supported"),
        ibv_set_err_comp_cntr,
    }
    minus_one: isize {
        ibv_dm_export_dmabuf_fd("device memory is ordinary memory, without a DMA-buf"),
    }
    // Functions that drivers of other devices call. Such drivers load and register themselves, but get no device.
    null: *mut c_void {
        _verbs_init_and_alloc_context,
        ibv_dmabuf_heap_alloc,
        ibv_dmabuf_heap_cc_shared_init,
        verbs_open_device,
    }
    errno: c_int {
        execute_ioctl,
        ibv_cmd_advise_mr,
        ibv_cmd_alloc_dm,
        ibv_cmd_alloc_dmah,
        ibv_cmd_alloc_mw,
        ibv_cmd_alloc_pd,
        ibv_cmd_attach_mcast,
        ibv_cmd_close_xrcd,
        ibv_cmd_create_ah,
        ibv_cmd_create_comp_cntr,
        ibv_cmd_create_counters,
        ibv_cmd_create_cq,
        ibv_cmd_create_cq_ex,
        ibv_cmd_create_cq_ex2,
        ibv_cmd_create_flow,
        ibv_cmd_create_flow_action_esp,
        ibv_cmd_create_qp,
        ibv_cmd_create_qp_ex,
        ibv_cmd_create_qp_ex2,
        ibv_cmd_create_rwq_ind_table,
        ibv_cmd_create_srq,
        ibv_cmd_create_srq_ex,
        ibv_cmd_create_wq,
        ibv_cmd_dealloc_mw,
        ibv_cmd_dealloc_pd,
        ibv_cmd_dereg_mr,
        ibv_cmd_destroy_ah,
        ibv_cmd_destroy_comp_cntr,
        ibv_cmd_destroy_counters,
        ibv_cmd_destroy_cq,
        ibv_cmd_destroy_flow,
        ibv_cmd_destroy_flow_action,
        ibv_cmd_destroy_qp,
        ibv_cmd_destroy_rwq_ind_table,
        ibv_cmd_destroy_srq,
        ibv_cmd_destroy_wq,
        ibv_cmd_detach_mcast,
        ibv_cmd_export_dmabuf_fd,
        ibv_cmd_free_dm,
        ibv_cmd_free_dmah,
        ibv_cmd_get_context,
        ibv_cmd_inc_comp_cntr,
        ibv_cmd_inc_err_comp_cntr,
        ibv_cmd_modify_cq,
        ibv_cmd_modify_flow_action_esp,
        ibv_cmd_modify_qp,
        ibv_cmd_modify_qp_ex,
        ibv_cmd_modify_srq,
        ibv_cmd_modify_wq,
        ibv_cmd_open_qp,
        ibv_cmd_open_xrcd,
        ibv_cmd_poll_cq,
        ibv_cmd_post_recv,
        ibv_cmd_post_send,
        ibv_cmd_post_srq_recv,
        ibv_cmd_qp_attach_comp_cntr,
        ibv_cmd_query_comp_cntr_caps,
        ibv_cmd_query_context,
        ibv_cmd_query_device_any,
        ibv_cmd_query_mr,
        ibv_cmd_query_port,
        ibv_cmd_query_port_speed,
        ibv_cmd_query_qp,
        ibv_cmd_query_srq,
        ibv_cmd_read_comp_cntr,
        ibv_cmd_read_counters,
        ibv_cmd_read_err_comp_cntr,
        ibv_cmd_reg_dm_mr,
        ibv_cmd_reg_dmabuf_mr,
        ibv_cmd_reg_mr,
        ibv_cmd_reg_mr_ex,
        ibv_cmd_req_notify_cq,
        ibv_cmd_rereg_mr,
        ibv_cmd_resize_cq,
        ibv_cmd_set_comp_cntr,
        ibv_cmd_set_err_comp_cntr,
    }
    minus_one: isize {
        ibv_read_ibdev_sysfs_file,
    }
    zero: u64 {
        __ioctl_final_num_attrs,
    }
    nothing: () {
        __verbs_log,
        ibv_dmabuf_heap_destroy,
        ibv_dmabuf_heap_free,
        verbs_init_cq,
        verbs_register_driver_34,
        verbs_set_ops,
        verbs_uninit_context,
    }
}

/// A variable that drivers of other devices set. Nothing reads it here.
#[unsafe(no_mangle)]
static verbs_allow_disassociate_destroy: bool = false;

/// Sets errno and returns NULL.
fn null() -> *mut c_void {
    errno();
    ptr::null_mut()
}

/// Sets errno and returns -1.
fn minus_one() -> isize {
    errno();
    -1
}

/// Sets errno and returns it, as most verbs do.
fn errno() -> c_int {
    Errno::UNSUPPORTED.set();
    Errno::UNSUPPORTED.0
}

/// Sets errno and returns zero.
fn zero() -> u64 {
    errno();
    0
}

/// Does nothing, for functions that return nothing. Their callers do not read errno, so it stays.
fn nothing() {}

/// Fills slots of the table that are not supported. For an empty slot, inline code of the headers would also return
/// EOPNOTSUPP, but without a log entry. Slots that the caller has filled stay.
pub(crate) fn fill(verbs: &mut verbs_context) {
    macro_rules! slots {
        ($($slot:ident($($argument:ty),*) -> *mut $object:ty: $why:literal;)* ; $($other:ident($($of:ty),*): $reason:literal;)*) => {
            $({
                unsafe extern "C" fn $slot($(_: $argument),*) -> *mut $object {
                    report::log_unsupported_call(&c_name(stringify!($slot)), $why);
                    null().cast()
                }
                verbs.$slot.get_or_insert($slot);
            })*
            $({
                unsafe extern "C" fn $other($(_: $of),*) -> c_int {
                    report::log_unsupported_call(&c_name(stringify!($other)), $reason);
                    errno()
                }
                verbs.$other.get_or_insert($other);
            })*
        };
    }
    slots! {
        alloc_null_mr(*mut ibv_pd) -> *mut ibv_mr: "null regions are not supported: register a scratch buffer";
        create_counters(*mut ibv_context, *mut ibv_counters_init_attr) -> *mut ibv_counters: "flow counters are not supported";
        create_flow_action_esp(*mut ibv_context, *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action: "raw packet flows are not supported";
        create_rwq_ind_table(*mut ibv_context, *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table: "raw packet queues are not supported";
        create_wq(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq: "raw packet queues are not supported";
        ibv_create_flow(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow: "raw packet flows are not supported";
        ;
        modify_qp_rate_limit(*mut ibv_qp, *mut ibv_qp_rate_limit_attr): "rate limits are not supported: TCP controls the rate";
        post_srq_ops(*mut ibv_srq, *mut ibv_ops_wr, *mut *mut ibv_ops_wr): "tag matching is not supported";
    }
}

/// Returns the name of the C function that calls a slot.
fn c_name(slot: &str) -> String {
    format!("ibv_{}", slot.strip_prefix("ibv_").unwrap_or(slot))
}
