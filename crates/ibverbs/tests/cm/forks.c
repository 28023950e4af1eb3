/* Children of a process with connections: objects of the parent stay with the parent, and the child starts fresh. */
#include "kit.h"

static void wait_for(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The child has a device, connections and listeners of its own. */
static void child_connects(void)
{
	struct pair pair = connect_pair(), its;
	pid_t child;

	exchange(&pair);
	child = fork();
	if (child == 0) {
		its = connect_pair();
		CHECK(its.client->verbs != pair.client->verbs);
		exchange(&its);
		disconnect(&its);
		exit(0); /* without touching the parent's objects */
	}
	exchange(&pair);
	wait_for(child);
	exchange(&pair);
	disconnect(&pair);
}

/* The parent's connections close, and its port is free again, while the child lives. */
static void child_lives(void)
{
	struct pair pair = connect_pair();
	int port = port_of(pair.listens), started[2], wake[2];
	struct rdma_event_channel *channel;
	struct rdma_cm_id *again;
	char byte;
	pid_t child;

	CHECK(pipe(started) == 0 && pipe(wake) == 0);
	child = fork();
	if (child == 0) {
		close(wake[1]);
		CHECK(write(started[1], "", 1) == 1);
		CHECK(read(wake[0], &byte, 1) == 0);
		_exit(0);
	}
	/* The child closes its copies of the parent's sockets before fork returns there. */
	CHECK(read(started[0], &byte, 1) == 1);
	disconnect(&pair);
	channel = rdma_create_event_channel();
	CHECK(rdma_create_id(channel, &again, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(again, loopback(port)) == 0);
	CHECK(rdma_listen(again, 1) == 0);
	destroy(again);
	close(wake[1]);
	wait_for(child);
}

/* A child may destroy what it inherited, without effect on its parent. */
static void child_destroys(void)
{
	struct pair pair = connect_pair();
	struct pollfd quiet[2] = { { .fd = pair.near->fd, .events = POLLIN }, { .fd = pair.far->fd, .events = POLLIN } };
	pid_t child = fork();

	if (child == 0) {
		destroy(pair.client);
		destroy(pair.server);
		destroy(pair.listens);
		rdma_destroy_event_channel(pair.near);
		exit(0);
	}
	wait_for(child);
	exchange(&pair);
	CHECK(poll(quiet, 2, 0) == 0);
	disconnect(&pair);
}

static void *fork_often(void *arg)
{
	(void)arg;
	for (int i = 0; i < 50; i++) {
		struct rdma_event_channel *channel;
		struct rdma_cm_id *id;
		pid_t child = fork();

		if (child == 0) {
			/* Locks that other threads held are not held here. */
			channel = rdma_create_event_channel();
			CHECK(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
			CHECK(rdma_destroy_id(id) == 0);
			_exit(0);
		}
		wait_for(child);
	}
	return NULL;
}

/* A thread forks while others connect. */
static void forks_meanwhile(void)
{
	struct thread thread;

	start(&thread, fork_often, NULL);
	for (int i = 0; i < 20; i++) {
		struct pair pair = connect_pair();

		exchange(&pair);
		disconnect(&pair);
	}
	join(&thread);
}

static const struct test TESTS[] = {
	{ "child_connects", child_connects },
	{ "child_lives", child_lives },
	{ "child_destroys", child_destroys },
	{ "forks_meanwhile", forks_meanwhile },
};

RUN(TESTS)
