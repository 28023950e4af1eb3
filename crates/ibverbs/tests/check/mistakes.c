/* Mistakes that `ironwarp run --check` finds, one for each run, and the same programs without the mistake:
 *
 *     mistakes NAME wrong|right [extended] [shared] [exit=CODE]
 *
 * The function `mistake_NAME` has the mistake. The line with the comment NAME makes the call that the finding names. */
#include "kit.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static bool wrong;

static void mistake_send_buffer_changed(void)
{
	open_both(REMOTE);
	receive_part(RECEIVE, part(&b, 0, 64));
	send_part(REQUEST, part(&a, 0, 64)); /* send_buffer_changed */
	if (wrong)
		a.memory[63]++;
	await(&a, REQUEST);
	a.memory[63]++;
	await(&b, RECEIVE);
	close_both();
}

/* Only the request that another one completes is signaled. */
static void mistake_unsignaled_buffer_changed(void)
{
	open_both(REMOTE);
	struct ibv_send_wr wr = { .wr_id = REQUEST, .opcode = IBV_WR_RDMA_WRITE };
	wr.wr.rdma.remote_addr = (uintptr_t)b.memory;
	wr.wr.rdma.rkey = b.mr->rkey;
	struct ibv_sge sge = part(&a, 0, 64);
	CHECK(!post_list(wr, &sge, 1)); /* unsignaled_buffer_changed */
	if (wrong)
		a.memory[0]++;
	CHECK(!post_one(IBV_WR_RDMA_WRITE, REQUEST + 1, part(&a, 64, 64), b.memory));
	await(&a, REQUEST + 1);
	a.memory[0]++;
	close_both();
}

