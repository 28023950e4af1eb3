/* Data arrives completely and in order, and so does its end. */
#include "common.h"

static const size_t sizes[] = {1, 2, 3, 63, 64, 65, 1000, 4095, 4097, 65537, 131071, 131073, 1000003};
#define SIZES (sizeof sizes / sizeof *sizes)

/* --- Ping-pong with odd sizes --- */

static void echo(int listener)
{
	int rs = accept_one(listener);
	unsigned char *bytes = malloc(100000);
	ssize_t len;
	while ((len = rrecv(rs, bytes, 100000, 0)) > 0)
		CHECK(rsend(rs, bytes, len, 0) == len);
	CHECK(len == 0);
	CHECK(rclose(rs) == 0);
	CHECK(rclose(listener) == 0);
}

static void odd_sizes(int port)
{
	int rs = connect_to(port);
	for (size_t i = 0; i < SIZES; i++) {
		unsigned char *bytes = malloc(sizes[i]), *back = malloc(sizes[i]);
		size_t sent = 0, received = 0;
		fill(bytes, i, 0, sizes[i]);
		/* Sends never more than the buffers hold, because the peer sends the data back meanwhile. */
		while (received < sizes[i]) {
			size_t now = sizes[i] - sent < 50001 ? sizes[i] - sent : 50001;
			CHECK(now == 0 || rsend(rs, bytes + sent, now, 0) == (ssize_t)now);
			sent += now;
			if (received == 0)
				CHECK(rrecv(rs, back, 1, MSG_PEEK) == 1 && back[0] == bytes[0]);
			CHECK(rrecv(rs, back + received, sent - received, MSG_WAITALL) == (ssize_t)(sent - received));
			received = sent;
		}
		CHECK(memcmp(bytes, back, sizes[i]) == 0);
		free(bytes);
		free(back);
	}
	/* In several buffers, some of them empty. */
	unsigned char bytes[5000], back[5000];
	fill(bytes, 99, 0, sizeof bytes);
	struct iovec out[] = {{bytes, 1}, {bytes + 1, 0}, {bytes + 1, 3000}, {bytes + 3001, 1999}};
	struct iovec in[] = {{back, 4000}, {back + 4000, 1000}};
	struct msghdr message = {.msg_iov = in, .msg_iovlen = 2};
	CHECK(rwritev(rs, out, 4) == sizeof bytes);
	CHECK(rrecvmsg(rs, &message, MSG_WAITALL) == sizeof back);
	CHECK(memcmp(bytes, back, sizeof bytes) == 0);
	CHECK(rshutdown(rs, SHUT_WR) == 0);
	receive_end(rs);
	CHECK(rclose(rs) == 0);
}

/* --- One direction ends before the other --- */

static void answer_after_end(int listener)
{
	int rs = accept_one(listener);
	receive_all(rs, 1, 300007, 1234);
	receive_end(rs);
	send_all(rs, 2, 500009, 77777);
	CHECK(rclose(rs) == 0);
}

static void half_close(int port)
{
	int rs = connect_to(port);
	send_all(rs, 1, 300007, 5001);
	CHECK(rshutdown(rs, SHUT_WR) == 0);
	FAILS(rsend(rs, "x", 1, 0), EPIPE);
	receive_all(rs, 2, 500009, 4321);
	receive_end(rs);
	receive_end(rs);
	FAILS(rsend(rs, "x", 1, 0), EPIPE);
	CHECK(rclose(rs) == 0);
	FAILS(rclose(rs), EBADF);
}

/* --- Short connections --- */

#define CONNECTIONS 50

/* The end of a connection may be reported before its last data completes. */
static void send_and_close(int listener)
{
	for (unsigned i = 0; i < CONNECTIONS; i++) {
		int rs = accept_one(listener);
		send_all(rs, i, 5003, 1000);
		CHECK(rclose(rs) == 0);
	}
}

static void short_connections(int port)
{
	for (unsigned i = 0; i < CONNECTIONS; i++) {
		int rs = connect_to(port);
		receive_all(rs, i, 5003, 700);
		receive_end(rs);
		CHECK(rclose(rs) == 0);
	}
}

/* --- The end of a process --- */

static void receive_everything(int listener)
{
	int rs = accept_one(listener);
	receive_all(rs, 5, 100003, 9999);
	receive_end(rs);
}

/* Sends data from a child, which then ends by calling `last`. */
static void send_in_child(int port, void (*last)(int rs))
{
	pid_t process = fork(); /* this process has no socket yet */
	if (process == 0) {
		int rs = connect_to(port);
		send_all(rs, 5, 100003, 1000);
		last(rs);
	}
	int status;
	CHECK(waitpid(process, &status, 0) == process && status == 0);
}

static void exit_without_close(int rs)
{
	(void)rs;
	exit(0);
}

static void close_and_vanish(int rs)
{
	CHECK(rclose(rs) == 0);
	_exit(0);
}

static void exits(int port)
{
	send_in_child(port, exit_without_close);
}

static void closes_and_vanishes(int port)
{
	send_in_child(port, close_and_vanish);
}

static void kill_itself(int listener)
{
	int rs = accept_one(listener);
	send_all(rs, 6, 5000, 5000);
	receive_all(rs, 6, 1, 1); /* the client sends this byte after it has received all data */
	raise(SIGKILL);
}

