/* Forks while other threads post, and allocate memory. Each child opens the device again. */
#include "kit.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define FORKS 60

static atomic_bool done;

/* The queue is full of messages that wait for receives, so that further requests are refused. */
static void *post_all_the_time(void *unused)
{
	while (!done)
		CHECK(post_one(IBV_WR_SEND, REQUEST, part(&a, 0, 64), NULL) == ENOMEM);
	return unused;
}

static void *allocate_all_the_time(void *unused)
{
	void *(*volatile allocate)(size_t) = malloc;
	while (!done)
		free(allocate(100));
	return unused;
}

int main(void)
{
	pthread_t poster, allocator;
	int status;
	extended = true;
	open_both(REMOTE);
	/* The heap is between the memory of a and this, part of which is unmapped. So allocating memory
	 * involves the regions. */
	char *memory = mmap(NULL, 2 * SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(a.pd, memory, 2 * SIZE, 0);
	CHECK(mr && !munmap(memory, SIZE));
	int posted = 0;
	while (!post_one(IBV_WR_SEND, REQUEST, part(&a, 0, 64), NULL))
		posted++;
	CHECK(!pthread_create(&poster, NULL, post_all_the_time, NULL));
	CHECK(!pthread_create(&allocator, NULL, allocate_all_the_time, NULL));
	for (int number = 0; number < FORKS; number++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			open_device();
			CHECK(ibv_alloc_pd(context));
			_exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	done = true;
	CHECK(!pthread_join(poster, NULL) && !pthread_join(allocator, NULL));
	for (; posted; posted--) {
		receive_part(RECEIVE, part(&b, 0, 64));
		await(&a, REQUEST);
		await(&b, RECEIVE);
	}
	CHECK(!ibv_dereg_mr(mr));
	close_both();
}
