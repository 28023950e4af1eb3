/* Two connected queue pairs of one program, whose requests and receives are posted by the calls that the test chose. */
#define _GNU_SOURCE
#include "../mistakes/ends.h"
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <unistd.h>

#define LOCAL IBV_ACCESS_LOCAL_WRITE
#define REMOTE (LOCAL | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define DEPTH 16

/* Request ids: of requests of a, of receives of b. */
#define REQUEST 0x51e5
#define RECEIVE 0x4ec5

/* Whether a uses ibv_wr_* and ibv_start_poll, and whether the receives of b are in a shared receive queue. */
static bool extended, shared;
static struct ibv_srq *srq;
/* The queue pair of a for ibv_wr_*. */
static struct ibv_qp_ex *extended_a;

static inline void create_cq(struct end *end, int cqe, struct ibv_comp_channel *channel)
{
	if (extended) {
		struct ibv_cq_init_attr_ex init = { .cqe = cqe,
						    .channel = channel,
						    .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_QP_NUM };
		struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &init);
		CHECK(cq);
		end->cq = ibv_cq_ex_to_cq(cq);
	} else {
		end->cq = ibv_create_cq(context, cqe, NULL, channel, 0);
	}
	CHECK(end->cq);
}

static inline void initialise(struct end *end)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = REMOTE };
	CHECK(!ibv_modify_qp(end->qp, &attr,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

static inline void create_qp(struct end *end)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_RC,
		.send_cq = end->cq,
		.recv_cq = end->cq,
		.srq = end == &b ? srq : NULL,
		.pd = end->pd,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 4, .max_recv_sge = 4 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | (extended ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
				  IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
	};
	end->qp = ibv_create_qp_ex(context, &init);
	CHECK(end->qp);
	if (extended && end == &a)
		extended_a = ibv_qp_to_qp_ex(end->qp);
	initialise(end);
}

/* Creates one end, not connected, whose memory allows `access`. */
static inline void create(struct end *end, int cqe, int access)
{
	CHECK(end->pd = ibv_alloc_pd(context));
	create_cq(end, cqe, NULL);
	CHECK(end->mr = ibv_reg_mr(end->pd, end->memory, SIZE, access));
	if (shared && end == &b) {
		struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 4 } };
		CHECK(srq = ibv_create_srq(end->pd, &init));
	}
	create_qp(end);
}

static inline void connect_ends(void)
{
	CHECK(!connect_end(&a, own_gid(), b.qp->qp_num, 0));
	CHECK(!connect_end(&b, own_gid(), a.qp->qp_num, 0));
	printf("a %#08x b %#08x\n", a.qp->qp_num, b.qp->qp_num);
	fflush(stdout);
}

/* Creates and connects both ends. `access` is what the memory of b allows. */
static inline void open_both(int access)
{
	open_device();
	create(&a, DEPTH * 2, LOCAL);
	create(&b, DEPTH * 2, access);
	connect_ends();
}

/* Resets a queue pair, and brings it to the state INIT again. */
static inline void reset(struct end *end)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE));
	initialise(end);
}

static inline void destroy_qps(void)
{
	if (a.qp)
		CHECK(!ibv_destroy_qp(a.qp));
	if (b.qp)
		CHECK(!ibv_destroy_qp(b.qp));
	a.qp = b.qp = NULL;
}

static inline void destroy(struct end *end)
{
	if (end->cq)
		CHECK(!ibv_destroy_cq(end->cq));
	if (end->mr)
		CHECK(!ibv_dereg_mr(end->mr));
	if (end->pd)
		CHECK(!ibv_dealloc_pd(end->pd));
}

/* Destroys all that is left of both ends. */
static inline void close_both(void)
{
	destroy_qps();
	if (srq)
		CHECK(!ibv_destroy_srq(srq));
	destroy(&a);
	destroy(&b);
	CHECK(!ibv_close_device(context));
}

