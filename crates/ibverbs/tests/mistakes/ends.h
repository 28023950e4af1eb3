/* Two queue pairs of one program, connected to each other without a connection manager. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE 4096

struct end {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char memory[SIZE];
};

static struct ibv_context *context;
static struct end a, b;

#define CHECK(what)                                                                                                    \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			printf("%s:%d: %s\n", __FILE__, __LINE__, #what);                                              \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static inline void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
}

/* Creates a queue pair with its own domain, completion queue and memory, in the state INIT. */
static inline void create_end(struct end *end, int cqe, int access)
{
	end->pd = ibv_alloc_pd(context);
	end->cq = ibv_create_cq(context, cqe, NULL, NULL, 0);
	CHECK(end->pd && end->cq);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .send_cq = end->cq,
					 .recv_cq = end->cq,
					 .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 } };
	end->qp = ibv_create_qp(end->pd, &init);
	end->mr = ibv_reg_mr(end->pd, end->memory, SIZE, access);
	CHECK(end->qp && end->mr);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };
	CHECK(!ibv_modify_qp(end->qp, &attr,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

/* Connects a queue pair to its peer. A request waits 8 times 8 ms for an acknowledgement. Returns 0 or the errno. */
static inline int connect_end(struct end *end, union ibv_gid gid, uint32_t qpn, int index)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR,
				    .path_mtu = IBV_MTU_1024,
				    .dest_qp_num = qpn,
				    .max_dest_rd_atomic = 1,
				    .min_rnr_timer = 12,
				    .ah_attr = { .is_global = 1,
						 .port_num = 1,
						 .grh = { .dgid = gid, .sgid_index = index, .hop_limit = 1 } } };
	int error = ibv_modify_qp(end->qp, &attr,
				  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (error)
		return error;
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 11;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	return ibv_modify_qp(end->qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC);
}

static inline union ibv_gid own_gid(void)
{
	union ibv_gid gid;
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	return gid;
}

/* Creates and connects both ends. `access` is what b allows its peer. */
static inline void connect_both(int access)
{
	open_device();
	create_end(&a, 16, IBV_ACCESS_LOCAL_WRITE);
	create_end(&b, 16, access);
	CHECK(!connect_end(&a, own_gid(), b.qp->qp_num, 0));
	CHECK(!connect_end(&b, own_gid(), a.qp->qp_num, 0));
}

static inline int post(struct end *end, enum ibv_wr_opcode opcode, uint64_t id, struct ibv_mr *mr, int length,
		uint64_t remote, uint32_t rkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)mr->addr, .length = length, .lkey = mr->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = id,
					.sg_list = &sge,
					.num_sge = 1,
					.opcode = opcode,
					.send_flags = IBV_SEND_SIGNALED,
					.wr.rdma = { .remote_addr = remote, .rkey = rkey } };
	return ibv_post_send(end->qp, &wr, &bad);
}

static inline void receive(struct end *end, uint64_t id, int length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)end->memory, .length = length, .lkey = end->mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };
	CHECK(!ibv_post_recv(end->qp, &wr, &bad));
}

/* Waits for a completion, and prints it as programs do. */
static inline void wait_for(struct end *end)
{
	struct ibv_wc wc;
	int polled;
	do
		polled = ibv_poll_cq(end->cq, 1, &wc);
	while (polled == 0);
	CHECK(polled == 1);
	printf("request %d: %s, vendor_err %#010x\n", (int)wc.wr_id, ibv_wc_status_str(wc.status), wc.vendor_err);
	fflush(stdout);
}
