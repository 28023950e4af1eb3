/* Waiting: non-blocking, for many sockets at once, until a signal arrives or the thread is cancelled. */
#include "common.h"
#include <dlfcn.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

/* Takes the pending error of a socket. */
static int error_of(int rs)
{
	int error = -1;
	socklen_t len = sizeof error;
	CHECK(rgetsockopt(rs, SOL_SOCKET, SO_ERROR, &error, &len) == 0);
	return error;
}

/* Polls one socket, and returns its events. */
static int poll_one(int rs, short events, int timeout)
{
	struct pollfd fd = {.fd = rs, .events = events};
	int ready = rpoll(&fd, 1, timeout);
	CHECK(ready == (fd.revents != 0));
	return fd.revents;
}

/* --- Without blocking --- */

static void answer_one_byte(int listener)
{
	set_nonblocking(listener);
	int rs = raccept(listener, NULL, NULL);
	if (rs == -1) {
		CHECK(errno == EAGAIN);
		CHECK(poll_one(listener, POLLIN, -1) == POLLIN);
		rs = accept_one(listener);
	}
	FAILS(raccept(listener, NULL, NULL), EAGAIN);
	char byte;
	CHECK(rrecv(rs, &byte, 1, 0) == 1);
	CHECK(rsend(rs, "answer", 6, 0) == 6);
	receive_end(rs);
	CHECK(rclose(rs) == 0);
}

static void nonblocking(int port)
{
	socklen_t len;
	struct sockaddr_storage to = address(port, &len), name;
	char text[8];
	int pipes[2];
	CHECK(pipe(pipes) == 0);
	int rs = rsocket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(rs >= 0 && fcntl(rs, F_GETFD) != -1);
	FAILS(rgetpeername(rs, (void *)&name, &len), ENOTCONN);
	len = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	FAILS(rconnect(rs, (void *)&to, len), EINPROGRESS);
	CHECK(poll_one(rs, POLLOUT, 10000) == POLLOUT);
	CHECK(error_of(rs) == 0);
	CHECK(rconnect(rs, (void *)&to, len) == 0);
	FAILS(rconnect(rs, (void *)&to, len), EISCONN);
	CHECK(rgetpeername(rs, (void *)&name, &len) == 0 && memcmp(&name, &to, 4) == 0);
	CHECK(port_of(rs) > 0);
	FAILS(rrecv(rs, text, 1, 0), EAGAIN);
	CHECK(poll_one(rs, POLLIN, 0) == 0);
	CHECK(poll_one(rs, POLLIN, 20) == 0);
	/* An ordinary descriptor beside it. */
	struct pollfd both[3] = {{.fd = rs, .events = POLLIN}, {.fd = pipes[0], .events = POLLIN}, {.fd = -1}};
	CHECK(rpoll(both, 3, 10) == 0);
	CHECK(write(pipes[1], "x", 1) == 1);
	CHECK(rpoll(both, 3, -1) == 1 && both[0].revents == 0 && both[1].revents == POLLIN);
	CHECK(rsend(rs, "?", 1, 0) == 1);
	both[1].events = 0;
	CHECK(rpoll(both, 3, -1) == 1 && both[0].revents == POLLIN && both[1].revents == 0);
	CHECK(rrecv(rs, text, sizeof text, 0) == 6 && memcmp(text, "answer", 6) == 0);
	CHECK(rclose(rs) == 0);
	/* Nothing listens there. */
	int port_holder = socket(family, SOCK_STREAM, 0);
	to = address(0, &len);
	CHECK(bind(port_holder, (void *)&to, len) == 0);
	CHECK(getsockname(port_holder, (void *)&to, &len) == 0);
	rs = rsocket(family, SOCK_STREAM, 0);
	FAILS(rconnect(rs, (void *)&to, len), ECONNREFUSED);
	set_nonblocking(rs);
	FAILS(rconnect(rs, (void *)&to, len), EINPROGRESS);
	CHECK(poll_one(rs, POLLOUT, 10000) & POLLERR);
	CHECK(error_of(rs) == ECONNREFUSED);
	CHECK(rclose(rs) == 0);
}

/* --- A hundred connections at once --- */

#define MANY 100
#define EACH 50021

static void echo_all(int listener)
{
	struct pollfd fds[MANY + 1] = {{.fd = listener, .events = POLLIN}};
	static unsigned char bytes[4096];
	int count = 1, ended = 0;
	while (ended < MANY) {
		CHECK(rpoll(fds, count, 60000) > 0);
		if (fds[0].revents) {
			CHECK(count <= MANY);
			fds[count++] = (struct pollfd){.fd = accept_one(listener), .events = POLLIN};
			continue;
		}
		for (int i = 1; i < count; i++) {
			if (!fds[i].revents)
				continue;
			ssize_t len = rrecv(fds[i].fd, bytes, sizeof bytes, MSG_DONTWAIT);
			CHECK(len >= 0);
			if (len > 0) {
				CHECK(rsend(fds[i].fd, bytes, len, 0) == len);
				continue;
			}
			CHECK(rclose(fds[i].fd) == 0);
			fds[i].fd = -1;
			ended++;
		}
	}
}

