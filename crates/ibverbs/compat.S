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

/* Functions of the C library that ours stand in front of: src/files. Without a version they serve all that ask for one. */

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
