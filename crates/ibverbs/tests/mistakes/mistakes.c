/* Ten typical mistakes, one for each run. docs/errors.md has their results. */
#include "ends.h"
#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#define REMOTE (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

static void wrong_rkey(void)
{
	connect_both(REMOTE);
	CHECK(!post(&a, IBV_WR_RDMA_WRITE, 1, a.mr, 64, (uintptr_t)b.memory, b.mr->rkey + 0x5000));
	wait_for(&a);
}

static void out_of_range(void)
{
	connect_both(REMOTE);
	CHECK(!post(&a, IBV_WR_RDMA_WRITE, 1, a.mr, 64, (uintptr_t)b.memory + SIZE - 16, b.mr->rkey));
	wait_for(&a);
}

static void no_remote_write(void)
{
	connect_both(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(!post(&a, IBV_WR_RDMA_WRITE, 1, a.mr, 64, (uintptr_t)b.memory, b.mr->rkey));
	wait_for(&a);
}

static void receive_too_short(void)
{
	connect_both(REMOTE);
	receive(&b, 7, 16);
	CHECK(!post(&a, IBV_WR_SEND, 1, a.mr, 64, 0, 0));
	wait_for(&b);
	wait_for(&a);
}

/* The peer is killed while it is connected. */
static void peer_gone(void)
{
	int sockets[2];
	char byte = 0;
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	pid_t child = fork();
	CHECK(child >= 0);
	uint32_t qpn;
	struct end *end = child ? &a : &b;
	open_device();
	create_end(end, 16, REMOTE);
	CHECK(write(sockets[!child], &end->qp->qp_num, 4) == 4);
	CHECK(read(sockets[!child], &qpn, 4) == 4);
	CHECK(!connect_end(end, own_gid(), qpn, 0));
	if (!child) {
		receive(&b, 7, 64);
		wait_for(&b);
		CHECK(write(sockets[1], &byte, 1) == 1);
		for (;;)
			pause();
	}
	CHECK(!post(&a, IBV_WR_SEND, 1, a.mr, 64, 0, 0));
	wait_for(&a);
	CHECK(read(sockets[0], &byte, 1) == 1);
	CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
	struct ibv_wc none;
	CHECK(ibv_poll_cq(a.cq, 1, &none) == 0);
	CHECK(!post(&a, IBV_WR_SEND, 2, a.mr, 64, 0, 0));
	wait_for(&a);
}

/* A port that is reserved, so that no other program has it, and where nothing listens. */
static void connection_refused(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof to;
	int closed = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(!bind(closed, (struct sockaddr *)&to, length));
	CHECK(!getsockname(closed, (struct sockaddr *)&to, &length));
	struct rdma_cm_id *id;
	struct rdma_conn_param param = { .retry_count = 7 };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000));
	CHECK(!rdma_resolve_route(id, 1000));
	CHECK(!rdma_create_qp(id, NULL, &init));
	CHECK(rdma_connect(id, &param));
	printf("rdma_connect: %s\n", strerror(errno));
}

static void wrong_gid(void)
{
	union ibv_gid nobody = own_gid();
	inet_pton(AF_INET, "203.0.113.1", nobody.raw + 12);
	CHECK(!connect_end(&a, nobody, b.qp->qp_num, 0));
	CHECK(!post(&a, IBV_WR_SEND, 1, a.mr, 64, 0, 0));
	wait_for(&a);
}

static void wrong_gid_index(void)
{
	printf("ibv_modify_qp: %s\n", strerror(connect_end(&b, own_gid(), a.qp->qp_num, 77)));
}

/* Room for two completions, and three requests. */
static void cq_full(void)
{
	struct ibv_async_event event;
	open_device();
	create_end(&a, 2, IBV_ACCESS_LOCAL_WRITE);
	create_end(&b, 16, REMOTE);
	CHECK(!connect_end(&a, own_gid(), b.qp->qp_num, 0));
	CHECK(!connect_end(&b, own_gid(), a.qp->qp_num, 0));
	receive(&b, 7, 64);
	for (int i = 0; i < 3; i++)
		CHECK(!post(&a, IBV_WR_RDMA_WRITE, i, a.mr, 64, (uintptr_t)b.memory, b.mr->rkey));
	do {
		CHECK(!ibv_get_async_event(context, &event));
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_CQ_ERR);
	printf("%s\n", ibv_event_type_str(event.event_type));
	fflush(stdout);
	wait_for(&b);
}

/* The memory is registered, but not in the domain of the queue pair. */
static void pd_mismatch(void)
{
	connect_both(REMOTE);
	receive(&b, 7, 64);
	CHECK(!post(&a, IBV_WR_SEND, 1, b.mr, 64, 0, 0));
	wait_for(&a);
	wait_for(&b);
}

static void dereg_in_flight(void)
{
	connect_both(REMOTE);
	receive(&b, 7, 64);
	CHECK(!ibv_dereg_mr(b.mr));
	CHECK(!post(&a, IBV_WR_SEND, 1, a.mr, 64, 0, 0));
	wait_for(&b);
	wait_for(&a);
}

static void both_wrong_gids(void)
{
	open_device();
	create_end(&a, 16, REMOTE);
	create_end(&b, 16, REMOTE);
	wrong_gid();
	wrong_gid_index();
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void (*make)(void);
	} mistakes[] = {
		{ "wrong rkey", wrong_rkey },
		{ "remote access out of range", out_of_range },
		{ "no remote write right", no_remote_write },
		{ "receive too short", receive_too_short },
		{ "peer gone", peer_gone },
		{ "connection refused", connection_refused },
		{ "wrong GID", both_wrong_gids },
		{ "completion queue full", cq_full },
		{ "memory of another protection domain", pd_mismatch },
		{ "memory deregistered while in use", dereg_in_flight },
	};
	for (unsigned i = 0; count == 2 && i < sizeof mistakes / sizeof *mistakes; i++) {
		if (!strcmp(arguments[1], mistakes[i].name)) {
			mistakes[i].make();
			return 0;
		}
	}
	return 2;
}