/* The completion of a bind is not that of the request after it. */
static void mistake_changed_after_bind(void)
{
	open_both(REMOTE);
	struct ibv_mr *mr = ibv_reg_mr(a.pd, a.memory, SIZE, REMOTE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(a.pd, IBV_MW_TYPE_1);
	CHECK(mr && mw);
	struct ibv_mw_bind bind = { .wr_id = REQUEST - 1,
				    .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = { .mr = mr,
						   .addr = (uintptr_t)a.memory,
						   .length = SIZE,
						   .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } };
	receive_part(RECEIVE, part(&b, 0, 64));
	CHECK(!ibv_bind_mw(a.qp, mw, &bind));
	send_part(REQUEST, part(&a, 0, 64)); /* changed_after_bind */
	await(&a, REQUEST - 1);
	if (wrong)
		a.memory[63]++;
	await(&a, REQUEST);
	await(&b, RECEIVE);
	CHECK(!ibv_dealloc_mw(mw) && !ibv_dereg_mr(mr));
	close_both();
}

static void mistake_receive_buffer_read_early(void)
{
	open_both(REMOTE);
	receive_part(RECEIVE, part(&b, 3, 64));
	receive_part(RECEIVE + 1, part(&b, 100, 64));
	if (!wrong) {
		send_part(REQUEST - 1, part(&a, 0, 64));
		await(&a, REQUEST - 1);
		await(&b, RECEIVE);
	}
	memcpy(a.memory + 512, b.memory + 8, 40);
	send_part(REQUEST, part(&a, 500, 64)); /* receive_buffer_read_early */
	await(&a, REQUEST);
	await(&b, wrong ? RECEIVE : RECEIVE + 1);
	close_both();
}

/* The Read is behind a message that waits for a receive, so it cannot complete before the copy. */
static void mistake_read_sink_read_early(void)
{
	open_both(REMOTE);
	warm_up();
	if (!wrong) {
		receive_part(RECEIVE, part(&b, 0, 64));
		receive_part(RECEIVE + 1, part(&b, 64, 64));
	}
	send_part(REQUEST - 2, part(&a, 0, 64));
	await_idle();
	CHECK(!post_one(IBV_WR_RDMA_READ, REQUEST - 1, part(&a, 1024, 64), b.memory + 1024));
	if (!wrong) {
		await(&a, REQUEST - 2);
		await(&a, REQUEST - 1);
		await(&b, RECEIVE);
	}
	memcpy(a.memory + 512, a.memory + 1024, 64);
	send_part(REQUEST, part(&a, 512, 64)); /* read_sink_read_early */
	if (wrong) {
		receive_part(RECEIVE, part(&b, 0, 64));
		await(&b, RECEIVE);
		receive_part(RECEIVE + 1, part(&b, 0, 64));
		await(&a, REQUEST - 2);
		await(&a, REQUEST - 1);
	}
	await(&a, REQUEST);
	await(&b, RECEIVE + 1);
	close_both();
}

static void mistake_receive_buffer_written(void)
{
	open_both(REMOTE);
	receive_part(RECEIVE, part(&b, 0, 64)); /* receive_buffer_written */
	if (wrong)
		b.memory[40] = 1;
	send_part(REQUEST, part(&a, 0, 16));
	await(&b, RECEIVE);
	b.memory[40] = 1;
	await(&a, REQUEST);
	close_both();
}

static void mistake_region_deregistered_in_use(void)
{
	open_both(REMOTE);
	receive_part(RECEIVE, part(&b, 0, 64));
	if (!wrong)
		destroy_qps();
	if (!wrong && srq) {
		CHECK(!ibv_destroy_srq(srq));
		srq = NULL;
	}
	CHECK(!ibv_dereg_mr(b.mr)); /* region_deregistered_in_use */
	b.mr = NULL;
	close_both();
}

static void mistake_datagram_buffer_deregistered(void)
{
	open_datagrams();
	receive_part(RECEIVE, part(&b, 0, 64));
	if (!wrong)
		destroy_qps();
	CHECK(!ibv_dereg_mr(b.mr)); /* datagram_buffer_deregistered */
	b.mr = NULL;
	close_datagrams();
}

/* The message that arrives later fails, which is not a second mistake. */
static void mistake_region_deregistered_before_message(void)
{
	open_both(REMOTE);
	receive_part(RECEIVE, part(&b, 0, 64));
	if (wrong) {
		CHECK(!ibv_dereg_mr(b.mr)); /* region_deregistered_before_message */
		b.mr = NULL;
	}
	struct ibv_send_wr wr = { .wr_id = REQUEST, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_sge sge = part(&a, 0, 64);
	CHECK(!post_list(wr, &sge, 1));
	if (wrong) {
		await_failure(&b, RECEIVE);
		await_failure(&a, REQUEST);
	} else {
		await(&b, RECEIVE);
		await(&a, REQUEST);
	}
	close_both();
}

/* Deregisters memory that was freed or unmapped. With the mistake, a receive in it is still posted, and ends first. */
static void deregister_released(struct ibv_mr *mr)
{
	if (wrong)
		destroy_qps();
	if (wrong && srq) {
		CHECK(!ibv_destroy_srq(srq));
		srq = NULL;
	}
	CHECK(!ibv_dereg_mr(mr));
}

static void mistake_memory_unmapped_in_use(void)
{
	open_both(REMOTE);
	void *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	struct ibv_mr *mr = ibv_reg_mr(b.pd, memory, SIZE, LOCAL);
	receive_part(RECEIVE, all_of(mr));
	if (!wrong) {
		send_part(REQUEST, part(&a, 0, 64));
		await(&a, REQUEST);
		await(&b, RECEIVE);
	}
	CHECK(!munmap(memory, SIZE)); /* memory_unmapped_in_use */
	deregister_released(mr);
	close_both();
}

static void mistake_memory_freed_in_use(void)
{
	open_both(REMOTE);
	char *memory = malloc(600);
	struct ibv_mr *mr = ibv_reg_mr(a.pd, memory, 600, LOCAL);
	receive_part(RECEIVE, part(&b, 0, 600));
	send_part(REQUEST, all_of(mr));
	if (wrong)
		free(memory); /* memory_freed_in_use */
	await(&a, REQUEST);
	await(&b, RECEIVE);
	if (!wrong)
		free(memory);
	CHECK(!ibv_dereg_mr(mr));
	close_both();
}

static void mistake_receive_buffer_freed_in_use(void)
{
	open_both(REMOTE);
	char *memory = malloc(600);
	struct ibv_mr *mr = ibv_reg_mr(b.pd, memory, 600, LOCAL);
	receive_part(RECEIVE, all_of(mr));
	if (!wrong) {
		send_part(REQUEST, part(&a, 0, 64));
		await(&a, REQUEST);
		await(&b, RECEIVE);
	}
	free(memory); /* receive_buffer_freed_in_use */
	deregister_released(mr);
	close_both();
}

/* The C library unmaps such a large block when it is freed. */
static void mistake_large_block_freed_in_use(void)
{
	open_both(REMOTE);
	void *memory = malloc(256 << 10);
	struct ibv_mr *mr = ibv_reg_mr(b.pd, memory, 256 << 10, LOCAL);
	receive_part(RECEIVE, all_of(mr));
	if (!wrong) {
		send_part(REQUEST, part(&a, 0, 64));
		await(&a, REQUEST);
		await(&b, RECEIVE);
	}
	free(memory); /* large_block_freed_in_use */
	deregister_released(mr);
	close_both();
}

/* The block behind this one keeps it from growing in place. */
static void mistake_memory_reallocated_in_use(void)
{
	open_both(REMOTE);
	char *memory = malloc(600), *next = malloc(600);
	struct ibv_mr *mr = ibv_reg_mr(b.pd, memory, 600, LOCAL);
	receive_part(RECEIVE, all_of(mr));
	if (!wrong) {
		send_part(REQUEST, part(&a, 0, 64));
		await(&a, REQUEST);
		await(&b, RECEIVE);
	}
	char *moved = realloc(memory, 6000); /* memory_reallocated_in_use */
	CHECK(moved && moved != memory);
	deregister_released(mr);
	free(moved);
	free(next);
	close_both();
}

static void mistake_stale_registration(void)
{
	const int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	open_both(REMOTE);
	void *memory = mmap(NULL, SIZE, protection, flags, -1, 0);
	CHECK(memory != MAP_FAILED);
	struct ibv_mr *mr = ibv_reg_mr(a.pd, memory, SIZE, LOCAL);
	CHECK(!munmap(memory, SIZE));
	CHECK(mmap(memory, SIZE, protection, flags | MAP_FIXED_NOREPLACE, -1, 0) == memory);
	if (!wrong) {
		CHECK(!ibv_dereg_mr(mr));
		mr = ibv_reg_mr(a.pd, memory, SIZE, LOCAL);
	}
	receive_part(RECEIVE, part(&b, 0, SIZE));
	send_part(REQUEST, all_of(mr)); /* stale_registration */
	await(&a, REQUEST);
	await(&b, RECEIVE);
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!munmap(memory, SIZE));
	close_both();
}

static void mistake_use_after_free(void)
{
	open_both(REMOTE);
	char *memory = malloc(600);
	struct ibv_mr *mr = ibv_reg_mr(a.pd, memory, 600, LOCAL);
	struct ibv_sge sge = all_of(mr);
	receive_part(RECEIVE, part(&b, 0, 600));
	if (wrong)
		free(memory);
	send_part(REQUEST, sge); /* use_after_free */
	await(&a, REQUEST);
	await(&b, RECEIVE);
	CHECK(!ibv_dereg_mr(mr));
	if (!wrong)
		free(memory);
	close_both();
}

/* The memory is gone, so the request fails as well, unless other memory is mapped there by now. */
static void mistake_large_block_used_after_free(void)
{
	open_both(REMOTE);
	char *memory = malloc(256 << 10);
	struct ibv_mr *mr = ibv_reg_mr(a.pd, memory, 256 << 10, LOCAL);
	receive_part(RECEIVE, part(&b, 0, 64));
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey };
	if (wrong)
		free(memory);
	send_part(REQUEST, sge); /* large_block_used_after_free */
	CHECK(take(&a, REQUEST).status == IBV_WC_SUCCESS || wrong);
	CHECK(!ibv_dereg_mr(mr));
	if (!wrong)
		free(memory);
	close_both();
}

