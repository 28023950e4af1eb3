/* Calls that are refused or not supported. Each is logged with the reason. */
#include "ends.h"
#include <errno.h>
#include <rdma/rdma_cma.h>

#define SAY(call)                                                                                                      \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		long answer = (long)(call);                                                                            \
		printf("%s: %ld, %s\n", #call, answer, strerror(errno));                                               \
		fflush(stdout);                                                                                        \
	} while (0)

int main(void)
{
	open_device();
	create_end(&a, 16, IBV_ACCESS_LOCAL_WRITE);
	SAY(ibv_reg_mr(a.pd, a.memory, SIZE, IBV_ACCESS_REMOTE_WRITE));
	SAY(ibv_reg_mr(a.pd, NULL, SIZE, 0));
	SAY(ibv_create_cq(context, 0, NULL, NULL, 0));
	SAY(ibv_dealloc_pd(a.pd));
	SAY(ibv_alloc_pd((struct ibv_context *)a.pd));
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(!ibv_dealloc_pd(pd));
	SAY(ibv_dealloc_pd(pd) == EINVAL);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	SAY(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_AV));
	SAY(post(&a, IBV_WR_SEND, 5, a.mr, 8, 0, 0));
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	SAY(rdma_create_qp(id, a.pd, NULL));
	union ibv_gid group = { .raw = { 0xff } };
	SAY(ibv_attach_mcast(a.qp, &group, 0));
	SAY(ibv_attach_mcast(a.qp, &group, 0));
	struct ibv_wq_init_attr wq = { .wq_type = IBV_WQT_RQ };
	SAY(ibv_create_wq(context, &wq));
	/* Programs probe devices with these, and expect a refusal: nothing is logged. */
	SAY(ibv_reg_dmabuf_mr(a.pd, 0, SIZE, 0, -1, 0));
	struct ibv_ece ece;
	SAY(ibv_query_ece(a.qp, &ece));
	return 0;
}
