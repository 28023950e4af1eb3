/* Programs without mistakes, that look as if they had one:
 *
 *     allowed NAME [extended] [shared]
 */
#include "kit.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

/* A reset discards posted receives, and completions that were not polled. */
static void reset_discards_receives(void)
{
	open_device();
	create(&a, DEPTH, LOCAL);
	create(&b, DEPTH, REMOTE);
	for (int round = 0; round < 2; round++) {
		connect_ends();
		memset(b.memory, 5, SIZE);
		for (int number = 0; number < DEPTH; number++)
			receive_part(RECEIVE + number, part(&b, number * 64, 64));
		send_part(REQUEST, part(&a, 0, 16));
		await(&a, REQUEST);
		if (round == 1)
			break;
		reset(&a);
		reset(&b);
		for (int at = 16; at < SIZE; at++)
			CHECK(b.memory[at] == 5);
		CHECK(!ibv_dereg_mr(b.mr));
		CHECK(b.mr = ibv_reg_mr(b.pd, b.memory, SIZE, REMOTE));
	}
	await(&b, RECEIVE);
	close_both();
}

/* A reset ends the error state. */
static void reset_after_failure(void)
{
	open_both(REMOTE);
	receive_part(RECEIVE, part(&b, 0, 16));
	send_part(REQUEST, part(&a, 0, 64));
	await_failure(&b, RECEIVE);
	await_failure(&a, REQUEST);
	reset(&a);
	reset(&b);
	connect_ends();
	receive_part(RECEIVE + 1, part(&b, 0, 64));
	send_part(REQUEST + 1, part(&a, 0, 64));
	await(&a, REQUEST + 1);
	await(&b, RECEIVE + 1);
	close_both();
}

/* A datagram that is too long stops the send queue, until the program starts it again. */
static void stopped_send_queue(void)
{
	static char large[2 * SIZE];
	open_datagrams();
	struct ibv_mr *mr = ibv_reg_mr(a.pd, large, sizeof large, LOCAL);
	send_datagram(REQUEST, all_of(mr), IBV_SEND_SIGNALED);
	await_failure(&a, REQUEST);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	CHECK(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE));
	receive_part(RECEIVE, part(&b, 0, 40 + 64));
	send_datagram(REQUEST + 1, part(&a, 0, 64), IBV_SEND_SIGNALED);
	await(&a, REQUEST + 1);
	await(&b, RECEIVE);
	CHECK(!ibv_dereg_mr(mr));
	close_datagrams();
}

#define SLOTS 8
#define ROUNDS 5000

static atomic_int posted, polled;

/* Polls for completions, by either call, and posts requests with the buffers of those that completed. */
static void *poll_and_post(void *number)
{
	bool plain = !extended || *(int *)number % 2;
	while (polled < ROUNDS) {
		struct ibv_wc wc;
		int found = plain ? ibv_poll_cq(a.cq, 1, &wc) : poll_once(&a, &wc);
		CHECK(found >= 0);
		if (!found)
			continue;
		CHECK(wc.status == IBV_WC_SUCCESS);
		int slot = wc.wr_id;
		a.memory[slot * 64]++;
		if (posted++ < ROUNDS)
			CHECK(!post_one(IBV_WR_RDMA_WRITE, slot, part(&a, slot * 64, 64), b.memory));
		polled++;
	}
	return NULL;
}

/* Several threads poll a completion queue. */
static void several_pollers(void)
{
	pthread_t threads[4];
	int numbers[4];
	open_both(REMOTE);
	for (int slot = 0; slot < SLOTS; slot++, posted++)
		CHECK(!post_one(IBV_WR_RDMA_WRITE, slot, part(&a, slot * 64, 64), b.memory));
	for (int number = 0; number < 4; number++) {
		numbers[number] = number;
		CHECK(!pthread_create(&threads[number], NULL, poll_and_post, &numbers[number]));
	}
	for (int number = 0; number < 4; number++)
		CHECK(!pthread_join(threads[number], NULL));
	close_both();
}

