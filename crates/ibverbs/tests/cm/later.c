/*
 * Features of releases of rdma-core after 44. The installed headers may lack them: functions are looked up by their
 * versions, and structures and constants are declared here as in the headers of 65.
 */
#include "kit.h"
#include <dlfcn.h>

enum { MASK_IOVA = 1, MASK_ADDR = 2, MASK_FD = 4, MASK_DMAH = 16, MASK_BUF = 32 };
enum { HINT_SA = 0x10, ACCESS_FLUSH_GLOBAL = 1 << 8, ALLOW_CC_UNPROTECTED = 1 << 2 };
static const enum rdma_cm_event_type EVENT_ADDRINFO_RESOLVED = 16, EVENT_USER = 18;

struct later_mr_attr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
	void *buf;
};

/* Finds a function by its name and version. */
static void *find_function(const char *name, const char *version)
{
	void *found = dlvsym(RTLD_DEFAULT, name, version);

	if (!found)
		fprintf(stderr, "there is no %s@%s\n", name, version);
	CHECK(found);
	return found;
}

#define LATER(result, name, version, ...) \
	result (*name)(__VA_ARGS__) = (result (*)(__VA_ARGS__))find_function(#name, version)

static struct ibv_context *open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list ? ibv_open_device(list[0]) : NULL;

	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

/* Checks that a call returns NULL with this errno. */
#define REFUSED(call, wanted)                  \
	do {                                   \
		errno = 0;                     \
		CHECK((call) == NULL);         \
		CHECK(errno == (wanted));      \
	} while (0)

/* Memory that the library allocates: separate pages, which can be registered in whole or in part, in their own
 * domain only. */
static void buffers(void)
{
	LATER(void *, ibv_alloc_buf, "IBVERBS_1.17", struct ibv_pd *, size_t, void **);
	LATER(void, ibv_free_buf, "IBVERBS_1.17", void *);
	LATER(struct ibv_mr *, ibv_reg_buf_mr, "IBVERBS_1.17", struct ibv_pd *, void *, void *, size_t, int);
	LATER(int, ibv_export_buf_dmabuf_fd, "IBVERBS_1.18", void *);
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
	long page = sysconf(_SC_PAGESIZE);
	void *buf = NULL, *none = NULL;
	char *memory = ibv_alloc_buf(pd, 3 * page - 1, &buf);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;

	CHECK(memory && buf && (uintptr_t)memory % page == 0);
	for (long i = 0; i < 3 * page - 1; i++)
		CHECK(memory[i] == 0);
	struct ibv_mr *whole = ibv_reg_buf_mr(pd, buf, memory, 3 * page - 1, access);
	struct ibv_mr *part = ibv_reg_buf_mr(pd, buf, memory + page, 17, access);
	CHECK(whole && part && whole->lkey != part->lkey);
	CHECK(part->addr == memory + page && part->length == 17 && part->pd == pd);
	REFUSED(ibv_reg_buf_mr(other, buf, memory, page, access), EINVAL);
	REFUSED(ibv_reg_buf_mr(pd, buf, memory + 1, 3 * page - 1, access), EINVAL);
	REFUSED(ibv_reg_buf_mr(pd, buf, memory - 1, 1, access), EINVAL);
	REFUSED(ibv_reg_buf_mr(pd, buf, memory, SIZE_MAX, access), EINVAL);
	REFUSED(ibv_reg_buf_mr(pd, memory, memory, page, access), EINVAL);
	REFUSED(ibv_alloc_buf(pd, 0, &none), EINVAL);
	REFUSED(ibv_alloc_buf(pd, SIZE_MAX / 2, &none), ENOMEM);
	REFUSED(ibv_alloc_buf(pd, page, NULL), EINVAL);
	REFUSED(ibv_alloc_buf(NULL, page, &none), EINVAL);
	CHECK(none == NULL);
	FAILS(ibv_export_buf_dmabuf_fd(buf), ENODATA);
	FAILS(ibv_export_buf_dmabuf_fd(NULL), EINVAL);
	CHECK(ibv_dereg_mr(whole) == 0 && ibv_dereg_mr(part) == 0);
	ibv_free_buf(buf);
	ibv_free_buf(buf); /* a harmless mistake */
	REFUSED(ibv_reg_buf_mr(pd, buf, memory, page, access), EINVAL);
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_dealloc_pd(other) == 0 && ibv_close_device(context) == 0);
}

