/*
 * The operations, each of which is posted and waited for.
 */
#include "peer.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <string.h>

/* Number of requests that have not completed. */
unsigned outstanding_sends, outstanding_receives;

/* Number of messages in each direction, without adverts. Each has different bytes. */
static unsigned sent, received;
/* The receives are used in the order in which they were posted. */
static unsigned next_receive;

/* --- work requests and their completions --- */

void post_receives(void)
{
	for (unsigned i = 0; i < shape.receives; i++) {
		uint8_t *bytes = receives + i * shape.receive_size;
		struct ibv_sge sge = {(uintptr_t)bytes, (uint32_t)shape.receive_size, receives_mr->lkey};
		struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;

		if (srq)
			check(!(errno = ibv_post_srq_recv(srq, &wr, &bad)), "ibv_post_srq_recv");
		else
			check(!(errno = ibv_post_recv(id->qp, &wr, &bad)), "ibv_post_recv");
		outstanding_receives++;
	}
}

void post_send(struct ibv_send_wr *wr, const char *call)
{
	struct ibv_send_wr *bad;

	wr->send_flags |= IBV_SEND_SIGNALED;
	check(!(errno = ibv_post_send(id->qp, wr, &bad)), call);
	outstanding_sends++;
}

struct ibv_wc send_completion(void)
{
	struct ibv_wc wc;

	check(rdma_get_send_comp(id, &wc) == 1, "rdma_get_send_comp");
	outstanding_sends--;
	return wc;
}

struct ibv_wc receive_completion(void)
{
	struct ibv_wc wc;

	check(rdma_get_recv_comp(id, &wc) == 1, "rdma_get_recv_comp");
	outstanding_receives--;
	return wc;
}

static void completes(struct ibv_send_wr *wr, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc;

	post_send(wr, "ibv_post_send");
	wc = send_completion();
	if (wc.status != IBV_WC_SUCCESS)
		fail("completed with: %s", ibv_wc_status_str(wc.status));
	if (wc.opcode != opcode)
		fail("the completion is of opcode %d, not %d", wc.opcode, opcode);
}

/* Describes memory in one element, or in three, of which the first two are short and odd. */
static int elements(struct ibv_sge *sge, const uint8_t *bytes, size_t length, const struct ibv_mr *mr, bool pieces)
{
	size_t lengths[3] = {length, 0, 0};
	int count = 1;

	if (pieces) {
		lengths[0] = length / 3;
		lengths[1] = 1;
		lengths[2] = length - lengths[0] - lengths[1];
		count = 3;
	}
	for (int i = 0; i < count; i++) {
		sge[i] = (struct ibv_sge){(uintptr_t)bytes, (uint32_t)lengths[i], mr->lkey};
		bytes += lengths[i];
	}
	return length ? count : 0;
}

/* --- messages --- */

/*
 * Allocates memory for a message. It is never reused, because siw passes pages to TCP by reference and completes the Send when TCP
 * has them: data that is written there before they are sent would be sent instead (zcopy_tx), with a wrong CRC.
 */
static uint8_t *unused(size_t length)
{
	static size_t used;
	uint8_t *bytes = outbox + used;

	used += length;
	if (used > outbox_size)
		fail("the outbox is full");
	return bytes;
}

static void send_message(size_t length, unsigned flags, bool pieces)
{
	struct ibv_sge sge[3];
	struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .sg_list = sge, .send_flags = flags};
	uint8_t *bytes = unused(length);

	fill(bytes, 0, length, self->says, sent++);
	wr.num_sge = elements(sge, bytes, length, outbox_mr, pieces);
	completes(&wr, IBV_WC_SEND);
	ok();
}

void send_plain(struct argument argument)
{
	send_message(argument.first, 0, false);
}

void send_inline(struct argument argument)
{
	send_message(argument.first, IBV_SEND_INLINE, false);
}

void send_pieces(struct argument argument)
{
	send_message(argument.first, 0, true);
}

void send_solicited(struct argument argument)
{
	send_message(argument.first, IBV_SEND_SOLICITED, false);
}

/* Checks a received message, and returns its bytes. */
static const uint8_t *arrived(struct ibv_wc wc, size_t length)
{
	unsigned index = next_receive++;

	if (wc.status != IBV_WC_SUCCESS)
		fail("completed with: %s", ibv_wc_status_str(wc.status));
	if (wc.wr_id != index)
		fail("receive %u completed, expected %u", (unsigned)wc.wr_id, index);
	if (wc.byte_len != length)
		fail("the message has %u bytes, expected %zu", wc.byte_len, length);
	return receives + index * shape.receive_size;
}

