"""Tests that use the adapter themselves, through pyverbs: start pytest with `ironwarp run --`."""

import pytest
from pyverbs import enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

PORT = 1
GID_INDEX = 0
LEN = 4096


class End:
    """A queue pair with a region of memory."""

    def __init__(self, context, access):
        self.pd = PD(context)
        self.cq = CQ(context, 16)
        self.mr = MR(self.pd, LEN, access)
        cap = QPCap(max_send_wr=16, max_recv_wr=16)
        self.qp = QP(self.pd, QPInitAttr(e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))

    def connect(self, context, peer):
        attr = QPAttr(port_num=PORT)
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
        attr.dest_qp_num = peer.qp.qp_num
        attr.path_mtu = e.IBV_MTU_1024
        attr.min_rnr_timer = 12
        attr.timeout = 14
        attr.retry_cnt = attr.rnr_retry = 7
        route = GlobalRoute(dgid=context.query_gid(PORT, GID_INDEX), sgid_index=GID_INDEX)
        attr.ah_attr = AHAttr(port_num=PORT, is_global=1, gr=route)
        self.qp.to_rts(attr)

    def write(self, peer, data):
        """Writes to the memory of the peer, and returns the completion."""
        self.mr.write(data, len(data))
        wr = SendWR(opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=[SGE(self.mr.buf, len(data), self.mr.lkey)])
        wr.set_wr_rdma(peer.mr.rkey, peer.mr.buf)
        self.qp.post_send(wr)
        while True:
            count, completions = self.cq.poll()
            if count:
                return completions[0]


@pytest.fixture
def context():
    devices = get_device_list()
    assert devices, "no RDMA device: start pytest with `ironwarp run --`"
    with Context(name=devices[0].name.decode()) as context:
        yield context


def connected(context, access):
    """Two ends on this host; the region of the second has these rights."""
    ends = End(context, e.IBV_ACCESS_LOCAL_WRITE), End(context, access)
    ends[0].connect(context, ends[1])
    ends[1].connect(context, ends[0])
    return ends


def test_a_write_places_every_byte(context):
    here, there = connected(context, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
    data = bytes(at * 7 % 251 for at in range(LEN))
    assert here.write(there, data).status == e.IBV_WC_SUCCESS
    assert there.mr.read(LEN, 0) == data


def test_a_write_without_the_right_fails(context):
    here, there = connected(context, e.IBV_ACCESS_LOCAL_WRITE)
    assert here.write(there, b"x" * LEN).status == e.IBV_WC_REM_ACCESS_ERR
    assert there.mr.read(LEN, 0) == bytes(LEN)