/* The call that registers any kind of memory. */
static void registers(void)
{
	LATER(struct ibv_mr *, ibv_reg_mr_ex, "IBVERBS_1.15", struct ibv_pd *, struct later_mr_attr *);
	LATER(void *, ibv_alloc_buf, "IBVERBS_1.17", struct ibv_pd *, size_t, void **);
	LATER(void, ibv_free_buf, "IBVERBS_1.17", void *);
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	static char bytes[4096];
	struct later_mr_attr attr = {
		.length = sizeof bytes, .access = IBV_ACCESS_LOCAL_WRITE, .comp_mask = MASK_ADDR, .addr = bytes};
	struct ibv_mr *mr = ibv_reg_mr_ex(pd, &attr);

	CHECK(mr && mr->addr == bytes && mr->length == sizeof bytes && ibv_dereg_mr(mr) == 0);
	attr.comp_mask = MASK_ADDR | MASK_IOVA;
	attr.iova = 0x1000;
	mr = ibv_reg_mr_ex(pd, &attr);
	CHECK(mr && ibv_dereg_mr(mr) == 0);
	attr.comp_mask = MASK_ADDR | MASK_BUF;
	attr.addr = ibv_alloc_buf(pd, sizeof bytes, &attr.buf);
	mr = ibv_reg_mr_ex(pd, &attr);
	CHECK(mr && mr->addr == attr.addr && ibv_dereg_mr(mr) == 0);
	attr.length++;
	REFUSED(ibv_reg_mr_ex(pd, &attr), EINVAL);
	attr.comp_mask |= MASK_FD;
	REFUSED(ibv_reg_mr_ex(pd, &attr), EINVAL);
	ibv_free_buf(attr.buf);
	attr = (struct later_mr_attr){.length = sizeof bytes, .addr = bytes};
	REFUSED(ibv_reg_mr_ex(pd, &attr), EINVAL);
	attr.comp_mask = MASK_FD | MASK_IOVA;
	REFUSED(ibv_reg_mr_ex(pd, &attr), EOPNOTSUPP);
	attr.comp_mask = MASK_ADDR | MASK_DMAH;
	REFUSED(ibv_reg_mr_ex(pd, &attr), EOPNOTSUPP);
	attr.comp_mask = MASK_ADDR | 1ULL << 40;
	REFUSED(ibv_reg_mr_ex(pd, &attr), EOPNOTSUPP);
	REFUSED(ibv_reg_mr_ex(pd, NULL), EINVAL);
	attr.comp_mask = MASK_ADDR;
	attr.access = IBV_ACCESS_LOCAL_WRITE | ACCESS_FLUSH_GLOBAL;
	REFUSED(ibv_reg_mr_ex(pd, &attr), EOPNOTSUPP);
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
}

/* Port speeds, and a parent domain that allows memory unprotected from the host of a guest. */
static void queries(void)
{
	LATER(int, ibv_query_port_speed, "IBVERBS_1.16", struct ibv_context *, uint32_t, uint64_t *);
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_parent_domain_init_attr attr = {.pd = pd, .comp_mask = ALLOW_CC_UNPROTECTED};
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
	/* The structure as in the headers of 65: four bytes longer. */
	struct {
		struct ibv_port_attr attr;
		uint32_t room[2];
	} port = {.room = {0x55555555, 0x55555555}};
	uint64_t speed = 0;

	CHECK(parent && ibv_dealloc_pd(parent) == 0);
	CHECK(ibv_query_port_speed(context, 1, &speed) == 0 && speed == 1000);
	CHECK(ibv_query_port_speed(context, 2, &speed) == EINVAL);
	CHECK(ibv_query_port_speed(context, 257, &speed) == EINVAL);
	CHECK(verbs_get_ctx(context)->query_port(context, 1, &port.attr, 56) == 0);
	uint32_t active_speed_ex;
	memcpy(&active_speed_ex, (char *)&port + 52, sizeof active_speed_ex);
	CHECK(active_speed_ex == port.attr.active_speed && active_speed_ex == 32);
	CHECK(((uint32_t *)&port)[14] == 0x55555555);
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
}

/* What an adapter over TCP does not support. */
static void refuses(void)
{
	static const char *const null[] = {"ibv_alloc_dmah@IBVERBS_1.15", "ibv_create_comp_cntr@IBVERBS_1.18"};
	static const char *const code[] = {
		"ibv_dealloc_dmah@IBVERBS_1.15", "_ibv_query_comp_cntr_caps@IBVERBS_1.18",
		"ibv_destroy_comp_cntr@IBVERBS_1.18", "ibv_set_comp_cntr@IBVERBS_1.18",
		"ibv_set_err_comp_cntr@IBVERBS_1.18", "ibv_inc_comp_cntr@IBVERBS_1.18",
		"ibv_inc_err_comp_cntr@IBVERBS_1.18", "ibv_read_comp_cntr@IBVERBS_1.18",
		"ibv_read_err_comp_cntr@IBVERBS_1.18", "ibv_qp_attach_comp_cntr@IBVERBS_1.18"};
	LATER(int, ibv_dm_export_dmabuf_fd, "IBVERBS_1.16", void *);
	char name[64], *version;

	for (size_t i = 0; i < sizeof null / sizeof *null; i++) {
		strcpy(name, null[i]);
		version = strchr(name, '@');
		*version++ = 0;
		void *(*make)(void *, void *) = (void *(*)(void *, void *))find_function(name, version);
		REFUSED(make(NULL, NULL), EOPNOTSUPP);
	}
	for (size_t i = 0; i < sizeof code / sizeof *code; i++) {
		strcpy(name, code[i]);
		version = strchr(name, '@');
		*version++ = 0;
		int (*call)(void *, void *, void *) = (int (*)(void *, void *, void *))find_function(name, version);
		CHECK(call(NULL, NULL, NULL) == EOPNOTSUPP);
	}
	FAILS(ibv_dm_export_dmabuf_fd(NULL), EOPNOTSUPP);
}

