/*
 * Tells the checker (`ironwarp run --check`) when the program frees or unmaps registered memory. A library of its own,
 * preloaded only with --check, because it takes the place of the allocator's functions.
 *
 * The checker fills in `ironwarp_watch` when it starts. Until then, and for memory that is not registered, each function
 * only calls the one that it replaces: that of the C library, or of another allocator that the program is linked with.
 * Memory of another allocator is not watched. It may come from functions that are not replaced here, such as `mallocx`,
 * and unmap memory while it holds locks, when the checker must not allocate.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#pragma GCC visibility push(default)

/* The values of `What` in src/check/watch.rs, where `Watch` mirrors this structure. */
enum what { FREED, UNMAPPED };

struct watch {
	/* All registered memory is between these addresses. */
	_Atomic uintptr_t low, high;
	/* Number of registrations so far. */
	_Atomic size_t registrations;
	/* Called before memory is freed, or after it was unmapped or moved. `before` is the number of registrations before
	 * the call of the program: the memory may already be mapped and registered again. */
	void (*_Atomic released)(uintptr_t address, size_t length, enum what what, size_t before);
	/* Called after memory was allocated that may have been freed before. */
	void (*_Atomic allocated)(uintptr_t address, size_t length);
};

struct watch ironwarp_watch = { .low = UINTPTR_MAX };

#pragma GCC visibility pop

/* The functions that this library replaces, and one that it calls. */
#define FUNCTIONS(f)                                                                                                   \
	f(malloc) f(calloc) f(realloc) f(memalign) f(aligned_alloc) f(posix_memalign) f(valloc) f(pvalloc) f(free)     \
	f(malloc_usable_size) f(mmap) f(munmap) f(madvise) f(mremap)
#define POINTER(name) typeof(&name) name;
#define FIND(name) real.name = (typeof(&name))dlsym(RTLD_NEXT, #name);

static struct {
	FUNCTIONS(POINTER)
} real;

/* The addresses of an executable or a library. */
struct object {
	uintptr_t low, high;
};

/* The one with the program's allocator, unless that is the C library. */
static struct object allocator;

static int is_in(const struct object *object, uintptr_t address)
{
	return address >= object->low && address < object->high;
}

struct search {
	uintptr_t address;
	struct object found;
};

static int visit(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	struct search *search = data;
	struct object object = { .low = UINTPTR_MAX };
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *header = &info->dlpi_phdr[i];
		if (header->p_type != PT_LOAD)
			continue;
		uintptr_t start = info->dlpi_addr + header->p_vaddr, end = start + header->p_memsz;
		object.low = start < object.low ? start : object.low;
		object.high = end > object.high ? end : object.high;
	}
	if (!is_in(&object, search->address))
		return 0;
	search->found = object;
	return 1;
}

static struct object object_of(uintptr_t address)
{
	struct search search = { .address = address };
	dl_iterate_phdr(visit, &search);
	return search.found;
}

/* Whether the functions were found. */
static _Atomic int ready;
/* Whether this thread is looking for them. The loader may then allocate memory, which is taken from `early`. */
static __thread int searching __attribute__((tls_model("initial-exec")));
static _Alignas(max_align_t) char early[4096];
static _Atomic size_t early_used;

static void *allocate_early(size_t size)
{
	size = (size + _Alignof(max_align_t) - 1) & -_Alignof(max_align_t);
	size_t at = atomic_fetch_add(&early_used, size);
	return at + size <= sizeof early ? early + at : NULL;
}

static int is_early(const void *memory)
{
	return (const char *)memory >= early && (const char *)memory < early + sizeof early;
}

/* Called when the library is loaded, so that no thread waits for the loader while it holds locks of its allocator. */
__attribute__((constructor)) static void find_functions(void)
{
	searching = 1;
	FUNCTIONS(FIND)
	uintptr_t used = (uintptr_t)dlsym(RTLD_DEFAULT, "malloc");
	struct object libc = object_of((uintptr_t)gnu_get_libc_version), own = object_of((uintptr_t)early);
	if (is_in(&own, used))
		used = (uintptr_t)real.malloc;
	if (!is_in(&libc, used))
		allocator = object_of(used);
	searching = 0;
	atomic_store_explicit(&ready, 1, memory_order_release);
}

/* Finds the functions. Returns whether they may be called. */
static inline int is_ready(void)
{
	if (!atomic_load_explicit(&ready, memory_order_acquire)) {
		if (searching)
			return 0;
		find_functions();
	}
	return 1;
}

static size_t registrations(void)
{
	return atomic_load_explicit(&ironwarp_watch.registrations, memory_order_relaxed);
}

static int is_near(uintptr_t address, size_t length)
{
	return address < atomic_load_explicit(&ironwarp_watch.high, memory_order_relaxed) &&
	       address + length > atomic_load_explicit(&ironwarp_watch.low, memory_order_relaxed);
}

/* Inlined, so that the first function of a backtrace is the one that the program called. */
static inline __attribute__((always_inline)) void release(void *memory, size_t length, enum what what, size_t before)
{
	uintptr_t address = (uintptr_t)memory;
	if (!length || !is_near(address, length))
		return;
	void (*released)(uintptr_t, size_t, enum what, size_t) = atomic_load(&ironwarp_watch.released);
	if (!released)
		return;
	int saved = errno;
	released(address, length, what, before);
	errno = saved;
}

