/*
 * measure: measures messages between two processes of one host, over plain TCP or over verbs.
 *
 *     measure tcp|verbs ADDRESS PORT [polled]
 *
 * The child process serves and the parent measures. Over verbs it uses whatever adapter libibverbs finds, so that the same code
 * measures the kernel's siw and Ironwarp. Each line is `MEASURE WHAT SIZE NANOSECONDS`: `stream` is the time per message of a
 * sequence, and `round` is the round-trip time, with both ends sleeping until a message arrives, or polling with `polled`.
 *
 * Plain TCP makes one call per message without framing: a lower bound for any adapter on top of TCP.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	LARGEST = 1 << 20,
	DEPTH = 16, /* outstanding Writes */
	ROUNDS = 300,
	WARM = 20,
	SMALL = 8,
	SECONDS = 100,
};

/* Message sizes and counts. */
static const struct {
	size_t size;
	unsigned count;
} streams[] = {{4096, 1500}, {65536, 200}, {LARGEST, 24}};

static uint8_t memory[LARGEST], note[SMALL];
static bool polled;

static _Noreturn void fail(const char *what)
{
	printf("MEASURE FAIL %s: %s\n", what, strerror(errno));
	exit(1);
}

static void check(bool good, const char *what)
{
	if (!good)
		fail(what);
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void report(const char *what, size_t size, uint64_t start, unsigned count)
{
	printf("MEASURE %s %zu %llu\n", what, size, (unsigned long long)((now() - start) / count));
	fflush(stdout);
}

/* The last byte of the last message of a stream is its number, which the server checks in its memory. */
static uint8_t mark(unsigned stream)
{
	return (uint8_t)(0xa1 + stream);
}

/* --- plain TCP --- */

static void put(int fd, const void *from, size_t size)
{
	while (size > 0) {
		ssize_t sent = send(fd, from, size, MSG_NOSIGNAL);

		check(sent > 0, "send");
		from = (const uint8_t *)from + sent;
		size -= (size_t)sent;
	}
}

static void get(int fd, void *to, size_t size)
{
	while (size > 0) {
		ssize_t got = recv(fd, to, size, polled ? MSG_DONTWAIT : 0);

		if (got < 0 && errno == EAGAIN)
			continue;
		check(got > 0, "recv");
		to = (uint8_t *)to + got;
		size -= (size_t)got;
	}
}

static void tcp_measure(int fd)
{
	uint64_t start = 0;

	for (unsigned i = 0; i < WARM + ROUNDS; i++) {
		if (i == WARM)
			start = now();
		put(fd, note, SMALL);
		get(fd, note, SMALL);
	}
	report("round", SMALL, start, ROUNDS);
	for (unsigned s = 0; s < sizeof streams / sizeof *streams && !polled; s++) {
		memory[streams[s].size - 1] = mark(s);
		start = now();
		for (unsigned i = 0; i < streams[s].count; i++)
			put(fd, memory, streams[s].size);
		get(fd, note, SMALL);
		report("stream", streams[s].size, start, streams[s].count);
	}
}

static void tcp_serve(int fd)
{
	for (unsigned i = 0; i < WARM + ROUNDS; i++) {
		get(fd, note, SMALL);
		put(fd, note, SMALL);
	}
	for (unsigned s = 0; s < sizeof streams / sizeof *streams && !polled; s++) {
		for (unsigned i = 0; i < streams[s].count; i++)
			get(fd, memory, streams[s].size);
		check(memory[streams[s].size - 1] == mark(s), "the last message did not arrive");
		put(fd, note, SMALL);
	}
}

static void tcp(const char *address, const char *port, int ready[2])
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);

	check(inet_pton(AF_INET, address, &to.sin_addr) == 1, "the address");
	if (ready[1] >= 0) {
		check(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0, "SO_REUSEADDR");
		check(bind(fd, (struct sockaddr *)&to, sizeof to) == 0, "bind");
		check(listen(fd, 1) == 0, "listen");
		check(write(ready[1], "", 1) == 1, "write");
		fd = accept(fd, NULL, NULL);
		check(fd >= 0, "accept");
	} else {
		check(read(ready[0], note, 1) == 1, "the server is not ready");
		check(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "connect");
	}
	check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0, "TCP_NODELAY");
	if (ready[1] >= 0)
		tcp_serve(fd);
	else
		tcp_measure(fd);
}

/* --- verbs --- */

static struct rdma_cm_id *id;
static struct ibv_mr *memory_mr, *note_mr;

/* The address of the server's memory, which it sends first. */
static struct place {
	uint64_t address;
	uint32_t rkey;
} place;
static struct ibv_mr *place_mr;

/* Returns the next completion of a queue. */
static struct ibv_wc complete(struct ibv_cq *cq, struct ibv_comp_channel *channel)
{
	struct ibv_wc completion;
	struct ibv_cq *of;
	void *context;
	int polls;

	while ((polls = ibv_poll_cq(cq, 1, &completion)) == 0) {
		if (polled)
			continue;
		check(ibv_req_notify_cq(cq, 0) == 0, "ibv_req_notify_cq");
		if ((polls = ibv_poll_cq(cq, 1, &completion)) != 0)
			break;
		check(ibv_get_cq_event(channel, &of, &context) == 0, "ibv_get_cq_event");
		ibv_ack_cq_events(of, 1);
	}
	check(polls == 1, "ibv_poll_cq");
	if (completion.status != IBV_WC_SUCCESS) {
		printf("MEASURE FAIL a work request: %s\n", ibv_wc_status_str(completion.status));
		exit(1);
	}
	return completion;
}

