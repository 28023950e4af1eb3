/*
 * Violations of the protocol, what the program is told about them, and a process that kills itself.
 */
#include "peer.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { SHORT = 64 };

static const char *operation(enum ibv_wr_opcode opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
		return "write";
	case IBV_WR_RDMA_READ:
		return "read";
	default:
		return "send";
	}
}

/* Returns memory of the other end that must not be accessed, by the reason. */
static struct advert forbidden(const char *why, enum place without_right)
{
	struct advert at = theirs[MAIN];

	if (!strcmp(why, "bounds"))
		at.address += at.length - SHORT / 2;
	else if (!strcmp(why, "wrap"))
		at.address = UINT64_MAX - SHORT / 2;
	else if (!strcmp(why, "tag"))
		at.rkey ^= 0x40000000;
	else if (!strcmp(why, "key"))
		at.rkey ^= 0xff;
	else if (!strcmp(why, "rights"))
		at = theirs[without_right];
	else if (!strcmp(why, "domain"))
		at = theirs[DOMAIN];
	else if (!strcmp(why, "gone"))
		at = theirs[GONE];
	else if (!strcmp(why, "spare"))
		at = theirs[SPARE];
	else
		fail("unknown violation");
	return at;
}

static void violate(enum ibv_wr_opcode opcode, const uint8_t *bytes, const struct ibv_mr *mr, struct advert at)
{
	struct ibv_sge sge = {(uintptr_t)bytes, SHORT, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = opcode, .opcode = opcode, .sg_list = &sge, .num_sge = 1};

	wr.wr.rdma.remote_addr = at.address;
	wr.wr.rdma.rkey = at.rkey;
	post_send(&wr, "ibv_post_send");
	ok();
}

void bad_write(struct argument argument)
{
	violate(IBV_WR_RDMA_WRITE, source, source_mr, forbidden(argument.word, READ_ONLY));
}

void bad_read(struct argument argument)
{
	violate(IBV_WR_RDMA_READ, sink, sink_mr, forbidden(argument.word, WRITE_ONLY));
}

/* Sends a message that the other end must reject; `see` reports its status. */
static void bad_message(size_t length, enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = {(uintptr_t)source, (uint32_t)length, source_mr->lkey};
	struct ibv_send_wr wr = {.wr_id = opcode, .opcode = opcode, .sg_list = &sge, .num_sge = 1};

	if (opcode == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = theirs[SPARE].rkey;
	post_send(&wr, "ibv_post_send");
	ok();
}

void bad_send(struct argument argument)
{
	bad_message(argument.first, IBV_WR_SEND);
}

void bad_invalidate(struct argument argument)
{
	bad_message(argument.first, IBV_WR_SEND_WITH_INV);
}

/* Posts many Writes of all of the source; returns when the first one has completed, while others are outstanding. */
void stream(struct argument argument)
{
	for (size_t i = 0; i < argument.first; i++) {
		struct ibv_sge sge = {(uintptr_t)source, (uint32_t)shape.half, source_mr->lkey};
		struct ibv_send_wr wr = {.wr_id = IBV_WR_RDMA_WRITE, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1};

		wr.wr.rdma.remote_addr = theirs[MAIN].address;
		wr.wr.rdma.rkey = theirs[MAIN].rkey;
		post_send(&wr, "ibv_post_send");
	}
	if (send_completion().status != IBV_WC_SUCCESS)
		fail("the first Write failed");
	ok();
}

/* Reports pending asynchronous events. */
static void see_events(void)
{
	struct pollfd device = {.fd = id->verbs->async_fd, .events = POLLIN};
	struct ibv_async_event event;

	while (poll(&device, 1, 0) == 1) {
		check(!ibv_get_async_event(id->verbs, &event), "ibv_get_async_event");
		saw("event: %s", ibv_event_type_str(event.event_type));
		ibv_ack_async_event(&event);
	}
}

/*
 * Waits for the end of the connection and of all requests, and reports their statuses. Consecutive receives with the same status
 * are reported once. Receives of an SRQ stay there.
 *
 * After a Read that it could not serve, siw leaves the queue pair as it is (siw_qp_cm_drop), so it must be moved to the error state
 * to flush the receives. If siw already did, that changes nothing.
 */
void see(struct argument argument)
{
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
	enum ibv_wc_status last = IBV_WC_SUCCESS;

	(void)argument;
	wait_disconnected();
	ibv_modify_qp(id->qp, &error, IBV_QP_STATE);
	while (outstanding_sends) {
		struct ibv_wc wc = send_completion();

		saw("%s: %s", operation((enum ibv_wr_opcode)wc.wr_id), ibv_wc_status_str(wc.status));
	}
	while (outstanding_receives && !srq) {
		struct ibv_wc wc = receive_completion();

		if (wc.status != last)
			saw("receive: %s", ibv_wc_status_str(wc.status));
		last = wc.status;
	}
	see_events();
	ok();
}

/* Like kill -9. */
void die(struct argument argument)
{
	(void)argument;
	kill(getpid(), SIGKILL);
}