static void *allocated(void *memory, size_t size)
{
	if (memory && !allocator.high && is_near((uintptr_t)memory, 1)) {
		void (*allocated)(uintptr_t, size_t) = atomic_load(&ironwarp_watch.allocated);
		int saved = errno;
		if (allocated)
			allocated((uintptr_t)memory, size ? size : 1);
		errno = saved;
	}
	return memory;
}

/* Returns the size of memory from malloc. Zero if it is not watched. */
static size_t watched_size(void *memory)
{
	if (!memory || allocator.high ||
	    (uintptr_t)memory >= atomic_load_explicit(&ironwarp_watch.high, memory_order_relaxed))
		return 0;
	return real.malloc_usable_size(memory);
}

/* glibc marks memory of the allocator that has a mapping of its own in the size before it. */
static enum what what_free_does(const void *memory)
{
	return ((const size_t *)memory)[-1] & 2 ? UNMAPPED : FREED;
}

#pragma GCC visibility push(default)

void free(void *memory)
{
	if (!memory || is_early(memory) || !is_ready())
		return;
	size_t length = watched_size(memory);
	if (length)
		release(memory, length, what_free_does(memory), registrations());
	real.free(memory);
}

void *malloc(size_t size)
{
	return is_ready() ? allocated(real.malloc(size), size) : allocate_early(size);
}

void *calloc(size_t count, size_t size)
{
	return is_ready() ? allocated(real.calloc(count, size), count * size) : allocate_early(count * size);
}

/* Tells the checker only afterwards, because the memory may stay where it is. */
void *realloc(void *memory, size_t size)
{
	if (is_early(memory) || !is_ready()) {
		void *new = malloc(size);
		size_t rest = is_early(memory) ? (size_t)(early + sizeof early - (char *)memory) : 0;
		return new && rest ? memcpy(new, memory, size < rest ? size : rest) : new;
	}
	size_t length = watched_size(memory), before = registrations();
	enum what what = length ? what_free_does(memory) : FREED;
	void *new = real.realloc(memory, size);
	if (length && new == memory) {
		size_t rest = real.malloc_usable_size(new);
		if (rest < length)
			release((char *)memory + rest, length - rest, what, before);
	} else if (length && (new || !size)) {
		release(memory, length, what, before);
	}
	return allocated(new, size);
}

void *reallocarray(void *memory, size_t count, size_t size)
{
	size_t total;
	if (__builtin_mul_overflow(count, size, &total)) {
		errno = ENOMEM;
		return NULL;
	}
	return realloc(memory, total);
}

void *memalign(size_t alignment, size_t size)
{
	return is_ready() ? allocated(real.memalign(alignment, size), size) : NULL;
}

void *aligned_alloc(size_t alignment, size_t size)
{
	return is_ready() ? allocated(real.aligned_alloc(alignment, size), size) : NULL;
}

int posix_memalign(void **to, size_t alignment, size_t size)
{
	if (!is_ready())
		return ENOMEM;
	int error = real.posix_memalign(to, alignment, size);
	if (!error)
		allocated(*to, size);
	return error;
}

void *valloc(size_t size)
{
	return is_ready() ? allocated(real.valloc(size), size) : NULL;
}

void *pvalloc(size_t size)
{
	return is_ready() ? allocated(real.pvalloc(size), size) : NULL;
}

/* Tells the checker that the program has unmapped memory, unless its allocator did. */
#define UNMAP(memory, length, before)                                                                                  \
	do {                                                                                                           \
		if (!is_in(&allocator, (uintptr_t)__builtin_return_address(0)))                                        \
			release(memory, length, UNMAPPED, before);                                                     \
	} while (0)

int munmap(void *memory, size_t length)
{
	is_ready();
	size_t before = registrations();
	int result = real.munmap(memory, length);
	if (!result)
		UNMAP(memory, length, before);
	return result;
}

void *mmap(void *memory, size_t length, int protection, int flags, int file, off_t offset)
{
	is_ready();
	size_t before = registrations();
	void *mapped = real.mmap(memory, length, protection, flags, file, offset);
	if (mapped != MAP_FAILED && flags & MAP_FIXED)
		UNMAP(memory, length, before);
	return mapped;
}

void *mmap64(void *memory, size_t length, int protection, int flags, int file, off_t offset)
	__attribute__((alias("mmap")));

int madvise(void *memory, size_t length, int advice)
{
	is_ready();
	size_t before = registrations();
	int result = real.madvise(memory, length, advice);
	if (!result && (advice == MADV_DONTNEED || advice == MADV_REMOVE))
		UNMAP(memory, length, before);
	return result;
}

void *mremap(void *memory, size_t old, size_t size, int flags, ...)
{
	is_ready();
	va_list rest;
	va_start(rest, flags);
	void *place = flags & MREMAP_FIXED ? va_arg(rest, void *) : NULL;
	va_end(rest);
	size_t before = registrations();
	void *moved = real.mremap(memory, old, size, flags, place);
	if (moved != MAP_FAILED && moved != memory)
		UNMAP(memory, old, before);
	else if (moved == memory && size < old)
		UNMAP((char *)memory + size, old - size, before);
	return moved;
}
