/* The port recovery of collective libraries (NCCL, RCCL), which need GPUs, at the level of verbs: two rails between a sender
 * and a receiver, of which one fails and comes back.
 *
 *   1. Data is written over both rails, and verified.
 *   2. The port of rail 1 goes down: PORT_ERR, and the write in flight fails with RETRY_EXC_ERR, or is flushed.
 *   3. The data queue pairs of rail 1 go to the error state. The sender reads over rail 0 whether the data had arrived, and
 *      writes it again over rail 0.
 *   4. The port comes up: PORT_ACTIVE. Both ends reset the recovery queue pair, connect it with the GID that they query
 *      again, and exchange an alive message and its answer.
 *   5. Both ends reset and connect the data queue pairs of rail 1. Data goes over both rails again, and is verified.
 *
 * Arguments: the command `ironwarp`; `uc` or `ud`, the type of the recovery queue pairs: NCCL uses UC, RCCL UD; and the number of
 * failures. */
#include "check.h"
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RAILS 2
#define SIZE (256 << 10)
#define GRH 40
#define QKEY 0x11223344
/* Local ACK timeout: 4.096 us times 2 to this power, here 67 ms. */
#define TIMEOUT 14
#define RETRIES 3

/* One end of a rail: a device with a data queue pair and a recovery queue pair. */
struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *data, *recovery;
	struct ibv_ah *ah;
	union ibv_gid gid;
};

static struct end sender[RAILS], receiver[RAILS];
/* What the sender writes, what the receiver gets, and what probes read. */
static unsigned char out[RAILS][SIZE], in[RAILS][SIZE], probe[SIZE];
static unsigned char alive[2][GRH + 64];
static struct ibv_mr *probe_mr, *alive_mr[2];
static enum ibv_qp_type recovery_type;
static const char *command;

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static struct ibv_qp *create_qp(struct end *end, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = end->cq,
		.recv_cq = end->cq,
		.qp_type = type,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	struct ibv_qp *qp = ibv_create_qp(end->pd, &init);

	CHECK(qp);
	return qp;
}

static void open_end(struct end *end, struct ibv_device *device)
{
	end->context = ibv_open_device(device);
	CHECK(end->context);
	end->pd = ibv_alloc_pd(end->context);
	end->cq = ibv_create_cq(end->context, 64, NULL, NULL, 0);
	CHECK(end->pd && end->cq);
	end->data = create_qp(end, IBV_QPT_RC);
	end->recovery = create_qp(end, recovery_type);
}

/* Moves a queue pair from reset to ready-to-send. The GID is queried each time: it may have moved. */
static void connect_qp(struct ibv_qp *qp, struct ibv_qp *peer_qp, union ibv_gid peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	bool is_ud = qp->qp_type == IBV_QPT_UD, is_rc = qp->qp_type == IBV_QPT_RC;

	if (is_ud) {
		attr.qkey = QKEY;
		mask |= IBV_QP_QKEY;
	} else {
		attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | (is_rc ? IBV_ACCESS_REMOTE_READ : 0);
		mask |= IBV_QP_ACCESS_FLAGS;
	}
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);

	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR };
	mask = IBV_QP_STATE;
	if (!is_ud) {
		attr.path_mtu = IBV_MTU_4096;
		attr.dest_qp_num = peer_qp->qp_num;
		attr.rq_psn = 7;
		attr.ah_attr.is_global = 1;
		attr.ah_attr.port_num = 1;
		attr.ah_attr.grh.dgid = peer;
		attr.ah_attr.grh.sgid_index = 0;
		attr.ah_attr.grh.hop_limit = 64;
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	}
	if (is_rc) {
		attr.max_dest_rd_atomic = 1;
		attr.min_rnr_timer = 12;
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	}
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);

	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 7 };
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (is_rc) {
		attr.timeout = TIMEOUT;
		attr.retry_cnt = RETRIES;
		attr.rnr_retry = 7;
		attr.max_rd_atomic = 1;
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

static void set_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
}

static void query_gids(int rail)
{
	CHECK(ibv_query_gid(sender[rail].context, 1, 0, &sender[rail].gid) == 0);
	CHECK(ibv_query_gid(receiver[rail].context, 1, 0, &receiver[rail].gid) == 0);
}

static void connect_data(int rail)
{
	connect_qp(sender[rail].data, receiver[rail].data, receiver[rail].gid);
	connect_qp(receiver[rail].data, sender[rail].data, sender[rail].gid);
}

static void connect_recovery(int rail)
{
	connect_qp(sender[rail].recovery, receiver[rail].recovery, receiver[rail].gid);
	connect_qp(receiver[rail].recovery, sender[rail].recovery, sender[rail].gid);
}

