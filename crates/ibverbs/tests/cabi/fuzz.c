/* Threads that create, use and destroy objects of the drop-in, driven by a seed: `fuzz SEED`. `cargo xtask cabi-fuzz`
 * runs many seeds, with a sanitizer in the library.
 *
 * Control calls race freely: they also get objects that another thread is destroying or has destroyed. Any result is
 * valid; the goal is to find crashes, hangs, and reports of the sanitizer. The data path, like inline code of the
 * headers, keeps the rules of verbs: no thread posts to or polls an object that another one destroys. */
#include "../exit/peer.h"
#include <errno.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>

#define THREADS 4
#define WAITERS 3
#define STEPS 150
#define SLOTS 4

enum kind { CONTEXT, PD, MR, CHANNEL, CQ, SRQ, QP, AH, CM_CHANNEL, CM_ID, KINDS };

/* An object or NULL, the object that was destroyed last, and a lock: held shared on the data path, and exclusively
 * to destroy the object. */
struct slot {
	_Atomic(void *) object, stale;
	pthread_rwlock_t lock;
};

static struct slot slots[KINDS][SLOTS];
static char bytes[4096];
static atomic_int children, made[KINDS];

/* xorshift: each thread has its own sequence, derived from the seed. */
struct random {
	uint64_t state;
};

static uint32_t draw(struct random *random, uint32_t below)
{
	random->state ^= random->state << 13;
	random->state ^= random->state >> 7;
	random->state ^= random->state << 17;
	return (uint32_t)(random->state >> 32) % below;
}

static struct slot *pick_slot(struct random *random, enum kind kind)
{
	/* Objects of different contexts do not work together, so there is mostly one context. */
	return &slots[kind][kind == CONTEXT && draw(random, 8) ? 0 : draw(random, SLOTS)];
}

/* Picks an object for a control call: mostly a live one, sometimes a destroyed one, or NULL. */
static void *pick_object(struct random *random, enum kind kind)
{
	if (draw(random, 16) == 0)
		return atomic_load(&pick_slot(random, kind)->stale);
	for (int i = 0; i < SLOTS; i++) {
		void *object = atomic_load(&pick_slot(random, kind)->object);
		if (object)
			return object;
	}
	return NULL;
}

static int destroy(enum kind kind, void *object)
{
	switch (kind) {
	case CONTEXT:
		return ibv_close_device(object);
	case PD:
		return ibv_dealloc_pd(object);
	case MR:
		return ibv_dereg_mr(object);
	case CHANNEL:
		return ibv_destroy_comp_channel(object);
	case CQ:
		return ibv_destroy_cq(object);
	case SRQ:
		return ibv_destroy_srq(object);
	case QP:
		return ibv_destroy_qp(object);
	case AH:
		return ibv_destroy_ah(object);
	case CM_ID:
		return rdma_destroy_id(object);
	case CM_CHANNEL:
		rdma_destroy_event_channel(object);
		return 0;
	default:
		return EINVAL;
	}
}

static struct ibv_context *open_context(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *opened = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	return opened;
}

static struct ibv_qp *create_qp(struct random *random)
{
	struct ibv_cq *cq = pick_object(random, CQ);
	struct ibv_qp_init_attr init = { .qp_type = draw(random, 4) ? IBV_QPT_RC : IBV_QPT_UD,
					 .send_cq = cq,
					 .recv_cq = draw(random, 2) ? cq : pick_object(random, CQ),
					 .srq = draw(random, 4) ? NULL : pick_object(random, SRQ),
					 .sq_sig_all = 1,
					 .cap = { .max_send_wr = 8, .max_recv_wr = 8 } };
	return ibv_create_qp(pick_object(random, PD), &init);
}

static void *create(struct random *random, enum kind kind)
{
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 8 } };
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1 };
	struct rdma_cm_id *id = NULL;
	switch (kind) {
	case CONTEXT:
		return open_context();
	case PD:
		return ibv_alloc_pd(pick_object(random, CONTEXT));
	case MR:
		return ibv_reg_mr(pick_object(random, PD), bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
	case CHANNEL:
		return ibv_create_comp_channel(pick_object(random, CONTEXT));
	case CQ:
		return ibv_create_cq(pick_object(random, CONTEXT), 64, NULL, draw(random, 2) ? pick_object(random, CHANNEL) : NULL, 0);
	case SRQ:
		return ibv_create_srq(pick_object(random, PD), &srq);
	case QP:
		return create_qp(random);
	case AH:
		ibv_query_gid(pick_object(random, CONTEXT), 1, 0, &ah.grh.dgid);
		return ibv_create_ah(pick_object(random, PD), &ah);
	case CM_CHANNEL:
		return rdma_create_event_channel();
	case CM_ID:
		rdma_create_id(pick_object(random, CM_CHANNEL), &id, NULL, RDMA_PS_TCP);
		return id;
	default:
		return NULL;
	}
}

