/* Calls every function of both libraries with arguments that no caller should pass: NULL, objects of another type,
 * destroyed objects, invalid numbers. Each must return with the errno that is given here. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Functions that no header declares. */
int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index, unsigned int *type);
int ibv_read_ibdev_sysfs_file(char *buf, size_t size, void *device, const char *format, ...);
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);
const char *ibv_get_sysfs_path(void);
void ibv_copy_ah_attr_from_kern(void *to, void *from);
void ibv_copy_qp_attr_from_kern(void *to, void *from);
void ibv_copy_path_rec_from_kern(void *to, void *from);
void ibv_copy_path_rec_to_kern(void *to, void *from);
const char *ibv_wr_opcode_str(int opcode) __attribute__((weak)); /* of later releases */
/* Functions of rdma-core 59 to 65, declared here as the ABI defines them. */
#define LATER __attribute__((weak))
struct epoll_event;
LATER void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, void **buf);
LATER void ibv_free_buf(void *buf);
LATER struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, void *buf, void *addr, size_t length, int access);
LATER int ibv_export_buf_dmabuf_fd(void *buf);
LATER struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, void *attr);
LATER int ibv_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed);
LATER void *ibv_alloc_dmah(struct ibv_context *context, void *attr);
LATER int ibv_dealloc_dmah(void *dmah);
LATER int ibv_dm_export_dmabuf_fd(void *dm);
LATER int _ibv_query_comp_cntr_caps(struct ibv_context *context, void *caps, size_t size);
LATER void *ibv_create_comp_cntr(struct ibv_context *context, void *attr);
LATER int ibv_destroy_comp_cntr(void *counter);
LATER int ibv_inc_comp_cntr(void *counter, uint64_t amount);
LATER int ibv_inc_err_comp_cntr(void *counter, uint64_t amount);
LATER int ibv_set_comp_cntr(void *counter, uint64_t value);
LATER int ibv_set_err_comp_cntr(void *counter, uint64_t value);
LATER int ibv_read_comp_cntr(void *counter, uint64_t *value);
LATER int ibv_read_err_comp_cntr(void *counter, uint64_t *value);
LATER int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, void *counter, void *attr);
LATER int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service, void *hints);
LATER int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);
LATER int rdma_write_cm_event(struct rdma_cm_id *id, int event, int status, uint64_t argument);
LATER int repoll_create(int flags);
LATER int repoll_ctl(int set, int operation, int fd, struct epoll_event *event);
LATER int repoll_wait(int set, struct epoll_event *events, int most, int timeout);

int ibv_dofork_range(void *base, size_t size);
int ibv_dontfork_range(void *base, size_t size);
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

static int wrong;

static void expect(int line, const char *call, long answer, long wanted, int error, int wanted_error)
{
	if (answer == wanted && (wanted_error < 0 || error == wanted_error))
		return;
	printf("%d: %s: answer %ld, errno %d; wanted %ld and %d\n", line, call, answer, error, wanted, wanted_error);
	wrong++;
}

#define EXPECT(call, wanted, error)                                                                                    \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		long answer = (long)(call);                                                                            \
		expect(__LINE__, #call, answer, wanted, errno, error);                                                 \
	} while (0)
/* The three ways to report a failure: NULL and errno, the errno itself, -1 and errno. */
#define NONE(call, error) EXPECT(call, 0, error)
#define CODE(call, error) EXPECT(call, error, -1)
#define MINUS(call, error) EXPECT(call, -1, error)
#define FINE(call) EXPECT(call, 0, -1)
#define VOID(call) EXPECT((call, 0), 0, -1)

static struct ibv_device *device;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static char memory[4096];

static struct ibv_qp_init_attr init_attr(void)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .send_cq = cq,
					 .recv_cq = cq,
					 .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 2 } };
	return init;
}

