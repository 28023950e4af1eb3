/* Sends freed memory inline: proves that `cargo xtask memcheck` finds such errors. */
#include <infiniband/verbs.h>
#include <stdlib.h>

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(list[0]);
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .cap.max_send_wr = 1 };
	struct ibv_qp *qp = ibv_create_qp(ibv_alloc_pd(context), &init);
	void *freed = malloc(64);
	struct ibv_sge sge = { .addr = (uintptr_t)freed, .length = 64 };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge,
					.num_sge = 1,
					.opcode = IBV_WR_SEND,
					.send_flags = IBV_SEND_INLINE };
	free(freed);
	ibv_post_send(qp, &wr, &bad);
	return 0;
}
