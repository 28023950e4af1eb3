/*
 * Loads the libraries by name, as NCCL and UCX do, and looks names up by version.
 * usage: loads DIRECTORY LIBRARY... < "NAME NODE" lines
 * Each LIBRARY must be the one file in DIRECTORY, and have all the names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *folder;

static void fail(const char *what, const char *name)
{
	printf("%s: %s\n", what, name);
	exit(1);
}

static void check_ours(void *address, const char *name)
{
	char path[PATH_MAX];
	Dl_info info;

	if (!dladdr(address, &info) || !realpath(info.dli_fname, path))
		fail("of no file", name);
	if (strncmp(path, folder, strlen(folder)))
		fail(path, name);
}

/* The result of a function that is exported and not supported. */
static void check_unsupported(void *library)
{
	void *(*reg_dmabuf_mr)(void *, unsigned long, size_t, unsigned long, int, int) =
		dlvsym(library, "ibv_reg_dmabuf_mr", "IBVERBS_1.12");

	errno = 0;
	if (reg_dmabuf_mr(NULL, 0, 4096, 0, -1, 0) || errno != EOPNOTSUPP)
		fail("not refused", "ibv_reg_dmabuf_mr");
}

int main(int argc, char **argv)
{
	char name[256], node[256];
	void *library = NULL;
	int names = 0;

	folder = argv[1];
	for (int i = 2; i < argc; i++) {
		void *handle = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);

		if (!handle)
			fail("not loaded", dlerror());
		if (library && handle != library)
			fail("another file", argv[i]);
		library = handle;
	}
	for (; scanf("%255s %255s", name, node) == 2; names++) {
		void *address = dlvsym(library, name, node);

		if (!address)
			fail("not found", name);
		check_ours(address, name);
	}
	check_unsupported(library);
	/* Drivers of other devices are linked with libibverbs, and register themselves there when they are loaded. */
	if (!dlopen("libmlx5.so.1", RTLD_NOW) || !dlopen("libefa.so.1", RTLD_NOW))
		fail("a driver is not loaded", dlerror());
	printf("%d names\n", names);
	return 0;
}
