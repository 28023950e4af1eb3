/* Threads that wait for events: cancelled, interrupted, or non-blocking. Three calls wait: for events of ids, of
 * completion queues, and asynchronous ones. */
#include "kit.h"

struct waiter {
	const char *name;
	/* Waits for an event. Returns 0, or -1 and sets errno. */
	int (*wait)(void);
	/* Causes an event. */
	void (*trigger)(void);
	/* Returns the descriptor that becomes readable with an event. */
	int (*fd)(void);
	/* The system call in which a thread waits. */
	long call;
};

#ifdef SYS_poll
#define POLLS SYS_poll
#else
#define POLLS SYS_ppoll
#endif

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;
static struct ibv_comp_channel *completions;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

/* --- Events of ids --- */

static int wait_cm(void)
{
	struct rdma_cm_event *event;

	if (rdma_get_cm_event(channel, &event))
		return -1;
	CHECK(event->id == id && event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_ack_cm_event(event) == 0);
	return 0;
}

static void trigger_cm(void)
{
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, loopback(9), 1000) == 0);
}

static int fd_cm(void)
{
	return channel->fd;
}

/* --- Events of completion queues --- */

static int wait_cq(void)
{
	struct ibv_cq *which;
	void *context;

	if (ibv_get_cq_event(completions, &which, &context))
		return -1;
	CHECK(which == cq && context == &cq);
	ibv_ack_cq_events(which, 1);
	return 0;
}

/* Flushing a receive completes it. */
static void trigger_cq(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	struct ibv_recv_wr wr = { .wr_id = 7 }, *bad;
	struct ibv_wc wc;

	while (ibv_poll_cq(cq, 1, &wc) == 1)
		;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1 };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	attr.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
}

static int fd_cq(void)
{
	return completions->fd;
}

/* --- Asynchronous events --- */

static struct ibv_context *context(void)
{
	return qp->context;
}

static int wait_async(void)
{
	struct ibv_async_event event;

	if (ibv_get_async_event(context(), &event))
		return -1;
	CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED);
	ibv_ack_async_event(&event);
	return 0;
}

/* A queue pair with a shared receive queue that fails reports its last WQE. */
static void trigger_async(void)
{
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(qp->pd, &srq_attr);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .cap = { .max_send_wr = 1, .max_send_sge = 1 }, .qp_type = IBV_QPT_RC
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *sharing;

	CHECK(srq);
	sharing = ibv_create_qp(qp->pd, &init);
	CHECK(sharing);
	CHECK(ibv_modify_qp(sharing, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(sharing, &attr, IBV_QP_STATE) == 0);
}

static int fd_async(void)
{
	return context()->async_fd;
}

static const struct waiter WAITERS[] = {
	{ "ids", wait_cm, trigger_cm, fd_cm, SYS_recvfrom },
	{ "completions", wait_cq, trigger_cq, fd_cq, POLLS },
	{ "asynchronous", wait_async, trigger_async, fd_async, SYS_recvfrom },
};

static void set_up(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *device;
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 }, .qp_type = IBV_QPT_RC
	};

	CHECK(list && list[0]);
	device = ibv_open_device(list[0]);
	CHECK(device);
	ibv_free_device_list(list);
	channel = rdma_create_event_channel();
	completions = ibv_create_comp_channel(device);
	CHECK(channel && completions);
	cq = ibv_create_cq(device, 8, &cq, completions, 0);
	CHECK(cq);
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(ibv_alloc_pd(device), &init);
	CHECK(qp);
}

/* Returns 0, or the errno of the wait. */
static void *wait_in_thread(void *arg)
{
	const struct waiter *waiter = arg;
	int result = waiter->wait();

	return (void *)(intptr_t)(result ? errno : 0);
}

/* --- Cases --- */

/* A waiting thread may be cancelled, and other threads use the channel as before. */
static void cancelled(void)
{
	set_up();
	for (size_t i = 0; i < 3; i++) {
		const struct waiter *waiter = &WAITERS[i];

		for (int round = 0; round < 20; round++) {
			struct thread first, second;

			start(&first, wait_in_thread, (void *)waiter);
			wait_until_in(&first, waiter->call);
			CHECK(pthread_cancel(first.id) == 0);
			CHECK(join(&first) == PTHREAD_CANCELED);
			start(&second, wait_in_thread, (void *)waiter);
			waiter->trigger();
			CHECK(join(&second) == NULL);
		}
		printf("%s\n", waiter->name);
	}
}

static volatile sig_atomic_t caught;

static void catch(int signal)
{
	(void)signal;
	caught++;
}

/* A signal ends the wait, unless its handler was set up to restart calls. */
static void interrupted(void)
{
	set_up();
	for (size_t i = 0; i < 3; i++) {
		const struct waiter *waiter = &WAITERS[i];

		for (int restart = 0; restart < 2; restart++) {
			struct sigaction action = { .sa_handler = catch, .sa_flags = restart ? SA_RESTART : 0 };
			struct thread thread;

			CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
			caught = 0;
			start(&thread, wait_in_thread, (void *)waiter);
			wait_until_in(&thread, waiter->call);
			CHECK(pthread_kill(thread.id, SIGUSR1) == 0);
			if (restart) {
				while (!caught)
					sched_yield();
				wait_until_in(&thread, waiter->call);
				waiter->trigger();
				CHECK(join(&thread) == NULL);
			} else {
				CHECK((intptr_t)join(&thread) == EINTR);
			}
		}
		printf("%s\n", waiter->name);
	}
}