static void peer_killed(int port)
{
	int rs = connect_to(port);
	receive_all(rs, 6, 5000, 5000);
	send_all(rs, 6, 1, 1);
	char byte;
	FAILS(rrecv(rs, &byte, 1, 0), ECONNRESET);
	receive_end(rs);
	FAILS(rsend(rs, &byte, 1, 0), EPIPE);
	CHECK(rclose(rs) == 0);
}

/* --- Two threads of each end, one for each direction --- */

#define MUCH (20u << 20)

static void *send_much(void *rs)
{
	send_all(*(int *)rs, 7, MUCH, 33333);
	return NULL;
}

static void send_and_receive(int rs)
{
	pthread_t sender;
	CHECK(pthread_create(&sender, NULL, send_much, &rs) == 0);
	receive_all(rs, 7, MUCH, 44444);
	CHECK(pthread_join(sender, NULL) == 0);
	CHECK(rshutdown(rs, SHUT_WR) == 0);
	receive_end(rs);
	CHECK(rclose(rs) == 0);
}

static void duplex_server(int listener)
{
	send_and_receive(accept_one(listener));
}

static void duplex(int port)
{
	send_and_receive(connect_to(port));
}

/* --- Small buffers and queues --- */

static void small_server(int listener)
{
	int rs = accept_one(listener);
	receive_all(rs, 8, 200001, 3000);
	receive_end(rs);
	CHECK(rclose(rs) == 0);
}

static void small(int port)
{
	socklen_t len;
	struct sockaddr_storage to = address(port, &len);
	int rs = rsocket(family, SOCK_STREAM, 0), tiny = 1;
	CHECK(rsetsockopt(rs, SOL_SOCKET, SO_SNDBUF, &tiny, sizeof tiny) == 0);
	CHECK(rsetsockopt(rs, SOL_RDMA, RDMA_SQSIZE, &tiny, sizeof tiny) == 0);
	CHECK(rsetsockopt(rs, SOL_RDMA, RDMA_RQSIZE, &tiny, sizeof tiny) == 0);
	CHECK(rsetsockopt(rs, SOL_RDMA, RDMA_INLINE, &tiny, sizeof tiny) == 0);
	CHECK(rconnect(rs, (void *)&to, len) == 0);
	send_all(rs, 8, 200001, 7);
	CHECK(rclose(rs) == 0);
}

/* --- Memory that the peer writes to --- */

static void mapped_server(int listener)
{
	int rs = accept_one(listener);
	unsigned char *bytes = calloc(1, 300000);
	off_t at = riomap(rs, bytes, 300000, PROT_WRITE, 0, -1);
	CHECK(at != -1);
	CHECK(riomap(rs, bytes, 1000, PROT_WRITE, 0, 64) == 64);
	FAILS(riomap(rs, bytes, 10, PROT_WRITE, 0, 0), ENOMEM);
	CHECK(rsend(rs, &at, sizeof at, 0) == sizeof at);
	for (unsigned round = 0; round < 20; round++) {
		char byte;
		CHECK(rrecv(rs, &byte, 1, 0) == 1);
		/* All of it has arrived when the message after it has. */
		verify(bytes + 1000, round, 0, 299000);
		verify(bytes + 36, round + 100, 0, 100);
		CHECK(rsend(rs, &byte, 1, 0) == 1);
	}
	CHECK(riounmap(rs, bytes, 1000) == 0);
	FAILS(riounmap(rs, bytes, 1000), EINVAL);
	CHECK(riomap(rs, bytes, 10, PROT_WRITE, 0, 0) == 0);
	CHECK(rsend(rs, "x", 1, 0) == 1);
	receive_end(rs);
	CHECK(bytes[9] == 'y');
	CHECK(rclose(rs) == 0);
}

static void mapped(int port)
{
	socklen_t len;
	struct sockaddr_storage to = address(port, &len);
	int rs = rsocket(family, SOCK_STREAM, 0), two = 2;
	CHECK(rsetsockopt(rs, SOL_RDMA, RDMA_IOMAPSIZE, &two, sizeof two) == 0);
	CHECK(rconnect(rs, (void *)&to, len) == 0);
	unsigned char *bytes = malloc(299000);
	char byte = 0;
	off_t at;
	CHECK(rrecv(rs, &at, sizeof at, MSG_WAITALL) == sizeof at);
	for (unsigned round = 0; round < 20; round++) {
		fill(bytes, round, 0, 299000);
		CHECK(riowrite(rs, bytes, 299000, at + 1000, 0) == 299000);
		fill(bytes, round + 100, 0, 100);
		CHECK(riowrite(rs, bytes, 100, 100, 0) == 100);
		CHECK(rsend(rs, &byte, 1, 0) == 1);
		CHECK(rrecv(rs, &byte, 1, 0) == 1);
	}
	FAILS(riowrite(rs, bytes, 1, 20, 0), EINVAL);
	CHECK(rrecv(rs, &byte, 1, 0) == 1);
	FAILS(riowrite(rs, bytes, 1, 100, 0), EINVAL);
	/* Not beyond the end of the mapping. */
	CHECK(riowrite(rs, "yy", 2, 9, 0) == 1);
	CHECK(rclose(rs) == 0);
}

const struct test stream_tests[] = {
	{"odd_sizes", echo, odd_sizes},
	{"half_close", answer_after_end, half_close},
	{"short_connections", send_and_close, short_connections},
	{"exits", receive_everything, exits},
	{"closes_and_vanishes", receive_everything, closes_and_vanishes},
	{"peer_killed", kill_itself, peer_killed},
	{"duplex", duplex_server, duplex},
	{"small", small_server, small},
	{"mapped", mapped_server, mapped},
	{NULL, NULL, NULL},
};
