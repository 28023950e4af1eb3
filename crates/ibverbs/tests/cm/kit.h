/* Helpers of the test programs for librdmacm: checks, threads whose system call can be observed, and a connection
 * between two ids of this process. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                                              \
	do {                                                                                                          \
		if (!(condition)) {                                                                                   \
			fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #condition, errno,          \
				strerror(errno));                                                                     \
			exit(1);                                                                                      \
		}                                                                                                     \
	} while (0)

/* Checks that a call returns -1 with this errno. */
#define FAILS(call, expected)                                                                                         \
	do {                                                                                                          \
		errno = 0;                                                                                            \
		CHECK((call) == -1);                                                                                  \
		CHECK(errno == (expected));                                                                           \
	} while (0)

/* --- Threads --- */

struct thread {
	pthread_t id;
	volatile pid_t tid; /* its number in /proc, or 0 until it runs */
	void *(*run)(void *);
	void *arg;
};

static void *begin_thread(void *arg)
{
	struct thread *thread = arg;

	thread->tid = syscall(SYS_gettid);
	return thread->run(thread->arg);
}

static inline void start(struct thread *thread, void *(*run)(void *), void *arg)
{
	thread->tid = 0;
	thread->run = run;
	thread->arg = arg;
	CHECK(pthread_create(&thread->id, NULL, begin_thread, thread) == 0);
}

/* Waits until the thread sleeps in this system call. */
static inline void wait_until_in(struct thread *thread, long number)
{
	for (;;) {
		char path[64], text[128] = "";
		long now = -2;
		FILE *file;

		if (thread->tid) {
			snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread->tid);
			file = fopen(path, "r");
			if (file) {
				if (fgets(text, sizeof text, file) && text[0] != 'r')
					now = atol(text);
				fclose(file);
			}
		}
		if (now == number)
			return;
		sched_yield();
	}
}

static inline void *join(struct thread *thread)
{
	void *result;

	CHECK(pthread_join(thread->id, &result) == 0);
	return result;
}

/* --- Events --- */

/* Takes the next event, which must be of this type. The caller acknowledges it. */
static inline struct rdma_cm_event *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	CHECK(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != type) {
		fprintf(stderr, "%s, status %d, instead of %s\n", rdma_event_str(event->event), event->status,
			rdma_event_str(type));
		exit(1);
	}
	return event;
}

/* Takes and acknowledges the next event, which must be of this type. */
static inline void expect_and_ack(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	CHECK(rdma_ack_cm_event(expect(channel, type)) == 0);
}

/* --- Addresses --- */

/* Returns 127.0.0.1 with this port, valid until the next call of the same thread. */
static inline struct sockaddr *loopback(int port)
{
	static __thread struct sockaddr_in address;

	address.sin_family = AF_INET;
	address.sin_port = htons(port);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return (struct sockaddr *)&address;
}

static inline int port_of(struct rdma_cm_id *id)
{
	return ntohs(rdma_get_src_port(id));
}

/* --- Connections --- */

/* Creates an id that listens on any port. */
static inline struct rdma_cm_id *create_listener(struct rdma_event_channel *channel, enum rdma_port_space space)
{
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, NULL, space) == 0);
	CHECK(rdma_bind_addr(id, loopback(0)) == 0);
	CHECK(rdma_listen(id, 8) == 0);
	CHECK(port_of(id) != 0);
	return id;
}

/* Creates an id that has resolved the route to a local port, and is ready to connect. */
static inline struct rdma_cm_id *create_dialler(struct rdma_event_channel *channel, int port, enum rdma_port_space space)
{
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, NULL, space) == 0);
	CHECK(rdma_resolve_addr(id, NULL, loopback(port), 1000) == 0);
	expect_and_ack(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_resolve_route(id, 1000) == 0);
	expect_and_ack(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

/* Creates the queue pair of an id, with completion queues of the library. */
static inline void create_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = id->qp_type,
		.sq_sig_all = 1,
	};

	CHECK(rdma_create_qp(id, NULL, &attr) == 0);
	CHECK(id->qp && id->send_cq && id->recv_cq && id->pd);
}

/* Two connected ids: the events of the client arrive on `near`, those of the listener and the server on `far`. */
struct pair {
	struct rdma_event_channel *near, *far;
	struct rdma_cm_id *listens, *client, *server;
};