/* Every call that takes a context or a device. */
static void contexts(struct ibv_context *no)
{
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	struct ibv_gid_entry entry[4];
	struct ibv_async_event event;
	union ibv_gid gid;
	uint16_t pkey;
	unsigned int type;
	CODE(ibv_close_device(no), EINVAL);
	CODE(ibv_query_device(no, &attr), EINVAL);
	CODE(ibv_query_port(no, 1, (struct _compat_ibv_port_attr *)&port), EINVAL);
	MINUS(ibv_query_gid(no, 1, 0, &gid), EINVAL);
	MINUS(ibv_query_gid_type(no, 1, 0, &type), EINVAL);
	CODE(_ibv_query_gid_ex(no, 1, 0, entry, 0, sizeof *entry), EINVAL);
	EXPECT(_ibv_query_gid_table(no, entry, 4, 0, sizeof *entry), -EINVAL, -1);
	MINUS(ibv_query_pkey(no, 1, 0, &pkey), EINVAL);
	MINUS(ibv_get_pkey_index(no, 1, 0xffff), EINVAL);
	NONE(ibv_alloc_pd(no), EINVAL);
	NONE(ibv_create_comp_channel(no), EINVAL);
	NONE(ibv_create_cq(no, 1, NULL, NULL, 0), EINVAL);
	MINUS(ibv_get_async_event(no, &event), EINVAL);
	NONE(ibv_import_pd(no, 0), EINVAL);
	NONE(ibv_import_dm(no, 0), EINVAL);
	struct ibv_wc wc = { 0 };
	struct ibv_grh grh = { 0 };
	struct ibv_ah_attr ah;
	CODE(ibv_init_ah_from_wc(no, 1, &wc, &grh, &ah), EINVAL);
	struct ibv_ah_attr address = { 0 };
	uint8_t mac[6];
	uint16_t vid;
	CODE(ibv_resolve_eth_l2_from_gid(no, &address, mac, &vid), EOPNOTSUPP);
	uint64_t speed;
	CODE(ibv_query_port_speed(no, 1, &speed), EINVAL);
	NONE(ibv_alloc_dmah(no, memory), EOPNOTSUPP);
	NONE(ibv_create_comp_cntr(no, memory), EOPNOTSUPP);
	CODE(_ibv_query_comp_cntr_caps(no, memory, sizeof memory), EOPNOTSUPP);
}

/* Every call that takes a protection domain. */
static void domains(struct ibv_pd *no)
{
	struct ibv_qp_init_attr init = init_attr();
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1 };
	struct ibv_wc wc = { .wc_flags = IBV_WC_GRH };
	struct ibv_grh grh = { 0 };
	CODE(ibv_dealloc_pd(no), EINVAL);
	NONE(ibv_reg_mr(no, memory, sizeof memory, 0), EINVAL);
	NONE(ibv_reg_mr_iova(no, memory, sizeof memory, 0, 0), EINVAL);
	NONE(ibv_reg_mr_iova2(no, memory, sizeof memory, 0, 0), EINVAL);
	NONE(ibv_reg_dmabuf_mr(no, 0, 1, 0, -1, 0), EOPNOTSUPP);
	NONE(ibv_import_mr(no, 0), EINVAL);
	NONE(ibv_create_qp(no, &init), EINVAL);
	NONE(ibv_create_srq(no, &srq), EINVAL);
	NONE(ibv_create_ah(no, &ah), EINVAL);
	NONE(ibv_create_ah_from_wc(no, &wc, &grh, 1), EINVAL);
	VOID(ibv_unimport_pd(no));
	/* The first fields that ibv_reg_mr_ex reads: length, access, and a mask that names only the address. */
	void *buf = NULL, *described[] = { (void *)1, NULL, (void *)2, NULL, memory };
	NONE(ibv_alloc_buf(no, 1, &buf), EINVAL);
	NONE(ibv_reg_buf_mr(no, memory, memory, 1, 0), EINVAL);
	NONE(ibv_reg_mr_ex(no, described), EINVAL);
}

