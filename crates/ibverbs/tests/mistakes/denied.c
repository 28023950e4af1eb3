/* Opens a device and creates objects while a seccomp filter denies a system call: the first argument, with the errno
 * of the second. Prints which function fails, and with which errno. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define TRY(function, made)                                                                                           \
	do {                                                                                                          \
		errno = 0;                                                                                            \
		if (!(made)) {                                                                                        \
			printf("%s: errno %d\n", function, errno);                                                    \
			return 0;                                                                                     \
		}                                                                                                     \
	} while (0)

static const struct {
	const char *name;
	unsigned number;
} CALLS[] = {
	{ "eventfd2", SYS_eventfd2 },	  { "socket", SYS_socket },	    { "socketpair", SYS_socketpair },
	{ "getrandom", SYS_getrandom },	  { "epoll_create1", SYS_epoll_create1 },
};

static int deny(const char *name, int error)
{
	for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++) {
		struct sock_filter filter[] = {
			BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
			BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CALLS[i].number, 0, 1),
			BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
			BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		};
		struct sock_fprog program = { sizeof filter / sizeof *filter, filter };

		if (strcmp(CALLS[i].name, name) == 0)
			return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
			       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
	}
	return -1;
}

int main(int argc, char **argv)
{
	struct ibv_device **list;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp_init_attr init = { .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };

	if (argc != 3 || deny(argv[1], atoi(argv[2])))
		return 1;
	TRY("ibv_get_device_list", list = ibv_get_device_list(NULL));
	TRY("ibv_open_device", context = ibv_open_device(list[0]));
	TRY("ibv_alloc_pd", pd = ibv_alloc_pd(context));
	TRY("ibv_create_cq", cq = ibv_create_cq(context, 8, NULL, NULL, 0));
	init.send_cq = init.recv_cq = cq;
	TRY("ibv_create_qp", ibv_create_qp(pd, &init));
	printf("all is there\n");
	return 0;
}