static void mistake_misaligned_atomic(void)
{
	open_both(REMOTE);
	void *target = b.memory + (wrong ? 4 : 8);
	CHECK(!post_one(IBV_WR_ATOMIC_FETCH_AND_ADD, REQUEST, part(&a, 0, 8), target)); /* misaligned_atomic */
	if (wrong)
		await_failure(&a, REQUEST);
	else
		await(&a, REQUEST);
	close_both();
}

static void mistake_missing_rights(void)
{
	open_both(wrong ? LOCAL | IBV_ACCESS_REMOTE_READ : REMOTE);
	CHECK(!post_one(IBV_WR_RDMA_WRITE, REQUEST, part(&a, 0, 64), b.memory)); /* missing_rights */
	if (wrong)
		await_failure(&a, REQUEST);
	else
		await(&a, REQUEST);
	close_both();
}

/* The memory of b cannot be written to. */
static void mistake_missing_local_rights(void)
{
	open_both(wrong ? 0 : LOCAL);
	receive_part(RECEIVE, part(&b, 0, 64)); /* missing_local_rights */
	send_part(REQUEST, part(&a, 0, 64));
	if (wrong) {
		await_failure(&b, RECEIVE);
		await_failure(&a, REQUEST);
	} else {
		await(&b, RECEIVE);
		await(&a, REQUEST);
	}
	close_both();
}

