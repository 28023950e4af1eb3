/* Posts inline data of every length up to max_inline_data, by ibv_post_send and by the extended calls, and counts the
 * allocations of the posting thread. The peer checks every byte. */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 16
#define ROUNDS 10

#define CHECK(what)                                                                                                    \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			printf("%s:%d: %s\n", __FILE__, __LINE__, #what);                                              \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* These take the place of the functions of the C library, also for the drop-in. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
static __thread int counting;
static __thread unsigned allocations, requests;

void *malloc(size_t size)
{
	allocations += counting;
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	allocations += counting;
	return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
	allocations += counting;
	return __libc_realloc(old, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
	allocations += counting;
	return __libc_memalign(alignment, size);
}

int posix_memalign(void **result, size_t alignment, size_t size)
{
	allocations += counting;
	*result = __libc_memalign(alignment, size);
	return *result ? 0 : 12;
}

struct end {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct end a, b;
static char target[DEPTH][4096];
static struct ibv_mr *mr;
static uint32_t max_inline;

static void create_end(struct end *end, uint32_t inline_data)
{
	end->cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0);
	CHECK(end->cq);
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_RC,
					    .send_cq = end->cq,
					    .recv_cq = end->cq,
					    .pd = pd,
					    .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					    .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
					    .cap = { .max_send_wr = DEPTH,
						     .max_recv_wr = 1,
						     .max_send_sge = 2,
						     .max_recv_sge = 1,
						     .max_inline_data = inline_data } };
	end->qp = ibv_create_qp_ex(context, &init);
	CHECK(end->qp && init.cap.max_inline_data >= inline_data);
	max_inline = init.cap.max_inline_data;
	struct ibv_qp_attr queried;
	struct ibv_qp_init_attr of;
	CHECK(!ibv_query_qp(end->qp, &queried, IBV_QP_CAP, &of) && queried.cap.max_inline_data == max_inline);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	CHECK(!ibv_modify_qp(end->qp, &attr,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

static void connect_end(struct end *end, uint32_t qpn)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR,
				    .path_mtu = IBV_MTU_1024,
				    .dest_qp_num = qpn,
				    .max_dest_rd_atomic = 1,
				    .min_rnr_timer = 12,
				    .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 1 } } };
	CHECK(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(end->qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	CHECK(!ibv_modify_qp(end->qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Writes `length` bytes of `from` to the target `slot`, as two pieces. `extended` tells which calls to use. */
static void post(int extended, int slot, char *from, uint32_t length)
{
	uint32_t half = length / 2;
	uint64_t to = (uintptr_t)target[slot];
	requests++;
	counting = 1;
	if (extended) {
		struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a.qp);
		struct ibv_data_buf list[] = { { from, half }, { from + half, length - half } };
		ibv_wr_start(qp);
		qp->wr_id = slot;
		qp->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(qp, mr->rkey, to);
		ibv_wr_set_inline_data_list(qp, 2, list);
		CHECK(!ibv_wr_complete(qp));
	} else {
		struct ibv_sge list[] = { { (uintptr_t)from, half, 0 },
					  { (uintptr_t)from + half, length - half, 0 } };
		struct ibv_send_wr *bad, wr = { .wr_id = slot,
						.sg_list = list,
						.num_sge = 2,
						.opcode = IBV_WR_RDMA_WRITE,
						.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
						.wr.rdma = { .remote_addr = to, .rkey = mr->rkey } };
		CHECK(!ibv_post_send(a.qp, &wr, &bad));
	}
	counting = 0;
}

/* Posts as many requests as the queue holds, of this length, and checks every byte. */
static void round_of(int extended, uint32_t length, char seed)
{
	char from[4096];
	for (int slot = 0; slot < DEPTH; slot++) {
		for (uint32_t at = 0; at < length; at++)
			from[at] = (char)(seed + slot + at * 7);
		post(extended, slot, from, length);
		memset(from, 0x55, length); /* the program may reuse its memory at once */
	}
	for (int slot = 0; slot < DEPTH; slot++) {
		struct ibv_wc wc;
		int polled;
		do
			polled = ibv_poll_cq(a.cq, 1, &wc);
		while (polled == 0);
		CHECK(polled == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)slot);
		for (uint32_t at = 0; at < length; at++)
			CHECK(target[slot][at] == (char)(seed + slot + at * 7));
	}
}

static void run(uint32_t requested)
{
	create_end(&a, requested);
	uint32_t granted = max_inline;
	create_end(&b, 0);
	connect_end(&a, b.qp->qp_num);
	connect_end(&b, a.qp->qp_num);
	for (int extended = 0; extended < 2; extended++) {
		uint32_t step = granted / 16;
		/* The first rounds allocate the memory of the queue. */
		for (int warm = 0; warm < 3; warm++)
			round_of(extended, granted, 1);
		allocations = requests = 0;
		for (int round = 0; round < ROUNDS; round++)
			for (uint32_t length = 0; length <= granted; length += step - (length % 3 ? 1 : 0))
				round_of(extended, length, (char)(round + length));
		round_of(extended, granted, 2);
		/* What all connections share, such as the pool of send buffers, may grow now and then. */
		if (allocations > requests / 100) {
			printf("%u allocations for %u requests, max_inline_data %u, extended %d\n", allocations,
			       requests, granted, extended);
			exit(1);
		}
	}
	/* One byte more is refused. */
	static char more[4097];
	struct ibv_sge sge = { (uintptr_t)more, granted + 1, 0 };
	struct ibv_send_wr *bad = NULL, wr = { .sg_list = &sge,
					       .num_sge = 1,
					       .opcode = IBV_WR_RDMA_WRITE,
					       .send_flags = IBV_SEND_INLINE };
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 22 && bad == &wr);
	CHECK(!ibv_destroy_qp(a.qp) && !ibv_destroy_qp(b.qp));
	CHECK(!ibv_destroy_cq(a.cq) && !ibv_destroy_cq(b.cq));
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	CHECK(context);
	pd = ibv_alloc_pd(context);
	mr = ibv_reg_mr(pd, target, sizeof target, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(pd && mr);
	/* The counter counts. */
	counting = 1;
	void *volatile one = malloc(1);
	counting = 0;
	free(one);
	CHECK(allocations == 1);
	run(0);
	run(1000);
	run(4096);
	return 0;
}