/* A fenced request, and those after it, may send what an earlier Read gets. */
static void fenced_send(void)
{
	open_both(REMOTE);
	for (int at = 0; at < 64; at++)
		b.memory[1024 + at] = at + 1;
	receive_part(RECEIVE, part(&b, 0, 64));
	receive_part(RECEIVE + 1, part(&b, 64, 64));
	struct ibv_sge sge = part(&a, 0, 64);
	struct ibv_send_wr *bad, sends[3] = {
		{ .opcode = IBV_WR_RDMA_READ },
		{ .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_FENCE },
		{ .opcode = IBV_WR_SEND },
	};
	sends[0].wr.rdma.remote_addr = (uintptr_t)b.memory + 1024;
	sends[0].wr.rdma.rkey = b.mr->rkey;
	for (int number = 0; number < 3; number++) {
		sends[number].wr_id = REQUEST + number;
		sends[number].send_flags |= IBV_SEND_SIGNALED;
		sends[number].sg_list = &sge;
		sends[number].num_sge = 1;
		sends[number].next = number < 2 ? &sends[number + 1] : NULL;
	}
	if (extended) {
		struct ibv_qp_ex *qp = extended_a;
		ibv_wr_start(qp);
		for (int number = 0; number < 3; number++) {
			qp->wr_id = sends[number].wr_id;
			qp->wr_flags = sends[number].send_flags;
			if (number == 0)
				ibv_wr_rdma_read(qp, b.mr->rkey, (uintptr_t)b.memory + 1024);
			else
				ibv_wr_send(qp);
			ibv_wr_set_sge_list(qp, 1, &sge);
		}
		CHECK(!ibv_wr_complete(qp));
	} else {
		CHECK(!ibv_post_send(a.qp, sends, &bad));
	}
	for (int number = 0; number < 3; number++)
		await(&a, REQUEST + number);
	await(&b, RECEIVE);
	await(&b, RECEIVE + 1);
	CHECK(!memcmp(b.memory, b.memory + 1024, 64) && !memcmp(b.memory + 64, b.memory + 1024, 64));
	close_both();
}

/* The program learns from the arrival of a datagram that it was sent. */
static void unsignaled_datagram(void)
{
	open_datagrams();
	receive_part(RECEIVE, part(&b, 0, 40 + 64));
	receive_part(RECEIVE + 1, part(&b, 200, 40 + 64));
	send_datagram(REQUEST, part(&a, 0, 64), 0);
	await(&b, RECEIVE);
	a.memory[0]++;
	send_datagram(REQUEST + 1, part(&a, 64, 64), IBV_SEND_SIGNALED);
	await(&a, REQUEST + 1);
	await(&b, RECEIVE + 1);
	close_datagrams();
}

/* An XRC queue pair is used after one of the objects for it was destroyed. */
static void one_of_several_handles(void)
{
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
					     .fd = -1,
					     .oflags = O_CREAT };
	open_device();
	struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &domain);
	CHECK(xrcd);
	for (int i = 0; i < 2; i++) {
		struct end *end = i ? &b : &a;
		CHECK(end->pd = ibv_alloc_pd(context));
		create_cq(end, DEPTH, NULL);
		CHECK(end->mr = ibv_reg_mr(end->pd, end->memory, SIZE, LOCAL));
	}
	struct ibv_qp_init_attr_ex sender = { .qp_type = IBV_QPT_XRC_SEND,
					      .send_cq = a.cq,
					      .pd = a.pd,
					      .cap = { .max_send_wr = DEPTH, .max_send_sge = 1 },
					      .comp_mask = IBV_QP_INIT_ATTR_PD };
	struct ibv_qp_init_attr_ex receiver = { .qp_type = IBV_QPT_XRC_RECV,
						.xrcd = xrcd,
						.comp_mask = IBV_QP_INIT_ATTR_XRCD };
	struct ibv_srq_init_attr_ex queue = { .attr = { .max_wr = DEPTH, .max_sge = 1 },
					      .srq_type = IBV_SRQT_XRC,
					      .pd = b.pd,
					      .xrcd = xrcd,
					      .cq = b.cq,
					      .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
							   IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ };
	CHECK(srq = ibv_create_srq_ex(context, &queue));
	CHECK(a.qp = ibv_create_qp_ex(context, &sender));
	CHECK(b.qp = ibv_create_qp_ex(context, &receiver));
	initialise(&a);
	initialise(&b);
	connect_ends();
	struct ibv_qp_open_attr open = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
						      IBV_QP_OPEN_ATTR_TYPE,
					 .qp_num = b.qp->qp_num,
					 .xrcd = xrcd,
					 .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_qp *other = ibv_open_qp(context, &open);
	CHECK(other && !ibv_destroy_qp(other));
	struct ibv_sge sge = part(&a, 0, 64);
	struct ibv_send_wr *bad, wr = { .wr_id = REQUEST,
					.opcode = IBV_WR_SEND,
					.send_flags = IBV_SEND_SIGNALED,
					.sg_list = &sge,
					.num_sge = 1 };
	CHECK(!ibv_get_srq_num(srq, &wr.qp_type.xrc.remote_srqn));
	for (int number = 0; number <= DEPTH; number++) {
		receive_part(RECEIVE, part(&b, 0, 64));
		CHECK(!ibv_post_send(a.qp, &wr, &bad));
		await(&a, REQUEST);
		await(&b, RECEIVE);
	}
	destroy_qps();
	CHECK(!ibv_destroy_srq(srq));
	srq = NULL;
	CHECK(!ibv_close_xrcd(xrcd));
	close_both();
}