static void mistake_bad_memory_key(void)
{
	open_both(REMOTE);
	receive_part(RECEIVE, part(&b, 0, 64));
	struct ibv_sge sge = part(&a, 0, 64);
	if (wrong)
		sge.lkey += 0x5000;
	send_part(REQUEST, sge); /* bad_memory_key */
	if (wrong)
		await_failure(&a, REQUEST);
	else
		await(&a, REQUEST);
	close_both();
}

static void mistake_bad_memory_range(void)
{
	open_both(REMOTE);
	receive_part(RECEIVE, part(&b, 0, 64));
	send_part(REQUEST, part(&a, wrong ? SIZE - 63 : SIZE - 64, 64)); /* bad_memory_range */
	if (wrong)
		await_failure(&a, REQUEST);
	else
		await(&a, REQUEST);
	close_both();
}

static void mistake_key_of_another_domain(void)
{
	open_both(REMOTE);
	receive_part(RECEIVE, part(&b, 0, 64));
	send_part(REQUEST, part(wrong ? &b : &a, 64, 64)); /* key_of_another_domain */
	if (wrong)
		await_failure(&a, REQUEST);
	else
		await(&a, REQUEST);
	close_both();
}

static void mistake_bad_remote_range(void)
{
	open_both(REMOTE);
	char *target = b.memory + SIZE - (wrong ? 63 : 64);
	CHECK(!post_one(IBV_WR_RDMA_WRITE, REQUEST, part(&a, 0, 64), target)); /* bad_remote_range */
	if (wrong)
		await_failure(&a, REQUEST);
	else
		await(&a, REQUEST);
	close_both();
}

static void mistake_bad_remote_key(void)
{
	open_both(REMOTE);
	struct ibv_send_wr wr = { .wr_id = REQUEST, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED };
	wr.wr.rdma.remote_addr = (uintptr_t)b.memory;
	wr.wr.rdma.rkey = b.mr->rkey + (wrong ? 0x5000 : 0);
	struct ibv_sge sge = part(&a, 0, 64);
	CHECK(!post_list(wr, &sge, 1)); /* bad_remote_key */
	if (wrong)
		await_failure(&a, REQUEST);
	else
		await(&a, REQUEST);
	close_both();
}

/* The completions of receives alone may fill the queue. */
static void mistake_cq_may_overrun(void)
{
	open_device();
	create(&a, DEPTH, LOCAL);
	create(&b, 2, REMOTE);
	connect_ends();
	int room = b.cq->cqe;
	for (int number = 0; number < room; number++)
		receive_part(RECEIVE, part(&b, number * 8, 8));
	if (wrong)
		receive_part(RECEIVE, part(&b, SIZE - 8, 8)); /* cq_may_overrun */
	close_both();
}

