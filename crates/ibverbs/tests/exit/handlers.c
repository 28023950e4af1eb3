/* An exit handler makes calls that fail, and forks. It runs when the thread-local variables of the thread have been
 * destroyed. */
#include "check.h"
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static struct ibv_context *context;

static void fail_and_fork(void)
{
	int status;

	CHECK(!ibv_create_cq(context, 0, NULL, NULL, 0));
	pid_t child = fork();
	if (!child)
		_exit(0);
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void handler(void)
{
	fail_and_fork();
	CHECK(write(STDOUT_FILENO, "handled\n", 8) == 8);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	context = list ? ibv_open_device(list[0]) : NULL;
	CHECK(context && !atexit(handler));
	fail_and_fork(); /* creates the variables */
	return 0;
}
