/*
 * Tells the checker (`ironwarp run --check`) when the program frees or unmaps registered memory. A library of its own,
 * preloaded only with --check, because it takes the place of the C library's allocator functions.
 *
 * The checker fills in `ironwarp_watch` when it starts. Until then, and for memory that is not registered, each function
 * only calls that of the C library.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/mman.h>

#pragma GCC visibility push(default)

/* The values of `What` in src/check/watch.rs, where `Watch` mirrors this structure. */
enum what { FREED, UNMAPPED };

struct watch {
	/* All registered memory is between these addresses. */
	_Atomic uintptr_t low, high;
	/* Called before memory is freed or unmapped. */
	void (*_Atomic released)(uintptr_t address, size_t length, enum what what);
	/* Called after memory was allocated that may have been freed before. */
	void (*_Atomic allocated)(uintptr_t address, size_t length);
};

struct watch ironwarp_watch = { .low = UINTPTR_MAX };

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *memory);

static int is_near(uintptr_t address, size_t length)
{
	return address < atomic_load_explicit(&ironwarp_watch.high, memory_order_relaxed) &&
	       address + length > atomic_load_explicit(&ironwarp_watch.low, memory_order_relaxed);
}

/* Inlined, so that the first function of a backtrace is the one that the program called. */
static inline __attribute__((always_inline)) void release(void *memory, size_t length, enum what what)
{
	uintptr_t address = (uintptr_t)memory;
	if (!memory || !is_near(address, length))
		return;
	void (*released)(uintptr_t, size_t, enum what) = atomic_load(&ironwarp_watch.released);
	if (!released)
		return;
	int saved = errno;
	released(address, length, what);
	errno = saved;
}

static void *allocated(void *memory)
{
	if (memory && is_near((uintptr_t)memory, 1)) {
		void (*allocated)(uintptr_t, size_t) = atomic_load(&ironwarp_watch.allocated);
		int saved = errno;
		if (allocated)
			allocated((uintptr_t)memory, malloc_usable_size(memory));
		errno = saved;
	}
	return memory;
}

/* glibc marks memory of the allocator that has a mapping of its own in the size before it. */
static enum what what_free_does(const void *memory)
{
	return ((const size_t *)memory)[-1] & 2 ? UNMAPPED : FREED;
}

static inline __attribute__((always_inline)) void release_allocation(void *memory)
{
	if (memory && is_near((uintptr_t)memory, malloc_usable_size(memory)))
		release(memory, malloc_usable_size(memory), what_free_does(memory));
}

void free(void *memory)
{
	release_allocation(memory);
	__libc_free(memory);
}

void *malloc(size_t size)
{
	return allocated(__libc_malloc(size));
}

void *calloc(size_t count, size_t size)
{
	return allocated(__libc_calloc(count, size));
}

void *realloc(void *memory, size_t size)
{
	release_allocation(memory);
	void *new = __libc_realloc(memory, size);
	if (!new && size)
		allocated(memory); /* it failed, and left the old memory as it was */
	return allocated(new);
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
	return allocated(__libc_memalign(alignment, size));
}

void *aligned_alloc(size_t alignment, size_t size)
{
	return memalign(alignment, size);
}

int posix_memalign(void **to, size_t alignment, size_t size)
{
	if (!alignment || alignment % sizeof(void *) || alignment & (alignment - 1))
		return EINVAL;
	int saved = errno;
	void *memory = memalign(alignment, size);
	errno = saved;
	if (!memory)
		return ENOMEM;
	*to = memory;
	return 0;
}

/* The C library's function, or that of another library that has replaced it. */
#define REAL(name)                                                                                                     \
	static typeof(&name) _Atomic real;                                                                             \
	if (!real)                                                                                                     \
		real = (typeof(&name))dlsym(RTLD_NEXT, #name);

int munmap(void *memory, size_t length)
{
	REAL(munmap)
	release(memory, length, UNMAPPED);
	return real(memory, length);
}

void *mmap(void *memory, size_t length, int protection, int flags, int file, off_t offset)
{
	REAL(mmap)
	if (flags & MAP_FIXED)
		release(memory, length, UNMAPPED);
	return real(memory, length, protection, flags, file, offset);
}

void *mmap64(void *memory, size_t length, int protection, int flags, int file, off_t offset)
	__attribute__((alias("mmap")));

int madvise(void *memory, size_t length, int advice)
{
	REAL(madvise)
	if (advice == MADV_DONTNEED || advice == MADV_REMOVE)
		release(memory, length, UNMAPPED);
	return real(memory, length, advice);
}

void *mremap(void *memory, size_t old, size_t size, int flags, ...)
{
	REAL(mremap)
	va_list rest;
	va_start(rest, flags);
	void *place = flags & MREMAP_FIXED ? va_arg(rest, void *) : NULL;
	va_end(rest);
	void *moved = real(memory, old, size, flags, place);
	if (moved != MAP_FAILED && moved != memory)
		release(memory, old, UNMAPPED);
	else if (moved == memory && size < old)
		release((char *)memory + size, old - size, UNMAPPED);
	return moved;
}