static void verify_message(struct ibv_wc wc, size_t length)
{
	verify("the message", arrived(wc, length), 0, length, other->says, received++);
	ok();
}

void receive(struct argument argument)
{
	verify_message(receive_completion(), argument.first);
}

/* Reports the status of the next receive. */
void receive_status(struct argument argument)
{
	(void)argument;
	next_receive++;
	saw("receive: %s", ibv_wc_status_str(receive_completion().status));
	ok();
}

static bool event_is_there(void)
{
	struct pollfd channel = {.fd = id->recv_cq_channel->fd, .events = POLLIN};

	return poll(&channel, 1, 0) == 1;
}

static void take_event(void)
{
	struct ibv_cq *cq;
	void *context;

	check(!ibv_get_cq_event(id->recv_cq_channel, &cq, &context), "ibv_get_cq_event");
	ibv_ack_cq_events(cq, 1);
}

/*
 * Arms the queue for solicited messages only: this message arrives without an event. With siw that is the case for every message,
 * because siw_rqe_complete ignores the solicited event bit.
 */
void quiet(struct argument argument)
{
	struct ibv_wc wc;

	check(!(errno = ibv_req_notify_cq(id->recv_cq, 1)), "ibv_req_notify_cq");
	/* rdma_get_recv_comp polls once more after arming: if that finds a completion, its event remains. */
	while (event_is_there())
		take_event();
	while (!ibv_poll_cq(id->recv_cq, 1, &wc))
		;
	outstanding_receives--;
	if (event_is_there())
		fail("unexpected event");
	verify_message(wc, argument.first);
}

/* --- adverts --- */

/* After the places, byte i of ADVERT is i. */
static void send_advert(void)
{
	uint8_t *bytes = unused(ADVERT_SIZE);
	struct ibv_sge sge = {(uintptr_t)bytes, ADVERT_SIZE, outbox_mr->lkey};
	struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1};

	for (size_t i = 0; i < ADVERT_SIZE; i++)
		bytes[i] = (uint8_t)i;
	for (enum place which = 0; which < PLACES; which++) {
		struct advert here = place(which);
		struct advert wire = {htobe64(here.address), htobe32(here.rkey), htobe32(here.length)};

		memcpy(bytes + which * sizeof wire, &wire, sizeof wire);
	}
	completes(&wr, IBV_WC_SEND);
}

static void receive_advert(void)
{
	const uint8_t *bytes = arrived(receive_completion(), ADVERT_SIZE);

	for (enum place which = 0; which < PLACES; which++) {
		struct advert wire;

		memcpy(&wire, bytes + which * sizeof wire, sizeof wire);
		theirs[which] = (struct advert){be64toh(wire.address), be32toh(wire.rkey), be32toh(wire.length)};
	}
	for (size_t i = PLACES * sizeof(struct advert); i < ADVERT_SIZE; i++)
		if (bytes[i] != i)
			fail("byte %zu of the advert is %u", i, bytes[i]);
}

/* Both ends advertise their memory. The client sends first (RFC 5044 §7.1.2). */
void advert(struct argument argument)
{
	(void)argument;
	if (client)
		send_advert();
	receive_advert();
	if (!client)
		send_advert();
	ok();
}

/* --- tagged messages: a number of bytes at an offset of a half --- */

static void write_to(struct argument argument, unsigned flags, bool pieces)
{
	struct ibv_sge sge[3];
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .sg_list = sge, .send_flags = flags};

	wr.num_sge = elements(sge, source + argument.second, argument.first, source_mr, pieces);
	wr.wr.rdma.remote_addr = theirs[MAIN].address + argument.second;
	wr.wr.rdma.rkey = theirs[MAIN].rkey;
	completes(&wr, IBV_WC_RDMA_WRITE);
	ok();
}

void write_plain(struct argument argument)
{
	write_to(argument, 0, false);
}

void write_inline(struct argument argument)
{
	write_to(argument, IBV_SEND_INLINE, false);
}

void write_pieces(struct argument argument)
{
	write_to(argument, 0, true);
}

void read_plain(struct argument argument)
{
	uint8_t *into = sink + argument.second;
	/* siw requires one element, even if empty. */
	struct ibv_sge sge = {(uintptr_t)into, (uint32_t)argument.first, sink_mr->lkey};
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_READ, .sg_list = &sge, .num_sge = 1};

	memset(into, 0, argument.first);
	wr.wr.rdma.remote_addr = theirs[MAIN].address + shape.half + argument.second;
	wr.wr.rdma.rkey = theirs[MAIN].rkey;
	completes(&wr, IBV_WC_RDMA_READ);
	verify("the bytes read", into, argument.second, argument.first, other->holds, 0);
	ok();
}
