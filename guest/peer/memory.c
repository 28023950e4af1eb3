/*
 * The memory of this end, its advertisement, and checks of what the other end wrote.
 */
#include "peer.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>

uint8_t *region, *source, *sink, *receives, *outbox;
size_t outbox_size;
struct ibv_mr *region_mr, *source_mr, *sink_mr, *receives_mr, *outbox_mr;
struct ibv_pd *pd;
struct advert theirs[PLACES];

/* A page for each place except MAIN. */
static uint8_t *pages;
static struct advert places[PLACES];

static uint8_t *map(size_t length)
{
	uint8_t *bytes = mmap(NULL, length ? length : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	check(bytes != MAP_FAILED, "mmap");
	return bytes;
}

static struct ibv_mr *registered(struct ibv_pd *domain, uint8_t *bytes, size_t length, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(domain, bytes, length, access);

	check(mr, "ibv_reg_mr");
	return mr;
}

static void offer(enum place which, uint8_t *bytes, size_t length, const struct ibv_mr *mr)
{
	places[which] = (struct advert){(uintptr_t)bytes, mr->rkey, (uint32_t)length};
}

static void prepare_pages(struct ibv_context *device)
{
	static const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	static const int access[PLACES] = {
		[READ_ONLY] = IBV_ACCESS_REMOTE_READ,
		[WRITE_ONLY] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
		[DOMAIN] = all,
		[GONE] = all,
		[SPARE] = all,
	};
	struct ibv_pd *another = ibv_alloc_pd(device);

	check(another, "ibv_alloc_pd");
	pages = map(PLACES * PAGE);
	for (enum place which = READ_ONLY; which < PLACES; which++) {
		uint8_t *bytes = pages + which * PAGE;
		struct ibv_mr *mr = registered(which == DOMAIN ? another : pd, bytes, PAGE, access[which]);

		fill(bytes, 0, PAGE, self->holds, 0);
		offer(which, bytes, PAGE, mr);
		if (which == GONE)
			check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	}
}

void prepare_memory(struct ibv_context *device)
{
	size_t half = shape.half, all_receives = shape.receives * shape.receive_size;
	struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};

	/* siw enforces the limit of locked memory even for root, for each region separately (siw_reg_user_mr). */
	check(!setrlimit(RLIMIT_MEMLOCK, &unlimited), "setrlimit");
	pd = ibv_alloc_pd(device);
	check(pd, "ibv_alloc_pd");
	region = map(2 * half);
	source = map(half);
	sink = map(half);
	receives = map(all_receives);
	outbox_size = 2 * shape.receive_size + 64 * 1024;
	outbox = map(outbox_size);
	fill(region + half, 0, half, self->holds, 0);
	fill(source, 0, half, self->writes, 0);
	region_mr = registered(pd, region, 2 * half,
			       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	source_mr = registered(pd, source, half, 0);
	/* In iWARP the other end writes to the STag of the sink of a Read: some RNICs require the right for it. */
	sink_mr = registered(pd, sink, half, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	receives_mr = registered(pd, receives, all_receives ? all_receives : 1, IBV_ACCESS_LOCAL_WRITE);
	outbox_mr = registered(pd, outbox, outbox_size, 0);
	offer(MAIN, region, 2 * half, region_mr);
	prepare_pages(device);
}

struct advert place(enum place which)
{
	return places[which];
}

/* Checks that the other end wrote its pattern to the first bytes of the region, and nothing else. */
void written(struct argument argument)
{
	verify("the region", region, 0, argument.first, other->writes, 0);
	for (size_t i = argument.first; i < shape.half; i++)
		if (region[i])
			fail("byte %zu of the region was written", i);
	verify("the region's second half", region + shape.half, 0, shape.half, self->holds, 0);
	untouched(argument);
}

/* Checks that no place except MAIN was written. */
void untouched(struct argument argument)
{
	(void)argument;
	for (enum place which = READ_ONLY; which < PLACES; which++)
		verify("a page", pages + which * PAGE, 0, PAGE, self->holds, 0);
	ok();
}
