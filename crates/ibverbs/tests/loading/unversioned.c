/*
 * A program that was linked without symbol versions gets the oldest version of each name. It was built with current
 * headers, so that the oldest version must be the current function.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>

int main(void)
{
	int count = -1;
	struct ibv_device **list = ibv_get_device_list(&count);
	void *library = dlopen("libibverbs.so.1", RTLD_NOW);

	if (dlvsym(library, "ibv_get_device_list", "IBVERBS_1.0") != (void *)ibv_get_device_list)
		printf("not the oldest, so this shows nothing\n");
	if (list)
		ibv_free_device_list(list);
	printf("%s\n", list && count >= 0 && count < 1000 ? "a list" : "no list");
	return 0;
}
