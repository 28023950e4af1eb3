/*
 * pingpong: an RDMA client and server with librdmacm and libibverbs.
 *
 * The client sends messages, and the server answers each of them (Send and Receive). At the end, the client also
 * writes into the server's memory (RDMA Write). Both ends verify every byte.
 *
 *   pingpong server ADDRESS PORT    PORT 0 picks a free port; the first line of the output names it
 *   pingpong client ADDRESS PORT
 *
 * Exit code 0: all data was verified; 1: something failed, and a line on standard error says what; 2: wrong usage.
 */
#include <endian.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 64 * 1024, ROUNDS = 100, TIMEOUT_MS = 2000 };

/* Kinds of requests. A request carries its kind as wr_id, because a failed completion has no valid opcode. */
enum kind { SEND, WRITE, RECEIVE, KINDS };
static const char *const names[KINDS] = {"Send", "RDMA Write", "Receive"};

/* Where the client may write: private data of the connection, in network byte order and without padding. */
struct target {
	uint64_t address;
	uint32_t rkey, length;
};

/* Messages are registered for this end only. The server registers `written` for the client, too. */
static struct {
	unsigned char out[SIZE], in[SIZE];
} messages;
static unsigned char written[SIZE];

static struct rdma_event_channel *events;
static struct rdma_cm_id *id;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *messages_mr;
static unsigned completed[KINDS];
static int disconnected;

/* Ends the program. The kernel frees what was not destroyed, and tells the peer. */
#define FAIL(...) (fprintf(stderr, "pingpong: " __VA_ARGS__), fputc('\n', stderr), exit(1))

/* For calls that return 0, or -1 with errno, or (some of libibverbs) the errno itself. */
static void check(int result, const char *call)
{
	if (result)
		FAIL("%s: %s", call, strerror(result < 0 ? errno : result));
}

/* For calls that return a pointer, or NULL with errno. */
static void *made(void *object, const char *call)
{
	check(object ? 0 : -1, call);
	return object;
}

/* Waits for an event, which must be of this type. Returns its id, and copies `len` bytes of its private data. */
static struct rdma_cm_id *expect(enum rdma_cm_event_type type, void *private_data, size_t len)
{
	struct rdma_cm_event *event;
	check(rdma_get_cm_event(events, &event), "rdma_get_cm_event");
	if (event->event != type)
		FAIL("expected %s, got %s (status %d)", rdma_event_str(type), rdma_event_str(event->event), event->status);
	if (len > event->param.conn.private_data_len)
		FAIL("%s without the expected private data", rdma_event_str(type));
	if (len)
		memcpy(private_data, event->param.conn.private_data, len);
	struct rdma_cm_id *of = event->id;
	check(rdma_ack_cm_event(event), "rdma_ack_cm_event");
	return of;
}

