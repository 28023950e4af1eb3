/* One thread forks while another exits. exit() removes the fork handlers of every library that it finalizes from the
 * list of the C library, and a fork that walks the list meanwhile would abort, or keep the locks that it has taken. */
#include "check.h"
#include <infiniband/verbs.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static sem_t forking;
/* Of last.c: posted when exit() has finalized the drop-in, and when it may continue. */
extern sem_t finished, forked;

/* The handler registered last runs first. Delays the fork until exit() has finalized the drop-in. */
static void before_fork(void)
{
	sem_post(&forking);
	while (sem_wait(&finished))
		;
}

static void *forks(void *unused)
{
	pid_t child = fork();
	int status;

	if (!child)
		_exit(0);
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	CHECK(write(STDOUT_FILENO, "forked\n", 7) == 7);
	sem_post(&forked);
	return unused;
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list ? ibv_open_device(list[0]) : NULL;
	pthread_t thread;

	CHECK(context && ibv_alloc_pd(context));
	CHECK(!sem_init(&forking, 0, 0));
	CHECK(!pthread_atfork(before_fork, NULL, NULL));
	CHECK(!pthread_create(&thread, NULL, forks, NULL));
	while (sem_wait(&forking))
		;
	return 0;
}
