/* A library that exit() finalizes after the drop-in, because it was loaded later. It delays exit() until the fork is
 * done. */
#include <semaphore.h>

sem_t finished, forked;

__attribute__((constructor)) static void prepare(void)
{
	sem_init(&finished, 0, 0);
	sem_init(&forked, 0, 0);
}

__attribute__((destructor)) static void finish(void)
{
	sem_post(&finished);
	while (sem_wait(&forked))
		;
}
