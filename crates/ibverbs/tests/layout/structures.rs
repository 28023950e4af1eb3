//! The structures of all headers, with all their fields. A missing field is a compile error.

use crate::Structure;
use ironwarp_ibverbs::abi::*;
use std::mem::{offset_of, size_of};

/// Defines one `Structure` for each type. The destructuring ensures that no field is left out. `as` gives the
/// name in C if it differs.
macro_rules! structures {
    ($($name:ident $(as $type:literal)? { $($field:ident $(as $member:literal)?),* $(,)? })*) => {
        pub(crate) fn structures() -> Vec<Structure> {
            vec![$({
                let _ = |value: $name| { let $name { $($field: _),* } = value; };
                Structure {
                    name: c_name!(concat!("struct ", stringify!($name)) $(, $type)?),
                    size: size_of::<$name>(),
                    fields: vec![$((c_name!(stringify!($field) $(, $member)?), offset_of!($name, $field)),)*],
                }
            },)*]
        }
    };
}

macro_rules! c_name {
    ($name:expr) => {
        $name
    };
    ($name:expr, $other:literal) => {
        $other
    };
}

structures! {
    ibv_gid_global as "__typeof__(((union ibv_gid *)0)->global)" { subnet_prefix, interface_id }
    ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
    ibv_alloc_dm_attr { length, log_align_req, comp_mask }
    ibv_device_attr {
        fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id,
        hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr,
        max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom,
        max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp,
        max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr,
        max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
        phys_port_cnt
    }
    ibv_query_device_ex_input { comp_mask }
    ibv_odp_caps { general_caps, per_transport_caps }
    ibv_odp_per_transport_caps as "__typeof__(((struct ibv_odp_caps *)0)->per_transport_caps)" {
        rc_odp_caps, uc_odp_caps, ud_odp_caps
    }
    ibv_tso_caps { max_tso, supported_qpts }
    ibv_rss_caps {
        supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size,
        rx_hash_fields_mask, rx_hash_function
    }
    ibv_packet_pacing_caps { qp_rate_limit_min, qp_rate_limit_max, supported_qpts }
    ibv_tm_caps { max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge }
    ibv_cq_moderation_caps { max_cq_count, max_cq_period }
    ibv_pci_atomic_caps { fetch_add, swap, compare_swap }
    ibv_device_attr_ex {
        orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock,
        device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq, packet_pacing_caps,
        raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps, xrc_odp_caps,
        phys_port_cnt_ex
    }
    ibv_port_attr {
        state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
        qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
        init_type_reply, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2,
        active_speed_ex
    }
    ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
    ibv_grh { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid }
    ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
    ibv_td_init_attr { comp_mask }
    ibv_xrcd_init_attr { comp_mask, fd, oflags }
    ibv_srq_attr { max_wr, max_sge, srq_limit }
    ibv_srq_init_attr { srq_context, attr }
    ibv_tm_cap { max_num_tags, max_ops }
    ibv_srq_init_attr_ex { srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap }
    ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
    ibv_rx_hash_conf { rx_hash_function, rx_hash_key_len, rx_hash_key, rx_hash_fields_mask }
    ibv_qp_init_attr_ex {
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd,
        create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags
    }
    ibv_qp_open_attr { comp_mask, qp_num, xrcd, qp_context, qp_type }
    ibv_qp_attr {
        qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
        qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify,
        sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt,
        rnr_retry, alt_port_num, alt_timeout, rate_limit
    }
    ibv_qp_rate_limit_attr { rate_limit, max_burst_sz, typical_pkt_sz, comp_mask }
    ibv_ece { vendor_id, options, comp_mask }
    ibv_moderate_cq { cq_count, cq_period }
    ibv_modify_cq_attr { attr_mask, moderate }
    ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain }
    ibv_values_ex { comp_mask, raw_clock }
    ibv_sge { addr, length, lkey }
    ibv_data_buf { addr, length }
    ibv_fd_arr { arr, count }
    ibv_recv_wr { wr_id, next, sg_list, num_sge }
    ibv_send_wr {
        wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, qp_type, extra as "bind_mw"
    }
    ibv_send_wr_rdma as "__typeof__(((struct ibv_send_wr *)0)->wr.rdma)" { remote_addr, rkey }
    ibv_send_wr_atomic as "__typeof__(((struct ibv_send_wr *)0)->wr.atomic)" {
        remote_addr, compare_add, swap, rkey
    }
    ibv_send_wr_ud as "__typeof__(((struct ibv_send_wr *)0)->wr.ud)" { ah, remote_qpn, remote_qkey }
    ibv_send_wr_qp_type as "__typeof__(((struct ibv_send_wr *)0)->qp_type)" { xrc }
    ibv_send_wr_xrc as "__typeof__(((struct ibv_send_wr *)0)->qp_type.xrc)" { remote_srqn }
    ibv_send_wr_bind_mw as "__typeof__(((struct ibv_send_wr *)0)->bind_mw)" { mw, rkey, bind_info }
    ibv_send_wr_tso as "__typeof__(((struct ibv_send_wr *)0)->tso)" { hdr, hdr_sz, mss }
    ibv_mw_bind_info { mr, addr, length, mw_access_flags }
    ibv_mw_bind { wr_id, send_flags, bind_info }
    ibv_ops_wr { wr_id, next, opcode, flags, tm }
    ibv_ops_wr_tm as "__typeof__(((struct ibv_ops_wr *)0)->tm)" { unexpected_cnt, handle, add }
    ibv_ops_wr_add as "__typeof__(((struct ibv_ops_wr *)0)->tm.add)" {
        recv_wr_id, sg_list, num_sge, tag, mask
    }
    ibv_tmh { opcode, reserved, app_ctx, tag }
    ibv_rvh { va, rkey, len }
    ibv_wc {
        wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index,
        slid, sl, dlid_path_bits
    }
    ibv_wc_tm_info { tag, priv_ as "priv" }
    ibv_poll_cq_attr { comp_mask }
    ibv_async_event { element, event_type }
    ibv_pd { context, handle }
    ibv_td { context }
    ibv_xrcd { context }
    ibv_mr { context, pd, addr, length, handle, lkey, rkey }
    ibv_mw { context, pd, rkey, handle, type_ as "type" }
    ibv_ah { context, pd, handle }
    ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask, handle }
    ibv_mr_init_attr { length, access, comp_mask, iova, addr, fd, fd_offset, dmah, buf }
    ibv_dmah { context }
    ibv_dmah_init_attr { comp_mask, cpu_id, ph, tph_mem_type }
    ibv_comp_cntr { context, handle }
    ibv_comp_cntr_caps { max_value, max_counters, supported_qp_attach_ops }
    ibv_comp_cntr_init_attr { comp_mask, type_ as "type", flags }
    ibv_qp_attach_comp_cntr_attr { comp_mask, op_mask }
    ibv_parent_domain_init_attr { pd, td, comp_mask, alloc, free, pd_context }
    ibv_comp_channel { context, fd, refcnt }
    ibv_cq {
        context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
        async_events_completed
    }
    ibv_cq_ex {
        context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
        async_events_completed, comp_mask, status, wr_id, start_poll, next_poll, end_poll,
        read_opcode, read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp,
        read_wc_flags, read_slid, read_sl, read_dlid_path_bits, read_completion_ts, read_cvlan,
        read_flow_tag, read_tm_info, read_completion_wallclock_ns
    }
    ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
    ibv_qp {
        context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
        events_completed
    }
    ibv_qp_ex {
        qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw,
        wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm,
        wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data,
        wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start, wr_complete, wr_abort,
        wr_atomic_write, wr_flush
    }
    ibv_wq {
        context, wq_context, pd, cq, wq_num, handle, state, wq_type, post_recv, mutex, cond,
        events_completed, comp_mask
    }
    ibv_wq_init_attr { wq_context, wq_type, max_wr, max_sge, pd, cq, comp_mask, create_flags }
    ibv_wq_attr { attr_mask, wq_state, curr_wq_state, flags, flags_mask }
    ibv_rwq_ind_table { context, ind_tbl_handle, ind_tbl_num, comp_mask }
    ibv_rwq_ind_table_init_attr { log_ind_tbl_size, ind_tbl, comp_mask }
    _ibv_device_ops { _dummy1, _dummy2 }
    ibv_device { _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path }
    ibv_context_ops {
        _compat_query_device, _compat_query_port, _compat_alloc_pd, _compat_dealloc_pd,
        _compat_reg_mr, _compat_rereg_mr, _compat_dereg_mr, alloc_mw, bind_mw, dealloc_mw,
        _compat_create_cq, poll_cq, req_notify_cq, _compat_cq_event, _compat_resize_cq,
        _compat_destroy_cq, _compat_create_srq, _compat_modify_srq, _compat_query_srq,
        _compat_destroy_srq, post_srq_recv, _compat_create_qp, _compat_query_qp, _compat_modify_qp,
        _compat_destroy_qp, post_send, post_recv, _compat_create_ah, _compat_destroy_ah,
        _compat_attach_mcast, _compat_detach_mcast, _compat_async_event
    }
    ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
    verbs_context {
        free_buf, alloc_buf, dm_export_dmabuf_fd, reg_mr_ex, dealloc_dmah, alloc_dmah, query_port, advise_mr, alloc_null_mr, read_counters, attach_counters_point_flow,
        create_counters, destroy_counters, reg_dm_mr, alloc_dm, free_dm, modify_flow_action_esp,
        destroy_flow_action, create_flow_action_esp, modify_qp_rate_limit, alloc_parent_domain,
        dealloc_td, alloc_td, modify_cq, post_srq_ops, destroy_rwq_ind_table, create_rwq_ind_table,
        destroy_wq, modify_wq, create_wq, query_rt_values, create_cq_ex, priv_ as "priv",
        query_device_ex, ibv_destroy_flow, ABI_placeholder2, ibv_create_flow, ABI_placeholder1,
        open_qp, create_qp_ex, get_srq_num, create_srq_ex, open_xrcd, close_xrcd, _ABI_placeholder3,
        sz, context
    }
    ibv_counters_init_attr { comp_mask }
    ibv_counters { context }
    ibv_counter_attach_attr { counter_desc, index, comp_mask }
    ibv_flow_attr { comp_mask, type_ as "type", size, priority, num_of_specs, port, flags }
    ibv_flow { comp_mask, context, handle }
    ibv_flow_action { context }
    ibv_flow_action_esp_attr {
        esp_attr, keymat_proto, keymat_len, keymat_ptr, replay_proto, replay_len, replay_ptr,
        esp_encap, comp_mask, esn
    }
    ibv_sa_path_rec {
        dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class, reversible,
        numb_path, pkey, sl, mtu_selector, mtu, rate_selector, rate, packet_life_time_selector,
        packet_life_time, preference
    }
    ibv_sa_mcmember_rec {
        mgid, port_gid, qkey, mlid, mtu_selector, mtu, traffic_class, pkey, rate_selector, rate,
        packet_life_time_selector, packet_life_time, sl, flow_label, hop_limit, scope, join_state,
        proxy_join
    }
    ibv_sa_service_rec { id, gid, pkey, lease, key, name, data8, data16, data32, data64 }
    ibv_path_record {
        service_id, dgid, sgid, dlid, slid, flowlabel_hoplimit, tclass, reversible_numpath, pkey,
        qosclass_sl, mtu, rate, packetlifetime, preference, reserved
    }
    ibv_path_data { flags, reserved, path }
    rdma_ib_addr { sgid, dgid, pkey }
    rdma_addr { src as "src_storage", dst as "dst_storage", addr }
    rdma_route { addr, path_rec, num_paths }
    rdma_event_channel { fd }
    rdma_cm_id {
        verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq,
        recv_cq_channel, recv_cq, srq, pd, qp_type
    }
    rdma_conn_param {
        private_data, private_data_len, responder_resources, initiator_depth, flow_control,
        retry_count, rnr_retry_count, srq, qp_num
    }
    rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey }
    rdma_cm_event { id, listen_id, event, status, param }
    rdma_addrinfo {
        ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len, ai_dst_len, ai_src_addr,
        ai_dst_addr, ai_src_canonname, ai_dst_canonname, ai_route_len, ai_route, ai_connect_len,
        ai_connect, ai_next
    }
    rdma_cm_join_mc_attr_ex { comp_mask, join_flags, addr }
    ib_uverbs_global_route {
        dgid, flow_label, sgid_index, hop_limit, traffic_class, reserved
    }
    ib_uverbs_ah_attr {
        grh, dlid, sl, src_path_bits, static_rate, is_global, port_num, reserved
    }
    ib_uverbs_qp_attr {
        qp_attr_mask, qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn,
        dest_qp_num, qp_access_flags, ah_attr, alt_ah_attr, max_send_wr, max_recv_wr, max_send_sge,
        max_recv_sge, max_inline_data, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining,
        max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry,
        alt_port_num, alt_timeout, reserved
    }
    ib_user_path_rec {
        dgid, sgid, dlid, slid, raw_traffic, flow_label, reversible, mtu, pkey, hop_limit,
        traffic_class, numb_path, sl, mtu_selector, rate_selector, rate, packet_life_time_selector,
        packet_life_time, preference
    }
}
