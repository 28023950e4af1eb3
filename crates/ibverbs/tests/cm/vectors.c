/* Completion vectors: each is a lane of the adapter, which serves the queue pairs of the completion queues that use
 * it. */
#include "kit.h"
#include <dirent.h>
#include <sys/resource.h>

#define ROUNDS 300

/* Returns how often the threads of a lane have slept and been woken. */
static long count_wakeups(int lane)
{
	char name[32], path[300], line[128];
	struct dirent *entry;
	DIR *tasks = opendir("/proc/self/task");
	long sum = 0;

	CHECK(tasks);
	snprintf(name, sizeof name, "Name:\tironwarp-%d\n", lane);
	while ((entry = readdir(tasks))) {
		FILE *file;
		long count;

		snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
		file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
		if (!file)
			continue;
		if (fgets(line, sizeof line, file) && strcmp(line, name) == 0)
			while (fgets(line, sizeof line, file))
				if (sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1)
					sum += count;
		fclose(file);
	}
	closedir(tasks);
	return sum;
}

/* Creates the queue pair of an id, and its completion queue on a completion vector. Returns the completion queue. */
static struct ibv_cq *create_qp_on(struct rdma_cm_id *id, struct ibv_comp_channel *channel, int vector)
{
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 16, NULL, channel, vector);
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.send_cq = cq,
		.recv_cq = cq,
		.sq_sig_all = 1,
	};

	CHECK(cq);
	CHECK(rdma_create_qp(id, NULL, &attr) == 0);
	return cq;
}

/* Waits for the event of a completion queue, takes its completion, and arms the queue again. Waits with poll: a thread
 * that blocks in ibv_get_cq_event serves its queue pairs itself. */
static void take_completion(struct ibv_cq *cq, struct ibv_comp_channel *channel)
{
	struct ibv_wc wc;
	struct ibv_cq *which;
	void *context;
	struct pollfd poll_fd = { .fd = channel->fd, .events = POLLIN };

	CHECK(poll(&poll_fd, 1, -1) == 1);
	CHECK(ibv_get_cq_event(channel, &which, &context) == 0 && which == cq);
	ibv_ack_cq_events(cq, 1);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
}

/* Only the lane of its vector serves a program that waits for the descriptor of its channel. */
static void check_vector(int vector)
{
	struct rdma_event_channel *near = rdma_create_event_channel(), *far = rdma_create_event_channel();
	struct rdma_cm_id *listens = create_listener(far, RDMA_PS_TCP), *server;
	struct rdma_cm_id *client = create_dialler(near, port_of(listens), RDMA_PS_TCP);
	struct ibv_comp_channel *channels[2] = { ibv_create_comp_channel(client->verbs),
						 ibv_create_comp_channel(client->verbs) };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .rnr_retry_count = 7 };
	char out[32] = "a message", in[32] = "";
	int vectors = client->verbs->num_comp_vectors;
	struct ibv_cq *sends, *receives;
	struct ibv_mr *from, *to;
	struct rdma_cm_event *event;
	long before[2], served, other;

	CHECK(channels[0] && channels[1] && vectors == 2);
	errno = 0;
	CHECK(!ibv_create_cq(client->verbs, 16, NULL, NULL, vectors) && errno == EINVAL);

	sends = create_qp_on(client, channels[0], vector);
	CHECK(rdma_connect(client, &param) == 0);
	event = expect(far, RDMA_CM_EVENT_CONNECT_REQUEST);
	server = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	receives = create_qp_on(server, channels[1], vector);
	/* After a queue with another vector, vector 0 means lane 0. */
	CHECK(ibv_create_cq(client->verbs, 16, NULL, NULL, 1));
	CHECK(rdma_accept(server, &param) == 0);
	expect_and_ack(far, RDMA_CM_EVENT_ESTABLISHED);
	expect_and_ack(near, RDMA_CM_EVENT_ESTABLISHED);

	from = rdma_reg_msgs(client, out, sizeof out);
	to = rdma_reg_msgs(server, in, sizeof in);
	CHECK(ibv_req_notify_cq(sends, 0) == 0 && ibv_req_notify_cq(receives, 0) == 0);
	before[0] = count_wakeups(0);
	before[1] = count_wakeups(1);
	for (int i = 0; i < ROUNDS; i++) {
		memset(in, 0, sizeof in);
		CHECK(rdma_post_recv(server, NULL, in, sizeof in, to) == 0);
		CHECK(rdma_post_send(client, NULL, out, sizeof out, from, 0) == 0);
		take_completion(receives, channels[1]);
		CHECK(strcmp(in, out) == 0);
		take_completion(sends, channels[0]);
	}
	served = count_wakeups(vector) - before[vector];
	other = count_wakeups(!vector) - before[!vector];
	fprintf(stderr, "%ld wakeups of lane %d, %ld of the other\n", served, vector, other);
	CHECK(served >= ROUNDS / 2 && other < ROUNDS / 10);
}

static void last(void)
{
	check_vector(1);
}

static void first(void)
{
	check_vector(0);
}

/* The handlers of a C program are its completion channels, as many as the adapter has completion handlers. Completion
 * vectors are another number: they select lanes. */
static void channels(void)
{
	enum { HANDLERS = 1024, FDS = 8 * HANDLERS };
	static struct ibv_comp_channel *channels[HANDLERS];
	struct rlimit limit;
	struct rdma_event_channel *near = rdma_create_event_channel();
	struct rdma_cm_id *id = create_dialler(near, 1, RDMA_PS_TCP);
	struct ibv_context *verbs = id->verbs;

	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	if (limit.rlim_cur < FDS) {
		limit.rlim_cur = FDS;
		CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	}
	for (int i = 0; i < HANDLERS; i++)
		CHECK((channels[i] = ibv_create_comp_channel(verbs)));
	errno = 0;
	CHECK(!ibv_create_comp_channel(verbs) && errno == ENOMEM);
	CHECK(ibv_destroy_comp_channel(channels[7]) == 0);
	CHECK((channels[7] = ibv_create_comp_channel(verbs)));

	CHECK(verbs->num_comp_vectors == 2);
	for (int vector = -1; vector <= verbs->num_comp_vectors; vector++) {
		int exists = vector >= 0 && vector < verbs->num_comp_vectors;
		struct ibv_cq *cq;

		errno = 0;
		cq = ibv_create_cq(verbs, 16, NULL, channels[vector & 1], vector);
		CHECK(exists ? cq != NULL : !cq && errno == EINVAL);
		CHECK(!cq || ibv_destroy_cq(cq) == 0);
	}
	for (int i = 0; i < HANDLERS; i++)
		CHECK(ibv_destroy_comp_channel(channels[i]) == 0);
}

static const struct test TESTS[] = { { "last", last }, { "first", first }, { "channels", channels } };

RUN(TESTS)
