/* A program that does not expect injected faults: prints what its calls, completions and events report. */
#include "../cm/kit.h"

#define MESSAGES 100
#define SIZE 20000
#define REGISTRATIONS 64

/* One end of a connection, and its memory. */
struct end {
	struct rdma_cm_id *id;
	struct ibv_mr *out_mr, *in_mr;
	unsigned char out[SIZE], in[SIZE];
};

static struct end client, server;

static void open_end(struct end *end, struct rdma_cm_id *id)
{
	end->id = id;
	end->out_mr = rdma_reg_msgs(id, end->out, SIZE);
	end->in_mr = rdma_reg_msgs(id, end->in, SIZE);
	CHECK(end->out_mr && end->in_mr);
}

static struct pair open_ends(void)
{
	struct pair pair = connect_pair();

	open_end(&client, pair.client);
	open_end(&server, pair.server);
	return pair;
}

static void close_ends(struct pair *pair)
{
	CHECK(rdma_dereg_mr(client.out_mr) == 0 && rdma_dereg_mr(client.in_mr) == 0);
	CHECK(rdma_dereg_mr(server.out_mr) == 0 && rdma_dereg_mr(server.in_mr) == 0);
	disconnect(pair);
}

/* Sends a message whose bytes depend on its number, and verifies it at the other end. Returns the status of the
 * send. */
static enum ibv_wc_status send_message(struct end *from, struct end *to, int number)
{
	struct ibv_wc wc;

	for (int at = 0; at < SIZE; at++)
		from->out[at] = (unsigned char)(number * 31 + at * 7 + (at >> 8));
	if (rdma_post_recv(to->id, NULL, to->in, SIZE, to->in_mr) != 0)
		return IBV_WC_WR_FLUSH_ERR;
	CHECK(rdma_post_send(from->id, NULL, from->out, SIZE, from->out_mr, 0) == 0);
	CHECK(rdma_get_send_comp(from->id, &wc) == 1);
	if (wc.status != IBV_WC_SUCCESS)
		return wc.status;
	CHECK(rdma_get_recv_comp(to->id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == SIZE);
	CHECK(memcmp(to->in, from->out, SIZE) == 0);
	return IBV_WC_SUCCESS;
}

/* A ping-pong with every message verified: faults that only cause delays change nothing. */
static void unharmed(void)
{
	struct pair pair = open_ends();

	for (int i = 0; i < MESSAGES; i++) {
		CHECK(send_message(&client, &server, 2 * i) == IBV_WC_SUCCESS);
		CHECK(send_message(&server, &client, 2 * i + 1) == IBV_WC_SUCCESS);
	}
	close_ends(&pair);
}

static enum ibv_qp_state state_of(struct rdma_cm_id *id)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	CHECK(ibv_query_qp(id->qp, &attr, IBV_QP_STATE, &init) == 0);
	return attr.qp_state;
}

/* Sends until the connection is cut, during a message or between two. Both ends are told. */
static void cut(void)
{
	struct pair pair = open_ends();
	enum ibv_wc_status status;
	struct ibv_wc wc;
	int sent = 0;

	while ((status = send_message(&client, &server, sent)) == IBV_WC_SUCCESS)
		CHECK(++sent < 10000);
	printf("%d messages, then %s\n", sent, ibv_wc_status_str(status));
	CHECK(status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_WR_FLUSH_ERR);
	expect_and_ack(pair.near, RDMA_CM_EVENT_DISCONNECTED);
	expect_and_ack(pair.far, RDMA_CM_EVENT_DISCONNECTED);
	/* The receive of the message. */
	CHECK(rdma_get_recv_comp(server.id, &wc) == 1);
	CHECK(wc.status == IBV_WC_WR_FLUSH_ERR || (wc.status == IBV_WC_SUCCESS && wc.byte_len == SIZE));
	CHECK(state_of(client.id) == IBV_QPS_ERR && state_of(server.id) == IBV_QPS_ERR);
	/* Requests posted from now on are flushed. */
	CHECK(rdma_post_send(client.id, NULL, client.out, SIZE, client.out_mr, 0) == 0);
	CHECK(rdma_get_send_comp(client.id, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
}

static struct ibv_context *open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

static struct ibv_qp *create_plain_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	return qp;
}

/* Connects a queue pair that retries once if the peer is not ready, after 0.64 ms (code 12). */
static void connect_manually(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1 },
	};
	CHECK(ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid) == 0);
	CHECK(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 1, .max_rd_atomic = 1
	};
	CHECK(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				    IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* The receive is posted, but withheld as often as the sender retries. */
static void not_ready(void)
{
	static unsigned char bytes[64];
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0), *far = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *near_qp = create_plain_qp(pd, cq), *far_qp = create_plain_qp(pd, far);
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = sizeof bytes };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_wc wc;
	int found;

	CHECK(mr);
	sge.lkey = mr->lkey;
	connect_manually(near_qp, far_qp);
	connect_manually(far_qp, near_qp);
	CHECK(ibv_post_recv(far_qp, &recv, &bad_recv) == 0);
	CHECK(ibv_post_send(near_qp, &send, &bad_send) == 0);
	while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(found == 1);
	printf("%s\n", ibv_wc_status_str(wc.status));
	CHECK(wc.status == IBV_WC_RNR_RETRY_EXC_ERR);
	CHECK(ibv_poll_cq(far, 1, &wc) == 0 || wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_destroy_qp(near_qp) == 0 && ibv_destroy_qp(far_qp) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_cq(far) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
}

/* Prints which of many registrations fail, and how. */
static void registers(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	char memory[64];

	CHECK(pd);
	for (int i = 0; i < REGISTRATIONS; i++) {
		struct ibv_mr *mr;

		errno = 0;
		mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
		if (!mr)
			CHECK(errno == ENOMEM);
		else
			CHECK(ibv_dereg_mr(mr) == 0);
		putchar(mr ? '.' : 'x');
	}
	putchar('\n');
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
}

static const struct test TESTS[] = {
	{ "unharmed", unharmed },
	{ "cut", cut },
	{ "not_ready", not_ready },
	{ "registers", registers },
};

RUN(TESTS)
