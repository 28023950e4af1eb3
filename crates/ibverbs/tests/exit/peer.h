/* Two queue pairs that are connected to those of another process, which is then stopped: it closes nothing and answers
 * nothing, so that closing the connections has to wait. */
#include "../mistakes/ends.h"
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
		create_end(ends[i], 16, IBV_ACCESS_LOCAL_WRITE);
		receive(ends[i], 0, SIZE);
		own.qpn[i] = ends[i]->qp->qp_num;
	}
	CHECK(write(peer, &own, sizeof own) == sizeof own);
	CHECK(read(peer, &theirs, sizeof theirs) == sizeof theirs);
	for (int i = 0; i < 2; i++) {
		CHECK(!connect_end(ends[i], theirs.gid, theirs.qpn[i], 0));
		CHECK(!post(ends[i], IBV_WR_SEND, 1, ends[i]->mr, 1, 0, 0));
		wait_for(ends[i]);
		wait_for(ends[i]);
	}
}

/* Must be called before any function of the library. The peer ends with this process. */
static void connect_to_stopped_peer(void)
{
	int sockets[2];
	char ready = 1;
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	pid_t peer = fork();
	CHECK(peer >= 0);
	if (peer == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		connect_to(sockets[1]);
		CHECK(write(sockets[1], &ready, 1) == 1);
		for (;;)
			pause();
	}
	connect_to(sockets[0]);
	CHECK(read(sockets[0], &ready, 1) == 1);
	CHECK(!kill(peer, SIGSTOP));
	CHECK(waitpid(peer, NULL, WUNTRACED) == peer); /* all of its threads have stopped */
}
