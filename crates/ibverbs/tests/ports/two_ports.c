/* A device with two ports: each has its own GIDs, a queue pair is connected at the port that it was given, and
 * alternative paths are refused. */
#include <errno.h>
#include "check.h"
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE 4096

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static struct ibv_qp *create_qp(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	return qp;
}

static int to_init(struct ibv_qp *qp, int port)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = (uint8_t)port, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE
	};

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static void to_rts(struct ibv_qp *qp, int port, int peer_port, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_4096,
		.dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = (uint8_t)port, .grh = { .hop_limit = 64 } },
	};

	CHECK(ibv_query_gid(context, (uint8_t)peer_port, 0, &attr.ah_attr.grh.dgid) == 0);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 3, .rnr_retry = 7 };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					       IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

int main(void)
{
	static unsigned char in[SIZE], out[SIZE];
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_device_attr device;
	struct ibv_gid_entry entries[8];
	struct ibv_port_attr port;
	struct ibv_qp *one, *two;
	struct ibv_mr *in_mr, *out_mr;
	union ibv_gid gid;

	CHECK(list && list[0] && !list[1]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(pd && cq);
	CHECK(ibv_query_device(context, &device) == 0 && device.phys_port_cnt == 2);
	CHECK(!(device.device_cap_flags & IBV_DEVICE_AUTO_PATH_MIG));
	CHECK(ibv_query_gid_table(context, entries, 8, 0) == 2);
	CHECK(entries[0].port_num == 1 && entries[1].port_num == 2 && entries[1].gid_index == 0);
	for (uint8_t number = 1; number <= 2; number++) {
		CHECK(ibv_query_port(context, number, &port) == 0 && port.state == IBV_PORT_ACTIVE);
		CHECK(ibv_query_gid(context, number, 0, &gid) == 0);
		CHECK(memcmp(&gid, &entries[number - 1].gid, sizeof(gid)) == 0);
		printf("port %d is at %d.%d.%d.%d\n", number, gid.raw[12], gid.raw[13], gid.raw[14], gid.raw[15]);
	}
	CHECK(ibv_query_port(context, 3, &port) == EINVAL);

	/* From port 1 to port 2 of the same device. */
	one = create_qp();
	two = create_qp();
	CHECK(to_init(one, 3) == EINVAL);
	CHECK(to_init(one, 1) == 0 && to_init(two, 2) == 0);
	to_rts(one, 1, 2, two);
	to_rts(two, 2, 1, one);
	in_mr = ibv_reg_mr(pd, in, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	out_mr = ibv_reg_mr(pd, out, SIZE, 0);
	CHECK(in_mr && out_mr);
	for (int at = 0; at < SIZE; at++)
		out[at] = (unsigned char)(at * 7 + (at >> 8));
	{
		struct ibv_sge sge = { (uintptr_t)out, SIZE, out_mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
		struct ibv_wc wc;
		int found;

		wr.wr.rdma.remote_addr = (uintptr_t)in;
		wr.wr.rdma.rkey = in_mr->rkey;
		CHECK(ibv_post_send(one, &wr, &bad) == 0);
		while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
			;
		CHECK(found == 1 && wc.status == IBV_WC_SUCCESS);
		CHECK(memcmp(in, out, SIZE) == 0);
	}

	/* Alternative paths are not supported, and say so. The state that every queue pair has is accepted. */
	{
		struct ibv_qp_attr attr = { .alt_port_num = 2, .path_mig_state = IBV_MIG_REARM };

		CHECK(ibv_modify_qp(one, &attr, IBV_QP_ALT_PATH) == EOPNOTSUPP);
		CHECK(ibv_modify_qp(one, &attr, IBV_QP_PATH_MIG_STATE) == EOPNOTSUPP);
		attr.path_mig_state = IBV_MIG_MIGRATED;
		CHECK(ibv_modify_qp(one, &attr, IBV_QP_PATH_MIG_STATE) == 0);
	}
	CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(two) == 0);
	CHECK(ibv_dereg_mr(in_mr) == 0 && ibv_dereg_mr(out_mr) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	ibv_free_device_list(list);
	return 0;
}
