/* Programs that rely on what no specification promises, each with a twin that does not. Exit status 3 means that what
 * the program relied on was not so. */
#include "../cm/kit.h"

#define SIZE 6000
#define ROUNDS 60

static struct rdma_cm_id *client, *server;
static unsigned char from[SIZE], to[SIZE];
static struct ibv_mr *from_mr, *to_mr;

static void fail(const char *what, int round)
{
	printf("round %d: %s\n", round, what);
	exit(3);
}

/* Connects two ids of this process, but leaves the server's RDMA_CM_EVENT_ESTABLISHED in its channel. */
static struct pair connect_ends(void)
{
	struct pair pair = { .near = rdma_create_event_channel(), .far = rdma_create_event_channel() };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .rnr_retry_count = 7 };
	struct rdma_cm_event *event;

	pair.listens = create_listener(pair.far, RDMA_PS_TCP);
	pair.client = client = create_dialler(pair.near, port_of(pair.listens), RDMA_PS_TCP);
	create_qp(client);
	CHECK(rdma_connect(client, &param) == 0);
	event = expect(pair.far, RDMA_CM_EVENT_CONNECT_REQUEST);
	pair.server = server = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	create_qp(server);
	from_mr = rdma_reg_msgs(client, from, SIZE);
	to_mr = ibv_reg_mr(server->pd, to, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(from_mr && to_mr);
	CHECK(rdma_post_recvv(server, NULL, NULL, 0) == 0);
	CHECK(rdma_accept(server, &param) == 0);
	expect_and_ack(pair.near, RDMA_CM_EVENT_ESTABLISHED);
	return pair;
}

static void close_ends(struct pair *pair)
{
	CHECK(rdma_dereg_mr(from_mr) == 0 && ibv_dereg_mr(to_mr) == 0);
	disconnect(pair);
}

static void expect_sent(void)
{
	struct ibv_wc wc;

	CHECK(rdma_get_send_comp(client, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
}

static void expect_received(void)
{
	struct ibv_wc wc;

	CHECK(rdma_get_recv_comp(server, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
}

static void send_empty(void)
{
	CHECK(rdma_post_send(client, NULL, NULL, 0, NULL, 0) == 0);
}

/* Writes, and looks at the payload when its last byte has changed, or when a Send after it was received. */
static void look(int after_send)
{
	struct pair pair = connect_ends();
	volatile unsigned char *last = &to[SIZE - 1];

	expect_and_ack(pair.far, RDMA_CM_EVENT_ESTABLISHED);
	for (int round = 1; round <= ROUNDS; round++) {
		memset(to, 0, SIZE);
		memset(from, round, SIZE);
		CHECK(rdma_post_write(client, NULL, from, SIZE, from_mr, 0, (uintptr_t)to, to_mr->rkey) == 0);
		if (after_send) {
			send_empty();
			expect_received();
			CHECK(rdma_post_recvv(server, NULL, NULL, 0) == 0);
		} else {
			while (*last == 0)
				;
		}
		for (int at = 0; at < SIZE; at++)
			if (to[at] != round)
				fail("the payload is not complete", round);
		expect_sent();
		if (after_send)
			expect_sent();
	}
	if (!after_send) {
		send_empty();
		expect_received();
		expect_sent();
	}
	close_ends(&pair);
}

/* Expects that the connection was reported when the first message has been received, or waits for the report. */
static void established(int waits)
{
	struct pair pair = connect_ends();
	struct pollfd channel = { .fd = pair.far->fd, .events = POLLIN };

	send_empty();
	expect_received();
	if (!waits && poll(&channel, 1, 0) != 1)
		fail("the connection was not reported", 0);
	expect_and_ack(pair.far, RDMA_CM_EVENT_ESTABLISHED);
	expect_sent();
	close_ends(&pair);
}

/* Expects a completion for each event, or polls until there is one. */
static void event(int polls)
{
	struct pair pair = connect_ends();

	expect_and_ack(pair.far, RDMA_CM_EVENT_ESTABLISHED);
	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_cq *cq;
		struct ibv_wc wc;
		void *context;
		int found;

		CHECK(ibv_req_notify_cq(server->recv_cq, 0) == 0);
		send_empty();
		for (;;) {
			CHECK(ibv_get_cq_event(server->recv_cq_channel, &cq, &context) == 0);
			ibv_ack_cq_events(cq, 1);
			CHECK(ibv_req_notify_cq(cq, 0) == 0);
			found = ibv_poll_cq(cq, 1, &wc);
			CHECK(found >= 0);
			if (found > 0)
				break;
			if (!polls)
				fail("an event without a completion", round);
		}
		CHECK(wc.status == IBV_WC_SUCCESS);
		CHECK(rdma_post_recvv(server, NULL, NULL, 0) == 0);
		expect_sent();
		/* Takes the event that the second request for a notification may have raised. */
		CHECK(ibv_poll_cq(server->recv_cq, 1, &wc) == 0);
	}
	close_ends(&pair);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	alarm(60);
	if (!strcmp(argv[1], "last-byte"))
		look(0);
	else if (!strcmp(argv[1], "after-send"))
		look(1);
	else if (!strcmp(argv[1], "established-first"))
		established(0);
	else if (!strcmp(argv[1], "established-any-time"))
		established(1);
	else if (!strcmp(argv[1], "event-means-completion"))
		event(0);
	else if (!strcmp(argv[1], "event-may-be-empty"))
		event(1);
	else
		return 2;
	return 0;
}