/* Waits for a completion of a queue, at most this long. Returns whether there was one. */
static bool wait_completion(struct ibv_cq *cq, double time, struct ibv_wc *wc)
{
	double deadline = seconds() + time;

	while (seconds() < deadline) {
		int found = ibv_poll_cq(cq, 1, wc);

		CHECK(found >= 0);
		if (found)
			return true;
	}
	return false;
}

static struct ibv_mr *reg(struct end *end, void *memory, size_t len)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_mr *mr = ibv_reg_mr(end->pd, memory, len, access);

	CHECK(mr);
	return mr;
}

/* Posts a Write or Read between memory of the sender and that of the receiver, over this rail. */
static void post_rdma(int rail, enum ibv_wr_opcode opcode, struct ibv_mr *local, struct ibv_mr *remote)
{
	struct ibv_sge sge = { (uintptr_t)local->addr, SIZE, local->lkey };
	struct ibv_send_wr wr = { .wr_id = opcode, .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;

	wr.wr.rdma.remote_addr = (uintptr_t)remote->addr;
	wr.wr.rdma.rkey = remote->rkey;
	CHECK(ibv_post_send(sender[rail].data, &wr, &bad) == 0);
}

static void fill(int round)
{
	for (int rail = 0; rail < RAILS; rail++)
		for (int at = 0; at < SIZE; at++)
			out[rail][at] = (unsigned char)(round * 41 + rail * 13 + at * 7 + (at >> 9));
}

static struct ibv_mr *out_mr[RAILS][RAILS], *in_mr[RAILS][RAILS];

/* Writes the data of `from` over `rail`, and waits for the completion. */
static void write_over(int rail, int from)
{
	struct ibv_wc wc;

	post_rdma(rail, IBV_WR_RDMA_WRITE, out_mr[rail][from], in_mr[rail][from]);
	CHECK(wait_completion(sender[rail].cq, 10, &wc) && wc.status == IBV_WC_SUCCESS);
}

static void write_over_both(int round)
{
	fill(round);
	memset(in, 0, sizeof(in));
	for (int rail = 0; rail < RAILS; rail++)
		write_over(rail, rail);
	CHECK(memcmp(in, out, sizeof(in)) == 0);
}

static void set_port(const char *state)
{
	char line[4096];

	snprintf(line, sizeof(line), "%s port %s:1 %s >&2", command, ibv_get_device_name(sender[1].context->device), state);
	CHECK(system(line) == 0);
}

/* Waits for an asynchronous event of a context. Others may come first. */
static void expect_event(struct ibv_context *context, enum ibv_event_type type)
{
	struct ibv_async_event event = { .event_type = IBV_EVENT_DEVICE_FATAL };

	while (event.event_type != type) {
		struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };

		CHECK(poll(&fd, 1, 10000) == 1);
		CHECK(ibv_get_async_event(context, &event) == 0);
		ibv_ack_async_event(&event);
	}
	CHECK(event.element.port_num == 1);
}

static enum ibv_port_state port_state(struct ibv_context *context)
{
	struct ibv_port_attr attr;

	CHECK(ibv_query_port(context, 1, &attr) == 0);
	return attr.state;
}

static void post_alive_receive(struct end *end, int which)
{
	struct ibv_sge sge = { (uintptr_t)alive[which], sizeof(alive[which]), alive_mr[which]->lkey };
	struct ibv_recv_wr wr = { .wr_id = 1000, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(ibv_post_recv(end->recovery, &wr, &bad) == 0);
}

/* Sends a message over the recovery queue pair, and waits until it is received. UC and UD may lose it: then sends it
 * again, as the libraries do. */
static void send_alive(struct end *from, struct end *to, const char *text)
{
	struct ibv_sge sge = { (uintptr_t)text, (uint32_t)strlen(text) + 1, 0 };
	struct ibv_send_wr wr = {
		.wr_id = 2000, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE
	}, *bad;
	struct ibv_wc wc;
	int which = to == &receiver[1], offset = recovery_type == IBV_QPT_UD ? GRH : 0;

	if (recovery_type == IBV_QPT_UD) {
		wr.wr.ud.ah = from->ah;
		wr.wr.ud.remote_qpn = to->recovery->qp_num;
		wr.wr.ud.remote_qkey = QKEY;
	}
	for (int attempt = 0; attempt < 20; attempt++) {
		CHECK(ibv_post_send(from->recovery, &wr, &bad) == 0);
		CHECK(wait_completion(from->cq, 10, &wc) && wc.status == IBV_WC_SUCCESS && wc.wr_id == 2000);
		if (!wait_completion(to->cq, 0.5, &wc))
			continue;
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 1000);
		CHECK(strcmp((char *)alive[which] + offset, text) == 0);
		return;
	}
	CHECK(!"an alive message arrived");
}

