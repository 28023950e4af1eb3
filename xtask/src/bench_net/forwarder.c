// The baseline of `bench-net`: the least that a tunnel over TCP must do. Forwards Ethernet frames between a TAP device and
// one TCP connection, without authentication, flow control of its own, or reconnecting.
//
//   forwarder listen|connect ADDRESS PORT NETWORK DEVICE
//
// The socket belongs to the network namespace in which the program starts, the device to NETWORK, such as /proc/PID/ns/net.
// A listener prints its port, which is any free one if PORT is 0. Each frame follows its length of 32 bits, in the order of
// bytes of the machine, and starts with a virtio header, so that the kernel passes super-packets without segmentation and
// without checksums. Each direction has a thread.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

// Segmentation of UDP: Linux 6.2.
#ifndef TUN_F_USO4
#define TUN_F_USO4 0x20
#define TUN_F_USO6 0x40
#endif

enum { PREFIX = sizeof(uint32_t), LARGEST = 66 * 1024, BATCH = 256 * 1024 };

static int device, stream;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void open_device(const char *network, const char *name)
{
	int space = open(network, O_RDONLY | O_CLOEXEC);
	if (space < 0 || setns(space, CLONE_NEWNET))
		fail(network);
	close(space);
	device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	struct ifreq request = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
	strncpy(request.ifr_name, name, IFNAMSIZ - 1);
	if (device < 0 || ioctl(device, TUNSETIFF, &request))
		fail("/dev/net/tun");
	int header = sizeof(struct virtio_net_hdr_v1);
	if (ioctl(device, TUNSETVNETHDRSZ, &header))
		fail("TUNSETVNETHDRSZ");
	unsigned offloads = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
	if (ioctl(device, TUNSETOFFLOAD, offloads | TUN_F_USO4 | TUN_F_USO6) && ioctl(device, TUNSETOFFLOAD, offloads))
		fail("TUNSETOFFLOAD");
}

static void open_stream(int listens, const char *address, const char *port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)) };
	socklen_t len = sizeof at;
	int one = 1;
	stream = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (stream < 0 || inet_pton(AF_INET, address, &at.sin_addr) != 1)
		fail(address);
	if (listens) {
		if (bind(stream, (void *)&at, len) || listen(stream, 1) || getsockname(stream, (void *)&at, &len))
			fail("listen");
		printf("%u\n", ntohs(at.sin_port));
		fflush(stdout);
		stream = accept(stream, NULL, NULL);
		if (stream < 0)
			fail("accept");
	} else if (connect(stream, (void *)&at, len)) {
		fail("connect");
	}
	if (setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one))
		fail("TCP_NODELAY");
}

// Sends all frames that are there, up to a batch, with one system call.
static void *device_to_stream(void *unused)
{
	static unsigned char bytes[BATCH + PREFIX + LARGEST];
	for (;;) {
		size_t len = 0;
		while (len < BATCH) {
			ssize_t frame = read(device, bytes + len + PREFIX, LARGEST);
			if (frame < 0 && errno != EAGAIN)
				fail("read");
			if (frame < 0)
				break;
			memcpy(bytes + len, &(uint32_t){ (uint32_t)frame }, PREFIX);
			len += PREFIX + (size_t)frame;
		}
		if (!len && poll(&(struct pollfd){ .fd = device, .events = POLLIN }, 1, -1) < 0)
			fail("poll");
		for (size_t sent = 0; sent < len;) {
			ssize_t more = send(stream, bytes + sent, len - sent, MSG_NOSIGNAL);
			if (more < 0)
				fail("send");
			sent += (size_t)more;
		}
	}
	return unused;
}

static void stream_to_device(void)
{
	static unsigned char bytes[BATCH + PREFIX + LARGEST];
	for (size_t len = 0;;) {
		ssize_t more = recv(stream, bytes + len, sizeof bytes - len, 0);
		if (more <= 0)
			fail("recv");
		len += (size_t)more;
		size_t done = 0;
		for (uint32_t frame; len - done >= PREFIX; done += PREFIX + frame) {
			memcpy(&frame, bytes + done, PREFIX);
			if (frame > LARGEST)
				exit(1);
			if (len - done < PREFIX + frame)
				break;
			// A device that is not up yet refuses the frame, which is then lost.
			if (write(device, bytes + done + PREFIX, frame) < 0 && errno != EIO && errno != EAGAIN)
				fail("write");
		}
		len -= done;
		memmove(bytes, bytes + done, len);
	}
}

int main(int argc, char **argv)
{
	if (argc != 6)
		return 2;
	open_stream(!strcmp(argv[1], "listen"), argv[2], argv[3]);
	open_device(argv[4], argv[5]);
	pthread_t thread;
	if (pthread_create(&thread, NULL, device_to_stream, NULL))
		fail("pthread_create");
	stream_to_device();
}