/* The completion that the program has not polled takes room, too. */
static void mistake_unpolled_completion(void)
{
	open_device();
	create(&a, 2, LOCAL);
	create(&b, DEPTH, REMOTE);
	connect_ends();
	int room = a.cq->cqe;
	for (int number = 0; number < room; number++)
		CHECK(!post_one(IBV_WR_RDMA_WRITE, REQUEST, part(&a, 0, 64), b.memory));
	await(&a, REQUEST);
	CHECK(!post_one(IBV_WR_RDMA_WRITE, REQUEST, part(&a, 0, 64), b.memory));
	if (wrong)
		CHECK(!post_one(IBV_WR_RDMA_WRITE, REQUEST, part(&a, 0, 64), b.memory)); /* unpolled_completion */
	/* The queue has overrun now, or will: nothing more can be polled. */
	if (wrong)
		await_idle();
	for (int number = 0; !wrong && number < room; number++)
		await(&a, REQUEST);
	close_both();
}

static void mistake_waited_for_receive(void)
{
	open_both(REMOTE);
	warm_up();
	if (!wrong)
		receive_part(RECEIVE, part(&b, 0, 64));
	send_part(REQUEST, part(&a, 0, 64));
	if (wrong) {
		await_idle();
		receive_part(RECEIVE, part(&b, 0, 64)); /* waited_for_receive */
	}
	await(&a, REQUEST);
	await(&b, RECEIVE);
	close_both();
}

static void mistake_send_queue_unsignaled(void)
{
	open_both(REMOTE);
	struct ibv_send_wr wr = { .wr_id = REQUEST, .opcode = IBV_WR_RDMA_WRITE };
	wr.wr.rdma.remote_addr = (uintptr_t)b.memory;
	wr.wr.rdma.rkey = b.mr->rkey;
	struct ibv_sge sge = part(&a, 0, 64);
	int error = 0;
	for (int number = 0; number < 4096 && !error; number++) {
		wr.send_flags = !wrong && number % DEPTH == DEPTH - 1 ? IBV_SEND_SIGNALED : 0;
		error = post_list(wr, &sge, 1); /* send_queue_unsignaled */
		if (wr.send_flags)
			await(&a, REQUEST);
	}
	CHECK(error == (wrong ? ENOMEM : 0));
	await_idle();
	close_both();
}

/* The adapter keeps up with the program, so the queue is never full here. Hardware learns only from a completion that there is
 * room again. */
static void mistake_unsignaled_for_ever(void)
{
	open_both(REMOTE);
	warm_up();
	struct ibv_send_wr wr = { .wr_id = REQUEST, .opcode = IBV_WR_RDMA_WRITE };
	wr.wr.rdma.remote_addr = (uintptr_t)b.memory;
	wr.wr.rdma.rkey = b.mr->rkey;
	struct ibv_sge sge = part(&a, 0, 64);
	for (int number = 0; number < 2 * DEPTH; number++) {
		wr.send_flags = !wrong && number % DEPTH == DEPTH - 1 ? IBV_SEND_SIGNALED : 0;
		CHECK(!post_list(wr, &sge, 1)); /* unsignaled_for_ever */
		if (wr.send_flags)
			await(&a, REQUEST);
		await_idle();
	}
	close_both();
}

/* Acknowledges the event when the finding is in the file, because the call waits for that. */
static void *acknowledge(void *cq)
{
	struct stat file;
	while (stat(getenv("IRONWARP_CHECK_JSON"), &file) || file.st_size == 0)
		;
	ibv_ack_cq_events(cq, 1);
	return NULL;
}

