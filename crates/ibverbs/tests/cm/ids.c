/* Ids: connecting, rejecting, migrating and destroying them, and their events. */
#include "kit.h"

/* --- Connections --- */

static void connects(void)
{
	struct pair pair = connect_pair();
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	for (int i = 0; i < 10; i++)
		exchange(&pair);
	CHECK(ibv_query_qp(pair.client->qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_RTS);
	disconnect(&pair);
}

/* A receive that is posted when the peer closes is flushed. */
static void flushes(void)
{
	struct pair pair = connect_pair();
	static char buffer[8];
	struct ibv_mr *mr = rdma_reg_msgs(pair.server, buffer, sizeof buffer);
	struct ibv_wc wc;

	CHECK(rdma_post_recv(pair.server, NULL, buffer, sizeof buffer, mr) == 0);
	CHECK(rdma_disconnect(pair.client) == 0);
	CHECK(rdma_get_recv_comp(pair.server, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
	expect_and_ack(pair.far, RDMA_CM_EVENT_DISCONNECTED);
	expect_and_ack(pair.near, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(rdma_disconnect(pair.server) == 0);
	/* So is what is posted after that. */
	CHECK(rdma_post_recv(pair.server, NULL, buffer, sizeof buffer, mr) == 0);
	CHECK(rdma_get_recv_comp(pair.server, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(rdma_dereg_mr(mr) == 0);
	/* RoCE waits for the last packets. */
	expect_and_ack(pair.near, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	expect_and_ack(pair.far, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	destroy(pair.client);
	destroy(pair.server);
	destroy(pair.listens);
}

/* The program's private data arrives with a rejection. */
static void rejects(void)
{
	struct rdma_event_channel *near = rdma_create_event_channel(), *far = rdma_create_event_channel();
	struct rdma_cm_id *listens = create_listener(far, RDMA_PS_TCP);
	struct rdma_cm_id *client = create_dialler(near, port_of(listens), RDMA_PS_TCP), *server;
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	static const char WHY[] = "not today";
	static char buffer[8];
	struct rdma_cm_event *event;
	struct ibv_mr *mr;
	struct ibv_wc wc;

	create_qp(client);
	mr = rdma_reg_msgs(client, buffer, sizeof buffer);
	CHECK(rdma_post_recv(client, NULL, buffer, sizeof buffer, mr) == 0);
	CHECK(rdma_connect(client, &param) == 0);
	event = expect(far, RDMA_CM_EVENT_CONNECT_REQUEST);
	server = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_reject(server, WHY, sizeof WHY) == 0);
	FAILS(rdma_reject(server, WHY, sizeof WHY), EINVAL);
	event = expect(near, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 28); /* consumer defined */
	CHECK(event->param.conn.private_data_len >= sizeof WHY);
	CHECK(memcmp(event->param.conn.private_data, WHY, sizeof WHY) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_get_recv_comp(client, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
	FAILS(rdma_connect(client, &param), EINVAL);
	CHECK(rdma_dereg_mr(mr) == 0);
	destroy(client);
	destroy(server);
	destroy(listens);
}

/* Connecting to a port where no program listens fails, but only after a while, in case the peer is late. */
static void refused(void)
{
	struct rdma_event_channel *near = rdma_create_event_channel(), *far = rdma_create_event_channel();
	struct rdma_cm_id *bound, *client;
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_event *event;
	struct timespec before, after;

	CHECK(rdma_create_id(far, &bound, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(bound, loopback(0)) == 0); /* reserved, without a listener */
	client = create_dialler(near, port_of(bound), RDMA_PS_TCP);
	create_qp(client);
	clock_gettime(CLOCK_MONOTONIC, &before);
	CHECK(rdma_connect(client, &param) == 0);
	event = expect(near, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 8); /* invalid service ID */
	CHECK(rdma_ack_cm_event(event) == 0);
	clock_gettime(CLOCK_MONOTONIC, &after);
	CHECK(after.tv_sec - before.tv_sec + (after.tv_nsec - before.tv_nsec) / 1e9 > 0.8);
	destroy(client);

	/* A late listener, but in time. */
	client = create_dialler(near, port_of(bound), RDMA_PS_TCP);
	create_qp(client);
	CHECK(rdma_connect(client, &param) == 0);
	CHECK(rdma_listen(bound, 1) == 0);
	expect_and_ack(far, RDMA_CM_EVENT_CONNECT_REQUEST);
	destroy(client);
	destroy(bound);
}

/* Destroying an id rejects the peers that wait for it. */
static void abandons(void)
{
	struct rdma_event_channel *near = rdma_create_event_channel(), *far = rdma_create_event_channel();
	struct rdma_cm_id *listens = create_listener(far, RDMA_PS_TCP);
	struct rdma_cm_id *client = create_dialler(near, port_of(listens), RDMA_PS_TCP);
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct pollfd waits = { .fd = far->fd, .events = POLLIN };

	create_qp(client);
	CHECK(rdma_connect(client, &param) == 0);
	CHECK(poll(&waits, 1, -1) == 1);
	destroy(listens);
	CHECK(poll(&waits, 1, 0) == 0); /* its event is gone as well */
	expect_and_ack(near, RDMA_CM_EVENT_REJECTED);
	destroy(client);
}

/* --- Events and destruction --- */

static void *destroy_in_thread(void *id)
{
	return (void *)(intptr_t)rdma_destroy_id(id);
}

static void *destroy_cq_in_thread(void *cq)
{
	return (void *)(intptr_t)ibv_destroy_cq(cq);
}

/* Destroying an id waits until its events are acknowledged. */
static void waits_for_acknowledgement(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;
	struct thread thread;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, loopback(9), 1000) == 0);
	event = expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	start(&thread, destroy_in_thread, id);
	wait_until_in(&thread, SYS_futex);
	CHECK(event->id == id);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(join(&thread) == NULL);
	FAILS(rdma_ack_cm_event(event), EINVAL);
	FAILS(rdma_destroy_id(id), EINVAL);
}

/* Destroying a completion queue also waits until its events are acknowledged. It drops events that the program has
 * not taken. */
static void queue_waits_for_acknowledgement(void)
{
	struct pair pair = connect_pair();
	struct ibv_context *verbs = pair.client->verbs;
	struct ibv_comp_channel *channel = ibv_create_comp_channel(verbs);
	struct pollfd waits = { .fd = channel->fd, .events = POLLIN };
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 }, .qp_type = IBV_QPT_RC
	};

	for (int taken = 0; taken < 2; taken++) {
		struct ibv_cq *cq = ibv_create_cq(verbs, 4, NULL, channel, 0), *which;
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
		struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;
		struct thread thread;
		struct ibv_qp *qp;
		void *context;

		init.send_cq = init.recv_cq = cq;
		qp = ibv_create_qp(pair.client->pd, &init);
		CHECK(cq && qp);
		CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
		CHECK(ibv_req_notify_cq(cq, 0) == 0);
		CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
		attr.qp_state = IBV_QPS_ERR;
		CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
		CHECK(poll(&waits, 1, -1) == 1);
		if (taken)
			CHECK(ibv_get_cq_event(channel, &which, &context) == 0 && which == cq);
		CHECK(ibv_destroy_qp(qp) == 0);
		start(&thread, destroy_cq_in_thread, cq);
		if (taken) {
			wait_until_in(&thread, SYS_futex);
			ibv_ack_cq_events(cq, 1);
		}
		CHECK(join(&thread) == NULL);
		CHECK(poll(&waits, 1, 0) == 0);
	}
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	disconnect(&pair);
}

/* Objects in use cannot be destroyed, and destroyed objects are not found. */
static void in_order(void)
{
	struct pair pair = connect_pair();
	struct ibv_cq *cq = pair.client->send_cq;
	struct ibv_pd *pd = pair.client->pd;
	struct ibv_comp_channel *channel = pair.client->send_cq_channel;
	struct rdma_cm_id *client = pair.client;

	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	disconnect(&pair);
	CHECK(ibv_destroy_cq(cq) == EINVAL);
	CHECK(ibv_destroy_comp_channel(channel) == EINVAL);
	FAILS(rdma_connect(client, NULL), EINVAL);
	FAILS(rdma_disconnect(client), EINVAL);
	FAILS(rdma_disconnect(NULL), EINVAL);
	FAILS(rdma_destroy_id(NULL), EINVAL);
	FAILS(rdma_listen(NULL, 1), EINVAL);
	FAILS(rdma_get_cm_event(NULL, NULL), EINVAL);
	FAILS(rdma_ack_cm_event(NULL), EINVAL);
}

/* A program may destroy an id before its queue pair, connected or not. */
static void id_first(void)
{
	struct pair pair = connect_pair();
	struct ibv_qp *qp = pair.client->qp;

	CHECK(rdma_destroy_id(pair.client) == 0);
	expect_and_ack(pair.far, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(ibv_destroy_qp(qp) == 0);
	destroy(pair.server);
	destroy(pair.listens);
	rdma_destroy_event_channel(pair.near);
	rdma_destroy_event_channel(pair.far);
}

/* Calls in the wrong state. */
static void out_of_turn(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_id *id, *other;
	struct sockaddr_in foreign = { .sin_family = AF_INET, .sin_addr.s_addr = inet_addr("192.0.2.1") };
	int port;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	FAILS(rdma_resolve_route(id, 1000), EINVAL);
	FAILS(rdma_connect(id, &param), EINVAL);
	FAILS(rdma_accept(id, &param), EINVAL);
	FAILS(rdma_reject(id, NULL, 0), EINVAL);
	FAILS(rdma_disconnect(id), EINVAL);
	FAILS(rdma_establish(id), EINVAL);
	FAILS(rdma_bind_addr(id, (struct sockaddr *)&foreign), EADDRNOTAVAIL);
	FAILS(rdma_bind_addr(id, NULL), EINVAL);
	CHECK(rdma_bind_addr(id, loopback(0)) == 0);
	CHECK(id->verbs != NULL);
	FAILS(rdma_bind_addr(id, loopback(0)), EINVAL);
	port = port_of(id);
	CHECK(rdma_create_id(channel, &other, NULL, RDMA_PS_TCP) == 0);
	FAILS(rdma_bind_addr(other, loopback(port)), EADDRINUSE);
	CHECK(rdma_listen(id, 1) == 0);
	FAILS(rdma_listen(id, 1), EINVAL);
	FAILS(rdma_bind_addr(other, loopback(port)), EADDRINUSE);
	CHECK(rdma_destroy_id(id) == 0);
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	FAILS(rdma_join_multicast(id, loopback(0), NULL), EOPNOTSUPP);
	FAILS(rdma_create_id(channel, &other, NULL, 77), EINVAL);
}

/* A queue pair that one id created is connected by another, which gets its events. uDAPL does this. */
static void adopts(void)
{
	struct pair pair = { .near = rdma_create_event_channel(), .far = rdma_create_event_channel() };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7 };
	struct ibv_qp_init_attr init = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct rdma_cm_event *event;
	struct rdma_cm_id *maker;
	struct ibv_cq *cq;

	CHECK(rdma_create_id(pair.far, &maker, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(maker, loopback(0)) == 0);
	cq = ibv_create_cq(maker->verbs, 8, NULL, NULL, 0);
	init.send_cq = init.recv_cq = cq;
	CHECK(cq && rdma_create_qp(maker, NULL, &init) == 0);

	pair.listens = create_listener(pair.far, RDMA_PS_TCP);
	pair.client = create_dialler(pair.near, port_of(pair.listens), RDMA_PS_TCP);
	create_qp(pair.client);
	CHECK(rdma_connect(pair.client, &param) == 0);
	event = expect(pair.far, RDMA_CM_EVENT_CONNECT_REQUEST);
	pair.server = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	pair.server->qp = maker->qp;
	maker->qp = NULL;
	CHECK(rdma_destroy_id(maker) == 0);
	CHECK(rdma_accept(pair.server, &param) == 0);
	event = expect(pair.far, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == pair.server);
	CHECK(rdma_ack_cm_event(event) == 0);
	expect_and_ack(pair.near, RDMA_CM_EVENT_ESTABLISHED);
	disconnect(&pair);
	CHECK(ibv_destroy_cq(cq) == 0);
}

/* An id takes its events to another channel. */
static void moves(void)
{
	struct rdma_event_channel *from = rdma_create_event_channel(), *to = rdma_create_event_channel();
	struct pollfd waits = { .fd = from->fd, .events = POLLIN };
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(from, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, loopback(9), 1000) == 0);
	CHECK(poll(&waits, 1, 0) == 1);
	CHECK(rdma_migrate_id(id, to) == 0);
	CHECK(id->channel == to);
	CHECK(poll(&waits, 1, 0) == 0);
	expect_and_ack(to, RDMA_CM_EVENT_ADDR_RESOLVED);
	rdma_destroy_event_channel(from);

	/* It becomes synchronous, and back. */
	CHECK(rdma_migrate_id(id, NULL) == 0);
	CHECK(rdma_resolve_route(id, 1000) == 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(rdma_migrate_id(id, to) == 0);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(to);
}

/* --- Queue pairs that the program connects --- */

/* Creates a queue pair that the id does not know. */
static struct ibv_qp *create_own_qp(struct rdma_cm_id *id, struct ibv_cq **cq)
{
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 }, .qp_type = IBV_QPT_RC
	};

	*cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);
	CHECK(*cq);
	init.send_cq = init.recv_cq = *cq;
	init.sq_sig_all = 1;
	return ibv_create_qp(id->pd, &init);
}

/* Moves a queue pair to a state, with the attributes that the id gives. */
static void modify_own_qp(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	int mask;

	CHECK(rdma_init_qp_attr(id, &attr, &mask) == 0);
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

/* Connects a queue pair of the client by hand. With `managed_server`, the id of the server connects its queue pair;
 * otherwise that is connected by hand, too. */
static void connect_own(int managed_server)
{
	struct rdma_event_channel *near = rdma_create_event_channel(), *far = rdma_create_event_channel();
	struct rdma_cm_id *listens = create_listener(far, RDMA_PS_TCP);
	struct rdma_cm_id *client = create_dialler(near, port_of(listens), RDMA_PS_TCP), *server;
	struct rdma_conn_param param = { .private_data = HELLO,
					 .private_data_len = sizeof HELLO,
					 .responder_resources = 1,
					 .initiator_depth = 1,
					 .rnr_retry_count = 7 };
	struct rdma_cm_event *event;
	struct ibv_cq *near_cq, *far_cq;
	struct ibv_qp *near_qp = create_own_qp(client, &near_cq), *far_qp;
	static char out[] = "by hand", in[sizeof out];
	struct ibv_sge to = { .addr = (uintptr_t)in, .length = sizeof in };
	struct ibv_sge from = { .addr = (uintptr_t)out, .length = sizeof out };
	struct ibv_recv_wr receive = { .sg_list = &to, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE };
	struct ibv_send_wr *bad_send;
	struct ibv_mr *mr;
	struct ibv_wc wc;

	param.qp_num = near_qp->qp_num;
	CHECK(rdma_connect(client, &param) == 0);
	event = expect(far, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->param.conn.qp_num == near_qp->qp_num);
	CHECK(event->param.conn.private_data_len >= sizeof HELLO);
	CHECK(memcmp(event->param.conn.private_data, HELLO, sizeof HELLO) == 0);
	server = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	if (managed_server) {
		create_qp(server);
		far_qp = server->qp;
		far_cq = server->recv_cq;
	} else {
		far_qp = create_own_qp(server, &far_cq);
		modify_own_qp(server, far_qp, IBV_QPS_INIT);
		modify_own_qp(server, far_qp, IBV_QPS_RTR);
		modify_own_qp(server, far_qp, IBV_QPS_RTS);
	}
	mr = ibv_reg_mr(server->pd, in, sizeof in, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	to.lkey = mr->lkey;
	CHECK(ibv_post_recv(far_qp, &receive, &bad_receive) == 0);
	param.qp_num = far_qp->qp_num;
	CHECK(rdma_accept(server, &param) == 0);
	event = expect(near, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(event->param.conn.qp_num == far_qp->qp_num);
	CHECK(rdma_ack_cm_event(event) == 0);
	modify_own_qp(client, near_qp, IBV_QPS_INIT);
	modify_own_qp(client, near_qp, IBV_QPS_RTR);
	modify_own_qp(client, near_qp, IBV_QPS_RTS);
	CHECK(rdma_establish(client) == 0);
	FAILS(rdma_establish(client), EINVAL);
	expect_and_ack(far, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(ibv_post_send(near_qp, &send, &bad_send) == 0);
	while (ibv_poll_cq(near_cq, 1, &wc) == 0)
		;
	CHECK(wc.status == IBV_WC_SUCCESS);
	while (ibv_poll_cq(far_cq, 1, &wc) == 0)
		;
	CHECK(wc.status == IBV_WC_SUCCESS && strcmp(in, out) == 0);
	CHECK(rdma_disconnect(client) == 0);
	expect_and_ack(far, RDMA_CM_EVENT_DISCONNECTED);
	expect_and_ack(near, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(ibv_destroy_qp(near_qp) == 0);
	if (!managed_server)
		CHECK(ibv_destroy_qp(far_qp) == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
	destroy(client);
	destroy(server);
	destroy(listens);
}

static void own_queue_pairs(void)
{
	connect_own(0);
	connect_own(1);
}

/* --- Datagrams --- */

static void datagrams(void)
{
	struct rdma_event_channel *near = rdma_create_event_channel(), *far = rdma_create_event_channel();
	struct rdma_cm_id *listens = create_listener(far, RDMA_PS_UDP);
	struct rdma_cm_id *client = create_dialler(near, port_of(listens), RDMA_PS_UDP), *server;
	struct rdma_conn_param param = { .private_data = HELLO, .private_data_len = sizeof HELLO };
	struct rdma_cm_event *event;
	static char in[64], out[] = "a datagram";
	struct ibv_mr *to, *from;
	struct ibv_ah *ah;
	struct ibv_wc wc;

	create_qp(client);
	CHECK(rdma_connect(client, &param) == 0);
	event = expect(far, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->param.ud.private_data_len >= sizeof HELLO);
	CHECK(memcmp(event->param.ud.private_data, HELLO, sizeof HELLO) == 0);
	server = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	create_qp(server);
	to = rdma_reg_msgs(server, in, sizeof in);
	from = rdma_reg_msgs(client, out, sizeof out);
	CHECK(rdma_post_recv(server, NULL, in, sizeof in, to) == 0);
	param.private_data = WELCOME;
	param.private_data_len = sizeof WELCOME;
	CHECK(rdma_accept(server, &param) == 0);
	event = expect(near, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->param.ud.qp_num == server->qp->qp_num && event->param.ud.qkey == RDMA_UDP_QKEY);
	CHECK(memcmp(event->param.ud.private_data, WELCOME, sizeof WELCOME) == 0);
	ah = ibv_create_ah(client->pd, &event->param.ud.ah_attr);
	CHECK(ah);
	CHECK(rdma_post_ud_send(client, NULL, out, sizeof out, from, 0, ah, event->param.ud.qp_num) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_get_send_comp(client, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(server, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(wc.byte_len == 40 + sizeof out && strcmp(in + 40, out) == 0);
	CHECK(ibv_destroy_ah(ah) == 0 && rdma_dereg_mr(to) == 0 && rdma_dereg_mr(from) == 0);
	destroy(client);
	destroy(server);

	/* Rejected. */
	client = create_dialler(near, port_of(listens), RDMA_PS_UDP);
	create_qp(client);
	CHECK(rdma_connect(client, &param) == 0);
	event = expect(far, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(rdma_reject(event->id, NULL, 0) == 0);
	CHECK(rdma_destroy_id(event->id) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	event = expect(near, RDMA_CM_EVENT_UNREACHABLE);
	CHECK(event->status == 2);
	CHECK(rdma_ack_cm_event(event) == 0);
	destroy(client);
	destroy(listens);
}

/* --- Addresses --- */

static void addresses(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *info;
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(7), .sin_addr.s_addr = inet_addr("127.0.0.2") };

	CHECK(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &info) == 0);
	CHECK(info->ai_qp_type == IBV_QPT_RC && info->ai_port_space == RDMA_PS_TCP && info->ai_family == AF_INET);
	CHECK(((struct sockaddr_in *)info->ai_dst_addr)->sin_port == htons(7471));
	CHECK(((struct sockaddr_in *)info->ai_src_addr)->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	rdma_freeaddrinfo(info);

	hints.ai_flags = RAI_PASSIVE;
	CHECK(rdma_getaddrinfo(NULL, "7471", &hints, &info) == 0);
	CHECK(info->ai_src_addr && !info->ai_dst_addr);
	rdma_freeaddrinfo(info);

	hints.ai_flags = RAI_NUMERICHOST | RAI_FAMILY;
	hints.ai_family = AF_INET6;
	CHECK(rdma_getaddrinfo("::1", "7471", &hints, &info) == 0);
	CHECK(info->ai_family == AF_INET6);
	rdma_freeaddrinfo(info);
	CHECK(rdma_getaddrinfo("no.number", "7471", &hints, &info) != 0);

	/* Without a name, the addresses of the hints. */
	hints = (struct rdma_addrinfo){ .ai_port_space = RDMA_PS_UDP, .ai_flags = RAI_NOROUTE };
	hints.ai_dst_addr = (struct sockaddr *)&address;
	hints.ai_dst_len = sizeof address;
	CHECK(rdma_getaddrinfo(NULL, NULL, &hints, &info) == 0);
	CHECK(info->ai_qp_type == IBV_QPT_UD && !info->ai_src_addr);
	CHECK(info->ai_dst_len == sizeof address && memcmp(info->ai_dst_addr, &address, sizeof address) == 0);
	CHECK(info->ai_dst_addr != (struct sockaddr *)&address);
	rdma_freeaddrinfo(info);
	FAILS(rdma_getaddrinfo(NULL, NULL, NULL, &info), EINVAL);
}

/* --- Options --- */

static void options(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in6 any6 = { .sin6_family = AF_INET6 };
	struct sockaddr_in any4 = { .sin_family = AF_INET };
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct rdma_cm_id *six, *four;
	struct pair pair;
	uint8_t timeout = 21;
	int yes = 1;

	/* Both IP versions have the port: the address of one does not include the other. */
	CHECK(rdma_create_id(channel, &six, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_create_id(channel, &four, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_set_option(six, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, sizeof yes) == 0);
	CHECK(rdma_bind_addr(six, (struct sockaddr *)&any6) == 0);
	CHECK(six->verbs == NULL);
	any4.sin_port = rdma_get_src_port(six);
	CHECK(rdma_bind_addr(four, (struct sockaddr *)&any4) == 0);
	CHECK(rdma_listen(six, 1) == 0 && rdma_listen(four, 1) == 0);
	destroy(four);
	destroy(six);

	/* Or it includes it. */
	CHECK(rdma_create_id(channel, &six, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_create_id(channel, &four, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(six, (struct sockaddr *)&any6) == 0);
	any4.sin_port = rdma_get_src_port(six);
	FAILS(rdma_bind_addr(four, (struct sockaddr *)&any4), EADDRNOTAVAIL);
	FAILS(rdma_set_option(four, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, 1), EINVAL);
	FAILS(rdma_set_option(four, RDMA_OPTION_ID, 77, &yes, sizeof yes), ENOSYS);
	FAILS(rdma_set_option(NULL, RDMA_OPTION_ID, 0, &timeout, 1), EINVAL);
	destroy(four);
	destroy(six);

	pair = connect_pair();
	CHECK(rdma_set_option(pair.server, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1) == 0);
	CHECK(ibv_query_qp(pair.server->qp, &attr, IBV_QP_TIMEOUT, &init) == 0);
	CHECK(attr.timeout != 21); /* it applies to later connections */
	disconnect(&pair);
}

static long milliseconds(void)
{
	struct timespec now;

	CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The end of a connection is withheld from a program that has not polled all completions: it might close the
 * connection and never poll them. */
static void end_after_all_else(void)
{
	struct pair pair = connect_pair();
	char out[32] = "a message", in[32] = "";
	struct ibv_mr *from = rdma_reg_msgs(pair.client, out, sizeof out);
	struct ibv_mr *to = rdma_reg_msgs(pair.server, in, sizeof in);
	struct pollfd told = { .fd = pair.far->fd, .events = POLLIN };
	struct ibv_wc wc;
	long start;

	CHECK(from && to);
	CHECK(rdma_post_recv(pair.server, NULL, in, sizeof in, to) == 0);
	CHECK(rdma_post_send(pair.client, NULL, out, sizeof out, from, 0) == 0);
	CHECK(rdma_get_send_comp(pair.client, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	start = milliseconds();
	CHECK(rdma_disconnect(pair.client) == 0);
	expect_and_ack(pair.near, RDMA_CM_EVENT_DISCONNECTED);
	/* It is not withheld forever: on a busy machine that time may be over. */
	CHECK(poll(&told, 1, 0) == 0 || milliseconds() - start >= 50);
	CHECK(rdma_get_recv_comp(pair.server, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	expect_and_ack(pair.far, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(rdma_dereg_mr(from) == 0 && rdma_dereg_mr(to) == 0);
	destroy(pair.client);
	destroy(pair.server);
	destroy(pair.listens);
}

/* As qperf ends: one end disconnects while the other has posted no receive for a message, and waits for the event. */
static void unreceived(void)
{
	struct pair pair = connect_pair();
	char out[32] = "a message";
	struct ibv_mr *from = rdma_reg_msgs(pair.client, out, sizeof out);
	struct ibv_wc wc;

	CHECK(from);
	CHECK(rdma_post_send(pair.client, NULL, out, sizeof out, from, 0) == 0);
	CHECK(rdma_disconnect(pair.client) == 0);
	expect_and_ack(pair.far, RDMA_CM_EVENT_DISCONNECTED);
	expect_and_ack(pair.near, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(rdma_get_send_comp(pair.client, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(rdma_dereg_mr(from) == 0);
	destroy(pair.client);
	destroy(pair.server);
	destroy(pair.listens);
}

static const struct test TESTS[] = {
	{ "unreceived", unreceived },
	{ "end_after_all_else", end_after_all_else },
	{ "connects", connects },
	{ "flushes", flushes },
	{ "rejects", rejects },
	{ "refused", refused },
	{ "abandons", abandons },
	{ "waits_for_acknowledgement", waits_for_acknowledgement },
	{ "queue_waits_for_acknowledgement", queue_waits_for_acknowledgement },
	{ "in_order", in_order },
	{ "id_first", id_first },
	{ "out_of_turn", out_of_turn },
	{ "moves", moves },
	{ "adopts", adopts },
	{ "own_queue_pairs", own_queue_pairs },
	{ "datagrams", datagrams },
	{ "addresses", addresses },
	{ "options", options },
};

RUN(TESTS)
