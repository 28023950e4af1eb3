/* An allocator in the place of the C library's. It aborts if it is given memory of another one, and unmaps memory while
 * it holds its lock, as other allocators do. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define OURS 0x5ac7ed0f5ac7ed0full
#define PAGE 4096
#define LARGE (64 << 10)

/* Ahead of each block. */
struct header {
	void *mapping; /* NULL if the block shares a mapping with others */
	size_t mapped, size;
	uint64_t mark;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* What is left of a mapping for small blocks, which are never freed. */
static char *rest;
static size_t left;

static void *map(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		abort();
	return memory;
}

static struct header *header_of(void *memory)
{
	struct header *header = (struct header *)memory - 1;
	if (header->mark != OURS)
		abort();
	return header;
}

void *memalign(size_t alignment, size_t size)
{
	size_t whole = (size + alignment + sizeof(struct header) + 31) & ~(size_t)15;
	struct header new = { .size = size, .mark = OURS };
	pthread_mutex_lock(&lock);
	char *from;
	if (whole >= LARGE) {
		new.mapped = whole;
		from = new.mapping = map(whole);
	} else {
		if (left < whole) {
			left = 1 << 20;
			rest = map(left);
		}
		from = rest;
		rest += whole;
		left -= whole;
	}
	pthread_mutex_unlock(&lock);
	uintptr_t start = (uintptr_t)from + sizeof new;
	char *memory = from + sizeof new + (-start & ((alignment < 16 ? 16 : alignment) - 1));
	((struct header *)memory)[-1] = new;
	return memory;
}

void *malloc(size_t size)
{
	return memalign(16, size);
}

size_t malloc_usable_size(void *memory)
{
	return memory ? header_of(memory)->size : 0;
}

void free(void *memory)
{
	if (!memory)
		return;
	struct header header = *header_of(memory);
	pthread_mutex_lock(&lock);
	if (header.mapping)
		munmap(header.mapping, header.mapped);
	pthread_mutex_unlock(&lock);
}

void *calloc(size_t count, size_t size)
{
	return memset(malloc(count * size), 0, count * size);
}

void *realloc(void *memory, size_t size)
{
	size_t before = malloc_usable_size(memory);
	void *new = malloc(size);
	if (memory)
		memcpy(new, memory, before < size ? before : size);
	free(memory);
	return new;
}

void *aligned_alloc(size_t alignment, size_t size)
{
	return memalign(alignment, size);
}

int posix_memalign(void **to, size_t alignment, size_t size)
{
	*to = memalign(alignment, size);
	return 0;
}

void *valloc(size_t size)
{
	return memalign(PAGE, size);
}

void *pvalloc(size_t size)
{
	return valloc((size + PAGE - 1) & ~(size_t)(PAGE - 1));
}
