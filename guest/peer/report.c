/*
 * Reports to the console.
 */
#include "peer.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Noreturn void fail(const char *format, ...)
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
void check(bool good, const char *call)
{
	if (!good)
		fail("%s: %s", call, strerror(errno));
}

void saw(const char *format, ...)
{
	va_list arguments;

	printf("PEER saw ");
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n");
}

void begin(const char *name)
{
	step = name;
	alarm(SECONDS);
}

void ok(void)
{
	printf("PEER ok %s\n", step);
}