/* Every call that takes another object. */
static void objects(void *no)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	struct ibv_qp_init_attr init;
	struct ibv_srq_attr srq = { .max_wr = 1 };
	struct ibv_cq *got;
	void *cq_context;
	union ibv_gid gid = { 0 };
	struct ibv_ece ece = { 0 };
	CODE(ibv_dereg_mr(no), EINVAL);
	EXPECT(ibv_rereg_mr(no, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT, EINVAL);
	VOID(ibv_unimport_mr(no));
	VOID(ibv_unimport_dm(no));
	CODE(ibv_resize_cq(no, 1), EINVAL);
	CODE(ibv_destroy_cq(no), EINVAL);
	VOID(ibv_ack_cq_events(no, 1));
	MINUS(ibv_get_cq_event(no, &got, &cq_context), EINVAL);
	CODE(ibv_destroy_comp_channel(no), EINVAL);
	CODE(ibv_query_qp(no, &attr, 0, &init), EINVAL);
	CODE(ibv_modify_qp(no, &attr, IBV_QP_STATE), EINVAL);
	CODE(ibv_destroy_qp(no), EINVAL);
	NONE(ibv_qp_to_qp_ex(no), -1);
	EXPECT(ibv_query_qp_data_in_order(no, IBV_WR_SEND, 0), 0, -1);
	CODE(ibv_modify_srq(no, &srq, IBV_SRQ_MAX_WR), EINVAL);
	CODE(ibv_query_srq(no, &srq), EINVAL);
	CODE(ibv_destroy_srq(no), EINVAL);
	CODE(ibv_destroy_ah(no), EINVAL);
	CODE(ibv_attach_mcast(no, &gid, 0), EOPNOTSUPP);
	CODE(ibv_detach_mcast(no, &gid, 0), EOPNOTSUPP);
	CODE(ibv_set_ece(no, &ece), EOPNOTSUPP);
	CODE(ibv_query_ece(no, &ece), EOPNOTSUPP);
	uint64_t value;
	VOID(ibv_free_buf(no));
	MINUS(ibv_export_buf_dmabuf_fd(no), EINVAL);
	MINUS(ibv_dm_export_dmabuf_fd(no), EOPNOTSUPP);
	CODE(ibv_dealloc_dmah(no), EOPNOTSUPP);
	CODE(ibv_destroy_comp_cntr(no), EOPNOTSUPP);
	CODE(ibv_inc_comp_cntr(no, 1), EOPNOTSUPP);
	CODE(ibv_inc_err_comp_cntr(no, 1), EOPNOTSUPP);
	CODE(ibv_set_comp_cntr(no, 1), EOPNOTSUPP);
	CODE(ibv_set_err_comp_cntr(no, 1), EOPNOTSUPP);
	CODE(ibv_read_comp_cntr(no, &value), EOPNOTSUPP);
	CODE(ibv_read_err_comp_cntr(no, &value), EOPNOTSUPP);
	CODE(ibv_qp_attach_comp_cntr(no, no, memory), EOPNOTSUPP);
}

