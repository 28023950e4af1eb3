/* Ports of librdmacm beside TCP ports of the same number, in one process and in two. */
#include "kit.h"
#include <sys/socket.h>

/* A TCP socket of the program, bound to a port with SO_REUSEADDR, as servers do. */
static int tcp_bind(int port)
{
	int one = 1, tcp = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(tcp >= 0);
	CHECK(setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
	CHECK(bind(tcp, loopback(port), sizeof(struct sockaddr_in)) == 0);
	return tcp;
}

static int tcp_server(int port)
{
	int tcp = tcp_bind(port);

	CHECK(listen(tcp, 8) == 0);
	return tcp;
}

static int tcp_port(int tcp)
{
	struct sockaddr_in at;
	socklen_t len = sizeof at;

	CHECK(getsockname(tcp, (struct sockaddr *)&at, &len) == 0);
	return ntohs(at.sin_port);
}

static struct rdma_cm_id *listen_at(struct rdma_event_channel *channel, int port, enum rdma_port_space space)
{
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, NULL, space) == 0);
	CHECK(rdma_bind_addr(id, loopback(port)) == 0);
	CHECK(rdma_listen(id, 8) == 0);
	CHECK(port_of(id) == port);
	return id;
}

/* Connects a TCP client to a TCP server, and sends a byte. */
static void check_tcp(int tcp)
{
	int client = socket(AF_INET, SOCK_STREAM, 0), server;
	char byte = 0;

	CHECK(connect(client, loopback(tcp_port(tcp)), sizeof(struct sockaddr_in)) == 0);
	do { /* an RDMA client may have connected here before, and closed */
		server = accept(tcp, NULL, NULL);
		CHECK(server >= 0);
		CHECK(send(client, "x", 1, 0) == 1);
	} while (recv(server, &byte, 1, 0) != 1 || byte != 'x');
	close(client);
	close(server);
}

/* Connects an RDMA client to a listener, and sends a message. */
static struct pair check_rdma(struct rdma_event_channel *far, struct rdma_cm_id *listens)
{
	struct pair pair = connect_to_listener(far, listens);

	CHECK(rdma_get_src_port(pair.server) == rdma_get_src_port(listens));
	CHECK(rdma_get_dst_port(pair.client) == rdma_get_src_port(listens));
	exchange(&pair);
	return pair;
}

static void tcp_first(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	int tcp = tcp_server(0);
	struct rdma_cm_id *listens = listen_at(channel, tcp_port(tcp), RDMA_PS_TCP);
	struct pair pair = check_rdma(channel, listens);

	CHECK(tcp_port(tcp) == port_of(listens));
	disconnect(&pair);
	close(tcp);
}

/* The earlier connection still works. */
static void rdma_first(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listens = create_listener(channel, RDMA_PS_TCP);
	struct pair before = check_rdma(channel, listens), after;
	int tcp = tcp_server(port_of(listens));

	check_tcp(tcp);
	after = check_rdma(channel, listens);
	exchange(&before);
	exchange(&after);
	/* The next socket gets the error: no listener of this process has that port. */
	FAILS(bind(socket(AF_INET, SOCK_STREAM, 0), loopback(port_of(listens)), sizeof(struct sockaddr_in)), EADDRINUSE);
}

/* An id that shares its port lets the program bind the TCP port, but not listen there. */
static void rdma_before_listen(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listens;
	int one = 1, probe = tcp_bind(0), port = tcp_port(probe), tcp;

	close(probe);
	CHECK(rdma_create_id(channel, &listens, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_set_option(listens, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one) == 0);
	CHECK(rdma_bind_addr(listens, loopback(port)) == 0);
	tcp = tcp_bind(port);
	CHECK(rdma_listen(listens, 8) == 0);
	CHECK(listen(tcp, 8) == 0);
	check_tcp(tcp);
	check_rdma(channel, listens);
}

/* Binds a new id, and returns it in `made` unless that is NULL. Returns -1 and sets errno if the port is in use. */
static int try_bind(int port, in_addr_t address, int share, struct rdma_cm_id **made)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(address) };
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &share, sizeof share) == 0);
	if (rdma_bind_addr(id, (struct sockaddr *)&at))
		return -1;
	if (made)
		*made = id;
	return 0;
}

/* Conflicting ports give the errno of cma_check_port in drivers/infiniband/core/cma.c. */
static void clashes(void)
{
	int tcp = tcp_server(0), port = tcp_port(tcp);
	struct rdma_cm_id *one, *other;

	/* On a candidate port, */
	CHECK(try_bind(port, INADDR_LOOPBACK, 0, &one) == 0);
	FAILS(try_bind(port, INADDR_LOOPBACK, 0, NULL), EADDRINUSE);
	FAILS(try_bind(port, INADDR_ANY, 0, NULL), EADDRNOTAVAIL);
	CHECK(try_bind(port, INADDR_LOOPBACK + 1, 0, NULL) == 0);
	destroy(one);
	/* on the TCP port, */
	one = create_listener(rdma_create_event_channel(), RDMA_PS_TCP);
	port = port_of(one);
	FAILS(try_bind(port, INADDR_LOOPBACK, 0, NULL), EADDRINUSE);
	FAILS(try_bind(port, INADDR_LOOPBACK, 1, NULL), EADDRINUSE);
	FAILS(try_bind(port, INADDR_ANY, 0, NULL), EADDRNOTAVAIL);
	destroy(one);
	/* and shared, until one listens. */
	CHECK(try_bind(port, INADDR_LOOPBACK, 1, &one) == 0);
	CHECK(try_bind(port, INADDR_LOOPBACK, 1, &other) == 0);
	FAILS(rdma_listen(one, 1), EADDRINUSE);
	destroy(one);
	CHECK(rdma_listen(other, 1) == 0);
	FAILS(try_bind(port, INADDR_LOOPBACK, 1, NULL), EADDRINUSE);
}

