/*
 * Names that libibverbs has twice: at IBVERBS_1.0 with the structures of that time, and at IBVERBS_1.1. A binary that asks
 * for the old ones would have to be from before 2008; but one that was linked without versions gets the oldest of a
 * name, and was built with today's headers. So the old names are the new functions.
 */

#if defined(__x86_64__)
#define GO(name) jmp name@PLT
#elif defined(__aarch64__)
#define GO(name) b name
#else
#error "which instruction jumps to a function?"
#endif

#define AT(node, name, target) \
	.globl	old_##name;		\
	.type	old_##name, %function;	\
old_##name:				\
	GO(target);				\
	.size	old_##name, . - old_##name; \
	.symver	old_##name, name@node

#define OLD(name) AT(IBVERBS_1.0, name, name)

	.section .note.GNU-stack, "", %progbits
	.text

OLD(ibv_ack_async_event)
OLD(ibv_ack_cq_events)
OLD(ibv_alloc_pd)
OLD(ibv_attach_mcast)
OLD(ibv_close_device)
OLD(ibv_create_ah)
OLD(ibv_create_cq)
OLD(ibv_create_qp)
OLD(ibv_create_srq)
OLD(ibv_dealloc_pd)
OLD(ibv_dereg_mr)
OLD(ibv_destroy_ah)
OLD(ibv_destroy_cq)
OLD(ibv_destroy_qp)
OLD(ibv_destroy_srq)
OLD(ibv_detach_mcast)
OLD(ibv_free_device_list)
OLD(ibv_get_async_event)
OLD(ibv_get_cq_event)
OLD(ibv_get_device_guid)
OLD(ibv_get_device_list)
OLD(ibv_get_device_name)
OLD(ibv_modify_qp)
OLD(ibv_modify_srq)
OLD(ibv_open_device)
OLD(ibv_query_device)
OLD(ibv_query_gid)
OLD(ibv_query_pkey)
OLD(ibv_query_port)
OLD(ibv_query_qp)
OLD(ibv_query_srq)
OLD(ibv_reg_mr)
OLD(ibv_resize_cq)

/* Drivers of that time registered themselves by this name. */
AT(IBVERBS_1.1, ibv_register_driver, verbs_register_driver_34)