/* Calls of the connection manager that take an id. */
static void ids(struct rdma_cm_id *no)
{
	struct rdma_conn_param param = { 0 };
	struct rdma_cm_id *other;
	struct sockaddr to = { .sa_family = AF_INET };
	struct ibv_qp_init_attr init = init_attr();
	struct ibv_qp_init_attr_ex init_ex = { .qp_type = IBV_QPT_RC };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 1 } };
	struct ibv_srq_init_attr_ex srq_ex = { .attr = { .max_wr = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	struct rdma_cm_join_mc_attr_ex join = { 0 };
	struct ibv_ece ece = { 0 };
	int mask, value = 1;
	MINUS(rdma_destroy_id(no), EINVAL);
	MINUS(rdma_bind_addr(no, &to), EINVAL);
	MINUS(rdma_resolve_addr(no, NULL, &to, 1), EINVAL);
	MINUS(rdma_resolve_route(no, 1), EINVAL);
	MINUS(rdma_listen(no, 1), EINVAL);
	MINUS(rdma_connect(no, &param), EINVAL);
	MINUS(rdma_establish(no), EINVAL);
	MINUS(rdma_accept(no, &param), EINVAL);
	MINUS(rdma_reject(no, NULL, 0), EINVAL);
	MINUS(rdma_reject_ece(no, NULL, 0), EINVAL);
	MINUS(rdma_notify(no, IBV_EVENT_COMM_EST), EINVAL);
	MINUS(rdma_disconnect(no), EINVAL);
	MINUS(rdma_get_request(no, &other), EINVAL);
	MINUS(rdma_create_qp(no, NULL, &init), EINVAL);
	MINUS(rdma_create_qp_ex(no, &init_ex), EINVAL);
	VOID(rdma_destroy_qp(no));
	MINUS(rdma_create_srq(no, NULL, &srq), EINVAL);
	MINUS(rdma_create_srq_ex(no, &srq_ex), EINVAL);
	VOID(rdma_destroy_srq(no));
	VOID(rdma_destroy_ep(no));
	MINUS(rdma_migrate_id(no, NULL), EINVAL);
	MINUS(rdma_set_option(no, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &value, sizeof value), EINVAL);
	MINUS(rdma_init_qp_attr(no, &attr, &mask), EINVAL);
	MINUS(rdma_join_multicast(no, &to, NULL), EINVAL);
	MINUS(rdma_join_multicast_ex(no, &join, NULL), EINVAL);
	MINUS(rdma_leave_multicast(no, &to), EINVAL);
	MINUS(rdma_set_local_ece(no, &ece), EINVAL);
	MINUS(rdma_get_remote_ece(no, &ece), EINVAL);
	struct rdma_addrinfo *info;
	MINUS(rdma_resolve_addrinfo(no, "127.0.0.1", "1", NULL), EINVAL);
	MINUS(rdma_query_addrinfo(no, &info), EINVAL);
	MINUS(rdma_write_cm_event(no, 18, 0, 0), EINVAL);
	EXPECT(rdma_get_src_port(no), 0, -1);
	EXPECT(rdma_get_dst_port(no), 0, -1);
}

/* NULL instead of attributes or results, with valid objects. */
static void arguments(void)
{
	struct ibv_ah_attr ah = { 0 };
	struct ibv_wc wc = { 0 };
	struct rdma_cm_id *id;
	struct rdma_addrinfo *info;
	FINE(ibv_query_device(context, NULL));
	CODE(ibv_query_port(context, 1, NULL), EINVAL);
	CODE(ibv_query_port(context, 2, (struct _compat_ibv_port_attr *)memory), EINVAL);
	MINUS(ibv_query_gid(context, 1, -1, NULL), EINVAL);
	MINUS(ibv_query_gid(context, 2, 0, NULL), EINVAL);
	MINUS(ibv_query_pkey(context, 1, 1, NULL), EINVAL);
	MINUS(ibv_query_pkey(context, 1, INT_MIN, NULL), EINVAL);
	CODE(_ibv_query_gid_ex(context, 1, 0, NULL, 0, sizeof(struct ibv_gid_entry)), EOPNOTSUPP);
	CODE(_ibv_query_gid_ex(context, UINT_MAX, 0, (void *)memory, 0, sizeof(struct ibv_gid_entry)), EINVAL);
	CODE(_ibv_query_gid_ex(context, 1, UINT_MAX, (void *)memory, 0, sizeof(struct ibv_gid_entry)), ENODATA);
	EXPECT(_ibv_query_gid_table(context, NULL, 0, 0, sizeof(struct ibv_gid_entry)), -EINVAL, -1);
	/* The clock is read only on request, and the mask says whether it was. */
	struct ibv_values_ex values = { .comp_mask = 0, .raw_clock = { -1, -1 } };
	FINE(ibv_query_rt_values_ex(context, &values));
	EXPECT(values.comp_mask == 0 && values.raw_clock.tv_sec == -1 && values.raw_clock.tv_nsec == -1, 1, -1);
	values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
	FINE(ibv_query_rt_values_ex(context, &values));
	EXPECT(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK && values.raw_clock.tv_sec >= 0, 1, -1);
	values.comp_mask = UINT32_MAX;
	FINE(ibv_query_rt_values_ex(context, &values));
	EXPECT(values.comp_mask, IBV_VALUES_MASK_RAW_CLOCK, -1);
	CODE(ibv_query_rt_values_ex(context, NULL), EINVAL);
	NONE(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_cq(context, INT_MAX, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_cq(context, 1, NULL, (struct ibv_comp_channel *)pd, 0), EINVAL);
	NONE(ibv_create_cq(context, 1, NULL, NULL, -1), EINVAL);
	NONE(ibv_create_cq(context, 1, NULL, NULL, INT_MAX), EINVAL);
	CODE(ibv_resize_cq(cq, 0), EINVAL);
	CODE(ibv_resize_cq(cq, INT_MIN), EINVAL);
	CODE(ibv_modify_cq(cq, NULL), EINVAL);
	CODE(ibv_modify_cq(cq, (&(struct ibv_modify_cq_attr){.attr_mask = UINT32_MAX})), EINVAL);
	CODE(ibv_modify_cq(cq, (&(struct ibv_modify_cq_attr){.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {UINT16_MAX, UINT16_MAX}})), 0);
	CODE(ibv_modify_cq(cq, (&(struct ibv_modify_cq_attr){.attr_mask = IBV_CQ_ATTR_MODERATE})), 0);
	MINUS(ibv_get_async_event(context, NULL), EINVAL);
	VOID(ibv_ack_async_event(NULL));
	NONE(ibv_reg_mr(pd, memory, 0, 0), EINVAL);
	NONE(ibv_reg_mr(pd, NULL, 1, 0), EFAULT);
	NONE(ibv_reg_mr(pd, memory, SIZE_MAX, 0), EINVAL);
	NONE(ibv_reg_mr(pd, (void *)-4096, 8192, 0), EINVAL);
	NONE(ibv_reg_mr(pd, memory, 1, -1), EINVAL);
	NONE(ibv_reg_mr(pd, memory, 1, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	NONE(ibv_reg_mr_iova2(pd, memory, 16, UINT64_MAX, 0), EINVAL);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, 0);
	EXPECT(ibv_rereg_mr(mr, -1, pd, memory, 1, 0), IBV_REREG_MR_ERR_INPUT, EINVAL);
	EXPECT(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT, EINVAL);
	EXPECT(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, SIZE_MAX, 0), IBV_REREG_MR_ERR_INPUT, EINVAL);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	CODE(context->ops.bind_mw(qp, mw, NULL), EINVAL);
	FINE(ibv_dealloc_mw(mw));
	NONE(ibv_create_qp(pd, NULL), EINVAL);
	NONE(ibv_create_srq(pd, NULL), EINVAL);
	NONE(ibv_create_ah(pd, NULL), EINVAL);
	NONE(ibv_create_ah(pd, &ah), EINVAL);
	NONE(ibv_create_ah_from_wc(pd, NULL, NULL, 1), EINVAL);
	NONE(ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)memory, 1), EINVAL);
	CODE(ibv_init_ah_from_wc(context, 1, NULL, NULL, &ah), EINVAL);
	CODE(ibv_modify_qp(qp, NULL, 0), EINVAL);
	CODE(ibv_modify_qp(qp, (struct ibv_qp_attr *)memory, -1), EINVAL);
	FINE(ibv_query_qp(qp, NULL, 0, NULL));
	struct ibv_qp_init_attr init = init_attr();
	init.cap.max_send_wr = UINT_MAX;
	NONE(ibv_create_qp(pd, &init), EINVAL);
	init = init_attr();
	init.cap.max_inline_data = UINT_MAX;
	NONE(ibv_create_qp(pd, &init), EINVAL);
	init = init_attr();
	init.cap.max_recv_sge = UINT_MAX;
	NONE(ibv_create_qp(pd, &init), EINVAL);
	init = init_attr();
	init.send_cq = (struct ibv_cq *)pd;
	NONE(ibv_create_qp(pd, &init), EINVAL);
	init = init_attr();
	init.srq = (struct ibv_srq *)cq;
	NONE(ibv_create_qp(pd, &init), EINVAL);
	init = init_attr();
	init.qp_type = 77;
	NONE(ibv_create_qp(pd, &init), EOPNOTSUPP);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = UINT_MAX } };
	NONE(ibv_create_srq(pd, &shared), EINVAL);
	shared.attr.max_wr = 1;
	shared.attr.max_sge = UINT_MAX;
	NONE(ibv_create_srq(pd, &shared), EINVAL);
	NONE(ibv_import_device(-1), EBADF);
	CODE(ibv_query_port_speed(context, UINT_MAX, NULL), EINVAL);
	NONE(ibv_alloc_buf(pd, 1, NULL), EINVAL);
	void *buf;
	NONE(ibv_alloc_buf(pd, 0, &buf), EINVAL);
	NONE(ibv_alloc_buf(pd, SIZE_MAX, &buf), ENOMEM);
	NONE(ibv_reg_mr_ex(pd, NULL), EINVAL);
	FINE(ibv_dereg_mr(mr));
	CODE(ibv_dereg_mr(mr), EINVAL);

	MINUS(rdma_create_id(NULL, NULL, NULL, RDMA_PS_TCP), EINVAL);
	MINUS(rdma_create_id((struct rdma_event_channel *)pd, &id, NULL, RDMA_PS_TCP), EINVAL);
	MINUS(rdma_create_id(NULL, &id, NULL, 77), EINVAL);
	MINUS(rdma_create_ep(NULL, NULL, NULL, NULL), EINVAL);
	MINUS(rdma_create_ep(&id, NULL, NULL, NULL), EINVAL);
	MINUS(rdma_get_cm_event(NULL, NULL), EINVAL);
	MINUS(rdma_ack_cm_event(NULL), EINVAL);
	VOID(rdma_destroy_event_channel(NULL));
	MINUS(rdma_getaddrinfo(NULL, NULL, NULL, NULL), EINVAL);
	MINUS(rdma_getaddrinfo(NULL, NULL, NULL, &info), EINVAL);
	VOID(rdma_freeaddrinfo(NULL));
	VOID(rdma_free_devices(NULL));
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CODE(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	MINUS(rdma_bind_addr(id, NULL), EINVAL);
	MINUS(rdma_resolve_addr(id, NULL, NULL, 1), EINVAL);
	MINUS(rdma_resolve_route(id, 1), EINVAL);
	MINUS(rdma_connect(id, NULL), EINVAL);
	MINUS(rdma_accept(id, NULL), EINVAL);
	MINUS(rdma_reject(id, NULL, 255), EINVAL);
	MINUS(rdma_disconnect(id), EINVAL);
	MINUS(rdma_create_qp(id, NULL, NULL), EINVAL);
	MINUS(rdma_create_qp_ex(id, NULL), EINVAL);
	MINUS(rdma_create_srq(id, NULL, NULL), EINVAL);
	MINUS(rdma_create_srq_ex(id, NULL), EINVAL);
	VOID(rdma_destroy_qp(id));
	VOID(rdma_destroy_srq(id));
	MINUS(rdma_get_request(id, NULL), EINVAL);
	MINUS(rdma_init_qp_attr(id, NULL, NULL), EINVAL);
	MINUS(rdma_resolve_addrinfo(id, NULL, NULL, NULL), EINVAL);
	MINUS(rdma_query_addrinfo(id, NULL), EINVAL);
	MINUS(rdma_query_addrinfo(id, &info), ENOENT);
	MINUS(rdma_write_cm_event(id, -1, 0, 0), EINVAL);
	MINUS(rdma_migrate_id(id, (struct rdma_event_channel *)pd), EINVAL);
	MINUS(rdma_get_cm_event(channel, NULL), EINVAL);
	MINUS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 1), EINVAL);
	MINUS(rdma_set_option(id, -1, -1, memory, SIZE_MAX), ENOSYS);
	FINE(rdma_destroy_id(id));
	ids(id);
	VOID(rdma_destroy_event_channel(channel));
	VOID(rdma_destroy_event_channel(channel));
	MINUS(rdma_get_cm_event(channel, NULL), EINVAL);
	struct ibv_context **devices = rdma_get_devices(NULL);
	EXPECT(devices != NULL, 1, -1);
	VOID(rdma_free_devices(devices));
}