static void mistake_unacknowledged_events(void)
{
	struct ibv_cq *cq;
	void *cq_context;
	pthread_t thread;
	open_device();
	CHECK(a.pd = ibv_alloc_pd(context));
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(channel);
	create_cq(&a, DEPTH, channel);
	CHECK(a.mr = ibv_reg_mr(a.pd, a.memory, SIZE, LOCAL));
	create_qp(&a);
	create(&b, DEPTH, REMOTE);
	connect_ends();
	CHECK(!ibv_req_notify_cq(a.cq, 0));
	CHECK(!post_one(IBV_WR_RDMA_WRITE, REQUEST, part(&a, 0, 64), b.memory));
	CHECK(!ibv_get_cq_event(channel, &cq, &cq_context) && cq == a.cq);
	await(&a, REQUEST);
	destroy_qps();
	if (wrong)
		CHECK(!pthread_create(&thread, NULL, acknowledge, a.cq));
	else
		ibv_ack_cq_events(a.cq, 1);
	CHECK(!ibv_destroy_cq(a.cq)); /* unacknowledged_events */
	a.cq = NULL;
	if (wrong)
		CHECK(!pthread_join(thread, NULL));
	CHECK(!ibv_destroy_comp_channel(channel));
	close_both();
}

/* The receive is too short, which breaks both queue pairs. */
static void mistake_post_in_error_state(void)
{
	open_both(REMOTE);
	receive_part(RECEIVE, part(&b, 0, 16));
	send_part(REQUEST - 1, part(&a, 0, 64));
	await_failure(&b, RECEIVE);
	await_failure(&a, REQUEST - 1);
	if (wrong) {
		send_part(REQUEST, part(&a, 0, 64)); /* post_in_error_state */
		await_failure(&a, REQUEST);
	}
	close_both();
}

/* A queue pair in the state INIT can hold no requests. */
static void mistake_post_before_connect(void)
{
	open_device();
	create(&a, DEPTH, LOCAL);
	create(&b, DEPTH, REMOTE);
	printf("a %#08x b %#08x\n", a.qp->qp_num, b.qp->qp_num);
	if (wrong)
		CHECK(post_one(IBV_WR_SEND, REQUEST, part(&a, 0, 64), NULL) == EINVAL); /* post_before_connect */
	close_both();
}

static void mistake_leak(void)
{
	open_both(REMOTE);
	struct ibv_pd *pd = ibv_alloc_pd(context); /* leak */
	CHECK(pd);
	if (!wrong) {
		CHECK(!ibv_dealloc_pd(pd));
		close_both();
		return;
	}
	destroy_qps();
	if (srq)
		CHECK(!ibv_destroy_srq(srq));
	destroy(&a);
	destroy(&b);
}

static void mistake_destroy_busy(void)
{
	open_both(REMOTE);
	if (wrong)
		CHECK(ibv_dealloc_pd(a.pd) == EBUSY); /* destroy_busy */
	close_both();
}

static void mistake_destroy_with_requests(void)
{
	open_both(REMOTE);
	if (!wrong)
		receive_part(RECEIVE, part(&b, 0, 64));
	send_part(REQUEST, part(&a, 0, 64));
	if (!wrong) {
		await(&a, REQUEST);
		await(&b, RECEIVE);
	}
	CHECK(!ibv_destroy_qp(a.qp)); /* destroy_with_requests */
	a.qp = NULL;
	close_both();
}

/* Posts the receive when the thread sleeps in the call. */
static void *receive_late(void *thread)
{
	char path[64], line[64];
	snprintf(path, sizeof path, "/proc/self/task/%d/syscall", *(pid_t *)thread);
	do {
		FILE *file = fopen(path, "r");
		CHECK(file && fgets(line, sizeof line, file));
		fclose(file);
	} while (atoi(line) != SYS_clock_nanosleep);
	receive_part(RECEIVE, part(&b, 0, 64));
	return NULL;
}

static void mistake_destroy_before_completion(void)
{
	pthread_t thread;
	pid_t self = gettid();
	open_both(REMOTE);
	warm_up();
	if (!wrong)
		receive_part(RECEIVE, part(&b, 0, 64));
	send_part(REQUEST, part(&a, 0, 64));
	if (wrong) {
		await_idle(); /* the message waits */
		CHECK(!pthread_create(&thread, NULL, receive_late, &self));
	} else {
		await(&a, REQUEST);
	}
	CHECK(!ibv_destroy_qp(a.qp)); /* destroy_before_completion */
	a.qp = NULL;
	if (wrong)
		CHECK(!pthread_join(thread, NULL));
	await(&b, RECEIVE);
	close_both();
}

