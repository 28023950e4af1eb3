/* What programs may do with registered memory: nothing here is a mistake.
 *
 *     memory NAME */
#include "kit.h"
#include <malloc.h>
#include <sys/mman.h>

#define PAGES (64 << 10)

static const int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;

/* Pointers, because the compiler warns of memory that is used after these calls. */
static void (*volatile release)(void *) = free;
static void *(*volatile reallocate)(void *, size_t) = realloc;

static char *map(void)
{
	char *memory = mmap(NULL, PAGES, protection, flags, -1, 0);
	CHECK(memory != MAP_FAILED);
	return memory;
}

/* Sends the first bytes of a region of a. */
static void send_from(struct ibv_mr *mr, void *memory)
{
	receive_part(RECEIVE, part(&b, 0, 64));
	send_part(REQUEST, (struct ibv_sge){ .addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey });
	await(&a, REQUEST);
	await(&b, RECEIVE);
}

/* Calls that fail leave memory as it is, also while a request uses it. */
static void test_failed_calls(void)
{
	char *memory = map();
	struct ibv_mr *mr = ibv_reg_mr(b.pd, memory, PAGES, LOCAL);
	receive_part(RECEIVE, all_of(mr));
	CHECK(munmap(memory + 1, PAGES) < 0);
	CHECK(madvise(memory, PAGES, MADV_REMOVE) < 0); /* only shared memory */
	CHECK(mmap(memory, PAGES, protection, MAP_PRIVATE | MAP_FIXED, -1, 0) == MAP_FAILED);
	CHECK(mremap(memory, PAGES, 1ul << 60, MREMAP_MAYMOVE) == MAP_FAILED);
	send_part(REQUEST, part(&a, 0, 64));
	await(&a, REQUEST);
	await(&b, RECEIVE);
	receive_part(RECEIVE, all_of(mr));
	send_part(REQUEST, part(&a, 0, 64));
	await(&a, REQUEST);
	await(&b, RECEIVE);
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!munmap(memory, PAGES));
}

/* Memory that realloc does not move remains registered, also while a request uses it. */
static void test_reallocated_in_place(void)
{
	for (size_t size = 1000; size <= 256 << 10; size += 255 << 10) {
		char *memory = malloc(size);
		struct ibv_mr *mr = ibv_reg_mr(b.pd, memory, size, LOCAL);
		receive_part(RECEIVE, (struct ibv_sge){ (uintptr_t)memory, 64, mr->lkey });
		CHECK(reallocate(memory, size - 8) == memory);
		CHECK(!reallocate(memory, (size_t)1 << 60));
		send_part(REQUEST, part(&a, 0, 64));
		await(&a, REQUEST);
		await(&b, RECEIVE);
		receive_part(RECEIVE, (struct ibv_sge){ (uintptr_t)memory, 64, mr->lkey });
		send_part(REQUEST, part(&a, 0, 64));
		await(&a, REQUEST);
		await(&b, RECEIVE);
		CHECK(!ibv_dereg_mr(mr));
		free(memory);
	}
}

/* Memory that is allocated again is in use, whichever function returned it. */
static void test_allocated_again(void)
{
	void *(*const functions[])(size_t) = { malloc, valloc, pvalloc };
	for (unsigned i = 0; i < sizeof functions / sizeof *functions; i++) {
		char *memory = functions[i](8000), *again;
		struct ibv_mr *mr = ibv_reg_mr(a.pd, memory, 8000, LOCAL);
		release(memory);
		/* The checker may have taken the memory for itself. */
		while ((again = functions[i](8000)) != memory) {
			CHECK(!ibv_dereg_mr(mr));
			mr = ibv_reg_mr(a.pd, memory = again, 8000, LOCAL);
			release(memory);
		}
		send_from(mr, memory);
		CHECK(!ibv_dereg_mr(mr));
		free(memory);
	}
}

/* With on-demand paging, a region follows what the program maps. */
static void test_on_demand(void)
{
	char *memory = map();
	struct ibv_mr *mr = ibv_reg_mr(a.pd, memory, PAGES, LOCAL | IBV_ACCESS_ON_DEMAND);
	CHECK(!madvise(memory, PAGES, MADV_DONTNEED));
	send_from(mr, memory);
	CHECK(!munmap(memory, PAGES));
	CHECK(mmap(memory, PAGES, protection, flags | MAP_FIXED_NOREPLACE, -1, 0) == memory);
	send_from(mr, memory);
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!munmap(memory, PAGES));
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} tests[] = {
#define TEST(name) { #name, test_##name }
		TEST(failed_calls),
		TEST(reallocated_in_place),
		TEST(allocated_again),
		TEST(on_demand),
	};
	CHECK(count == 2);
	for (unsigned i = 0; i < sizeof tests / sizeof *tests; i++) {
		if (!strcmp(arguments[1], tests[i].name)) {
			open_both(REMOTE);
			tests[i].run();
			close_both();
			return 0;
		}
	}
	return 2;
}