/* A non-blocking descriptor does not block, and poll reports events. */
static void unwilling(void)
{
	set_up();
	for (size_t i = 0; i < 3; i++) {
		const struct waiter *waiter = &WAITERS[i];
		struct pollfd poll_fd = { .fd = waiter->fd(), .events = POLLIN };
		int flags = fcntl(poll_fd.fd, F_GETFL);

		CHECK(fcntl(poll_fd.fd, F_SETFL, flags | O_NONBLOCK) == 0);
		FAILS(waiter->wait(), EAGAIN);
		CHECK(poll(&poll_fd, 1, 0) == 0);
		waiter->trigger();
		CHECK(poll(&poll_fd, 1, -1) == 1);
		CHECK(waiter->wait() == 0);
		FAILS(waiter->wait(), EAGAIN);
		CHECK(poll(&poll_fd, 1, 0) == 0);
		printf("%s\n", waiter->name);
	}
}

/* Many threads wait for one channel, and each event goes to one of them. */
static void together(void)
{
	enum { THREADS = 4, EVENTS = 50 };
	struct thread threads[THREADS];

	set_up();
	for (int round = 0; round < EVENTS / THREADS; round++) {
		for (int i = 0; i < THREADS; i++)
			start(&threads[i], wait_in_thread, (void *)&WAITERS[2]);
		for (int i = 0; i < THREADS; i++)
			trigger_async();
		for (int i = 0; i < THREADS; i++)
			CHECK(join(&threads[i]) == NULL);
	}
	CHECK(fcntl(fd_async(), F_SETFL, O_NONBLOCK) == 0);
	FAILS(wait_async(), EAGAIN);
}

/* A signal that the program blocks everywhere stays pending: no thread of the library takes it. */
static void not_taken(void)
{
	struct pair pair;
	sigset_t set, pending;

	/* SIGUSR2 has no handler, so that taking it would end the process. */
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	pair = connect_pair(); /* the library's threads run now, started while nothing was blocked */
	CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
	CHECK(kill(getpid(), SIGUSR2) == 0);
	CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGUSR2));
	exchange(&pair);
	disconnect(&pair);
}

static void *wait_for_nothing(void *arg)
{
	struct rdma_cm_event *event;

	CHECK(rdma_get_cm_event(arg, &event) == 0);
	return NULL;
}

/* As rping ends: the channel is destroyed while a thread waits for its events. As with the kernel's channels, the
 * thread keeps waiting. */
static void left_behind(void)
{
	struct rdma_event_channel *going = rdma_create_event_channel();
	struct thread thread;

	CHECK(going);
	start(&thread, wait_for_nothing, going);
	wait_until_in(&thread, SYS_recvfrom);
	rdma_destroy_event_channel(going);
	wait_until_in(&thread, SYS_poll);
	CHECK(pthread_cancel(thread.id) == 0);
	CHECK(join(&thread) == PTHREAD_CANCELED);
}

static void *wait_for_no_completion(void *arg)
{
	struct ibv_cq *which;
	void *context;

	CHECK(ibv_get_cq_event(arg, &which, &context) == 0);
	return NULL;
}

/* As above, with a completion channel. The thread is not woken by anything else afterwards. */
static void left_behind_at_completions(void)
{
	struct ibv_comp_channel *going;
	struct thread thread;

	set_up();
	going = ibv_create_comp_channel(context());
	CHECK(going);
	start(&thread, wait_for_no_completion, going);
	wait_until_in(&thread, POLLS);
	CHECK(ibv_destroy_comp_channel(going) == 0);
	trigger_cq(); /* takes longer than the thread needs to return, if it did */
	wait_until_in(&thread, POLLS);
	CHECK(pthread_cancel(thread.id) == 0);
	CHECK(join(&thread) == PTHREAD_CANCELED);
}

/* Passed twice by both threads: when the first event has been taken, and when the channel has been destroyed. */
static pthread_barrier_t barrier;

static void *take_one_and_wait_again(void *arg)
{
	struct rdma_cm_event *event;

	CHECK(rdma_get_cm_event(arg, &event) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	CHECK(rdma_get_cm_event(arg, &event) == 0);
	return NULL;
}

/* As above, but the channel is destroyed while the thread is between two waits. Its next wait lasts as well. */
static void left_on_the_way(void)
{
	struct rdma_event_channel *going = rdma_create_event_channel();
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(9) };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	struct thread thread;

	CHECK(pthread_barrier_init(&barrier, NULL, 2) == 0);
	CHECK(rdma_create_id(going, &id, NULL, RDMA_PS_TCP) == 0);
	start(&thread, take_one_and_wait_again, going);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000) == 0);
	pthread_barrier_wait(&barrier);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(going);
	pthread_barrier_wait(&barrier);
	wait_until_in(&thread, SYS_poll);
	/* The thread that destroyed the channel gets an error. */
	FAILS(rdma_get_cm_event(going, &event), EINVAL);
	CHECK(pthread_cancel(thread.id) == 0);
	CHECK(join(&thread) == PTHREAD_CANCELED);
}

static const struct test TESTS[] = {
	{ "cancelled", cancelled }, { "interrupted", interrupted }, { "unwilling", unwilling },
	{ "together", together },   { "not_taken", not_taken },     { "left_behind", left_behind },
	{ "left_behind_at_completions", left_behind_at_completions },
	{ "left_on_the_way", left_on_the_way },
};

RUN(TESTS)