static void mistake_use_after_destroy(void)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	open_both(REMOTE);
	struct ibv_qp *qp = a.qp;
	if (!wrong)
		CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	CHECK(!ibv_destroy_qp(qp));
	a.qp = NULL;
	if (wrong)
		CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init)); /* use_after_destroy */
	close_both();
}

static void mistake_post_after_destroy(void)
{
	open_both(REMOTE);
	struct ibv_qp *qp = a.qp;
	struct ibv_send_wr *bad, wr = { .wr_id = REQUEST, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	receive_part(RECEIVE, part(&b, 0, 64));
	if (!wrong) {
		CHECK(!ibv_post_send(qp, &wr, &bad));
		await(&a, REQUEST);
		await(&b, RECEIVE);
	}
	CHECK(!ibv_destroy_qp(qp));
	a.qp = NULL;
	if (wrong)
		CHECK(ibv_post_send(qp, &wr, &bad) && bad == &wr); /* post_after_destroy */
	close_both();
}

static void mistake_poll_after_destroy(void)
{
	struct ibv_wc wc;
	open_both(REMOTE);
	struct ibv_cq *cq = a.cq;
	destroy_qps();
	if (!wrong)
		CHECK(!ibv_poll_cq(cq, 1, &wc));
	CHECK(!ibv_destroy_cq(cq));
	a.cq = NULL;
	if (wrong)
		CHECK(ibv_poll_cq(cq, 1, &wc) < 0); /* poll_after_destroy */
	close_both();
}

static void mistake_build_after_destroy(void)
{
	extended = true;
	open_both(REMOTE);
	if (!wrong)
		warm_up();
	CHECK(!ibv_destroy_qp(a.qp));
	a.qp = NULL;
	if (wrong)
		CHECK(post_one(IBV_WR_RDMA_WRITE, REQUEST, part(&a, 0, 8), b.memory) == EINVAL); /* build_after_destroy */
	close_both();
}

static void mistake_start_poll_after_destroy(void)
{
	struct ibv_wc wc;
	extended = true;
	open_both(REMOTE);
	destroy_qps();
	if (!wrong)
		CHECK(!poll_once(&a, &wc));
	CHECK(!ibv_destroy_cq(a.cq));
	if (wrong)
		CHECK(poll_once(&a, &wc) < 0); /* start_poll_after_destroy */
	a.cq = NULL;
	close_both();
}

static void mistake_notify_after_destroy(void)
{
	open_both(REMOTE);
	struct ibv_cq *cq = a.cq;
	destroy_qps();
	if (!wrong)
		CHECK(!ibv_req_notify_cq(cq, 0));
	CHECK(!ibv_destroy_cq(cq));
	a.cq = NULL;
	if (wrong)
		CHECK(ibv_req_notify_cq(cq, 0) == EINVAL); /* notify_after_destroy */
	close_both();
}

/* The child exits with 99 if its mistake was found. */
static void mistake_use_after_fork(void)
{
	int status;
	open_both(REMOTE);
	receive_part(RECEIVE, part(&b, 0, 64));
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		if (wrong)
			CHECK(post_one(IBV_WR_SEND, REQUEST, part(&a, 0, 64), NULL)); /* use_after_fork */
		exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
	CHECK(WEXITSTATUS(status) == (wrong ? 99 : 0));
	send_part(REQUEST, part(&a, 0, 64));
	await(&a, REQUEST);
	await(&b, RECEIVE);
	close_both();
}

/* Root may pin as much memory as it likes. Memory with on-demand paging is not pinned. */
static void mistake_memlock_limit(void)
{
	struct rlimit limit = { .rlim_cur = 64 << 10, .rlim_max = 64 << 10 };
	static char memory[128 << 10];
	CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit));
	open_device();
	CHECK(geteuid() || !seteuid(65534));
	CHECK(a.pd = ibv_alloc_pd(context));
	struct ibv_mr *one = ibv_reg_mr(a.pd, memory, 64 << 10, LOCAL);
	CHECK(one);
	if (!wrong)
		CHECK(!ibv_dereg_mr(one));
	struct ibv_mr *paged = ibv_reg_mr(a.pd, memory, sizeof memory, LOCAL | IBV_ACCESS_ON_DEMAND);
	CHECK(paged);
	struct ibv_mr *other = ibv_reg_mr(a.pd, memory, 64 << 10, LOCAL); /* memlock_limit */
	CHECK(other && !ibv_dereg_mr(other) && !ibv_dereg_mr(paged));
	if (wrong)
		CHECK(!ibv_dereg_mr(one));
	CHECK(!ibv_dealloc_pd(a.pd) && !ibv_close_device(context));
}

