/* Programs that wait for completion events with poll, at non-blocking descriptors. The sockets wake them, and the lanes
 * serve the sockets only if they do not come. */
#include "kit.h"
#include <sys/epoll.h>

#define ROUNDS 1000

/* One end of a connection, with a completion queue. Always static: messages may arrive until the process has exited. */
struct end {
	struct rdma_cm_id *id;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char buffer[64];
	/* The other end may write to it. */
	uint64_t word;
	struct ibv_mr *word_mr;
};

static struct ibv_comp_channel *create_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);

	CHECK(channel);
	CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	return channel;
}

static void set_up_end(struct end *end, struct rdma_cm_id *id, struct ibv_comp_channel *channel)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};

	end->id = id;
	end->channel = channel;
	end->cq = ibv_create_cq(id->verbs, 16, end, channel, 0);
	CHECK(end->cq && ibv_req_notify_cq(end->cq, 0) == 0);
	attr.send_cq = attr.recv_cq = end->cq;
	CHECK(rdma_create_qp(id, NULL, &attr) == 0);
	end->mr = rdma_reg_msgs(id, end->buffer, sizeof end->buffer);
	end->word_mr = rdma_reg_write(id, &end->word, sizeof end->word);
	CHECK(end->mr && end->word_mr);
	CHECK(rdma_post_recv(id, end, end->buffer, sizeof end->buffer, end->mr) == 0);
}

/* Connects two ends. Their channels are new if they are NULL. */
static void connect_ends(struct end *client, struct end *server, struct ibv_comp_channel *near,
			 struct ibv_comp_channel *far)
{
	struct rdma_event_channel *events = rdma_create_event_channel(), *listening = rdma_create_event_channel();
	struct rdma_cm_id *listens = create_listener(listening, RDMA_PS_TCP);
	struct rdma_cm_id *dials = create_dialler(events, port_of(listens), RDMA_PS_TCP);
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .rnr_retry_count = 7 };
	struct rdma_cm_event *event;

	set_up_end(client, dials, near ? near : create_channel(dials->verbs));
	CHECK(rdma_connect(dials, &param) == 0);
	event = expect(listening, RDMA_CM_EVENT_CONNECT_REQUEST);
	set_up_end(server, event->id, far ? far : create_channel(dials->verbs));
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_accept(server->id, &param) == 0);
	expect_and_ack(listening, RDMA_CM_EVENT_ESTABLISHED);
	expect_and_ack(events, RDMA_CM_EVENT_ESTABLISHED);
}

static void send_message(struct end *end)
{
	CHECK(rdma_post_send(end->id, NULL, end->buffer, 8, end->mr, 0) == 0);
}

/* Takes an event for which the descriptor is readable, and arms its queue again. Returns the end. */
static struct end *take_event(struct ibv_comp_channel *channel)
{
	struct pollfd descriptor = { .fd = channel->fd, .events = POLLIN | POLLOUT };
	struct ibv_cq *cq;
	void *context;

	/* There is no event yet if a lane receives, because this program did not come for some milliseconds. */
	do
		CHECK(poll(&descriptor, 1, -1) == 1 && descriptor.revents == POLLIN);
	while (ibv_get_cq_event(channel, &cq, &context) == -1 && errno == EAGAIN);
	ibv_ack_cq_events(cq, 1);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	CHECK(((struct end *)context)->cq == cq);
	return context;
}

/* Takes all completions. Returns the number of messages, and posts a receive for each. */
static int take_messages(struct end *end)
{
	struct ibv_wc wc;
	int messages = 0;

	while (ibv_poll_cq(end->cq, 1, &wc) == 1) {
		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_RECV) {
			CHECK(rdma_post_recv(end->id, end, end->buffer, sizeof end->buffer, end->mr) == 0);
			messages++;
		}
	}
	return messages;
}

static void receive_message(struct end *end)
{
	while (!take_messages(take_event(end->channel)))
		;
}

static void ping_pong(struct end *client, struct end *server, int rounds)
{
	for (int i = 0; i < rounds; i++) {
		send_message(client);
		receive_message(server);
		send_message(server);
		receive_message(client);
	}
}

/* Returns how often the threads of the adapter have slept and been woken. */
static long count_lane_wakeups(void)
{
	FILE *file = popen("grep -l ironwarp- /proc/$PPID/task/*/comm | sed s/comm/status/ | xargs grep -h ^voluntary", "r");
	long sum = 0, count;

	CHECK(file);
	while (fscanf(file, "voluntary_ctxt_switches: %ld ", &count) == 1)
		sum += count;
	pclose(file);
	return sum;
}

/* A descriptor is readable only if there is an event, and the lanes do not wake for messages. */
static void replies(void)
{
	static struct end client, server;
	struct timespec start, end;
	long before, wakeups, elapsed;

	connect_ends(&client, &server, NULL, NULL);
	ping_pong(&client, &server, 50);
	before = count_lane_wakeups();
	clock_gettime(CLOCK_MONOTONIC, &start);
	ping_pong(&client, &server, ROUNDS);
	clock_gettime(CLOCK_MONOTONIC, &end);
	elapsed = (end.tv_sec - start.tv_sec) * 1000 + (end.tv_nsec - start.tv_nsec) / 1000000;
	wakeups = count_lane_wakeups() - before;
	fprintf(stderr, "%ld wakeups in %ld ms\n", wakeups, elapsed);
	/* Each of two lanes checks every millisecond whether the program polls. */
	CHECK(wakeups < ROUNDS / 4 + 4 * elapsed);
}

