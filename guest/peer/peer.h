/*
 * Declarations that the files of peer share. README.md describes the steps; main.c lists them, the other files implement them.
 */
#ifndef PEER_H
#define PEER_H

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	SECONDS = 60, /* maximum time of a step */
	DEPTH = 4, /* outstanding RDMA Reads in either direction: IRD and ORD */
	SENDS = 64, /* work requests in the send queue */
	INLINE = 64, /* maximum inline bytes of a request */
	PAGE = 4096, /* size of each place except `main` */
	ADVERT_SIZE = 128,
};

/* Byte i of a pattern is the low byte of i * factor + offset. */
struct pattern {
	unsigned factor, offset;
};

/* The patterns that an end writes, provides for reading, and sends in messages and private data. */
struct part {
	const char *name;
	struct pattern writes, holds, says;
};

/* Memory that an end advertises to the other one. */
enum place {
	MAIN, /* all rights: the first half is for the other end to write, the second for it to read */
	READ_ONLY,
	WRITE_ONLY,
	DOMAIN, /* all rights, but in a different protection domain */
	GONE, /* was deregistered */
	SPARE, /* all rights, for the other end to invalidate */
	PLACES,
};

/* The address of a place: ADVERT has one for each, in network byte order. */
struct advert {
	uint64_t address;
	uint32_t rkey;
	uint32_t length;
};

/* Settings of the session, from the arguments before `connect`. */
struct shape {
	size_t half; /* of the main region */
	unsigned receives;
	size_t receive_size;
	size_t private, their_private; /* lengths of the private data of this end and of the other one */
	bool srq;
};

/* The argument of a step: `NAME=FIRST@SECOND`, or a word. */
struct argument {
	size_t first, second;
	const char *word;
};

extern const struct part *self, *other;
extern struct shape shape;
extern const char *volatile step;
extern bool client;

/* report.c */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void check(bool good, const char *call);
void saw(const char *format, ...) __attribute__((format(printf, 1, 2)));
void ok(void);
void begin(const char *name);

/* pattern.c */
void fill(uint8_t *bytes, size_t from, size_t length, struct pattern pattern, unsigned message);
void verify(const char *what, const uint8_t *bytes, size_t from, size_t length, struct pattern pattern, unsigned message);

/* memory.c */
extern uint8_t *region, *source, *sink, *receives, *outbox;
extern size_t outbox_size;
extern struct ibv_mr *region_mr, *source_mr, *sink_mr, *receives_mr, *outbox_mr;
extern struct ibv_pd *pd;
extern struct advert theirs[PLACES];
void prepare_memory(struct ibv_context *device);
struct advert place(enum place which);
void written(struct argument argument);
void untouched(struct argument argument);

/* connection.c */
extern struct rdma_cm_id *id;
extern struct ibv_srq *srq;
void start(const char *address, const char *port);
void connect_step(struct argument argument);
void reject(struct argument argument);
void rejected(struct argument argument);
void unanswered(struct argument argument);
void disconnect(struct argument argument);
void parting(struct argument argument);
void disconnected(struct argument argument);
void wait_disconnected(void);

/* transfer.c */
extern unsigned outstanding_sends, outstanding_receives;
void post_receives(void);
void post_send(struct ibv_send_wr *wr, const char *call);
struct ibv_wc send_completion(void);
struct ibv_wc receive_completion(void);
void advert(struct argument argument);
void send_plain(struct argument argument);
void send_inline(struct argument argument);
void send_pieces(struct argument argument);
void send_solicited(struct argument argument);
void receive(struct argument argument);
void receive_status(struct argument argument);
void quiet(struct argument argument);
void write_plain(struct argument argument);
void write_inline(struct argument argument);
void write_pieces(struct argument argument);
void read_plain(struct argument argument);

/* violation.c */
void bad_write(struct argument argument);
void bad_read(struct argument argument);
void bad_send(struct argument argument);
void bad_invalidate(struct argument argument);
void stream(struct argument argument);
void see(struct argument argument);
void die(struct argument argument);

#endif
