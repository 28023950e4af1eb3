/*
 * peer: one session over an RC queue pair, every step verified byte by byte. See README.md for the script.
 *
 *     peer client|server ADDRESS PORT [PART]
 *
 * It runs in the siw guest, against whatever is on the other end, and prints `PEER ok STEP` for each step that went well.
 * The last line is `PEER PASS`, or `PEER FAIL STEP why`; the exit code agrees. PART is the name of one of the parts below,
 * siw unless given: with one end playing ironwarp, siw can be tried against itself.
 */
#include <endian.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	HALF = 64 * 1024, /* of the region: the first is written by the other end, the second is read by it */
	RECEIVES = 4,
	RECEIVE_SIZE = 256,
	ADVERT_SIZE = 64,
	NOTE_SIZE = 8,
	DEPTH = 4, /* RDMA Reads under way in either direction: IRD and ORD */
	SECONDS = 60, /* for a step */
};

/* Byte i of a pattern is the low byte of i * factor + offset. */
struct pattern {
	unsigned factor, offset;
};

/* What an end says, writes, holds and does. */
struct part {
	const char *name, *hello;
	struct pattern writes, holds;
	bool reads_nothing;
};

/*
 * Only siw reads zero bytes, for no siw may be asked to: while it is sending, siw 6.1 answers a zero-length Read Request
 * with as many bytes as it had in its last work request. So against itself it has to go without.
 */
static const struct part siw = {"siw", "hello-from-siw", {7, 3}, {17, 9}, true};
static const struct part siw_against_siw = {"siw-against-siw", "hello-from-siw", {7, 3}, {17, 9}, false};
static const struct part ironwarp = {"ironwarp", "hello-from-ironwarp", {11, 1}, {13, 5}, false};
static const struct part *const parts[] = {&siw, &siw_against_siw, &ironwarp};

/* Where the other end's region is: the first bytes of ADVERT, in network byte order. */
struct advert {
	uint64_t address;
	uint32_t rkey;
	uint32_t length;
};

static const char written[NOTE_SIZE] = "WRITTEN";
static const char done[NOTE_SIZE] = "DONE";

static _Alignas(4096) uint8_t region[2 * HALF];
static _Alignas(4096) uint8_t source[HALF];
static _Alignas(4096) uint8_t sink[HALF];
static uint8_t receives[RECEIVES][RECEIVE_SIZE];
static uint8_t message[ADVERT_SIZE];

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;
static struct ibv_mr *region_mr, *source_mr, *sink_mr, *receives_mr, *message_mr;
static const char *volatile step = "start";

/* --- telling how it goes --- */

static _Noreturn __attribute__((format(printf, 1, 2))) void fail(const char *format, ...)
{
	va_list arguments;

	printf("PEER FAIL %s ", step);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n");
	exit(1);
}

/* Calls of librdmacm return -1, or NULL, and set errno. */
static void check(bool good, const char *call)
{
	if (!good)
		fail("%s: %s", call, strerror(errno));
}

static void ok(void)
{
	printf("PEER ok %s\n", step);
	alarm(SECONDS);
}

/* A step that takes longer than SECONDS is named too. In a handler only write() may be used. */
static void out_of_time(int signal)
{
	static const char before[] = "PEER FAIL ", after[] = " took too long\n";
	ssize_t ignored;

	(void)signal;
	ignored = write(STDOUT_FILENO, before, sizeof before - 1);
	ignored = write(STDOUT_FILENO, step, strlen(step));
	ignored = write(STDOUT_FILENO, after, sizeof after - 1);
	(void)ignored;
	_exit(1);
}

/* --- patterns and messages --- */

static uint8_t byte(struct pattern pattern, size_t i)
{
	return (uint8_t)(i * pattern.factor + pattern.offset);
}

static void fill(uint8_t *bytes, struct pattern pattern)
{
	for (size_t i = 0; i < HALF; i++)
		bytes[i] = byte(pattern, i);
}

static void verify(const char *what, const uint8_t *bytes, struct pattern pattern)
{
	for (size_t i = 0; i < HALF; i++)
		if (bytes[i] != byte(pattern, i))
			fail("%s: byte %zu is %02x, not %02x", what, i, bytes[i], byte(pattern, i));
}

/* The bytes of ADVERT after the struct: byte i of the message is i. */
static const uint8_t *advert_tail(void)
{
	static uint8_t bytes[ADVERT_SIZE];

	for (size_t i = 0; i < ADVERT_SIZE; i++)
		bytes[i] = (uint8_t)i;
	return bytes + sizeof(struct advert);
}

/* --- work requests: one at a time, each waited for --- */

