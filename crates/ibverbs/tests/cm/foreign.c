/* Objects of two contexts, each of which has an adapter of its own: every verb that combines them returns EINVAL. */
#include "kit.h"

#define REFUSED(call)                                                                                                 \
	do {                                                                                                          \
		errno = 0;                                                                                            \
		CHECK(!(call));                                                                                       \
		CHECK(errno == EINVAL);                                                                               \
	} while (0)

/* The objects of a context. */
struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_xrcd *xrcd;
	struct ibv_td *td;
	struct ibv_dm *dm;
	struct ibv_ah *ah;
	struct ibv_mr *mr;
	struct ibv_mw *mw, *mw2;
	struct ibv_qp *rc, *ud;
};

static char memory[4096];

static struct ibv_qp *create_qp_of(struct ibv_pd *pd, struct ibv_cq *send, struct ibv_cq *recv, struct ibv_srq *srq,
				   enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = send,
		.recv_cq = recv,
		.srq = srq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = type,
	};

	return ibv_create_qp(pd, &init);
}

static struct ibv_ah *create_ah_of(struct side *side)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };

	CHECK(ibv_query_gid(side->context, 1, 0, &attr.grh.dgid) == 0);
	return ibv_create_ah(side->pd, &attr);
}

static void open_side(struct side *side, struct ibv_device *device)
{
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
					   .fd = -1,
					   .oflags = O_CREAT };
	struct ibv_td_init_attr td = { 0 };
	struct ibv_alloc_dm_attr dm = { .length = 64 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 1 };
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND;

	CHECK((side->context = ibv_open_device(device)));
	CHECK((side->pd = ibv_alloc_pd(side->context)));
	CHECK((side->channel = ibv_create_comp_channel(side->context)));
	CHECK((side->cq = ibv_create_cq(side->context, 16, NULL, side->channel, 0)));
	CHECK((side->srq = ibv_create_srq(side->pd, &srq)));
	CHECK((side->xrcd = ibv_open_xrcd(side->context, &xrcd)));
	CHECK((side->td = ibv_alloc_td(side->context, &td)));
	CHECK((side->dm = ibv_alloc_dm(side->context, &dm)));
	CHECK((side->ah = create_ah_of(side)));
	CHECK((side->mr = ibv_reg_mr(side->pd, memory, sizeof memory, access)));
	CHECK((side->mw = ibv_alloc_mw(side->pd, IBV_MW_TYPE_1)));
	CHECK((side->mw2 = ibv_alloc_mw(side->pd, IBV_MW_TYPE_2)));
	CHECK((side->rc = create_qp_of(side->pd, side->cq, side->cq, side->srq, IBV_QPT_RC)));
	CHECK((side->ud = create_qp_of(side->pd, side->cq, side->cq, NULL, IBV_QPT_UD)));
	CHECK(ibv_modify_qp(side->ud, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(side->ud, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(side->ud, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
}

static void refuse_creation(struct side *a, struct side *b)
{
	struct ibv_cq_init_attr_ex cq = { .cqe = 16, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = b->pd };
	struct ibv_srq_init_attr_ex xrc = {
		.attr = { .max_wr = 4, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = a->pd,
		.xrcd = a->xrcd,
		.cq = a->cq,
	};
	struct ibv_parent_domain_init_attr domain = { .pd = a->pd, .td = b->td };

	REFUSED(ibv_create_cq(a->context, 16, NULL, b->channel, 0));
	REFUSED(ibv_create_cq_ex(a->context, &cq));
	REFUSED(create_qp_of(a->pd, b->cq, a->cq, NULL, IBV_QPT_RC));
	REFUSED(create_qp_of(a->pd, a->cq, b->cq, NULL, IBV_QPT_UD));
	REFUSED(create_qp_of(a->pd, a->cq, a->cq, b->srq, IBV_QPT_RC));
	REFUSED(create_qp_of(a->pd, a->cq, a->cq, b->srq, IBV_QPT_UD));
	xrc.cq = b->cq;
	REFUSED(ibv_create_srq_ex(a->context, &xrc));
	xrc.cq = a->cq;
	xrc.xrcd = b->xrcd;
	REFUSED(ibv_create_srq_ex(a->context, &xrc));
	REFUSED(ibv_alloc_parent_domain(a->context, &domain));
	domain = (struct ibv_parent_domain_init_attr){ .pd = b->pd, .td = a->td };
	REFUSED(ibv_alloc_parent_domain(a->context, &domain));
	REFUSED(ibv_reg_dm_mr(a->pd, b->dm, 0, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED));
	CHECK(ibv_rereg_mr(a->mr, IBV_REREG_MR_CHANGE_PD, b->pd, NULL, 0, 0) != 0);
	CHECK(errno == EINVAL && a->mr->pd == a->pd);
}

static void refuse_requests(struct side *a, struct side *b)
{
	struct ibv_mw_bind bind = { .bind_info = { .mr = a->mr, .addr = (uintptr_t)memory, .length = 64 } };
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_SEND, .wr.ud = { .ah = b->ah, .remote_qpn = a->ud->qp_num } };

	CHECK(ibv_post_send(a->ud, &wr, &bad) == EINVAL && bad == &wr);
	wr.wr.ud.ah = a->ah;
	CHECK(ibv_post_send(a->ud, &wr, &bad) == 0);
	/* The header itself refuses a window and a region of different domains. */
	CHECK(ibv_bind_mw(a->rc, b->mw, &bind) == EPERM);
	bind.bind_info.mr = b->mr;
	CHECK(ibv_bind_mw(a->rc, a->mw, &bind) == EPERM);
	CHECK(ibv_bind_mw(a->rc, b->mw, &bind) == EINVAL);
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_BIND_MW,
				   .bind_mw = { .mw = b->mw2,
						.rkey = b->mw2->rkey,
						.bind_info = { .mr = b->mr, .addr = (uintptr_t)memory, .length = 64 } } };
	CHECK(ibv_post_send(a->rc, &wr, &bad) == EINVAL && bad == &wr);
	wr.bind_mw.mw = a->mw2;
	CHECK(ibv_post_send(a->rc, &wr, &bad) == EINVAL && bad == &wr);
}

static void refuse_ids(struct side *b)
{
	struct rdma_cm_id *id = create_dialler(rdma_create_event_channel(), 1, RDMA_PS_TCP);
	struct ibv_qp_init_attr qp = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };

	FAILS(rdma_create_qp(id, b->pd, &qp), EINVAL);
	qp.send_cq = qp.recv_cq = b->cq;
	FAILS(rdma_create_qp(id, NULL, &qp), EINVAL);
	FAILS(rdma_create_srq(id, b->pd, &srq), EINVAL);
}

static void contexts(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct side sides[2];

	CHECK(devices && devices[0]);
	for (int i = 0; i < 2; i++)
		open_side(&sides[i], devices[i && devices[1] ? 1 : 0]);
	for (int i = 0; i < 2; i++) {
		refuse_creation(&sides[i], &sides[!i]);
		refuse_requests(&sides[i], &sides[!i]);
		refuse_ids(&sides[i]);
	}
}

static const struct test TESTS[] = { { "contexts", contexts } };

RUN(TESTS)