/* Replaces an object, or creates or destroys one. No thread posts to it or polls it meanwhile. The first context
 * stays, or most calls would fail. */
static void replace(struct random *random, enum kind kind)
{
	struct slot *slot = kind == CONTEXT ? &slots[kind][1 + draw(random, SLOTS - 1)] : pick_slot(random, kind);
	void *new = NULL;
	if (draw(random, 4) && !(new = create(random, kind)))
		return;
	if (new)
		atomic_fetch_add(&made[kind], 1);
	pthread_rwlock_wrlock(&slot->lock);
	void *old = atomic_exchange(&slot->object, new);
	if (old)
		atomic_store(&slot->stale, old);
	int failed = old ? destroy(kind, old) : 0;
	pthread_rwlock_unlock(&slot->lock);
	(void)failed; /* an object in use is leaked, and exit() closes it */
}

static int modify(struct ibv_qp *qp, enum ibv_qp_state state, uint32_t qpn, union ibv_gid gid)
{
	struct ibv_qp_attr attr = { .qp_state = state, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = qpn,
				    .max_dest_rd_atomic = 1, .max_rd_atomic = 1, .timeout = 10, .retry_cnt = 1,
				    .rnr_retry = 1, .min_rnr_timer = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
				    .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } } };
	int mask = IBV_QP_STATE;
	if (state == IBV_QPS_INIT)
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	if (state == IBV_QPS_RTR)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			IBV_QP_MIN_RNR_TIMER;
	if (state == IBV_QPS_RTS)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
	return ibv_modify_qp(qp, &attr, mask);
}

static uint32_t number_of(struct slot *slot)
{
	pthread_rwlock_rdlock(&slot->lock);
	struct ibv_qp *qp = atomic_load(&slot->object);
	uint32_t number = qp ? qp->qp_num : 0;
	pthread_rwlock_unlock(&slot->lock);
	return number;
}

/* Connects two queue pairs to each other. Either may be destroyed meanwhile. */
static void connect_two(struct random *random)
{
	struct slot *two[] = { pick_slot(random, QP), pick_slot(random, QP) };
	uint32_t numbers[] = { number_of(two[0]), number_of(two[1]) };
	union ibv_gid gid;
	if (ibv_query_gid(pick_object(random, CONTEXT), 1, 0, &gid))
		return;
	for (int i = 0; i < 2; i++) {
		struct ibv_qp *qp = atomic_load(&two[i]->object);
		modify(qp, IBV_QPS_INIT, 0, gid);
		modify(qp, IBV_QPS_RTR, numbers[1 - i], gid);
		modify(qp, IBV_QPS_RTS, 0, gid);
	}
}

/* Makes control calls with arbitrary objects. */
static void make_control_call(struct random *random)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_srq_attr srq = { .max_wr = 8 };
	struct ibv_device_attr device;
	union ibv_gid none = { .raw = { 0 } };
	switch (draw(random, 12)) {
	case 0:
		ibv_query_qp(pick_object(random, QP), &attr, IBV_QP_STATE, &init);
		break;
	case 1:
		modify(pick_object(random, QP), draw(random, 2) ? IBV_QPS_ERR : IBV_QPS_RESET, 0, none);
		break;
	case 2:
		ibv_resize_cq(pick_object(random, CQ), 1 + draw(random, 128));
		break;
	case 3:
		ibv_query_srq(pick_object(random, SRQ), &srq);
		break;
	case 4:
		ibv_modify_srq(pick_object(random, SRQ), &srq, IBV_SRQ_LIMIT);
		break;
	case 5:
		ibv_query_device(pick_object(random, CONTEXT), &device);
		break;
	case 6:
		ibv_rereg_mr(pick_object(random, MR), IBV_REREG_MR_CHANGE_PD, pick_object(random, PD), NULL, 0, 0);
		break;
	case 7:
		rdma_get_src_port(pick_object(random, CM_ID));
		break;
	case 8:
		rdma_listen(pick_object(random, CM_ID), 1);
		break;
	case 9: /* also of destroyed objects, and of objects in use */
		destroy(MR, pick_object(random, MR));
		break;
	case 10:
		destroy(AH, pick_object(random, AH));
		break;
	case 11:
		if (draw(random, 4) == 0)
			destroy(PD, pick_object(random, PD));
		break;
	}
}

/* Posts to a queue pair, or polls a completion queue. */
static void use_data_path(struct random *random)
{
	struct slot *slot = pick_slot(random, draw(random, 2) ? QP : CQ);
	int is_qp = slot >= slots[QP] && slot < slots[QP] + SLOTS;
	pthread_rwlock_rdlock(&slot->lock);
	void *object = atomic_load(&slot->object);
	if (object && is_qp) {
		struct ibv_qp *qp = object;
		struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = 16 };
		struct ibv_send_wr *bad, send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
						  .send_flags = IBV_SEND_INLINE };
		struct ibv_recv_wr *bad_receive, receive = { .num_sge = 0 };
		if (!qp->srq)
			ibv_post_recv(qp, &receive, &bad_receive);
		if (qp->qp_type == IBV_QPT_RC)
			ibv_post_send(qp, &send, &bad);
	} else if (object) {
		struct ibv_wc wc[8];
		ibv_poll_cq((struct ibv_cq *)object, 8, wc);
		ibv_req_notify_cq((struct ibv_cq *)object, 0);
	}
	pthread_rwlock_unlock(&slot->lock);
}