/* Functions that take no objects. */
static void helpers(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	VOID(ibv_free_device_list(list));
	VOID(ibv_free_device_list(NULL));
	NONE(ibv_open_device(NULL), EINVAL);
	NONE(ibv_open_device((struct ibv_device *)context), EINVAL);
	NONE(ibv_get_device_name(NULL), -1);
	NONE(ibv_get_device_guid(NULL), -1);
	EXPECT(ibv_get_device_index(NULL), -1, -1);
	VOID(ibv_copy_ah_attr_from_kern(NULL, NULL));
	VOID(ibv_copy_qp_attr_from_kern(NULL, NULL));
	VOID(ibv_copy_path_rec_from_kern(NULL, NULL));
	VOID(ibv_copy_path_rec_to_kern(NULL, NULL));
	FINE(ibv_fork_init());
	EXPECT(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED, -1);
	FINE(ibv_dontfork_range(NULL, SIZE_MAX));
	FINE(ibv_dofork_range(NULL, SIZE_MAX));
	EXPECT(ibv_get_sysfs_path() != NULL, 1, -1);
	MINUS(ibv_read_sysfs_file(NULL, NULL, NULL, 0), EINVAL);
	MINUS(ibv_read_sysfs_file("/sys", "class/nothing", memory, 1), ENOENT);
	MINUS(ibv_read_ibdev_sysfs_file(NULL, 0, NULL, NULL), EOPNOTSUPP);
	for (int n = -3; n < 300; n++) {
		VOID(ibv_wc_status_str(n));
		VOID(ibv_event_type_str(n));
		VOID(ibv_node_type_str(n));
		VOID(ibv_port_state_str(n));
		VOID(ibv_wr_opcode_str(n));
		VOID(rdma_event_str(n));
		VOID(ibv_rate_to_mult(n));
		VOID(ibv_rate_to_mbps(n));
		VOID(mult_to_ibv_rate(n));
		VOID(mbps_to_ibv_rate(n));
	}
}

