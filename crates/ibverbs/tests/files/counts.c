/* Writes from one of its queue pairs to the other, and checks the counters of the port before, after, and when both
 * are destroyed. */
#include "../mistakes/ends.h"
#include <fcntl.h>
#include <unistd.h>

#define WRITES 100

static unsigned long count(const char *counter)
{
	char path[256], text[64] = "";
	snprintf(path, sizeof path, "/sys/class/infiniband/ironwarp0/ports/1/%s", counter);
	int fd = open(path, O_RDONLY);
	CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0 && close(fd) == 0);
	return strtoul(text, NULL, 10);
}

int main(void)
{
	const unsigned long words = WRITES * SIZE / 4;
	CHECK(count("counters/port_xmit_data") == 0 && count("counters/port_rcv_packets") == 0);
	connect_both(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	for (int number = 0; number < WRITES; number++) {
		CHECK(!post(&a, IBV_WR_RDMA_WRITE, number, a.mr, SIZE, (uintptr_t)b.memory, b.mr->rkey));
		wait_for(&a);
	}
	/* Both ends are in this process: what one has sent, the other has received. Headers are counted as well. */
	unsigned long sent = count("counters/port_xmit_data"), received = count("counters/port_rcv_data");
	CHECK(sent >= words && sent < words + words / 10);
	CHECK(received >= words && received < words + words / 10);
	CHECK(count("counters/port_xmit_packets") >= WRITES && count("hw_counters/tcpInSegs") >= WRITES);
	CHECK(count("counters/symbol_error") == 0);
	CHECK(!ibv_destroy_qp(a.qp) && !ibv_destroy_qp(b.qp));
	CHECK(count("counters/port_xmit_data") >= sent && count("counters/port_rcv_data") >= received);
	return 0;
}