static void many(int port)
{
	static int rs[MANY];
	static unsigned char bytes[EACH];
	for (int i = 0; i < MANY; i++) {
		rs[i] = connect_to(port);
		fill(bytes, i, 0, EACH);
		CHECK(rsend(rs[i], bytes, EACH, 0) == EACH);
	}
	for (int i = MANY - 1; i >= 0; i--) {
		receive_all(rs[i], i, EACH, 1000 + i);
		CHECK(rshutdown(rs[i], SHUT_WR) == 0);
	}
	for (int i = 0; i < MANY; i++) {
		receive_end(rs[i]);
		CHECK(rclose(rs[i]) == 0);
	}
}

/* --- Both ends write more than all buffers hold --- */

#define LOTS (10u << 20)

static void both_write(int rs)
{
	static unsigned char out[70000], in[60000];
	size_t sent = 0, received = 0;
	set_nonblocking(rs);
	while (sent < LOTS || received < LOTS) {
		short events = (sent < LOTS ? POLLOUT : 0) | (received < LOTS ? POLLIN : 0);
		int ready = poll_one(rs, events, 60000);
		CHECK(ready != 0);
		/* Writes until a write would block, and only then reads. */
		while (ready & POLLOUT && sent < LOTS) {
			size_t len = LOTS - sent < sizeof out ? LOTS - sent : sizeof out;
			fill(out, 11, sent, len);
			ssize_t now = rsend(rs, out, len, 0);
			if (now == -1) {
				CHECK(errno == EAGAIN);
				break;
			}
			sent += now;
		}
		if (ready & POLLIN) {
			ssize_t now = rrecv(rs, in, sizeof in, 0);
			CHECK(now > 0);
			verify(in, 11, received, now);
			received += now;
		}
	}
	CHECK(rclose(rs) == 0);
}

static void both_full_server(int listener)
{
	both_write(accept_one(listener));
}

static void both_full(int port)
{
	both_write(connect_to(port));
}

/* --- Signals and cancellation --- */

static void echo_one_byte(int listener)
{
	int rs = accept_one(listener);
	char byte;
	CHECK(rrecv(rs, &byte, 1, 0) == 1);
	CHECK(rsend(rs, &byte, 1, 0) == 1);
	receive_end(rs);
}

static void ignore_signal(int signal)
{
	(void)signal;
}

/* Starts to interrupt this process with SIGALRM, every 30 ms. */
static void start_interrupts(void)
{
	struct itimerval soon = {.it_value.tv_usec = 30000, .it_interval.tv_usec = 30000};
	CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
}