/* What tools and drivers of Debian 11 ask for; versions.map says why. */
AT(IBVERBS_PRIVATE_33, _verbs_init_and_alloc_context, _verbs_init_and_alloc_context)
AT(IBVERBS_PRIVATE_33, execute_ioctl, execute_ioctl)
AT(IBVERBS_PRIVATE_33, ibv_cmd_advise_mr, ibv_cmd_advise_mr)
AT(IBVERBS_PRIVATE_33, ibv_cmd_alloc_dm, ibv_cmd_alloc_dm)
AT(IBVERBS_PRIVATE_33, ibv_cmd_alloc_mw, ibv_cmd_alloc_mw)
AT(IBVERBS_PRIVATE_33, ibv_cmd_alloc_pd, ibv_cmd_alloc_pd)
AT(IBVERBS_PRIVATE_33, ibv_cmd_attach_mcast, ibv_cmd_attach_mcast)
AT(IBVERBS_PRIVATE_33, ibv_cmd_close_xrcd, ibv_cmd_close_xrcd)
AT(IBVERBS_PRIVATE_33, ibv_cmd_create_ah, ibv_cmd_create_ah)
AT(IBVERBS_PRIVATE_33, ibv_cmd_create_counters, ibv_cmd_create_counters)
AT(IBVERBS_PRIVATE_33, ibv_cmd_create_cq, ibv_cmd_create_cq)
AT(IBVERBS_PRIVATE_33, ibv_cmd_create_cq_ex, ibv_cmd_create_cq_ex)
AT(IBVERBS_PRIVATE_33, ibv_cmd_create_flow, ibv_cmd_create_flow)
AT(IBVERBS_PRIVATE_33, ibv_cmd_create_flow_action_esp, ibv_cmd_create_flow_action_esp)
AT(IBVERBS_PRIVATE_33, ibv_cmd_create_qp_ex, ibv_cmd_create_qp_ex)
AT(IBVERBS_PRIVATE_33, ibv_cmd_create_qp_ex2, ibv_cmd_create_qp_ex2)
AT(IBVERBS_PRIVATE_33, ibv_cmd_create_rwq_ind_table, ibv_cmd_create_rwq_ind_table)
AT(IBVERBS_PRIVATE_33, ibv_cmd_create_srq, ibv_cmd_create_srq)
AT(IBVERBS_PRIVATE_33, ibv_cmd_create_srq_ex, ibv_cmd_create_srq_ex)
AT(IBVERBS_PRIVATE_33, ibv_cmd_create_wq, ibv_cmd_create_wq)
AT(IBVERBS_PRIVATE_33, ibv_cmd_dealloc_mw, ibv_cmd_dealloc_mw)
AT(IBVERBS_PRIVATE_33, ibv_cmd_dealloc_pd, ibv_cmd_dealloc_pd)
AT(IBVERBS_PRIVATE_33, ibv_cmd_dereg_mr, ibv_cmd_dereg_mr)
AT(IBVERBS_PRIVATE_33, ibv_cmd_destroy_ah, ibv_cmd_destroy_ah)
AT(IBVERBS_PRIVATE_33, ibv_cmd_destroy_counters, ibv_cmd_destroy_counters)
AT(IBVERBS_PRIVATE_33, ibv_cmd_destroy_cq, ibv_cmd_destroy_cq)
AT(IBVERBS_PRIVATE_33, ibv_cmd_destroy_flow, ibv_cmd_destroy_flow)
AT(IBVERBS_PRIVATE_33, ibv_cmd_destroy_flow_action, ibv_cmd_destroy_flow_action)
AT(IBVERBS_PRIVATE_33, ibv_cmd_destroy_qp, ibv_cmd_destroy_qp)
AT(IBVERBS_PRIVATE_33, ibv_cmd_destroy_rwq_ind_table, ibv_cmd_destroy_rwq_ind_table)
AT(IBVERBS_PRIVATE_33, ibv_cmd_destroy_srq, ibv_cmd_destroy_srq)
AT(IBVERBS_PRIVATE_33, ibv_cmd_destroy_wq, ibv_cmd_destroy_wq)
AT(IBVERBS_PRIVATE_33, ibv_cmd_detach_mcast, ibv_cmd_detach_mcast)
AT(IBVERBS_PRIVATE_33, ibv_cmd_free_dm, ibv_cmd_free_dm)
AT(IBVERBS_PRIVATE_33, ibv_cmd_get_context, ibv_cmd_get_context)
AT(IBVERBS_PRIVATE_33, ibv_cmd_modify_cq, ibv_cmd_modify_cq)
AT(IBVERBS_PRIVATE_33, ibv_cmd_modify_flow_action_esp, ibv_cmd_modify_flow_action_esp)
AT(IBVERBS_PRIVATE_33, ibv_cmd_modify_qp, ibv_cmd_modify_qp)
AT(IBVERBS_PRIVATE_33, ibv_cmd_modify_qp_ex, ibv_cmd_modify_qp_ex)
AT(IBVERBS_PRIVATE_33, ibv_cmd_modify_srq, ibv_cmd_modify_srq)
AT(IBVERBS_PRIVATE_33, ibv_cmd_modify_wq, ibv_cmd_modify_wq)
AT(IBVERBS_PRIVATE_33, ibv_cmd_open_qp, ibv_cmd_open_qp)
AT(IBVERBS_PRIVATE_33, ibv_cmd_open_xrcd, ibv_cmd_open_xrcd)
AT(IBVERBS_PRIVATE_33, ibv_cmd_query_context, ibv_cmd_query_context)
AT(IBVERBS_PRIVATE_33, ibv_cmd_query_device_any, ibv_cmd_query_device_any)
AT(IBVERBS_PRIVATE_33, ibv_cmd_query_mr, ibv_cmd_query_mr)
AT(IBVERBS_PRIVATE_33, ibv_cmd_query_port, ibv_cmd_query_port)
AT(IBVERBS_PRIVATE_33, ibv_cmd_query_qp, ibv_cmd_query_qp)
AT(IBVERBS_PRIVATE_33, ibv_cmd_query_srq, ibv_cmd_query_srq)
AT(IBVERBS_PRIVATE_33, ibv_cmd_read_counters, ibv_cmd_read_counters)
AT(IBVERBS_PRIVATE_33, ibv_cmd_reg_dm_mr, ibv_cmd_reg_dm_mr)
AT(IBVERBS_PRIVATE_33, ibv_cmd_reg_mr, ibv_cmd_reg_mr)
AT(IBVERBS_PRIVATE_33, ibv_cmd_rereg_mr, ibv_cmd_rereg_mr)
AT(IBVERBS_PRIVATE_33, ibv_cmd_resize_cq, ibv_cmd_resize_cq)
AT(IBVERBS_PRIVATE_33, ibv_query_gid_type, ibv_query_gid_type)
AT(IBVERBS_PRIVATE_33, verbs_allow_disassociate_destroy, verbs_allow_disassociate_destroy)
AT(IBVERBS_PRIVATE_33, verbs_init_cq, verbs_init_cq)
AT(IBVERBS_PRIVATE_33, verbs_open_device, verbs_open_device)
AT(IBVERBS_PRIVATE_33, verbs_register_driver_33, verbs_register_driver_34)
AT(IBVERBS_PRIVATE_33, verbs_set_ops, verbs_set_ops)
AT(IBVERBS_PRIVATE_33, verbs_uninit_context, verbs_uninit_context)