/* A part of the memory of an end. */
static inline struct ibv_sge part(struct end *end, int offset, int length)
{
	return (struct ibv_sge){ .addr = (uintptr_t)end->memory + offset, .length = length, .lkey = end->mr->lkey };
}

static inline struct ibv_sge all_of(struct ibv_mr *mr)
{
	return (struct ibv_sge){ .addr = (uintptr_t)mr->addr, .length = mr->length, .lkey = mr->lkey };
}

#define QKEY 0x1234

/* How a addresses datagrams to b. */
static struct ibv_ah *address;

/* Creates one end with a UD queue pair that can send. */
static inline void create_datagrams(struct end *end)
{
	CHECK(end->pd = ibv_alloc_pd(context));
	create_cq(end, DEPTH * 2, NULL);
	CHECK(end->mr = ibv_reg_mr(end->pd, end->memory, SIZE, LOCAL));
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_UD,
		.send_cq = end->cq,
		.recv_cq = end->cq,
		.pd = end->pd,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | (extended ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	CHECK(end->qp = ibv_create_qp_ex(context, &init));
	if (extended && end == &a)
		extended_a = ibv_qp_to_qp_ex(end->qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

/* Creates both ends with UD queue pairs. */
static inline void open_datagrams(void)
{
	open_device();
	create_datagrams(&a);
	create_datagrams(&b);
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid = own_gid(), .hop_limit = 1 } };
	CHECK(address = ibv_create_ah(a.pd, &to));
	printf("a %#08x b %#08x\n", a.qp->qp_num, b.qp->qp_num);
	fflush(stdout);
}

static inline void close_datagrams(void)
{
	CHECK(!ibv_destroy_ah(address));
	close_both();
}

/* Sends a datagram from a to b. */
static inline void send_datagram(uint64_t id, struct ibv_sge sge, unsigned int flags)
{
	struct ibv_qp_ex *qp = extended_a;
	if (!extended) {
		struct ibv_send_wr *bad,
			wr = { .wr_id = id, .opcode = IBV_WR_SEND, .send_flags = flags, .sg_list = &sge, .num_sge = 1 };
		wr.wr.ud.ah = address;
		wr.wr.ud.remote_qpn = b.qp->qp_num;
		wr.wr.ud.remote_qkey = QKEY;
		CHECK(!ibv_post_send(a.qp, &wr, &bad));
		return;
	}
	ibv_wr_start(qp);
	qp->wr_id = id;
	qp->wr_flags = flags;
	ibv_wr_send(qp);
	ibv_wr_set_ud_addr(qp, address, b.qp->qp_num, QKEY);
	ibv_wr_set_sge_list(qp, 1, &sge);
	CHECK(!ibv_wr_complete(qp));
}

/* Posts a request of a with a list. Returns 0 or the errno. */
static inline int post_list(struct ibv_send_wr wr, struct ibv_sge *list, int count)
{
	struct ibv_send_wr *bad;
	wr.sg_list = list;
	wr.num_sge = count;
	if (!extended)
		return ibv_post_send(a.qp, &wr, &bad);
	struct ibv_qp_ex *qp = extended_a;
	ibv_wr_start(qp);
	qp->wr_id = wr.wr_id;
	qp->wr_flags = wr.send_flags;
	if (wr.opcode == IBV_WR_SEND)
		ibv_wr_send(qp);
	else if (wr.opcode == IBV_WR_RDMA_WRITE)
		ibv_wr_rdma_write(qp, wr.wr.rdma.rkey, wr.wr.rdma.remote_addr);
	else if (wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		ibv_wr_rdma_write_imm(qp, wr.wr.rdma.rkey, wr.wr.rdma.remote_addr, wr.imm_data);
	else if (wr.opcode == IBV_WR_RDMA_READ)
		ibv_wr_rdma_read(qp, wr.wr.rdma.rkey, wr.wr.rdma.remote_addr);
	else
		ibv_wr_atomic_fetch_add(qp, wr.wr.atomic.rkey, wr.wr.atomic.remote_addr, wr.wr.atomic.compare_add);
	ibv_wr_set_sge_list(qp, count, list);
	return ibv_wr_complete(qp);
}

static inline int post_one(enum ibv_wr_opcode opcode, uint64_t id, struct ibv_sge sge, void *remote)
{
	struct ibv_send_wr wr = { .wr_id = id, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED };
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)remote;
		wr.wr.atomic.rkey = b.mr->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)remote;
		wr.wr.rdma.rkey = b.mr->rkey;
	}
	return post_list(wr, &sge, 1);
}