/* A shared receive queue is used after a completion queue that got its completions was destroyed. */
static void former_completion_queue(void)
{
	open_device();
	create(&b, DEPTH, REMOTE);
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .send_cq = cq,
					 .recv_cq = cq,
					 .srq = srq,
					 .cap = { .max_send_wr = 1, .max_send_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(b.pd, &init);
	CHECK(qp && !ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
	for (int number = 0; number < DEPTH; number++)
		receive_part(RECEIVE, part(&b, number * 64, 64));
	close_both();
}

/* Memory that is no longer registered has its content again, although no queue pair has used the shared receive queue. */
static void shared_queue_alone(void)
{
	open_device();
	memset(b.memory, 5, SIZE);
	CHECK(b.pd = ibv_alloc_pd(context));
	CHECK(b.mr = ibv_reg_mr(b.pd, b.memory, SIZE, LOCAL));
	struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 4 } };
	CHECK(srq = ibv_create_srq(b.pd, &init));
	receive_part(RECEIVE, part(&b, 0, 64));
	CHECK(!ibv_dereg_mr(b.mr));
	b.mr = NULL;
	for (int at = 0; at < SIZE; at++)
		CHECK(b.memory[at] == 5);
	close_both();
}

/* Half of a send queue, whose last request is signaled, is posted while the other half is under way. */
static void mostly_unsignaled(void)
{
	open_both(REMOTE);
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	wr.wr.rdma.remote_addr = (uintptr_t)b.memory;
	wr.wr.rdma.rkey = b.mr->rkey;
	struct ibv_sge sge = part(&a, 0, 64);
	for (int number = 1; number <= 40 * DEPTH; number++) {
		wr.wr_id = number;
		wr.send_flags = number % (DEPTH / 2) == 0 ? IBV_SEND_SIGNALED : 0;
		CHECK(!post_list(wr, &sge, 1));
		if (number % (DEPTH / 2) == 0 && number > DEPTH / 2)
			await(&a, number - DEPTH / 2);
	}
	await(&a, 40 * DEPTH);
	close_both();
}

/* In the error state, all requests complete, whether they are signaled or not. */
static void flushed_requests(void)
{
	open_both(REMOTE);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CHECK(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE));
	struct ibv_send_wr wr = { .wr_id = REQUEST, .opcode = IBV_WR_SEND };
	struct ibv_sge sge = part(&a, 0, 64);
	for (int number = 0; number <= DEPTH; number++)
		CHECK(!post_list(wr, &sge, 1));
	for (int number = 0; number <= DEPTH; number++)
		CHECK(take(&a, REQUEST).status == IBV_WC_WR_FLUSH_ERR);
	close_both();
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} programs[] = {
#define PROGRAM(name) { #name, name }
		PROGRAM(reset_discards_receives),
		PROGRAM(reset_after_failure),
		PROGRAM(stopped_send_queue),
		PROGRAM(several_pollers),
		PROGRAM(fenced_send),
		PROGRAM(unsignaled_datagram),
		PROGRAM(one_of_several_handles),
		PROGRAM(former_completion_queue),
		PROGRAM(shared_queue_alone),
		PROGRAM(mostly_unsignaled),
		PROGRAM(flushed_requests),
	};
	CHECK(count >= 2);
	for (int i = 2; i < count; i++) {
		extended = extended || !strcmp(arguments[i], "extended");
		shared = shared || !strcmp(arguments[i], "shared");
	}
	for (unsigned i = 0; i < sizeof programs / sizeof *programs; i++) {
		if (!strcmp(arguments[1], programs[i].name)) {
			programs[i].run();
			return 0;
		}
	}
	return 2;
}
