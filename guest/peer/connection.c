/*
 * Connecting, rejecting and disconnecting.
 */
#include "peer.h"

#include <string.h>
#include <time.h>

struct rdma_cm_id *id;
struct ibv_srq *srq;

static struct rdma_event_channel *channel;
static struct rdma_addrinfo *address;
static struct rdma_cm_id *listener;
static uint8_t hello[256];

static struct rdma_cm_event *next_event(void)
{
	struct rdma_cm_event *event;

	check(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	return event;
}

/* Returns the next event of the connection manager, which must have this type. The caller acknowledges it. */
static struct rdma_cm_event *expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = next_event();

	if (event->event != type)
		fail("%s with status %d, not %s", rdma_event_str(event->event), event->status, rdma_event_str(type));
	return event;
}

/* Resolves the address, or listens: a server listens before its first step. */
void start(const char *host, const char *port)
{
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP, .ai_flags = client ? 0 : RAI_PASSIVE};

	check(!rdma_getaddrinfo(host, port, &hints, &address), "rdma_getaddrinfo");
	channel = rdma_create_event_channel();
	check(channel, "rdma_create_event_channel");
	if (client) {
		begin("resolve");
		check(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
		check(!rdma_resolve_addr(id, NULL, address->ai_dst_addr, SECONDS * 1000), "rdma_resolve_addr");
		rdma_ack_cm_event(expect(RDMA_CM_EVENT_ADDR_RESOLVED));
		check(!rdma_resolve_route(id, SECONDS * 1000), "rdma_resolve_route");
		rdma_ack_cm_event(expect(RDMA_CM_EVENT_ROUTE_RESOLVED));
	} else {
		begin("listen");
		check(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
		check(!rdma_bind_addr(listener, address->ai_src_addr), "rdma_bind_addr");
		check(!rdma_listen(listener, 8), "rdma_listen");
	}
	ok();
}

static void verify_private_data(const struct rdma_cm_event *event, size_t length)
{
	const struct rdma_conn_param *param = &event->param.conn;

	if (param->private_data_len != length)
		fail("%u bytes of private data, not %zu", param->private_data_len, length);
	verify("the private data", param->private_data, 0, length, other->says, 0);
}

static struct rdma_conn_param parameters(void)
{
	fill(hello, 0, shape.private, self->says, 0);
	return (struct rdma_conn_param){
		.private_data = shape.private ? hello : NULL,
		.private_data_len = (uint8_t)shape.private,
		.responder_resources = DEPTH,
		.initiator_depth = DEPTH,
	};
}

/* Creates the queue pair and all memory, and posts the receives. */
static void prepare(void)
{
	struct ibv_srq_init_attr of_srq = {.attr = {.max_wr = shape.receives, .max_sge = 1}};
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = SENDS,
			.max_recv_wr = shape.receives,
			.max_send_sge = 3,
			.max_recv_sge = 1,
			.max_inline_data = INLINE},
	};

	prepare_memory(id->verbs);
	if (shape.srq) {
		srq = ibv_create_srq(pd, &of_srq);
		check(srq, "ibv_create_srq");
		attributes.srq = srq;
		/* librdmacm creates no completion queue for receives of a queue pair with an SRQ. */
		id->recv_cq_channel = ibv_create_comp_channel(id->verbs);
		check(id->recv_cq_channel, "ibv_create_comp_channel");
		id->recv_cq = ibv_create_cq(id->verbs, (int)shape.receives + 1, id, id->recv_cq_channel, 0);
		check(id->recv_cq, "ibv_create_cq");
		attributes.recv_cq = id->recv_cq;
	}
	check(!rdma_create_qp(id, pd, &attributes), "rdma_create_qp");
	post_receives();
	begin("prepare");
	ok();
}

static struct rdma_cm_event *request(void)
{
	struct rdma_cm_event *event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);

	id = event->id;
	verify_private_data(event, shape.their_private);
	return event;
}

void connect_step(struct argument argument)
{
	struct rdma_conn_param param = parameters();
	struct rdma_cm_event *event;

	(void)argument;
	if (!client)
		rdma_ack_cm_event(request());
	prepare();
	begin("connect");
	if (client)
		check(!rdma_connect(id, &param), "rdma_connect");
	else
		check(!rdma_accept(id, &param), "rdma_accept");
	event = expect(RDMA_CM_EVENT_ESTABLISHED);
	if (client)
		verify_private_data(event, shape.their_private);
	rdma_ack_cm_event(event);
	ok();
}

/* A server that rejects the connection. */
void reject(struct argument argument)
{
	rdma_ack_cm_event(request());
	fill(hello, 0, argument.first, self->says, 0);
	check(!rdma_reject(id, hello, (uint8_t)argument.first), "rdma_reject");
	ok();
}

/*
 * A client that is rejected. If the other end closes immediately, siw may see that first: then it has no private data for its
 * program (siw_cm_llp_data_ready handles only established connections), or reports an error (siw_recv_mpa_rr).
 */
void rejected(struct argument argument)
{
	struct rdma_conn_param param = parameters();
	struct rdma_cm_event *event;
	const char *name = step;

	prepare();
	begin(name);
	check(!rdma_connect(id, &param), "rdma_connect");
	event = next_event();
	saw("%s: %s", rdma_event_str(event->event), strerror(-event->status));
	saw("private data: %u bytes", event->param.conn.private_data_len);
	if (event->param.conn.private_data_len)
		verify_private_data(event, argument.first);
	rdma_ack_cm_event(event);
	ok();
}

/* A client whose Request gets no answer: reports the event, and after how many seconds it arrived. */
void unanswered(struct argument argument)
{
	struct rdma_conn_param param = parameters();
	struct rdma_cm_event *event;
	struct timespec before, after;
	const char *name = step;

	(void)argument;
	prepare();
	begin(name);
	clock_gettime(CLOCK_MONOTONIC, &before);
	check(!rdma_connect(id, &param), "rdma_connect");
	event = next_event();
	clock_gettime(CLOCK_MONOTONIC, &after);
	saw("%s: %s", rdma_event_str(event->event), strerror(-event->status));
	saw("seconds: %ld", (long)(after.tv_sec - before.tv_sec));
	rdma_ack_cm_event(event);
	ok();
}

void wait_disconnected(void)
{
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_DISCONNECTED));
}

void disconnect(struct argument argument)
{
	(void)argument;
	check(!rdma_disconnect(id), "rdma_disconnect");
	wait_disconnected();
	ok();
}

/* Tells the other end, which disconnects, that this end has finished. */
void parting(struct argument argument)
{
	(void)argument;
	ok();
}

void disconnected(struct argument argument)
{
	(void)argument;
	wait_disconnected();
	ok();
}
