/* Exchanges data without mistakes, and verifies every byte: the checker must not change what the program sees. */
#include "kit.h"

#define LARGE (300 << 10)

static unsigned char source[LARGE], sink[LARGE + 64];
static struct ibv_mr *source_mr, *sink_mr;

/* The bytes that are sent, and those that are in a buffer before. The latter have all values at all alignments. */
static unsigned char sent(int at)
{
	return at * 31 + (at >> 8) * 7 + 1;
}

static unsigned char before(int at)
{
	return at * 13 + (at >> 8) * 5 + 7;
}

static void fill(void)
{
	for (int i = 0; i < LARGE; i++)
		source[i] = sent(i);
	for (unsigned i = 0; i < sizeof sink; i++)
		sink[i] = before(i);
}

static struct ibv_sge from(int offset, int length)
{
	return (struct ibv_sge){ .addr = (uintptr_t)source + offset, .length = length, .lkey = source_mr->lkey };
}

static struct ibv_sge into(int offset, int length)
{
	return (struct ibv_sge){ .addr = (uintptr_t)sink + offset, .length = length, .lkey = sink_mr->lkey };
}

/* Checks that `length` bytes were received at this offset of the sink, and that all others are as before. */
static void verify(int offset, int length)
{
	for (int i = 0; i < (int)sizeof sink; i++) {
		int at = i - offset;
		if (sink[i] != (at >= 0 && at < length ? sent(at) : before(i))) {
			printf("%d bytes at %d: byte %d is %#x\n", length, offset, i, sink[i]);
			exit(1);
		}
	}
}

/* A message shorter than its receive leaves the rest of the buffer as it was. */
static void short_message(int offset, int room, int length)
{
	fill();
	receive_part(RECEIVE, into(offset, room));
	send_part(REQUEST, from(0, length));
	CHECK(take(&b, RECEIVE).byte_len == (unsigned)length);
	await(&a, REQUEST);
	verify(offset, length);
}

