/* Connects two queue pairs of two contexts without a connection manager, then forks, and checks what each process
 * can use. A check that fails ends the program and prints its line. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                                     \
	do {                                                                                                            \
		if (!(what)) {                                                                                          \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno);                    \
			_exit(1);                                                                                       \
		}                                                                                                       \
	} while (0)

struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	char bytes[64];
};

static void open_side(struct side *side)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	CHECK(side->context = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	CHECK(side->pd = ibv_alloc_pd(side->context));
	CHECK(side->mr = ibv_reg_mr(side->pd, side->bytes, sizeof side->bytes, IBV_ACCESS_LOCAL_WRITE));
	CHECK(side->channel = ibv_create_comp_channel(side->context));
	CHECK(side->cq = ibv_create_cq(side->context, 16, NULL, side->channel, 0));
	struct ibv_qp_init_attr init = {
		.send_cq = side->cq,
		.recv_cq = side->cq,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	CHECK(side->qp = ibv_create_qp(side->pd, &init));
}

static void connect_side(struct side *side, struct side *peer)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	CHECK(!ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1},
	};
	CHECK(!ibv_query_gid(side->context, 1, 0, &attr.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(side->qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	CHECK(!ibv_modify_qp(side->qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Waits for a completion, and returns it. */
static struct ibv_wc take_completion(struct side *side)
{
	struct ibv_wc wc;
	int got;
	while ((got = ibv_poll_cq(side->cq, 1, &wc)) == 0)
		;
	CHECK(got == 1);
	return wc;
}

/* Sends one message, and checks it at the other end. */
static void exchange(struct side *from, struct side *to, char what)
{
	struct ibv_sge out = {(uintptr_t)from->bytes, sizeof from->bytes, from->mr->lkey};
	struct ibv_sge in = {(uintptr_t)to->bytes, sizeof to->bytes, to->mr->lkey};
	struct ibv_recv_wr receive = {.wr_id = 2, .sg_list = &in, .num_sge = 1}, *bad_receive;
	struct ibv_send_wr send = {.wr_id = 1, .sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
	memset(from->bytes, what, sizeof from->bytes);
	memset(to->bytes, 0, sizeof to->bytes);
	CHECK(!ibv_post_recv(to->qp, &receive, &bad_receive));
	CHECK(!ibv_post_send(from->qp, &send, &bad_send));
	CHECK(take_completion(to).status == IBV_WC_SUCCESS);
	CHECK(take_completion(from).status == IBV_WC_SUCCESS);
	CHECK(to->bytes[0] == what && to->bytes[sizeof to->bytes - 1] == what);
}

static void close_side(struct side *side)
{
	CHECK(!ibv_destroy_qp(side->qp));
	CHECK(!ibv_destroy_cq(side->cq));
	CHECK(!ibv_destroy_comp_channel(side->channel));
	CHECK(!ibv_dereg_mr(side->mr));
	CHECK(!ibv_dealloc_pd(side->pd));
	CHECK(!ibv_close_device(side->context));
}

/* Whether a descriptor is a socket other than those of event channels, which are of the family AF_UNIX. */
static int is_network_socket(int fd)
{
	int domain;
	socklen_t len = sizeof domain;
	return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 && domain != AF_UNIX;
}

static struct side near, far;

/* Returns the number of network sockets and epoll instances of this process, without the descriptors of completion
 * channels: these are epoll instances that belong to the program, and give access to no data. */
static int count_sockets(void)
{
	int found = 0;
	DIR *folder = opendir("/proc/self/fd");
	for (struct dirent *entry; (entry = readdir(folder));) {
		char target[64] = "";
		int fd = atoi(entry->d_name);
		if (fd == near.channel->fd || fd == far.channel->fd)
			continue;
		if (readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1) > 0)
			found += is_network_socket(fd) || !strcmp(target, "anon_inode:[eventpoll]");
	}
	closedir(folder);
	return found;
}

static void wait_for(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Returns the number of open files that contain a payload of this letter. */
static int count_files_with(char what)
{
	int found = 0;
	for (int fd = 0; fd < 1024; fd++) {
		char read[4096], payload[64];
		ssize_t len = pread(fd, read, sizeof read, 0);
		memset(payload, what, sizeof payload);
		found += len > 0 && memmem(read, len, payload, sizeof payload);
	}
	return found;
}

/* The child of a program that drops its privileges must not read what its parent sends and receives. */
static void dropped_privileges(char what)
{
	CHECK(count_files_with(what) > 0); /* the parent has payloads in memfds, so that this checks something */
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(getuid() != 0 || !setuid(65534));
		CHECK(count_files_with(what) == 0);
		_exit(0);
	}
	wait_for(child);
}

/* The child cannot use objects of its parent, and destroying them is harmless. */
static void inherited(void)
{
	struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad_send = NULL;
	struct ibv_recv_wr receive = {.wr_id = 1}, *bad_receive = NULL;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct ibv_device_attr device;
	struct ibv_wc wc;
	CHECK(count_sockets() == 0);
	CHECK(ibv_post_send(near.qp, &send, &bad_send) == EIO && bad_send == &send);
	CHECK(ibv_post_recv(near.qp, &receive, &bad_receive) == EIO && bad_receive == &receive);
	CHECK(ibv_poll_cq(near.cq, 1, &wc) < 0);
	CHECK(ibv_modify_qp(near.qp, &attr, IBV_QP_STATE) == EIO);
	CHECK(!ibv_alloc_pd(near.context) && errno == EIO);
	CHECK(!ibv_query_device(near.context, &device));
	close_side(&near);
	close_side(&far);
}

int main(void)
{
	open_side(&near);
	open_side(&far);
	connect_side(&near, &far);
	connect_side(&far, &near);
	exchange(&near, &far, 'a');
	CHECK(count_sockets() > 0);
	dropped_privileges('a');

	/* Children that do nothing, that query objects, that open adapters of their own; exits of each kind. */
	for (int round = 0; round < 8; round++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			if (round & 1)
				inherited();
			if (round & 2) {
				static struct side one, other;
				open_side(&one);
				open_side(&other);
				connect_side(&one, &other);
				connect_side(&other, &one);
				exchange(&one, &other, 'b');
				if (round & 4) {
					close_side(&one);
					close_side(&other);
				}
			}
			exit(0);
		}
		exchange(&far, &near, 'c');
		wait_for(child);
		exchange(&near, &far, 'd');
	}

	/* A child that lives on does not keep the connection open: the peer notices when the parent closes it. */
	int hold[2];
	CHECK(!pipe(hold));
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		char byte;
		close(hold[1]);
		_exit(read(hold[0], &byte, 1) != 0);
	}
	close(hold[0]);
	close_side(&near);
	struct ibv_sge out = {(uintptr_t)far.bytes, 1, far.mr->lkey};
	struct ibv_send_wr send = {.wr_id = 9, .sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
	CHECK(!ibv_post_send(far.qp, &send, &bad));
	CHECK(take_completion(&far).status != IBV_WC_SUCCESS);
	close_side(&far);
	close(hold[1]);
	wait_for(child);
	puts("forks: all is well");
	return 0;
}
