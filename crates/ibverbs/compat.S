/*
 * Names that libibverbs has twice: at IBVERBS_1.0 with the structures of that time, and at IBVERBS_1.1. Only a binary from before
 * 2008 asks for the old ones. But a binary that was linked without versions gets the oldest version of a name, and was built with
 * current headers. So the old names are the new functions.
 */

#if defined(__x86_64__)
#define GO(name) jmp name@PLT
#elif defined(__aarch64__)
#define GO(name) b name
#else
#error "unknown architecture: which instruction jumps to a function?"
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

/* Drivers of that time called this name to register themselves. */
AT(IBVERBS_1.1, ibv_register_driver, verbs_register_driver_34)

/* Interposed functions of the C library: src/files. Without a version they match every version. */

AT(, open, ironwarp_open)
AT(, open64, ironwarp_open64)
AT(, openat, ironwarp_openat)
AT(, openat64, ironwarp_openat64)
AT(, fopen, ironwarp_fopen)
AT(, fopen64, ironwarp_fopen64)
AT(, stat, ironwarp_stat)
AT(, stat64, ironwarp_stat64)
AT(, lstat, ironwarp_lstat)
AT(, lstat64, ironwarp_lstat64)
AT(, fstatat, ironwarp_fstatat)
AT(, fstatat64, ironwarp_fstatat64)
AT(, statx, ironwarp_statx)
AT(, access, ironwarp_access)
AT(, faccessat, ironwarp_faccessat)
AT(, getxattr, ironwarp_getxattr)
AT(, lgetxattr, ironwarp_lgetxattr)
AT(, opendir, ironwarp_opendir)
AT(, readlink, ironwarp_readlink)
AT(, readlinkat, ironwarp_readlinkat)
AT(, realpath, ironwarp_realpath)
AT(, __open_2, ironwarp_open_2)
AT(, __open64_2, ironwarp_open64_2)
AT(, __openat_2, ironwarp_openat_2)
AT(, __openat64_2, ironwarp_openat64_2)
AT(, __xstat, ironwarp_xstat)
AT(, __xstat64, ironwarp_xstat64)
AT(, __lxstat, ironwarp_lxstat)
AT(, __lxstat64, ironwarp_lxstat64)
AT(, __realpath_chk, ironwarp_realpath_chk)
AT(, chdir, ironwarp_chdir)
AT(, fchdir, ironwarp_fchdir)
AT(, getcwd, ironwarp_getcwd)
AT(, __getcwd_chk, ironwarp_getcwd_chk)
AT(, fdopendir, ironwarp_fdopendir)
AT(, readdir, ironwarp_readdir)
AT(, readdir64, ironwarp_readdir64)
AT(, rewinddir, ironwarp_rewinddir)
AT(, closedir, ironwarp_closedir)
AT(, scandir, ironwarp_scandir)
AT(, scandir64, ironwarp_scandir64)
AT(, socket, ironwarp_socket)
/* Interposed functions for sockets: src/cm/port_conflict.rs. */
AT(, bind, ironwarp_bind)
AT(, listen, ironwarp_listen)
/*
 * What drivers of other releases need: the names of the private node of versions.map, at nodes with other numbers. rdma-core 33
 * (Debian 11) has 33, 57 and 58 have 57, 59 to 63 have 59, 64 has 64, 65 (sid) has 65. The number in DRIVER_n is that of the
 * first node that has the name; 34 is in versions.map. `.symver` gives one jump all of its names.
 */
#define FROM_65(name) .symver driver_##name, name@IBVERBS_PRIVATE_65
#define FROM_64(name) .symver driver_##name, name@IBVERBS_PRIVATE_64; FROM_65(name)
#define FROM_59(name) .symver driver_##name, name@IBVERBS_PRIVATE_59; FROM_64(name)
#define FROM_57(name) .symver driver_##name, name@IBVERBS_PRIVATE_57; FROM_59(name)
#define FROM_33(name) .symver driver_##name, name@IBVERBS_PRIVATE_33; FROM_57(name)

#define DRIVER(name) \
	.globl	driver_##name;		\
	.type	driver_##name, %function;	\
driver_##name:				\
	GO(name);				\
	.size	driver_##name, . - driver_##name
#define DRIVER_33(name) DRIVER(name); FROM_33(name)
#define DRIVER_57(name) DRIVER(name); FROM_57(name)
#define DRIVER_59(name) DRIVER(name); FROM_59(name)
#define DRIVER_64(name) DRIVER(name); FROM_64(name)
#define DRIVER_65(name) DRIVER(name); FROM_65(name)

AT(IBVERBS_PRIVATE_33, verbs_register_driver_33, verbs_register_driver_34)
AT(IBVERBS_PRIVATE_57, verbs_register_driver_57, verbs_register_driver_34)
AT(IBVERBS_PRIVATE_59, verbs_register_driver_59, verbs_register_driver_34)
AT(IBVERBS_PRIVATE_64, verbs_register_driver_64, verbs_register_driver_34)
AT(IBVERBS_PRIVATE_65, verbs_register_driver_65, verbs_register_driver_34)