/* The message ends in the second of three parts, or in the third. */
static void scattered(int length)
{
	fill();
	struct ibv_sge parts[] = { into(3, 50), into(1001, 70), into(513, 90) };
	struct ibv_sge pieces[] = { from(0, 17), from(17, 40), from(57, length - 57) };
	struct ibv_send_wr wr = { .wr_id = REQUEST, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	receive_list(RECEIVE, parts, 3);
	CHECK(!post_list(wr, pieces, 3));
	await(&b, RECEIVE);
	await(&a, REQUEST);
	for (int i = 0; i < (int)sizeof sink; i++) {
		int at = i >= 3 && i < 53 ? i - 3 : i >= 1001 && i < 1071 ? i - 1001 + 50 : i >= 513 && i < 603 ? i - 513 + 120 : -1;
		CHECK(sink[i] == (at >= 0 && at < length ? sent(at) : before(i)));
	}
}

/* A Read into two parts. The sink is memory of b, but registered by a as well. */
static void reads(int length)
{
	fill();
	memcpy(b.memory, source, SIZE);
	struct ibv_mr *mr = ibv_reg_mr(a.pd, sink, sizeof sink, LOCAL);
	struct ibv_send_wr wr = { .wr_id = REQUEST, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_sge parts[] = { into(9, 33), into(42, length - 33) };
	CHECK(mr);
	parts[0].lkey = parts[1].lkey = mr->lkey;
	wr.wr.rdma.remote_addr = (uintptr_t)b.memory;
	wr.wr.rdma.rkey = b.mr->rkey;
	CHECK(!post_list(wr, parts, 2));
	await(&a, REQUEST);
	verify(9, length);
	CHECK(!ibv_dereg_mr(mr));
}

static void atomic(void)
{
	uint64_t *counter = (uint64_t *)(b.memory + 64), *result = (uint64_t *)(a.memory + 64);
	*counter = 41;
	*result = 7;
	CHECK(!post_one(IBV_WR_ATOMIC_FETCH_AND_ADD, REQUEST, part(&a, 64, 8), counter));
	await(&a, REQUEST);
	CHECK(*counter == 42 && *result == 41);
}

/* A Write with immediate data uses a receive, but not its buffer. The peer may even write to that buffer. */
static void write_with_immediate(int offset, int length)
{
	fill();
	receive_part(RECEIVE, into(16, 1000));
	struct ibv_send_wr wr = { .wr_id = REQUEST, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_sge sge = from(0, length);
	wr.wr.rdma.remote_addr = (uintptr_t)sink + offset;
	wr.wr.rdma.rkey = sink_mr->rkey;
	CHECK(!post_list(wr, &sge, 1));
	await(&b, RECEIVE);
	await(&a, REQUEST);
	verify(offset, length);
}

/* Two receives have the same buffer, and their messages arrive before the program polls. */
static void one_buffer_twice(void)
{
	fill();
	receive_part(RECEIVE, into(8, 100));
	receive_part(RECEIVE + 1, into(8, 100));
	send_part(REQUEST, from(0, 10));
	send_part(REQUEST + 1, from(0, 60));
	await(&a, REQUEST);
	await(&a, REQUEST + 1);
	await_idle();
	await(&b, RECEIVE);
	await(&b, RECEIVE + 1);
	verify(8, 60);
}

/* Buffers of receives that are flushed, or never used, are as before. */
static void unused(bool flushed)
{
	fill();
	receive_part(RECEIVE, into(5, 200));
	receive_part(RECEIVE + 1, into(1000, 100 << 10));
	if (flushed) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
		CHECK(!ibv_modify_qp(b.qp, &attr, IBV_QP_STATE));
		CHECK(take(&b, RECEIVE).status == IBV_WC_WR_FLUSH_ERR);
		CHECK(take(&b, RECEIVE + 1).status == IBV_WC_WR_FLUSH_ERR);
		verify(0, 0);
	}
}

int main(int count, char **arguments)
{
	for (int i = 1; i < count; i++) {
		extended = extended || !strcmp(arguments[i], "extended");
		shared = shared || !strcmp(arguments[i], "shared");
	}
	open_both(REMOTE);
	CHECK(source_mr = ibv_reg_mr(a.pd, source, sizeof source, LOCAL));
	CHECK(sink_mr = ibv_reg_mr(b.pd, sink, sizeof sink, REMOTE));
	for (int offset = 0; offset < 9; offset++) {
		short_message(offset, 64, 0);
		short_message(offset, 64, 1);
		short_message(offset, 64, 61 + offset % 3);
		short_message(offset, 1000, 301);
		short_message(offset, 1000, 1000);
	}
	/* Only the first and the last 32 KiB of a buffer larger than 64 KiB are poisoned. */
	static const int rooms[] = { 64 << 10, (64 << 10) + 1, 200000, LARGE };
	for (unsigned i = 0; i < sizeof rooms / sizeof *rooms; i++) {
		short_message(3, rooms[i], 100);
		short_message(4, rooms[i], 40000);
		short_message(5, rooms[i], rooms[i] - 1000);
		short_message(6, rooms[i], rooms[i] - 1);
		short_message(7, rooms[i], rooms[i]);
	}
	scattered(58);
	scattered(100);
	scattered(199);
	scattered(210);
	reads(34);
	reads(SIZE);
	atomic();
	/* The byte before poison must not look like it, whatever the number of this process, which is in poison. */
	for (int offset = 0; offset < 40; offset += 13) {
		write_with_immediate(offset, 101);
		write_with_immediate(offset, 977);
	}
	write_with_immediate(LARGE / 2, 5000);
	one_buffer_twice();
	unused(!shared);
	destroy_qps();
	if (srq)
		CHECK(!ibv_destroy_srq(srq));
	srq = NULL;
	if (shared)
		verify(0, 0);
	CHECK(!ibv_dereg_mr(source_mr) && !ibv_dereg_mr(sink_mr));
	close_both();
	return 0;
}