/* Sends from a. */
static inline void send_part(uint64_t id, struct ibv_sge sge)
{
	CHECK(!post_one(IBV_WR_SEND, id, sge, NULL));
}

/* Posts a receive of b with a list. */
static inline void receive_list(uint64_t id, struct ibv_sge *list, int count)
{
	struct ibv_recv_wr *bad, wr = { .wr_id = id, .sg_list = list, .num_sge = count };
	CHECK(!(srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(b.qp, &wr, &bad)));
}

static inline void receive_part(uint64_t id, struct ibv_sge sge)
{
	receive_list(id, &sge, 1);
}

static inline int poll_once(struct end *end, struct ibv_wc *wc)
{
	if (!extended)
		return ibv_poll_cq(end->cq, 1, wc);
	struct ibv_cq_ex *cq = (struct ibv_cq_ex *)end->cq;
	struct ibv_poll_cq_attr attr = { 0 };
	int error = ibv_start_poll(cq, &attr);
	if (error)
		return error == ENOENT ? 0 : -1;
	wc->wr_id = cq->wr_id;
	wc->status = cq->status;
	if (cq->status == IBV_WC_SUCCESS)
		wc->byte_len = ibv_wc_read_byte_len(cq);
	ibv_end_poll(cq);
	return 1;
}

/* Waits for a completion, which must be of this request. */
static inline struct ibv_wc take(struct end *end, uint64_t id)
{
	struct ibv_wc wc;
	int polled;
	while ((polled = poll_once(end, &wc)) == 0)
		;
	CHECK(polled == 1);
	CHECK(wc.wr_id == id);
	return wc;
}

/* Waits until a request succeeded. */
static inline void await(struct end *end, uint64_t id)
{
	CHECK(take(end, id).status == IBV_WC_SUCCESS);
}

/* Waits until a request failed. */
static inline void await_failure(struct end *end, uint64_t id)
{
	CHECK(take(end, id).status != IBV_WC_SUCCESS);
}

/* Waits until the ends are connected, which a queue pair does when the first request is posted. */
static inline void warm_up(void)
{
	CHECK(!post_one(IBV_WR_RDMA_WRITE, 1, part(&a, 0, 8), b.memory));
	await(&a, 1);
}

/* Returns the sum of the context switches of all other threads, or -1 if one of them runs. */
static inline long switches(void)
{
	char path[64], line[256];
	long sum = 0, number;
	bool runs = false;
	DIR *tasks = opendir("/proc/self/task");
	CHECK(tasks);
	for (struct dirent *entry; (entry = readdir(tasks));) {
		if (*entry->d_name == '.' || atoi(entry->d_name) == gettid())
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%.20s/status", entry->d_name);
		FILE *file = fopen(path, "r");
		runs = runs || !file; /* the thread has ended */
		while (file && fgets(line, sizeof line, file)) {
			if (!strncmp(line, "State:", 6) && line[7] != 'S')
				runs = true;
			else if (sscanf(line, "voluntary_ctxt_switches: %ld", &number) == 1 ||
				 sscanf(line, "nonvoluntary_ctxt_switches: %ld", &number) == 1)
				sum += number;
		}
		if (file)
			fclose(file);
	}
	closedir(tasks);
	return runs ? -1 : sum;
}

/* Waits until the adapter has done all that it can: all its threads sleep, and none of them ran between two looks. */
static inline void await_idle(void)
{
	long before = -1, now;
	while ((now = switches()) < 0 || now != before)
		before = now;
}