/* An event that the program writes wakes the thread that waits for the channel, with its argument. */
static void *waits_for_an_event(void *channel)
{
	struct rdma_cm_event *event;

	CHECK(rdma_get_cm_event(channel, &event) == 0);
	return event;
}

static void writes(void)
{
	LATER(int, rdma_write_cm_event, "RDMACM_1.4", struct rdma_cm_id *, unsigned, int, uint64_t);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct thread thread;
	uint64_t argument;

	CHECK(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	start(&thread, waits_for_an_event, channel);
	wait_until_in(&thread, SYS_recvfrom);
	CHECK(rdma_write_cm_event(id, EVENT_USER, -7, 0x1122334455667788) == 0);
	struct rdma_cm_event *event = join(&thread);
	memcpy(&argument, &event->param, sizeof argument);
	CHECK(event->id == id && event->event == EVENT_USER && event->status == -7);
	CHECK(argument == 0x1122334455667788);
	CHECK(rdma_ack_cm_event(event) == 0);
	FAILS(rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), EINVAL);
	FAILS(rdma_write_cm_event(NULL, EVENT_USER, 0, 0), EINVAL);
	/* An event that is not taken is destroyed with the id. */
	CHECK(rdma_write_cm_event(id, EVENT_USER, 0, 0) == 0);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

/* Names are resolved for an id, and an event reports the result. */
static void resolves(void)
{
	LATER(int, rdma_resolve_addrinfo, "RDMACM_1.4", struct rdma_cm_id *, const char *, const char *,
	      const struct rdma_addrinfo *);
	LATER(int, rdma_query_addrinfo, "RDMACM_1.4", struct rdma_cm_id *, struct rdma_addrinfo **);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *info = NULL;
	struct rdma_cm_id *id, *synchronous;

	CHECK(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	FAILS(rdma_query_addrinfo(id, &info), ENOENT);
	CHECK(rdma_resolve_addrinfo(id, "127.0.0.1", "4791", &hints) == 0);
	expect_and_ack(channel, EVENT_ADDRINFO_RESOLVED);
	FAILS(rdma_resolve_addrinfo(id, "127.0.0.1", "4791", &hints), EBUSY);
	CHECK(rdma_query_addrinfo(id, &info) == 0 && info);
	struct sockaddr_in *to = (struct sockaddr_in *)info->ai_dst_addr;
	CHECK(to && to->sin_family == AF_INET && ntohs(to->sin_port) == 4791);
	CHECK(to->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	rdma_freeaddrinfo(info);
	FAILS(rdma_query_addrinfo(id, &info), ENOENT);
	FAILS(rdma_query_addrinfo(id, NULL), EINVAL);
	hints.ai_flags = RAI_NUMERICHOST;
	FAILS(rdma_resolve_addrinfo(id, "not an address", "4791", &hints), EADDRNOTAVAIL);
	hints.ai_flags = HINT_SA;
	FAILS(rdma_resolve_addrinfo(id, NULL, "4791", &hints), EOPNOTSUPP);
	/* A result that is not taken is destroyed with the id. */
	hints.ai_flags = 0;
	CHECK(rdma_resolve_addrinfo(id, "127.0.0.1", "4791", &hints) == 0);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
	/* Without a channel the call itself waits. */
	CHECK(rdma_create_id(NULL, &synchronous, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addrinfo(synchronous, "127.0.0.1", "4791", NULL) == 0);
	CHECK(rdma_query_addrinfo(synchronous, &info) == 0);
	rdma_freeaddrinfo(info);
	CHECK(rdma_destroy_id(synchronous) == 0);
}

static const struct test TESTS[] = {
	{ "buffers", buffers },
	{ "registers", registers },
	{ "queries", queries },
	{ "refuses", refuses },
	{ "writes", writes },
	{ "resolves", resolves },
};

RUN(TESTS)