/* Creates everything that belongs to the device of the connection. */
static void set_up(void)
{
	pd = made(ibv_alloc_pd(id->verbs), "ibv_alloc_pd");
	channel = made(ibv_create_comp_channel(id->verbs), "ibv_create_comp_channel");
	cq = made(ibv_create_cq(id->verbs, 4, NULL, channel, 0), "ibv_create_cq");
	check(ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
	messages_mr = made(ibv_reg_mr(pd, &messages, sizeof messages, IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .sq_sig_all = 1,
		.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
	};
	check(rdma_create_qp(id, pd, &attributes), "rdma_create_qp");
}

static void tear_down(void)
{
	rdma_destroy_qp(id);
	check(ibv_dereg_mr(messages_mr), "ibv_dereg_mr");
	check(ibv_destroy_cq(cq), "ibv_destroy_cq");
	check(ibv_destroy_comp_channel(channel), "ibv_destroy_comp_channel");
	check(ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	check(rdma_destroy_id(id), "rdma_destroy_id");
}

static void post_receive(void)
{
	struct ibv_sge sge = {.addr = (uintptr_t)messages.in, .length = SIZE, .lkey = messages_mr->lkey};
	struct ibv_recv_wr request = {.wr_id = RECEIVE, .sg_list = &sge, .num_sge = 1}, *bad;
	check(ibv_post_recv(id->qp, &request, &bad), "ibv_post_recv");
}

/* Posts `messages.out` as a Send, or as an RDMA Write to `target`. */
static void post(enum kind kind, struct target target)
{
	struct ibv_sge sge = {.addr = (uintptr_t)messages.out, .length = SIZE, .lkey = messages_mr->lkey};
	struct ibv_send_wr request = {.wr_id = kind, .sg_list = &sge, .num_sge = 1}, *bad;
	request.opcode = kind == WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_SEND;
	request.wr.rdma.remote_addr = target.address;
	request.wr.rdma.rkey = target.rkey;
	check(ibv_post_send(id->qp, &request, &bad), "ibv_post_send");
}

/* Sleeps until there are completions, or the peer disconnects, which does not flush our receives on every device. */
static void sleep_for_completions(void)
{
	struct pollfd ready[] = {
		{.fd = channel->fd, .events = POLLIN},
		{.fd = disconnected ? -1 : events->fd, .events = POLLIN},
	};
	if (poll(ready, 2, -1) < 0 && errno != EINTR)
		FAIL("poll: %s", strerror(errno));
	if (ready[0].revents) {
		void *context;
		check(ibv_get_cq_event(channel, &cq, &context), "ibv_get_cq_event");
		ibv_ack_cq_events(cq, 1);
		check(ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq"); /* the caller polls after this, and misses nothing */
	}
	if (ready[1].revents) {
		expect(RDMA_CM_EVENT_DISCONNECTED, NULL, 0);
		disconnected = 1;
	}
}

/* Waits until `count` requests of a kind have completed since the beginning. */
static void wait_for(enum kind kind, unsigned count)
{
	while (completed[kind] < count) {
		struct ibv_wc wc;
		int found = ibv_poll_cq(cq, 1, &wc);
		if (found < 0)
			FAIL("ibv_poll_cq failed");
		if (found == 0) {
			/* A Send may still be acknowledged, but nothing more is received. */
			if (disconnected && kind == RECEIVE)
				FAIL("disconnected while waiting for a message");
			sleep_for_completions();
			continue;
		}
		if (wc.status != IBV_WC_SUCCESS)
			FAIL("%s failed: %s (status %d, vendor_err 0x%x)", names[wc.wr_id], ibv_wc_status_str(wc.status),
			     wc.status, wc.vendor_err);
		if (wc.wr_id == RECEIVE && wc.byte_len != SIZE)
			FAIL("received %u bytes instead of %d", wc.byte_len, SIZE);
		completed[wc.wr_id]++;
	}
}

/* Byte `at` of a message. The client's messages have even numbers, the answers odd ones, and the Write the last. */
static unsigned char byte_of(unsigned message, size_t at)
{
	return (unsigned char)(message * 37 + at * 11 + at / 256);
}

enum { WRITTEN = 2 * ROUNDS };

static void fill(unsigned message)
{
	for (size_t at = 0; at < SIZE; at++)
		messages.out[at] = byte_of(message, at);
}

static void verify(const unsigned char *bytes, unsigned message)
{
	for (size_t at = 0; at < SIZE; at++)
		if (bytes[at] != byte_of(message, at))
			FAIL("byte %zu of message %u is %u instead of %u", at, message, bytes[at], byte_of(message, at));
}

static void serve(struct sockaddr *address)
{
	struct rdma_cm_id *listener;
	check(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_bind_addr(listener, address), "rdma_bind_addr");
	check(rdma_listen(listener, 1), "rdma_listen");
	printf("listening on port %u\n", ntohs(rdma_get_src_port(listener)));
	fflush(stdout);

	id = expect(RDMA_CM_EVENT_CONNECT_REQUEST, NULL, 0);
	set_up();
	post_receive(); /* before the client can send */
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_mr *mr = made(ibv_reg_mr(pd, written, SIZE, access), "ibv_reg_mr");
	struct target target = {htobe64((uintptr_t)written), htobe32(mr->rkey), htobe32(SIZE)};
	struct rdma_conn_param parameters = {
		.private_data = &target, .private_data_len = sizeof target, .rnr_retry_count = 7};
	check(rdma_accept(id, &parameters), "rdma_accept");
	expect(RDMA_CM_EVENT_ESTABLISHED, NULL, 0);
	for (unsigned round = 0; round < ROUNDS; round++) {
		wait_for(RECEIVE, round + 1);
		verify(messages.in, 2 * round);
		if (round == ROUNDS - 1)
			verify(written, WRITTEN); /* the Write arrived before the message that was sent after it */
		else
			post_receive(); /* before the client gets the answer */
		fill(2 * round + 1);
		post(SEND, (struct target){0});
		wait_for(SEND, round + 1);
	}
	if (!disconnected)
		expect(RDMA_CM_EVENT_DISCONNECTED, NULL, 0);
	check(ibv_dereg_mr(mr), "ibv_dereg_mr");
	tear_down();
	check(rdma_destroy_id(listener), "rdma_destroy_id");
}

static void ask(struct sockaddr *address)
{
	check(rdma_create_id(events, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_resolve_addr(id, NULL, address, TIMEOUT_MS), "rdma_resolve_addr");
	expect(RDMA_CM_EVENT_ADDR_RESOLVED, NULL, 0);
	check(rdma_resolve_route(id, TIMEOUT_MS), "rdma_resolve_route");
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED, NULL, 0);
	set_up();
	struct rdma_conn_param parameters = {.retry_count = 7, .rnr_retry_count = 7};
	check(rdma_connect(id, &parameters), "rdma_connect");
	struct target target;
	expect(RDMA_CM_EVENT_ESTABLISHED, &target, sizeof target);
	target = (struct target){be64toh(target.address), be32toh(target.rkey), be32toh(target.length)};
	if (target.length != SIZE)
		FAIL("the server's memory has %u bytes instead of %d", target.length, SIZE);
	for (unsigned round = 0; round < ROUNDS; round++) {
		post_receive(); /* before the server can answer */
		if (round == ROUNDS - 1) {
			fill(WRITTEN);
			post(WRITE, target);
			wait_for(WRITE, 1); /* before the buffer changes */
		}
		fill(2 * round);
		post(SEND, target);
		wait_for(SEND, round + 1);
		wait_for(RECEIVE, round + 1);
		verify(messages.in, 2 * round + 1);
	}
	check(rdma_disconnect(id), "rdma_disconnect");
	if (!disconnected)
		expect(RDMA_CM_EVENT_DISCONNECTED, NULL, 0);
	tear_down();
}

int main(int argc, char **argv)
{
	int server = argc == 4 && !strcmp(argv[1], "server");
	if (!server && (argc != 4 || strcmp(argv[1], "client"))) {
		fprintf(stderr, "usage: pingpong server|client ADDRESS PORT\n");
		return 2;
	}
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
	int error = getaddrinfo(argv[2], argv[3], &hints, &found);
	if (error)
		FAIL("%s port %s: %s", argv[2], argv[3], gai_strerror(error));
	events = made(rdma_create_event_channel(), "rdma_create_event_channel");
	(server ? serve : ask)(found->ai_addr);
	rdma_destroy_event_channel(events);
	freeaddrinfo(found);
	printf("%d messages each way and an RDMA Write of %d bytes each: all verified\n", ROUNDS, SIZE);
	return 0;
}