static const char HELLO[] = "hello", WELCOME[] = "welcome";

/* Connects a new client to a listener, whose events arrive on `far`. */
static inline struct pair connect_to_listener(struct rdma_event_channel *far, struct rdma_cm_id *listens)
{
	struct pair pair = { .near = rdma_create_event_channel(), .far = far, .listens = listens };
	struct rdma_conn_param param = { .private_data = HELLO,
					 .private_data_len = sizeof HELLO,
					 .responder_resources = 1,
					 .initiator_depth = 1,
					 .retry_count = 7,
					 .rnr_retry_count = 7 };
	struct rdma_cm_event *event;

	CHECK(pair.near && pair.far);
	pair.client = create_dialler(pair.near, port_of(pair.listens), RDMA_PS_TCP);
	create_qp(pair.client);
	CHECK(rdma_connect(pair.client, &param) == 0);

	event = expect(pair.far, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->listen_id == pair.listens && event->id != pair.listens);
	CHECK(event->param.conn.private_data_len >= sizeof HELLO);
	CHECK(memcmp(event->param.conn.private_data, HELLO, sizeof HELLO) == 0);
	CHECK(event->param.conn.responder_resources == 1 && event->param.conn.initiator_depth == 1);
	pair.server = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	create_qp(pair.server);
	param.private_data = WELCOME;
	param.private_data_len = sizeof WELCOME;
	CHECK(rdma_accept(pair.server, &param) == 0);

	expect_and_ack(pair.far, RDMA_CM_EVENT_ESTABLISHED);
	event = expect(pair.near, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(memcmp(event->param.conn.private_data, WELCOME, sizeof WELCOME) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_get_src_port(pair.client) == rdma_get_dst_port(pair.server));
	CHECK(rdma_get_dst_port(pair.client) == rdma_get_src_port(pair.server));
	return pair;
}

/* Connects a new client to a new listener. */
static inline struct pair connect_pair(void)
{
	struct rdma_event_channel *far = rdma_create_event_channel();

	CHECK(far);
	return connect_to_listener(far, create_listener(far, RDMA_PS_TCP));
}

/* Destroys an id and its queue pair. */
static inline void destroy(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

/* Disconnects both ids, and destroys everything of the pair. */
static inline void disconnect(struct pair *pair)
{
	CHECK(rdma_disconnect(pair->client) == 0);
	expect_and_ack(pair->far, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(rdma_disconnect(pair->server) == 0);
	expect_and_ack(pair->near, RDMA_CM_EVENT_DISCONNECTED);
	destroy(pair->client);
	destroy(pair->server);
	destroy(pair->listens);
	rdma_destroy_event_channel(pair->near);
	rdma_destroy_event_channel(pair->far);
}

/* Sends one message from the client to the server, and verifies it. */
static inline void exchange(struct pair *pair)
{
	char out[32] = "a message", in[32] = "";
	struct ibv_mr *from = rdma_reg_msgs(pair->client, out, sizeof out);
	struct ibv_mr *to = rdma_reg_msgs(pair->server, in, sizeof in);
	struct ibv_wc wc;

	CHECK(from && to);
	CHECK(rdma_post_recv(pair->server, NULL, in, sizeof in, to) == 0);
	CHECK(rdma_post_send(pair->client, NULL, out, sizeof out, from, 0) == 0);
	CHECK(rdma_get_send_comp(pair->client, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(pair->server, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(strcmp(in, out) == 0);
	CHECK(rdma_dereg_mr(from) == 0 && rdma_dereg_mr(to) == 0);
}

/* --- Cases --- */

struct test {
	const char *name;
	void (*run)(void);
};

/* Defines a main function that runs the case on the command line. */
#define RUN(tests)                                                                                                    \
	int main(int argc, char **argv)                                                                               \
	{                                                                                                             \
		for (size_t i = 0; i < sizeof(tests) / sizeof *(tests); i++)                                          \
			if (argc > 1 && strcmp(argv[1], (tests)[i].name) == 0) {                                      \
				(tests)[i].run();                                                                     \
				puts("done");                                                                         \
				return 0;                                                                             \
			}                                                                                             \
		fprintf(stderr, "no such case\n");                                                                    \
		return 2;                                                                                             \
	}
