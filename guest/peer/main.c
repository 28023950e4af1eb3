/*
 * peer: runs one session over an RC queue pair, as a list of steps, and verifies every byte. README.md describes the steps.
 *
 *     peer client|server ADDRESS PORT STEP…
 *
 * It runs in the siw guest, and prints `PEER ok STEP` for each step that succeeded, and `PEER saw …` for results that only the
 * other end can check. The last line is `PEER PASS`, or `PEER FAIL STEP why`, and the exit code matches.
 */
#include "peer.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct part siw = {"siw", {7, 3}, {17, 9}, {5, 40}};
static const struct part ironwarp = {"ironwarp", {11, 1}, {13, 5}, {3, 80}};

const struct part *self = &siw, *other = &ironwarp;
struct shape shape = {.half = 64 * 1024, .receives = 4, .receive_size = 256, .private = 19, .their_private = 19};
const char *volatile step = "start";
bool client;

/* --- settings, before the connection --- */

/* With one end in the role of ironwarp, siw can be tested against itself. */
static void as_ironwarp(struct argument argument)
{
	(void)argument;
	self = &ironwarp;
	other = &siw;
}

static void set_half(struct argument argument)
{
	shape.half = argument.first;
}

static void set_receives(struct argument argument)
{
	shape.receives = (unsigned)argument.first;
	shape.receive_size = argument.second;
}

static void set_private(struct argument argument)
{
	shape.private = argument.first;
}

static void set_their_private(struct argument argument)
{
	shape.their_private = argument.first;
}

static void set_srq(struct argument argument)
{
	(void)argument;
	shape.srq = true;
}

static const struct {
	const char *name;
	void (*run)(struct argument);
} steps[] = {
	{"as-ironwarp", as_ironwarp},
	{"half", set_half},
	{"receives", set_receives},
	{"private", set_private},
	{"their-private", set_their_private},
	{"srq", set_srq},
	{"connect", connect_step},
	{"reject", reject},
	{"rejected", rejected},
	{"unanswered", unanswered},
	{"advert", advert},
	{"send", send_plain},
	{"send-inline", send_inline},
	{"send-pieces", send_pieces},
	{"send-solicited", send_solicited},
	{"receive", receive},
	{"receive-status", receive_status},
	{"quiet", quiet},
	{"write", write_plain},
	{"write-inline", write_inline},
	{"write-pieces", write_pieces},
	{"read", read_plain},
	{"written", written},
	{"untouched", untouched},
	{"bad-write", bad_write},
	{"bad-read", bad_read},
	{"bad-send", bad_send},
	{"bad-invalidate", bad_invalidate},
	{"stream", stream},
	{"see", see},
	{"die", die},
	{"disconnect", disconnect},
	{"parting", parting},
	{"disconnected", disconnected},
};

/* `NAME`, `NAME=WORD` or `NAME=FIRST@SECOND`. */
static void run(char *text)
{
	size_t length = strcspn(text, "=");
	struct argument argument = {.word = text[length] ? text + length + 1 : ""};
	char *rest;

	argument.first = strtoull(argument.word, &rest, 10);
	if (*rest == '@')
		argument.second = strtoull(rest + 1, NULL, 10);
	begin(text);
	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
		if (strlen(steps[i].name) == length && !strncmp(steps[i].name, text, length)) {
			steps[i].run(argument);
			return;
		}
	}
	fail("unknown step");
}

static void out_of_time(int signal)
{
	static const char before[] = "PEER FAIL ", after[] = " took too long\n";
	ssize_t ignored;

	/* In a handler only write() may be used. */
	(void)signal;
	ignored = write(STDOUT_FILENO, before, sizeof before - 1);
	ignored = write(STDOUT_FILENO, step, strlen(step));
	ignored = write(STDOUT_FILENO, after, sizeof after - 1);
	(void)ignored;
	_exit(1);
}

int main(int count, char **arguments)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (count < 5 || (strcmp(arguments[1], "client") && strcmp(arguments[1], "server")))
		fail("usage: peer client|server ADDRESS PORT STEP…");
	client = !strcmp(arguments[1], "client");
	signal(SIGALRM, out_of_time);
	alarm(SECONDS);
	start(arguments[2], arguments[3]);
	for (int i = 4; i < count; i++)
		run(arguments[i]);
	printf("PEER PASS\n");
	return 0;
}