static void completed(enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc;

	check(rdma_get_send_comp(id, &wc) == 1, "rdma_get_send_comp");
	if (wc.status != IBV_WC_SUCCESS)
		fail("completed with: %s", ibv_wc_status_str(wc.status));
	if (wc.opcode != opcode)
		fail("the completion is of opcode %d, not %d", wc.opcode, opcode);
}

static void send_message(const char *name, const void *bytes, size_t length)
{
	step = name;
	memcpy(message, bytes, length);
	check(!rdma_post_send(id, NULL, message, length, message_mr, IBV_SEND_SIGNALED), "rdma_post_send");
	completed(IBV_WC_SEND);
	ok();
}

static void send_advert(void)
{
	struct advert advert = {htobe64((uintptr_t)region), htobe32(region_mr->rkey), htobe32(sizeof region)};
	uint8_t bytes[ADVERT_SIZE];

	memcpy(bytes, &advert, sizeof advert);
	memcpy(bytes + sizeof advert, advert_tail(), ADVERT_SIZE - sizeof advert);
	send_message("send-advert", bytes, sizeof bytes);
}

/* Waits for the next message. The receives are used in the order in which they were posted. */
static const uint8_t *receive_message(const char *name, size_t length)
{
	struct ibv_wc wc;
	static size_t next;
	size_t index = next++;

	step = name;
	check(rdma_get_recv_comp(id, &wc) == 1, "rdma_get_recv_comp");
	if (wc.status != IBV_WC_SUCCESS)
		fail("completed with: %s", ibv_wc_status_str(wc.status));
	if (wc.wr_id != (uintptr_t)receives[index])
		fail("receive %zu did not complete in its turn", index);
	if (wc.byte_len != length)
		fail("the message has %u bytes, not %zu", wc.byte_len, length);
	return receives[index];
}

static struct advert receive_advert(void)
{
	const uint8_t *bytes = receive_message("receive-advert", ADVERT_SIZE);
	struct advert advert;

	memcpy(&advert, bytes, sizeof advert);
	advert.address = be64toh(advert.address);
	advert.rkey = be32toh(advert.rkey);
	advert.length = be32toh(advert.length);
	if (memcmp(bytes + sizeof advert, advert_tail(), ADVERT_SIZE - sizeof advert))
		fail("the bytes after the region are not those agreed upon");
	if (advert.length != sizeof region)
		fail("the region has %u bytes, not %zu", advert.length, sizeof region);
	ok();
	return advert;
}

static void receive_note(const char *name, const char *note)
{
	if (memcmp(receive_message(name, NOTE_SIZE), note, NOTE_SIZE))
		fail("the message is not %s", note);
}

/* --- the session --- */

static void prepare(const struct part *self)
{
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 8, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1},
	};

	step = "prepare";
	check(!rdma_create_qp(id, NULL, &attributes), "rdma_create_qp");
	region_mr = ibv_reg_mr(id->pd, region, sizeof region,
			       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	source_mr = rdma_reg_msgs(id, source, sizeof source);
	/* In iWARP the sink of a Read is named by a STag that the other end writes to: some RNICs want the right for it. */
	sink_mr = ibv_reg_mr(id->pd, sink, sizeof sink, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	receives_mr = rdma_reg_msgs(id, receives, sizeof receives);
	message_mr = rdma_reg_msgs(id, message, sizeof message);
	check(region_mr && source_mr && sink_mr && receives_mr && message_mr, "ibv_reg_mr");
	fill(source, self->writes);
	fill(region + HALF, self->holds);
	for (size_t i = 0; i < RECEIVES; i++)
		check(!rdma_post_recv(id, receives[i], receives[i], RECEIVE_SIZE, receives_mr), "rdma_post_recv");
	ok();
}

/* The next event of the connection manager, which must be this one. The caller acknowledges it. */
static struct rdma_cm_event *expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	check(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	if (event->event != type)
		fail("%s with status %d, not %s", rdma_event_str(event->event), event->status, rdma_event_str(type));
	return event;
}

static void verify_hello(const struct rdma_cm_event *event, const struct part *other)
{
	const struct rdma_conn_param *param = &event->param.conn;
	size_t length = strlen(other->hello);

	if (param->private_data_len != length || memcmp(param->private_data, other->hello, length))
		fail("the private data, %u bytes, is not %s", param->private_data_len, other->hello);
}

static struct rdma_conn_param with_hello(const struct part *self)
{
	return (struct rdma_conn_param){
		.private_data = self->hello,
		.private_data_len = (uint8_t)strlen(self->hello),
		.responder_resources = DEPTH,
		.initiator_depth = DEPTH,
	};
}

static void connect_to(struct rdma_addrinfo *address, const struct part *self, const struct part *other)
{
	struct rdma_conn_param param = with_hello(self);
	struct rdma_cm_event *event;

	step = "resolve";
	check(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(!rdma_resolve_addr(id, NULL, address->ai_dst_addr, SECONDS * 1000), "rdma_resolve_addr");
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_ADDR_RESOLVED));
	check(!rdma_resolve_route(id, SECONDS * 1000), "rdma_resolve_route");
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_ROUTE_RESOLVED));
	ok();
	prepare(self);
	step = "connect";
	check(!rdma_connect(id, &param), "rdma_connect");
	event = expect(RDMA_CM_EVENT_ESTABLISHED);
	verify_hello(event, other);
	rdma_ack_cm_event(event);
	ok();
}