/* Sockets over RDMA with invalid descriptors and arguments. */
static void sockets(int no)
{
	struct sockaddr_in name = { .sin_family = AF_INET };
	socklen_t length = sizeof name;
	struct iovec parts = { memory, 1 };
	struct msghdr message = { .msg_iov = &parts, .msg_iovlen = 1 };
	int value = 1;
	off_t offset = 0;
	MINUS(rsocket(-1, -1, -1), -1);
	MINUS(rbind(no, (struct sockaddr *)&name, length), EBADF);
	MINUS(rlisten(no, 1), EBADF);
	MINUS(raccept(no, NULL, NULL), EBADF);
	MINUS(rconnect(no, (struct sockaddr *)&name, length), EBADF);
	MINUS(rshutdown(no, SHUT_RDWR), EBADF);
	MINUS(rrecv(no, memory, 1, 0), EBADF);
	MINUS(rrecvfrom(no, memory, 1, 0, NULL, NULL), EBADF);
	MINUS(rrecvmsg(no, &message, 0), EBADF);
	MINUS(rsend(no, memory, 1, 0), EBADF);
	MINUS(rsendto(no, memory, 1, 0, NULL, 0), EBADF);
	MINUS(rsendmsg(no, &message, 0), EBADF);
	MINUS(rread(no, memory, 1), EBADF);
	MINUS(rreadv(no, &parts, 1), EBADF);
	MINUS(rwrite(no, memory, 1), EBADF);
	MINUS(rwritev(no, &parts, 1), EBADF);
	MINUS(rgetpeername(no, (struct sockaddr *)&name, &length), EBADF);
	MINUS(rgetsockname(no, (struct sockaddr *)&name, &length), EBADF);
	MINUS(rsetsockopt(no, SOL_SOCKET, SO_REUSEADDR, &value, sizeof value), EBADF);
	length = sizeof value;
	MINUS(rgetsockopt(no, SOL_SOCKET, SO_REUSEADDR, &value, &length), EBADF);
	MINUS(rfcntl(no, F_GETFL), EBADF);
	MINUS(riomap(no, memory, 1, PROT_NONE, 0, -1), EBADF);
	MINUS(riounmap(no, memory, 1), EBADF);
	MINUS(riowrite(no, memory, 1, offset, 0), EBADF);
	MINUS(rclose(no), EBADF);
	MINUS(repoll_create(-1), EINVAL);
	MINUS(repoll_ctl(no, -1, no, NULL), EBADF);
	MINUS(repoll_wait(no, (struct epoll_event *)memory, 1, 0), EBADF);
	int set = repoll_create(0);
	MINUS(repoll_ctl(set, -1, 0, NULL), EINVAL);
	MINUS(repoll_ctl(set, 1, 0, NULL), EFAULT);
	MINUS(repoll_ctl(set, 1, set, NULL), EINVAL);
	MINUS(repoll_wait(set, NULL, -1, 0), EINVAL);
	MINUS(repoll_wait(set, NULL, 1, 0), EINVAL);
	FINE(rclose(set));
	FINE(rpoll(NULL, 0, 0));
	FINE(rselect(0, NULL, NULL, NULL, &(struct timeval){ 0 }));
}