DRIVER_33(_verbs_init_and_alloc_context)
DRIVER_33(execute_ioctl)
DRIVER_33(ibv_cmd_advise_mr)
DRIVER_33(ibv_cmd_alloc_dm)
DRIVER_33(ibv_cmd_alloc_mw)
DRIVER_33(ibv_cmd_alloc_pd)
DRIVER_33(ibv_cmd_attach_mcast)
DRIVER_33(ibv_cmd_close_xrcd)
DRIVER_33(ibv_cmd_create_ah)
DRIVER_33(ibv_cmd_create_counters)
DRIVER_33(ibv_cmd_create_cq)
DRIVER_33(ibv_cmd_create_cq_ex)
DRIVER_33(ibv_cmd_create_flow)
DRIVER_33(ibv_cmd_create_flow_action_esp)
DRIVER_33(ibv_cmd_create_qp_ex)
DRIVER_33(ibv_cmd_create_qp_ex2)
DRIVER_33(ibv_cmd_create_rwq_ind_table)
DRIVER_33(ibv_cmd_create_srq)
DRIVER_33(ibv_cmd_create_srq_ex)
DRIVER_33(ibv_cmd_create_wq)
DRIVER_33(ibv_cmd_dealloc_mw)
DRIVER_33(ibv_cmd_dealloc_pd)
DRIVER_33(ibv_cmd_dereg_mr)
DRIVER_33(ibv_cmd_destroy_ah)
DRIVER_33(ibv_cmd_destroy_counters)
DRIVER_33(ibv_cmd_destroy_cq)
DRIVER_33(ibv_cmd_destroy_flow)
DRIVER_33(ibv_cmd_destroy_flow_action)
DRIVER_33(ibv_cmd_destroy_qp)
DRIVER_33(ibv_cmd_destroy_rwq_ind_table)
DRIVER_33(ibv_cmd_destroy_srq)
DRIVER_33(ibv_cmd_destroy_wq)
DRIVER_33(ibv_cmd_detach_mcast)
DRIVER_33(ibv_cmd_free_dm)
DRIVER_33(ibv_cmd_get_context)
DRIVER_33(ibv_cmd_modify_cq)
DRIVER_33(ibv_cmd_modify_flow_action_esp)
DRIVER_33(ibv_cmd_modify_qp)
DRIVER_33(ibv_cmd_modify_qp_ex)
DRIVER_33(ibv_cmd_modify_srq)
DRIVER_33(ibv_cmd_modify_wq)
DRIVER_33(ibv_cmd_open_qp)
DRIVER_33(ibv_cmd_open_xrcd)
DRIVER_33(ibv_cmd_query_context)
DRIVER_33(ibv_cmd_query_device_any)
DRIVER_33(ibv_cmd_query_mr)
DRIVER_33(ibv_cmd_query_port)
DRIVER_33(ibv_cmd_query_qp)
DRIVER_33(ibv_cmd_query_srq)
DRIVER_33(ibv_cmd_read_counters)
DRIVER_33(ibv_cmd_reg_dm_mr)
DRIVER_33(ibv_cmd_reg_mr)
DRIVER_33(ibv_cmd_rereg_mr)
DRIVER_33(ibv_cmd_resize_cq)
DRIVER_33(ibv_query_gid_type)
DRIVER_33(verbs_init_cq)
DRIVER_33(verbs_open_device)
DRIVER_33(verbs_set_ops)
DRIVER_33(verbs_uninit_context)

DRIVER_57(__ioctl_final_num_attrs)
DRIVER_57(__verbs_log)
DRIVER_57(ibv_cmd_create_cq_ex2)
DRIVER_57(ibv_cmd_create_qp)
DRIVER_57(ibv_cmd_poll_cq)
DRIVER_57(ibv_cmd_post_recv)
DRIVER_57(ibv_cmd_post_send)
DRIVER_57(ibv_cmd_post_srq_recv)
DRIVER_57(ibv_cmd_reg_dmabuf_mr)
DRIVER_57(ibv_cmd_req_notify_cq)
DRIVER_57(ibv_read_ibdev_sysfs_file)
DRIVER_57(ibv_wr_opcode_str)

DRIVER_59(ibv_cmd_alloc_dmah)
DRIVER_59(ibv_cmd_export_dmabuf_fd)
DRIVER_59(ibv_cmd_free_dmah)
DRIVER_59(ibv_cmd_query_port_speed)
DRIVER_59(ibv_cmd_reg_mr_ex)

DRIVER_64(ibv_dmabuf_heap_alloc)
DRIVER_64(ibv_dmabuf_heap_cc_shared_init)
DRIVER_64(ibv_dmabuf_heap_destroy)
DRIVER_64(ibv_dmabuf_heap_free)

DRIVER_65(ibv_cmd_create_comp_cntr)
DRIVER_65(ibv_cmd_destroy_comp_cntr)
DRIVER_65(ibv_cmd_inc_comp_cntr)
DRIVER_65(ibv_cmd_inc_err_comp_cntr)
DRIVER_65(ibv_cmd_qp_attach_comp_cntr)
DRIVER_65(ibv_cmd_query_comp_cntr_caps)
DRIVER_65(ibv_cmd_read_comp_cntr)
DRIVER_65(ibv_cmd_read_err_comp_cntr)
DRIVER_65(ibv_cmd_set_comp_cntr)
DRIVER_65(ibv_cmd_set_err_comp_cntr)

/* The only object: a byte that drivers read. */
	.bss
	.globl	driver_verbs_allow_disassociate_destroy
	.type	driver_verbs_allow_disassociate_destroy, %object
driver_verbs_allow_disassociate_destroy:
	.skip	1
	.size	driver_verbs_allow_disassociate_destroy, 1
FROM_33(verbs_allow_disassociate_destroy)
