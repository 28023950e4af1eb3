/* Helpers of the tests of sockets over RDMA. Each test is two processes: a server, and a client that knows its port. */
#ifndef COMMON_H
#define COMMON_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                                       \
	do {                                                                                                   \
		if (!(condition)) {                                                                            \
			fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", __FILE__, __LINE__, #condition, errno, \
				strerror(errno));                                                              \
			_exit(1);                                                                              \
		}                                                                                              \
	} while (0)

/* Checks that a call returns -1 with this errno. */
#define FAILS(call, expected)                                                                                  \
	do {                                                                                                   \
		errno = 0;                                                                                     \
		long result_ = (long)(call);                                                                   \
		CHECK(result_ == -1);                                                                          \
		if (errno != (expected)) {                                                                     \
			fprintf(stderr, "%s:%d: %s: errno %d (%s)\n", __FILE__, __LINE__, #call, errno,      \
				strerror(errno));                                                              \
			_exit(1);                                                                              \
		}                                                                                              \
	} while (0)

struct test {
	const char *name;
	/* Run in one process each. The server gets a listening socket, and the client its port. */
	void (*server)(int listener);
	void (*client)(int port);
};

extern int family;
extern pid_t server_process;

/* Returns the byte at a position of a stream. Streams with different seeds have different bytes. */
unsigned char byte_at(unsigned seed, size_t position);
void fill(unsigned char *bytes, unsigned seed, size_t position, size_t len);
void verify(const unsigned char *bytes, unsigned seed, size_t position, size_t len);
void send_all(int rs, unsigned seed, size_t len, size_t piece);
void receive_all(int rs, unsigned seed, size_t len, size_t piece);
/* Checks that the peer sends nothing more. */
void receive_end(int rs);

struct sockaddr_storage address(int port, socklen_t *len);
int connect_to(int port);
int port_of(int rs);
int accept_one(int listener);
void set_nonblocking(int rs);

extern const struct test stream_tests[], wait_tests[];

#endif