/* The other process has the RDMA port first, then the TCP port of the same number. */
static void other_process(void)
{
	int up[2], down[2], port = 0, status;
	char byte;
	pid_t child;

	CHECK(pipe(up) == 0 && pipe(down) == 0);
	child = fork();
	if (child == 0) {
		struct rdma_event_channel *channel = rdma_create_event_channel();
		struct rdma_cm_id *listens = create_listener(channel, RDMA_PS_TCP);

		port = port_of(listens);
		CHECK(write(up[1], &port, sizeof port) == sizeof port);
		CHECK(read(down[0], &byte, 1) == 1);
		tcp_server(port);
		CHECK(write(up[1], &port, sizeof port) == sizeof port);
		expect_and_ack(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
		CHECK(read(down[0], &byte, 1) == 1);
		_exit(0);
	}
	CHECK(read(up[0], &port, sizeof port) == sizeof port);
	/* On the TCP port, then beside a TCP server. */
	for (int round = 0; round < 2; round++) {
		FAILS(try_bind(port, INADDR_LOOPBACK, 0, NULL), EADDRINUSE);
		FAILS(try_bind(port, INADDR_ANY, 0, NULL), EADDRNOTAVAIL);
		/* The other process does not make room for this one. */
		FAILS(bind(socket(AF_INET, SOCK_STREAM, 0), loopback(port), sizeof(struct sockaddr_in)), EADDRINUSE);
		if (round == 0) {
			CHECK(write(down[1], "", 1) == 1);
			CHECK(read(up[0], &port, sizeof port) == sizeof port);
		}
	}
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_event_channel *near = rdma_create_event_channel();
	struct rdma_cm_id *client = create_dialler(near, port, RDMA_PS_TCP);

	create_qp(client);
	CHECK(rdma_connect(client, &param) == 0);
	CHECK(write(down[1], "", 1) == 1);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	/* Its port is free when it exits. */
	CHECK(try_bind(port, INADDR_ANY, 0, NULL) == 0);
}

/* A datagram port, a connection port and a TCP port may have the same number. */
static void datagrams(void)
{
	struct rdma_event_channel *far = rdma_create_event_channel(), *near = rdma_create_event_channel();
	int tcp = tcp_server(0), port = tcp_port(tcp);
	struct rdma_cm_id *stream = listen_at(far, port, RDMA_PS_TCP);
	struct rdma_event_channel *asked = rdma_create_event_channel();
	struct rdma_cm_id *datagram = listen_at(asked, port, RDMA_PS_UDP), *client, *server;
	struct rdma_conn_param param = { .private_data = HELLO, .private_data_len = sizeof HELLO };
	struct rdma_cm_event *event;

	check_rdma(far, stream);
	client = create_dialler(near, port, RDMA_PS_UDP);
	create_qp(client);
	CHECK(rdma_connect(client, &param) == 0);
	event = expect(asked, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(memcmp(event->param.ud.private_data, HELLO, sizeof HELLO) == 0);
	server = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	create_qp(server);
	param.private_data = WELCOME;
	param.private_data_len = sizeof WELCOME;
	param.qp_num = server->qp->qp_num;
	CHECK(rdma_accept(server, &param) == 0);
	event = expect(near, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(memcmp(event->param.ud.private_data, WELCOME, sizeof WELCOME) == 0);
	CHECK(event->param.ud.qp_num == server->qp->qp_num);
	CHECK(rdma_ack_cm_event(event) == 0);
	destroy(client);
	destroy(server);
	destroy(datagram);
}

/* A client connects from a port whose TCP port is in use. */
static void source_ports(void)
{
	struct rdma_event_channel *near = rdma_create_event_channel(), *far = rdma_create_event_channel();
	struct rdma_cm_id *listens = create_listener(far, RDMA_PS_TCP), *client;
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct sockaddr_in from;
	int tcp = tcp_server(0);

	memcpy(&from, loopback(tcp_port(tcp)), sizeof from);
	CHECK(rdma_create_id(near, &client, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(client, (struct sockaddr *)&from, loopback(port_of(listens)), 1000) == 0);
	CHECK(port_of(client) == tcp_port(tcp));
	expect_and_ack(near, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_resolve_route(client, 1000) == 0);
	expect_and_ack(near, RDMA_CM_EVENT_ROUTE_RESOLVED);
	create_qp(client);
	CHECK(rdma_connect(client, &param) == 0);
	expect_and_ack(far, RDMA_CM_EVENT_CONNECT_REQUEST);
}

/* A child has no listener of its parent to move, and goes on. */
static void children(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listens = create_listener(channel, RDMA_PS_TCP);
	int status, port = port_of(listens);
	pid_t child = fork();

	if (child == 0) {
		FAILS(bind(socket(AF_INET, SOCK_STREAM, 0), loopback(port), sizeof(struct sockaddr_in)), EADDRINUSE);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	check_rdma(channel, listens);
}

static const struct test TESTS[] = {
	{ "tcp_first", tcp_first },
	{ "rdma_first", rdma_first },
	{ "rdma_before_listen", rdma_before_listen },
	{ "clashes", clashes },
	{ "other_process", other_process },
	{ "datagrams", datagrams },
	{ "source_ports", source_ports },
	{ "children", children },
};

RUN(TESTS)