/* A child queries objects of its parent, creates its own, and exits in some way. */
static void child(struct random *random)
{
	for (int i = 0; i < 8; i++)
		make_control_call(random);
	struct ibv_context *own = open_context();
	struct ibv_pd *pd = ibv_alloc_pd(own);
	ibv_dealloc_pd(pd);
	if (draw(random, 2))
		ibv_close_device(own);
	if (draw(random, 2))
		exit(0);
	_exit(0);
}

static void fork_child(struct random *random)
{
	if (atomic_fetch_add(&children, 1) >= 3)
		return;
	pid_t made = fork();
	if (made == 0)
		child(random);
	int status;
	CHECK(made > 0 && waitpid(made, &status, 0) == made);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void step(struct random *random)
{
	switch (draw(random, 32)) {
	case 0:
		fork_child(random);
		break;
	case 1:
		replace(random, CONTEXT);
		break;
	case 2 ... 5:
		connect_two(random);
		break;
	case 6 ... 12:
		make_control_call(random);
		break;
	case 13 ... 20:
		use_data_path(random);
		break;
	default:
		replace(random, PD + draw(random, KINDS - PD));
	}
}

/* Waits for events, and is cancelled at the end or before. Events must be acknowledged. */
static void *wait_for_events(void *given)
{
	struct random *random = given;
	for (;;) {
		struct ibv_cq *cq;
		void *of_cq;
		struct ibv_async_event event;
		struct rdma_cm_event *of_id;
		int which = draw(random, 3), failed = 0, old;
		if (which == 0)
			failed = ibv_get_cq_event(pick_object(random, CHANNEL), &cq, &of_cq);
		else if (which == 1)
			failed = ibv_get_async_event(pick_object(random, CONTEXT), &event);
		else
			failed = rdma_get_cm_event(pick_object(random, CM_CHANNEL), &of_id);
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
		if (!failed && which == 0)
			ibv_ack_cq_events(cq, 1);
		if (!failed && which == 1)
			ibv_ack_async_event(&event);
		if (!failed && which == 2)
			rdma_ack_cm_event(of_id);
		pthread_setcancelstate(old, NULL);
		usleep(200);
		make_control_call(random); /* may be cancelled here as well */
	}
	return NULL;
}

static int exits_early;

static void *work(void *given)
{
	struct random *random = given;
	for (int i = 0; i < STEPS; i++)
		step(random);
	if (getenv("CABI_FUZZ_COUNTS"))
		for (int kind = 0; kind < KINDS; kind++)
			printf("%d of kind %d made\n", atomic_load(&made[kind]), kind);
	if (exits_early)
		exit(0);
	return NULL;
}

int main(int count, char **arguments)
{
	static struct random randoms[THREADS + WAITERS + 1];
	pthread_t threads[THREADS + WAITERS];
	CHECK(count == 2);
	uint64_t seed = strtoull(arguments[1], NULL, 0);
	for (int i = 0; i <= THREADS + WAITERS; i++)
		randoms[i].state = (seed * 64 + i + 1) * 0x9e3779b97f4a7c15;
	for (int kind = 0; kind < KINDS; kind++)
		for (int i = 0; i < SLOTS; i++)
			pthread_rwlock_init(&slots[kind][i].lock, NULL);
	/* Some processes have a peer that does not answer, so that their exit takes as long as possible. */
	if (seed % 8 == 0) {
		connect_to_stopped_peer();
		for (int i = 0; i < 2; i++)
			atomic_store(&slots[QP][i].object, ends[i]->qp);
	}
	struct random *own = &randoms[THREADS + WAITERS];
	exits_early = seed % 4 == 1;
	atomic_store(&slots[CONTEXT][0].object, open_context());
	for (enum kind kind = PD; kind < KINDS; kind++)
		for (int i = 2; i < SLOTS; i++)
			atomic_store(&slots[kind][i].object, create(own, kind));
	for (int i = 0; i < THREADS + WAITERS; i++)
		CHECK(!pthread_create(&threads[i], NULL, i < THREADS ? work : wait_for_events, &randoms[i]));
	/* The waiting threads are cancelled while the others work. */
	usleep(draw(own, 20000));
	for (int i = THREADS; i < THREADS + WAITERS; i++)
		pthread_cancel(threads[i]);
	if (seed % 4 == 2 || seed % 8 == 0)
		return 0; /* in the middle of everything */
	for (int i = 0; i < THREADS + WAITERS; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
