/* One thread exits while another destroys the queue pairs whose connections exit() is closing. The peer is a process that was
 * stopped, so that it does not close its ends and exit() has to wait. */
#include "../mistakes/ends.h"
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct address {
	union ibv_gid gid;
	uint32_t qpn[2];
};

static struct end *const ends[] = { &a, &b };

/* Connects both queue pairs of this process to those of the other one, and passes a message in each direction. */
static void connect_to(int peer)
{
	open_device();
	struct address own = { .gid = own_gid() }, theirs;
	for (int i = 0; i < 2; i++) {
		make(ends[i], 16, IBV_ACCESS_LOCAL_WRITE);
		receive(ends[i], 0, SIZE);
		own.qpn[i] = ends[i]->qp->qp_num;
	}
	CHECK(write(peer, &own, sizeof own) == sizeof own);
	CHECK(read(peer, &theirs, sizeof theirs) == sizeof theirs);
	for (int i = 0; i < 2; i++) {
		CHECK(!lead(ends[i], theirs.gid, theirs.qpn[i], 0));
		CHECK(!post(ends[i], IBV_WR_SEND, 1, ends[i]->mr, 1, 0, 0));
		wait_for(ends[i]);
		wait_for(ends[i]);
	}
}

/* The peer: stays as it is until it is stopped, and ends with the other process. */
static void stay(int peer)
{
	char ready = 1;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	connect_to(peer);
	CHECK(write(peer, &ready, 1) == 1);
	for (;;)
		pause();
}

/* How many TCP connections this process has closed in its own direction only. */
static int half_closed(void)
{
	int found = 0;
	for (int fd = 3; fd < 256; fd++) {
		struct tcp_info info;
		socklen_t len = sizeof info;
		if (!getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len))
			found += info.tcpi_state == TCP_FIN_WAIT1 || info.tcpi_state == TCP_FIN_WAIT2;
	}
	return found;
}

/* Takes freed memory and fills it with zeroes, so that whoever still uses it follows a NULL pointer. */
static void overwrite_freed(void)
{
	for (size_t size = 16; size <= 4096; size += 16)
		for (int i = 0; i < 8; i++)
			memset(malloc(size), 0, size);
}

/* Waits until exit() has closed both connections and waits for the peer. */
static void *destroy_both(void *unused)
{
	while (half_closed() < 2)
		usleep(100);
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_qp(ends[i]->qp));
	overwrite_freed();
	CHECK(write(STDOUT_FILENO, "destroyed\n", 10) == 10);
	return unused;
}

int main(void)
{
	int sockets[2];
	char ready;
	pthread_t thread;
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	pid_t peer = fork();
	CHECK(peer >= 0);
	if (peer == 0)
		stay(sockets[1]);
	connect_to(sockets[0]);
	CHECK(read(sockets[0], &ready, 1) == 1);
	CHECK(!kill(peer, SIGSTOP));
	CHECK(waitpid(peer, NULL, WUNTRACED) == peer); /* all of its threads have stopped */
	CHECK(!pthread_create(&thread, NULL, destroy_both, NULL));
	return 0;
}