/* The data path: invalid lists and chains, with valid objects. */
static void requests(void)
{
	struct ibv_sge sge = { .addr = 0, .length = 64, .lkey = 77 };
	struct ibv_send_wr *bad_send, send = { .sg_list = NULL, .num_sge = 1, .opcode = IBV_WR_SEND };
	struct ibv_recv_wr *bad_recv, recv = { .sg_list = NULL, .num_sge = 1 };
	struct ibv_wc wc;
	EXPECT(ibv_poll_cq(cq, -1, &wc), -1, -1);
	FINE(ibv_poll_cq(cq, 0, NULL));
	FINE(ibv_poll_cq(cq, INT_MAX, &wc));
	FINE(ibv_post_send(qp, NULL, &bad_send));
	CODE(ibv_post_send(qp, &send, &bad_send), EINVAL);
	EXPECT(bad_send == &send, 1, -1);
	FINE(ibv_post_recv(qp, NULL, &bad_recv));
	CODE(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
	EXPECT(bad_recv == &recv, 1, -1);
	CODE(ibv_post_recv(qp, &recv, NULL), EINVAL);
	send.sg_list = recv.sg_list = &sge;
	send.num_sge = recv.num_sge = -1;
	CODE(ibv_post_send(qp, &send, &bad_send), EINVAL);
	CODE(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
	send.num_sge = recv.num_sge = INT_MAX;
	CODE(ibv_post_send(qp, &send, &bad_send), EINVAL);
	CODE(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
	send.num_sge = recv.num_sge = 1;
	send.send_flags = IBV_SEND_INLINE;
	CODE(ibv_post_send(qp, &send, &bad_send), EINVAL);
	sge.length = UINT_MAX;
	CODE(ibv_post_send(qp, &send, &bad_send), EINVAL);
	send.send_flags = 0;
	send.opcode = 77;
	CODE(ibv_post_send(qp, &send, &bad_send), EINVAL);
	send.opcode = IBV_WR_BIND_MW;
	CODE(ibv_post_send(qp, &send, &bad_send), EINVAL);
	send.opcode = IBV_WR_SEND;
	sge.length = 1;
	CODE(ibv_post_send(qp, &send, &bad_send), EINVAL);
	CODE(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
	/* Circular chains fill the queue, or are refused where it is flushed all the time. */
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	FINE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	send.next = &send;
	recv.next = &recv;
	CODE(ibv_post_recv(qp, &recv, &bad_recv), ENOMEM);
	attr.qp_state = IBV_QPS_ERR;
	FINE(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	CODE(ibv_post_send(qp, &send, &bad_send), ENOMEM);
	CODE(ibv_post_recv(qp, &recv, &bad_recv), ENOMEM);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	device = list[0];
	context = ibv_open_device(device);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_qp_init_attr init = init_attr();
	qp = ibv_create_qp(pd, &init);
	if (!pd || !cq || !qp)
		return 1;

	/* NULL, then an object of another type, then memory that is not an object. */
	contexts(NULL);
	contexts((struct ibv_context *)pd);
	contexts((struct ibv_context *)memory);
	domains(NULL);
	domains((struct ibv_pd *)cq);
	domains((struct ibv_pd *)memory);
	objects(NULL);
	objects(context);
	objects(memory);
	ids(NULL);
	ids((struct rdma_cm_id *)pd);
	ids((struct rdma_cm_id *)memory);
	sockets(-1);
	sockets(INT_MAX);
	helpers();
	arguments();
	requests();

	/* Objects in use stay, and destroyed objects are not found. */
	CODE(ibv_dealloc_pd(pd), EBUSY);
	CODE(ibv_destroy_cq(cq), EBUSY);
	FINE(ibv_destroy_qp(qp));
	objects(qp);
	FINE(ibv_destroy_cq(cq));
	objects(cq);
	FINE(ibv_dealloc_pd(pd));
	domains(pd);
	FINE(ibv_close_device(context));
	contexts(context);
	printf("%d wrong\n", wrong);
	return wrong != 0;
}