static void stop_interrupts(void)
{
	struct itimerval never = {0};
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

static void *read_in_thread(void *rs)
{
	char byte;
	rrecv(*(int *)rs, &byte, 1, 0);
	return NULL;
}

static void *poll_in_thread(void *rs)
{
	poll_one(*(int *)rs, POLLIN, -1);
	return NULL;
}

static void interrupted(int port)
{
	struct sigaction action = {.sa_handler = ignore_signal};
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	int rs = connect_to(port);
	char byte;
	struct pollfd fd = {.fd = rs, .events = POLLIN};
	start_interrupts();
	FAILS(rrecv(rs, &byte, 1, 0), EINTR);
	FAILS(rpoll(&fd, 1, -1), EINTR);
	stop_interrupts();
	void *(*waits[])(void *) = {read_in_thread, poll_in_thread};
	for (int i = 0; i < 20; i++) {
		pthread_t thread;
		void *result;
		CHECK(pthread_create(&thread, NULL, waits[i % 2], &rs) == 0);
		if (i > 10)
			usleep(1000); /* the thread usually sleeps by then; either order must work */
		CHECK(pthread_cancel(thread) == 0);
		CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	}
	CHECK(rsend(rs, "x", 1, 0) == 1);
	CHECK(rrecv(rs, &byte, 1, 0) == 1 && byte == 'x');
	/* A socket is closed while another thread waits for it. */
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, read_in_thread, &rs) == 0);
	usleep(1000);
	CHECK(rclose(rs) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

/* --- Select, options, and what is not supported --- */

static void selects(int port)
{
	int rs = connect_to(port), pipes[2], on = 1, value;
	socklen_t len = sizeof value;
	CHECK(pipe(pipes) == 0);
	fd_set reading, writing;
	FD_ZERO(&reading);
	FD_ZERO(&writing);
	FD_SET(rs, &reading);
	FD_SET(pipes[0], &reading);
	FD_SET(rs, &writing);
	struct timeval time = {.tv_usec = 10000};
	int most = (rs > pipes[0] ? rs : pipes[0]) + 1;
	CHECK(rselect(most, &reading, &writing, NULL, NULL) == 1);
	CHECK(FD_ISSET(rs, &writing) && !FD_ISSET(rs, &reading) && !FD_ISSET(pipes[0], &reading));
	FD_SET(rs, &reading);
	FD_SET(pipes[0], &reading);
	CHECK(rselect(most, &reading, NULL, NULL, &time) == 0);
	CHECK(rsend(rs, "x", 1, 0) == 1);
	FD_SET(rs, &reading);
	FD_SET(pipes[0], &reading);
	CHECK(rselect(most, &reading, NULL, NULL, NULL) == 1 && FD_ISSET(rs, &reading));
	CHECK(rsetsockopt(rs, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
	CHECK(rgetsockopt(rs, IPPROTO_TCP, TCP_NODELAY, &value, &len) == 0 && value == 1);
	CHECK(rsetsockopt(rs, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) == 0);
	FAILS(rsetsockopt(rs, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on), ENOPROTOOPT);
	FAILS(rsend(rs, "x", 1, MSG_OOB), EOPNOTSUPP);
	FAILS(rlisten(rs, 1), EISCONN);
	CHECK(rclose(rs) == 0);
	FAILS(rsocket(family, SOCK_DGRAM, 0), EOPNOTSUPP);
	FAILS(rsocket(AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
	FAILS(rsend(rs, "x", 1, 0), EBADF);
	FAILS(rsend(pipes[1], "x", 1, 0), EBADF);
	rs = rsocket(family, SOCK_STREAM, 0);
	FAILS(rsend(rs, "x", 1, 0), ENOTCONN);
	FAILS(rshutdown(rs, SHUT_RDWR), ENOTCONN);
	FAILS(raccept(rs, NULL, NULL), EINVAL);
	pid_t child = fork();
	if (child == 0) { /* the sockets belong to the parent */
		FAILS(rsend(rs, "x", 1, 0), EOPNOTSUPP);
		FAILS(rsocket(family, SOCK_STREAM, 0), EOPNOTSUPP);
		_exit(0);
	}
	CHECK(waitpid(child, &value, 0) == child && value == 0);
	CHECK(rclose(rs) == 0);
}

/* Sets of sockets and ordinary descriptors, like those of epoll. The installed headers may lack them. */
static int (*create_set)(int);
static int (*control)(int, int, int, struct epoll_event *);
static int (*wait_set)(int, struct epoll_event *, int, int);

static struct repoll_thread {
	int set;
	pid_t tid;
} waiting;

static void *wait_in_set(void *arg)
{
	struct repoll_thread *mine = arg;
	struct epoll_event event = {0};

	__atomic_store_n(&mine->tid, gettid(), __ATOMIC_RELEASE);
	CHECK(wait_set(mine->set, &event, 1, -1) == 1);
	return (void *)(uintptr_t)event.data.u64;
}

/* Waits until a thread sleeps in ppoll. */
static void wait_until_asleep(pid_t *tid)
{
	char path[64], text[64];
	long call = -1;

	while (call != SYS_ppoll) {
		pid_t thread = __atomic_load_n(tid, __ATOMIC_ACQUIRE);
		if (!thread)
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread);
		FILE *file = fopen(path, "r");
		CHECK(file);
		call = fgets(text, sizeof text, file) && text[0] != 'r' ? atol(text) : -1;
		fclose(file);
		sched_yield();
	}
}

static void echo_two_bytes(int listener)
{
	int rs = accept_one(listener);
	char byte;

	for (int i = 0; i < 2; i++)
		CHECK(rrecv(rs, &byte, 1, 0) == 1 && rsend(rs, &byte, 1, 0) == 1);
	receive_end(rs);
}

static void sets(int port)
{
	create_set = (int (*)(int))dlvsym(RTLD_DEFAULT, "repoll_create", "RDMACM_1.5");
	control = (int (*)(int, int, int, struct epoll_event *))dlvsym(RTLD_DEFAULT, "repoll_ctl", "RDMACM_1.5");
	wait_set =
		(int (*)(int, struct epoll_event *, int, int))dlvsym(RTLD_DEFAULT, "repoll_wait", "RDMACM_1.5");
	CHECK(create_set && control && wait_set);
	int set = create_set(EPOLL_CLOEXEC), rs = connect_to(port), pipes[2];
	struct epoll_event in = {.events = EPOLLIN, .data.u64 = 1}, got[4];
	char byte;

	CHECK(set >= 0 && pipe(pipes) == 0);
	CHECK(wait_set(set, got, 4, 0) == 0);
	CHECK(control(set, EPOLL_CTL_ADD, rs, &in) == 0);
	FAILS(control(set, EPOLL_CTL_ADD, rs, &in), EEXIST);
	in.data.u64 = 2;
	FAILS(control(set, EPOLL_CTL_MOD, pipes[0], &in), ENOENT);
	FAILS(control(set, EPOLL_CTL_DEL, pipes[0], NULL), ENOENT);
	CHECK(control(set, EPOLL_CTL_ADD, pipes[0], &in) == 0);
	FAILS(control(set, EPOLL_CTL_ADD, set, &in), EINVAL);
	FAILS(control(set, EPOLL_CTL_ADD, 9999, &in), EBADF);
	FAILS(control(rs, EPOLL_CTL_ADD, pipes[1], &in), EBADF);
	FAILS(control(set, EPOLL_CTL_ADD, pipes[1], NULL), EFAULT);
	FAILS(wait_set(set, got, 0, 0), EINVAL);
	FAILS(wait_set(rs, got, 4, 0), EBADF);
	FAILS(create_set(1), EINVAL);
	CHECK(wait_set(set, got, 4, 20) == 0);
	/* Both are ready: each is reported in turn, and stays ready until it is read. */
	CHECK(rsend(rs, "x", 1, 0) == 1 && write(pipes[1], "y", 1) == 1);
	unsigned seen = 0;
	while (seen != 3) {
		CHECK(wait_set(set, got, 1, -1) == 1 && got[0].events == EPOLLIN);
		seen |= got[0].data.u64;
	}
	CHECK(wait_set(set, got, 4, -1) == 2);
	CHECK(rrecv(rs, &byte, 1, 0) == 1 && byte == 'x' && read(pipes[0], &byte, 1) == 1);
	CHECK(wait_set(set, got, 4, 0) == 0);
	/* Reported once, until it is changed. */
	in.events = EPOLLOUT | EPOLLONESHOT;
	in.data.u64 = 1;
	CHECK(control(set, EPOLL_CTL_MOD, rs, &in) == 0);
	CHECK(wait_set(set, got, 4, -1) == 1 && got[0].events == EPOLLOUT && got[0].data.u64 == 1);
	CHECK(wait_set(set, got, 4, 0) == 0);
	/* A sleeping thread is woken by a socket, by a descriptor, and by one that is added meanwhile. */
	for (int round = 0; round < 3; round++) {
		pthread_t thread;
		void *data;
		waiting = (struct repoll_thread){.set = set};
		in.events = EPOLLIN;
		if (round == 0)
			CHECK(control(set, EPOLL_CTL_MOD, rs, &in) == 0);
		CHECK(pthread_create(&thread, NULL, wait_in_set, &waiting) == 0);
		wait_until_asleep(&waiting.tid);
		in.events = EPOLLOUT;
		in.data.u64 = 3;
		if (round == 0)
			CHECK(rsend(rs, "z", 1, 0) == 1);
		else if (round == 1)
			CHECK(write(pipes[1], "z", 1) == 1);
		else
			CHECK(control(set, EPOLL_CTL_ADD, pipes[1], &in) == 0);
		CHECK(pthread_join(thread, &data) == 0 && (uintptr_t)data == (uintptr_t)round + 1);
		if (round == 0)
			CHECK(rrecv(rs, &byte, 1, 0) == 1);
		else if (round == 1)
			CHECK(read(pipes[0], &byte, 1) == 1);
	}
	CHECK(control(set, EPOLL_CTL_DEL, pipes[1], NULL) == 0);
	/* A closed socket is no longer a member, even if its number is reused. */
	close(pipes[1]);
	CHECK(wait_set(set, got, 4, -1) == 1 && got[0].events == EPOLLHUP && got[0].data.u64 == 2);
	close(pipes[0]);
	CHECK(rclose(rs) == 0);
	CHECK(wait_set(set, got, 4, 10) == 0);
	CHECK(rclose(set) == 0);
	FAILS(wait_set(set, got, 4, 0), EBADF);
	FAILS(rclose(set), EBADF);
}

const struct test wait_tests[] = {
	{"nonblocking", answer_one_byte, nonblocking},
	{"many", echo_all, many},
	{"both_full", both_full_server, both_full},
	{"interrupted", echo_one_byte, interrupted},
	{"selects", echo_one_byte, selects},
	{"sets", echo_two_bytes, sets},
	{NULL, NULL, NULL},
};