static void open_rails(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);

	CHECK(list && count == RAILS);
	for (int rail = 0; rail < RAILS; rail++) {
		open_end(&sender[rail], list[rail]);
		open_end(&receiver[rail], list[rail]);
		for (int memory = 0; memory < RAILS; memory++) {
			out_mr[rail][memory] = reg(&sender[rail], out[memory], SIZE);
			in_mr[rail][memory] = reg(&receiver[rail], in[memory], SIZE);
		}
		query_gids(rail);
		connect_data(rail);
	}
	ibv_free_device_list(list);
	probe_mr = reg(&sender[0], probe, SIZE);
	alive_mr[0] = reg(&sender[1], alive[0], sizeof(alive[0]));
	alive_mr[1] = reg(&receiver[1], alive[1], sizeof(alive[1]));
}

/* Takes the port of rail 1 down, and moves its data to rail 0. */
static void fail_over(void)
{
	struct ibv_wc wc;
	double start;

	set_port("down");
	expect_event(sender[1].context, IBV_EVENT_PORT_ERR);
	expect_event(receiver[1].context, IBV_EVENT_PORT_ERR);
	CHECK(port_state(sender[1].context) == IBV_PORT_DOWN && port_state(sender[0].context) == IBV_PORT_ACTIVE);
	fill(2);
	memset(in, 0, sizeof(in));
	start = seconds();
	post_rdma(1, IBV_WR_RDMA_WRITE, out_mr[1][1], in_mr[1][1]);
	write_over(0, 0);
	CHECK(wait_completion(sender[1].cq, 30, &wc));
	printf("%s after %.1f s\n", ibv_wc_status_str(wc.status), seconds() - start);
	CHECK(wc.status == IBV_WC_RETRY_EXC_ERR);
	CHECK(seconds() - start > 4.096e-6 * (1 << TIMEOUT) * (RETRIES + 1) * 0.9);
	set_state(sender[1].data, IBV_QPS_ERR);
	set_state(receiver[1].data, IBV_QPS_ERR);
	/* Nothing may be written through a port that is down. */
	post_rdma(0, IBV_WR_RDMA_READ, probe_mr, in_mr[0][1]);
	CHECK(wait_completion(sender[0].cq, 10, &wc) && wc.status == IBV_WC_SUCCESS);
	CHECK(memcmp(probe, out[1], SIZE) != 0);
	write_over(0, 1);
	CHECK(memcmp(in, out, sizeof(in)) == 0);
}

/* Brings the port of rail 1 up, and its queue pairs back. */
static void recover(void)
{
	struct ibv_wc wc;

	set_port("up");
	expect_event(sender[1].context, IBV_EVENT_PORT_ACTIVE);
	expect_event(receiver[1].context, IBV_EVENT_PORT_ACTIVE);
	CHECK(port_state(sender[1].context) == IBV_PORT_ACTIVE);
	while (ibv_poll_cq(sender[1].cq, 1, &wc) || ibv_poll_cq(receiver[1].cq, 1, &wc))
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
	query_gids(1);
	set_state(sender[1].recovery, IBV_QPS_RESET);
	set_state(receiver[1].recovery, IBV_QPS_RESET);
	connect_recovery(1);
	if (recovery_type == IBV_QPT_UD) {
		struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } };

		attr.grh.dgid = receiver[1].gid;
		sender[1].ah = ibv_create_ah(sender[1].pd, &attr);
		attr.grh.dgid = sender[1].gid;
		receiver[1].ah = ibv_create_ah(receiver[1].pd, &attr);
		CHECK(sender[1].ah && receiver[1].ah);
	}
	post_alive_receive(&sender[1], 0);
	post_alive_receive(&receiver[1], 1);
	send_alive(&sender[1], &receiver[1], "alive");
	send_alive(&receiver[1], &sender[1], "alive too");
	set_state(sender[1].data, IBV_QPS_RESET);
	set_state(receiver[1].data, IBV_QPS_RESET);
	connect_data(1);
	if (recovery_type == IBV_QPT_UD)
		CHECK(ibv_destroy_ah(sender[1].ah) == 0 && ibv_destroy_ah(receiver[1].ah) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	command = argv[1];
	recovery_type = strcmp(argv[2], "ud") == 0 ? IBV_QPT_UD : IBV_QPT_UC;
	open_rails();
	write_over_both(1);
	for (int round = 0; round < atoi(argv[3]); round++) {
		fail_over();
		recover();
		write_over_both(3 + round);
	}
	printf("recovered\n");
	return 0;
}