static void sent(void)
{
	complete(id->send_cq, id->send_cq_channel);
}

static void say(void)
{
	check(rdma_post_send(id, NULL, note, SMALL, note_mr, IBV_SEND_SIGNALED) == 0, "rdma_post_send");
}

/* Receives a note, and posts a receive for the next one. */
static void hear(void)
{
	complete(id->recv_cq, id->recv_cq_channel);
	check(rdma_post_recv(id, NULL, note, SMALL, note_mr) == 0, "rdma_post_recv");
}

static void verbs_measure(void)
{
	uint64_t start = 0;

	for (unsigned i = 0; i < WARM + ROUNDS; i++) {
		if (i == WARM)
			start = now();
		say();
		hear();
		sent();
	}
	report("round", SMALL, start, ROUNDS);
	for (unsigned s = 0; s < sizeof streams / sizeof *streams && !polled; s++) {
		unsigned posted = 0, done = 0, count = streams[s].count;

		memory[streams[s].size - 1] = mark(s);
		start = now();
		while (done < count) {
			while (posted < count && posted - done < DEPTH) {
				check(rdma_post_write(id, NULL, memory, streams[s].size, memory_mr, IBV_SEND_SIGNALED,
						      place.address, place.rkey) == 0, "rdma_post_write");
				posted++;
			}
			sent();
			done++;
		}
		say();
		hear();
		sent();
		report("stream", streams[s].size, start, count);
	}
	rdma_disconnect(id);
}

static void verbs_serve(void)
{
	for (unsigned i = 0; i < WARM + ROUNDS; i++) {
		hear();
		say();
		sent();
	}
	for (unsigned s = 0; s < sizeof streams / sizeof *streams && !polled; s++) {
		hear();
		check(memory[streams[s].size - 1] == mark(s), "the last message did not arrive");
		say();
		sent();
	}
	/* Waits until the client disconnects, because its last note may not have arrived yet. */
	struct ibv_wc completion;
	while (ibv_poll_cq(id->recv_cq, 1, &completion) == 0)
		usleep(1000);
}

static void verbs(char *address, char *port, int ready[2])
{
	bool serves = ready[1] >= 0;
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP, .ai_flags = serves ? RAI_PASSIVE : 0}, *found;
	struct ibv_qp_init_attr attributes = {
		.cap = {.max_send_wr = 2 * DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
		.sq_sig_all = 0,
		.qp_type = IBV_QPT_RC,
	};
	struct rdma_cm_id *listener;

	if (!serves)
		check(read(ready[0], note, 1) == 1, "the server is not ready");
	check(rdma_getaddrinfo(address, port, &hints, &found) == 0, "rdma_getaddrinfo");
	if (serves) {
		check(rdma_create_ep(&listener, found, NULL, &attributes) == 0, "rdma_create_ep");
		check(rdma_listen(listener, 1) == 0, "rdma_listen");
		check(write(ready[1], "", 1) == 1, "write");
		check(rdma_get_request(listener, &id) == 0, "rdma_get_request");
	} else {
		check(rdma_create_ep(&id, found, NULL, &attributes) == 0, "rdma_create_ep");
	}
	memory_mr = rdma_reg_write(id, memory, sizeof memory);
	note_mr = rdma_reg_msgs(id, note, sizeof note);
	place_mr = rdma_reg_msgs(id, &place, sizeof place);
	check(memory_mr && note_mr && place_mr, "ibv_reg_mr");
	if (serves) {
		for (unsigned i = 0; i < 4; i++)
			check(rdma_post_recv(id, NULL, note, SMALL, note_mr) == 0, "rdma_post_recv");
		check(rdma_accept(id, NULL) == 0, "rdma_accept");
		hear(); /* MPA requires the client to send first */
		place = (struct place){(uintptr_t)memory, memory_mr->rkey};
		check(rdma_post_send(id, NULL, &place, sizeof place, place_mr, IBV_SEND_SIGNALED) == 0, "rdma_post_send");
		sent();
		verbs_serve();
	} else {
		check(rdma_post_recv(id, NULL, &place, sizeof place, place_mr) == 0, "rdma_post_recv");
		for (unsigned i = 0; i < 3; i++)
			check(rdma_post_recv(id, NULL, note, SMALL, note_mr) == 0, "rdma_post_recv");
		check(rdma_connect(id, NULL) == 0, "rdma_connect");
		say();
		sent();
		hear();
		verbs_measure();
	}
}

int main(int count, char **words)
{
	int ready[2];
	pid_t server;
	int status;

	if (count < 4 || (strcmp(words[1], "tcp") && strcmp(words[1], "verbs"))) {
		fprintf(stderr, "usage: measure tcp|verbs ADDRESS PORT [polled]\n");
		return 2;
	}
	polled = count > 4 && !strcmp(words[4], "polled");
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(SECONDS);
	check(pipe(ready) == 0, "pipe");
	server = fork();
	check(server >= 0, "fork");
	if (server == 0) {
		alarm(SECONDS);
	} else {
		close(ready[1]);
		ready[1] = -1;
	}
	if (!strcmp(words[1], "tcp"))
		tcp(words[2], words[3], ready);
	else
		verbs(words[2], words[3], ready);
	if (server == 0)
		return 0;
	check(waitpid(server, &status, 0) == server && status == 0, "the server");
	return 0;
}
