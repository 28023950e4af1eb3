/* One thread exits while another destroys the queue pairs whose connections exit() is closing. */
#include "peer.h"
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>

/* Number of TCP connections that this process has closed in its own direction only. */
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

/* Allocates freed memory and fills it with zeros, so that a use after free follows a NULL pointer. */
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
	pthread_t thread;
	connect_to_stopped_peer();
	CHECK(!pthread_create(&thread, NULL, destroy_both, NULL));
	return 0;
}