/* Several connections share a channel. */
static void shared(void)
{
	enum { ENDS = 8 };
	static struct end clients[ENDS], servers[ENDS];
	struct ibv_comp_channel *near = NULL, *far = NULL;
	int sent = 0, received = 0, returned = 0;

	for (int i = 0; i < ENDS; i++) {
		connect_ends(&clients[i], &servers[i], near, far);
		near = clients[i].channel;
		far = servers[i].channel;
	}
	for (; sent < ENDS; sent++)
		send_message(&clients[sent]);
	while (returned < ENDS * ROUNDS / 10) {
		while (received < sent) {
			struct end *end = take_event(far);

			for (int messages = take_messages(end); messages > 0; messages--, received++)
				send_message(end);
		}
		while (returned < sent) {
			struct end *end = take_event(near);

			returned += take_messages(end);
		}
		for (int i = 0; i < ENDS; i++, sent++)
			send_message(&clients[i]);
	}
}

static volatile int remaining;

static void *take_until_none(void *arg)
{
	struct end *end = arg;

	while (remaining > 0) {
		struct pollfd descriptor = { .fd = end->channel->fd, .events = POLLIN };
		struct ibv_cq *cq;
		void *context;

		CHECK(poll(&descriptor, 1, 10) >= 0);
		if (ibv_get_cq_event(end->channel, &cq, &context)) {
			CHECK(errno == EAGAIN);
			continue;
		}
		ibv_ack_cq_events(cq, 1);
		CHECK(ibv_req_notify_cq(cq, 0) == 0);
		for (int messages = take_messages(end); messages > 0; messages--) {
			__atomic_sub_fetch(&remaining, 1, __ATOMIC_SEQ_CST);
			send_message(end);
		}
	}
	return NULL;
}

/* Several threads take events from one channel. */
static void threads(void)
{
	static struct end client, server;
	struct thread several[3];

	connect_ends(&client, &server, NULL, NULL);
	remaining = ROUNDS;
	for (int i = 0; i < 3; i++)
		start(&several[i], take_until_none, &server);
	for (int i = 0; i < ROUNDS; i++) {
		send_message(&client);
		receive_message(&client);
	}
	for (int i = 0; i < 3; i++)
		CHECK(join(&several[i]) == NULL);
}

/* A program that makes the descriptor blocking again, and waits in the call. */
static void blocks_again(void)
{
	static struct end client, server;
	struct ibv_cq *cq;
	void *context;

	connect_ends(&client, &server, NULL, NULL);
	ping_pong(&client, &server, 50);
	CHECK(fcntl(server.channel->fd, F_SETFL, 0) == 0);
	for (int i = 0; i < 50; i++) {
		int messages = 0;

		send_message(&client);
		while (!messages) {
			CHECK(ibv_get_cq_event(server.channel, &cq, &context) == 0);
			ibv_ack_cq_events(cq, 1);
			CHECK(ibv_req_notify_cq(cq, 0) == 0);
			messages = take_messages(&server);
		}
		send_message(&server);
		receive_message(&client);
	}
}

/* The server does not call the library while its completion queue is armed: a lane places what the client writes. */
static void passive(void)
{
	static struct end client, server;

	connect_ends(&client, &server, NULL, NULL);
	ping_pong(&client, &server, 50);
	for (uint64_t i = 1; i <= 20; i++) {
		struct ibv_wc wc;

		memcpy(client.buffer, &i, sizeof i);
		CHECK(rdma_post_write(client.id, NULL, client.buffer, sizeof i, client.mr, IBV_SEND_SIGNALED,
				      (uintptr_t)&server.word, server.word_mr->rkey) == 0);
		while (ibv_poll_cq(client.cq, 1, &wc) == 0)
			;
		CHECK(wc.status == IBV_WC_SUCCESS && __atomic_load_n(&server.word, __ATOMIC_SEQ_CST) == i);
	}
}

/* After a connection has ended, its socket does not keep the descriptor readable. */
static void ended(void)
{
	static struct end client, server;
	struct pollfd descriptor;
	struct ibv_cq *cq;
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
	void *context;

	connect_ends(&client, &server, NULL, NULL);
	ping_pong(&client, &server, 50);
	CHECK(rdma_disconnect(client.id) == 0);
	while (wc.status != IBV_WC_WR_FLUSH_ERR) {
		struct end *end = take_event(server.channel);

		CHECK(end == &server);
		ibv_poll_cq(end->cq, 1, &wc);
	}
	descriptor = (struct pollfd){ .fd = server.channel->fd, .events = POLLIN };
	while (poll(&descriptor, 1, 0) == 1)
		if (ibv_get_cq_event(server.channel, &cq, &context) == 0)
			ibv_ack_cq_events(cq, 1);
	rdma_destroy_qp(server.id);
	CHECK(ibv_destroy_cq(server.cq) == 0 && ibv_destroy_comp_channel(server.channel) == 0);
}

static const struct test TESTS[] = {
	{ "replies", replies }, { "shared", shared },	{ "threads", threads },
	{ "blocks_again", blocks_again }, { "passive", passive }, { "ended", ended },
};

RUN(TESTS)