static void accept_at(struct rdma_addrinfo *address, const struct part *self, const struct part *other)
{
	struct rdma_conn_param param = with_hello(self);
	struct rdma_cm_event *event;
	struct rdma_cm_id *listener;

	step = "listen";
	check(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(!rdma_bind_addr(listener, address->ai_src_addr), "rdma_bind_addr");
	check(!rdma_listen(listener, 1), "rdma_listen");
	ok();
	step = "connect";
	event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	id = event->id;
	verify_hello(event, other);
	rdma_ack_cm_event(event);
	prepare(self);
	step = "connect";
	check(!rdma_accept(id, &param), "rdma_accept");
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_ESTABLISHED));
	ok();
}

/* The client speaks first: before that, MPA has the server keep silent (RFC 5044 §7.1.2). */
static struct advert exchange_adverts(bool client)
{
	struct advert other;

	if (client)
		send_advert();
	other = receive_advert();
	if (!client)
		send_advert();
	return other;
}

static void read_nothing(const struct advert *to, const struct part *other)
{
	step = "read-nothing";
	check(!rdma_post_read(id, NULL, sink, 0, sink_mr, IBV_SEND_SIGNALED, to->address + HALF, to->rkey),
	      "rdma_post_read");
	completed(IBV_WC_RDMA_READ);
	verify("the bytes read before", sink, other->holds);
	ok();
}

static void transfer(const struct advert *to, const struct part *self, const struct part *other)
{
	step = "write";
	check(!rdma_post_write(id, NULL, source, HALF, source_mr, IBV_SEND_SIGNALED, to->address, to->rkey),
	      "rdma_post_write");
	completed(IBV_WC_RDMA_WRITE);
	ok();
	send_message("send-written", written, sizeof written);

	step = "read";
	check(!rdma_post_read(id, NULL, sink, HALF, sink_mr, IBV_SEND_SIGNALED, to->address + HALF, to->rkey),
	      "rdma_post_read");
	completed(IBV_WC_RDMA_READ);
	verify("the bytes read", sink, other->holds);
	ok();

	if (self->reads_nothing)
		read_nothing(to, other);
	send_message("send-done", done, sizeof done);
}

/* A Send arrives after the Writes before it, so WRITTEN says that the other end's bytes are here. */
static void conclude(const struct part *self, const struct part *other)
{
	receive_note("receive-written", written);
	verify("the region's first half", region, other->writes);
	ok();
	receive_note("receive-done", done);
	ok();
	step = "region";
	verify("the region's first half", region, other->writes);
	verify("the region's second half", region + HALF, self->holds);
	ok();
}

static void disconnect(bool client)
{
	step = "disconnect";
	if (client)
		check(!rdma_disconnect(id), "rdma_disconnect");
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_DISCONNECTED));
	ok();
}

static const struct part *part_called(const char *name)
{
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		if (!strcmp(name, parts[i]->name))
			return parts[i];
	fail("there is no part %s", name);
}

int main(int count, char **arguments)
{
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *address;
	const struct part *self, *other;
	struct advert to;
	bool client;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (count < 4 || count > 5 || (strcmp(arguments[1], "client") && strcmp(arguments[1], "server")))
		fail("usage: peer client|server ADDRESS PORT [PART]");
	client = !strcmp(arguments[1], "client");
	self = count == 5 ? part_called(arguments[4]) : &siw;
	other = self == &ironwarp ? &siw : &ironwarp;
	signal(SIGALRM, out_of_time);
	alarm(SECONDS);

	hints.ai_flags = client ? 0 : RAI_PASSIVE;
	check(!rdma_getaddrinfo(arguments[2], arguments[3], &hints, &address), "rdma_getaddrinfo");
	channel = rdma_create_event_channel();
	check(channel, "rdma_create_event_channel");
	if (client)
		connect_to(address, self, other);
	else
		accept_at(address, self, other);
	to = exchange_adverts(client);
	transfer(&to, self, other);
	conclude(self, other);
	disconnect(client);
	printf("PEER PASS\n");
	return 0;
}