/* The same call makes the mistake three times. */
static void mistake_repeated(void)
{
	open_both(REMOTE);
	for (int number = 0; number < 3; number++) {
		receive_part(RECEIVE, part(&b, 0, 64));
		send_part(REQUEST, part(&a, 0, 64)); /* repeated */
		if (wrong)
			a.memory[0]++;
		await(&a, REQUEST);
		await(&b, RECEIVE);
	}
	close_both();
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void (*make)(void);
	} mistakes[] = {
#define MISTAKE(name) { #name, mistake_##name }
		MISTAKE(send_buffer_changed),
		MISTAKE(unsignaled_buffer_changed),
		MISTAKE(changed_after_bind),
		MISTAKE(receive_buffer_read_early),
		MISTAKE(read_sink_read_early),
		MISTAKE(receive_buffer_written),
		MISTAKE(region_deregistered_in_use),
		MISTAKE(datagram_buffer_deregistered),
		MISTAKE(region_deregistered_before_message),
		MISTAKE(memory_unmapped_in_use),
		MISTAKE(memory_freed_in_use),
		MISTAKE(receive_buffer_freed_in_use),
		MISTAKE(large_block_freed_in_use),
		MISTAKE(memory_reallocated_in_use),
		MISTAKE(stale_registration),
		MISTAKE(use_after_free),
		MISTAKE(large_block_used_after_free),
		MISTAKE(misaligned_atomic),
		MISTAKE(missing_rights),
		MISTAKE(missing_local_rights),
		MISTAKE(bad_memory_key),
		MISTAKE(bad_memory_range),
		MISTAKE(key_of_another_domain),
		MISTAKE(bad_remote_range),
		MISTAKE(bad_remote_key),
		MISTAKE(cq_may_overrun),
		MISTAKE(unpolled_completion),
		MISTAKE(waited_for_receive),
		MISTAKE(send_queue_unsignaled),
		MISTAKE(unsignaled_for_ever),
		MISTAKE(unacknowledged_events),
		MISTAKE(post_in_error_state),
		MISTAKE(post_before_connect),
		MISTAKE(leak),
		MISTAKE(destroy_busy),
		MISTAKE(destroy_with_requests),
		MISTAKE(destroy_before_completion),
		MISTAKE(use_after_destroy),
		MISTAKE(post_after_destroy),
		MISTAKE(poll_after_destroy),
		MISTAKE(build_after_destroy),
		MISTAKE(start_poll_after_destroy),
		MISTAKE(notify_after_destroy),
		MISTAKE(use_after_fork),
		MISTAKE(memlock_limit),
		MISTAKE(repeated),
	};
	int code = 0;
	CHECK(count >= 3);
	wrong = !strcmp(arguments[2], "wrong");
	for (int i = 3; i < count; i++) {
		extended = extended || !strcmp(arguments[i], "extended");
		shared = shared || !strcmp(arguments[i], "shared");
		sscanf(arguments[i], "exit=%d", &code);
	}
	for (unsigned i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
		if (!strcmp(arguments[1], mistakes[i].name)) {
			mistakes[i].make();
			return code;
		}
	}
	return 2;
}
