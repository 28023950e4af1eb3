/* What runs when a program exits, with a mistake or without:
 *
 *     exit wrong|right */
#include "kit.h"
#include <pthread.h>

/* Not flushed by the program. */
static void registered_first(void)
{
	printf("registered first\n");
}

/* The main thread's storage has been destroyed. */
static void registered_last(void)
{
	warm_up();
	close_both();
	printf("registered last\n");
}

/* Waits for input, with the lock of the stream. */
static void *read_forever(void *stream)
{
	fgetc(stream);
	return NULL;
}

static void start_reading(void)
{
	int ends[2];
	pthread_t thread;
	CHECK(!pipe(ends));
	FILE *stream = fdopen(ends[0], "r");
	CHECK(stream && !pthread_create(&thread, NULL, read_forever, stream));
	while (!ftrylockfile(stream))
		funlockfile(stream);
}

__attribute__((destructor)) static void destructor(void)
{
	printf("destructor\n");
}

int main(int count, char **arguments)
{
	CHECK(count == 2 && !atexit(registered_first));
	start_reading();
	open_both(REMOTE);
	receive_part(RECEIVE, part(&b, 0, 64));
	send_part(REQUEST, part(&a, 0, 64));
	if (!strcmp(arguments[1], "wrong"))
		a.memory[0]++;
	await(&a, REQUEST);
	await(&b, RECEIVE);
	CHECK(!atexit(registered_last));
	return 0;
}
