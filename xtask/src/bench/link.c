// A link between two network namespaces that delays all packets and loses some, for kernels without netem.
//
//   link DEVICE NETWORK NETWORK MICROSECONDS LOST LIMIT
//
// Creates a device of this name in each network. A packet sent into one comes out of the other after MICROSECONDS. LOST packets per
// million are dropped in each direction, and all packets while LIMIT packets are queued. As with netem on a veth pair, a packet
// is what TCP sends at once, up to 64 KiB, without segmentation. Each direction has a thread.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { LARGEST = 66 * 1024 };

struct packet {
	uint64_t due;
	size_t len;
	unsigned char *bytes;
};

struct direction {
	int from, to;
	uint64_t delay, lost, random;
	size_t limit, first, count;
	struct packet *queue;
};

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

// With a virtio header, packets pass without segmentation and without checksums.
static int open_device(const char *network, const char *name)
{
	int space = open(network, O_RDONLY | O_CLOEXEC);
	if (space < 0 || setns(space, CLONE_NEWNET))
		fail(network);
	close(space);
	int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	struct ifreq request = { .ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR };
	strncpy(request.ifr_name, name, IFNAMSIZ - 1);
	if (device < 0 || ioctl(device, TUNSETIFF, &request))
		fail("/dev/net/tun");
	if (ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6))
		fail("TUNSETOFFLOAD");
	return device;
}

// The same sequence in every run.
static uint64_t next_random(struct direction *way)
{
	way->random ^= way->random << 13;
	way->random ^= way->random >> 7;
	way->random ^= way->random << 17;
	return way->random;
}

// Returns 0 if there is no packet.
static int receive_one(struct direction *way)
{
	static __thread unsigned char bytes[LARGEST];
	ssize_t len = read(way->from, bytes, sizeof bytes);
	if (len < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (len < 0)
		fail("read");
	if (way->count == way->limit || next_random(way) % 1000000 < way->lost)
		return 1;
	struct packet *packet = &way->queue[(way->first + way->count++) % way->limit];
	*packet = (struct packet){ .due = now() + way->delay, .len = (size_t)len, .bytes = malloc((size_t)len) };
	if (!packet->bytes)
		fail("malloc");
	memcpy(packet->bytes, bytes, (size_t)len);
	return 1;
}

static void send_due(struct direction *way)
{
	for (; way->count && way->queue[way->first].due <= now(); way->count--) {
		struct packet *packet = &way->queue[way->first];
		// A device that is not up yet refuses the packet, which is then lost.
		if (write(way->to, packet->bytes, packet->len) < 0 && errno != EIO && errno != EAGAIN)
			fail("write");
		free(packet->bytes);
		way->first = (way->first + 1) % way->limit;
	}
}

static void *forward(void *argument)
{
	struct direction *way = argument;
	prctl(PR_SET_TIMERSLACK, 1);
	for (;;) {
		for (int taken = 0; taken < 64 && receive_one(way); taken++)
			;
		send_due(way);
		struct timespec wait, *until = NULL;
		if (way->count) {
			uint64_t due = way->queue[way->first].due, time = now();
			uint64_t left = due > time ? due - time : 0;
			wait = (struct timespec){ .tv_sec = (time_t)(left / 1000000000), .tv_nsec = (long)(left % 1000000000) };
			until = &wait;
		}
		struct pollfd device = { .fd = way->from, .events = POLLIN };
		if (ppoll(&device, 1, until, NULL) < 0 && errno != EINTR)
			fail("ppoll");
	}
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc != 7)
		return 2;
	int one = open_device(argv[2], argv[1]), other = open_device(argv[3], argv[1]);
	struct direction ways[2];
	for (int i = 0; i < 2; i++) {
		ways[i] = (struct direction){
			.from = i ? other : one,
			.to = i ? one : other,
			.delay = strtoull(argv[4], NULL, 10) * 1000,
			.lost = strtoull(argv[5], NULL, 10),
			.limit = strtoull(argv[6], NULL, 10),
			.random = 88172645463325252 + (uint64_t)i,
		};
		ways[i].queue = calloc(ways[i].limit, sizeof *ways[i].queue);
		if (!ways[i].queue)
			fail("calloc");
	}
	printf("ready\n");
	fflush(stdout);
	pthread_t thread;
	if (pthread_create(&thread, NULL, forward, &ways[1]))
		fail("pthread_create");
	forward(&ways[0]);
}
